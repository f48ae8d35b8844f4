"""Which lines are surely canonical JSON, and which envelopes surely fit a template. Python decides about the others."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from itertools import accumulate

from ropewalk.native.library import library
from ropewalk.native.object_batch import address

SIG_BYTES = 64


def canonical_lines(text: bytes, most: int) -> bytes | None:
    """Return for each line, all end in a newline, 1 if it is surely a canonical object; None if there are too many."""
    loaded = library()
    assert loaded is not None
    out = bytearray(most)
    found = loaded.ropewalk_canonical_lines(text, len(text), most, address(out))
    return None if found < 0 else bytes(out[:found])


class Templates:
    """Templates of envelopes, each three parts, packed for the loop."""

    def __init__(self, parts: Sequence[tuple[bytes, bytes, bytes]]) -> None:
        pieces = [piece for each in parts for piece in each]
        self._raw, self._ends, self._count = (
            b"".join(pieces),
            array("Q", accumulate(map(len, pieces))),
            len(parts),
        )

    def cast(self, lines: Sequence[bytes]) -> tuple[list[int], bytes] | None:
        """Return three numbers for each line, and decoded signatures: the template or -1, where the payload ends, and
        whether its hash was compared.
        """
        loaded = library()
        assert loaded is not None
        ends = array("Q", accumulate(map(len, lines)))
        out, sigs = (ctypes.c_int32 * (3 * len(lines)))(), bytearray(SIG_BYTES * len(lines))
        failed = loaded.ropewalk_cast(
            b"".join(lines),
            address(ends),
            len(lines),
            self._raw,
            address(self._ends),
            self._count,
            ctypes.addressof(out),
            address(sigs),
        )
        return None if failed else (list(out), bytes(sigs))
