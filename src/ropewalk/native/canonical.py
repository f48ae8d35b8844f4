"""Which lines are surely canonical JSON, which envelopes surely fit a template, and which signatures surely hold.

Python decides about the others.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from ropewalk.native.library import library
from ropewalk.native.object_batch import address

HASH_BYTES = KEY_BYTES = 32
_VARIABLE_BYTES = 64 + 64 + 30  # a signature, a hash in hex and a time


def canonical_lines(text: bytes, most: int) -> bytes | None:
    """Return for each line, all end in a newline, 1 if it is surely a canonical object; None if there are too many."""
    loaded = library()
    assert loaded is not None
    out = bytearray(most)
    found = loaded.ropewalk_canonical_lines(text, len(text), most, address(out))
    return None if found < 0 else bytes(out[:found])


class Cast(NamedTuple):
    """What the loop found of each line: its template or -1, where the payload ends, what was hashed; the signature with
    what it signs and where these end; and the hash of what is signed.
    """

    templates: list[int]
    stops: list[int]
    hashed: list[int]
    signed: bytes
    ends: array[int]
    intents: bytes


class Templates:
    """Templates of envelopes, packed for the loop: three parts around the payload, three of what the author signs, and
    whether the hash comes before the time there.
    """

    def __init__(
        self,
        parts: Sequence[tuple[bytes, bytes, bytes]],
        signs: Sequence[tuple[bytes, bytes, bytes]],
        hash_first: Sequence[bool],
    ) -> None:
        self._parts, self._signs = _packed(parts), _packed(signs)
        self._hash_first, self._count = bytes(hash_first), len(parts)
        self._room = _VARIABLE_BYTES + max(sum(map(len, each)) for each in signs)

    def cast(self, lines: Sequence[bytes]) -> Cast | None:
        """Return what is sure about lines; None if the loop cannot tell."""
        loaded = library()
        assert loaded is not None
        count = len(lines)
        ends, out_ends = array("Q", accumulate(map(len, lines))), array("Q", bytes(8 * count))
        out, signed = (ctypes.c_int32 * (3 * count))(), bytearray(self._room * count)
        intents = bytearray(HASH_BYTES * count)
        failed = loaded.ropewalk_cast(
            b"".join(lines),
            address(ends),
            count,
            self._parts[0],
            address(self._parts[1]),
            self._signs[0],
            address(self._signs[1]),
            self._hash_first,
            self._count,
            ctypes.addressof(out),
            address(signed),
            len(signed),
            address(out_ends),
            address(intents),
        )
        if failed:
            return None
        numbers, used = list(out), bytes(memoryview(signed)[: out_ends[-1]])
        return Cast(numbers[::3], numbers[1::3], numbers[2::3], used, out_ends, bytes(intents))


def surely_signed(
    sign_open: int, signed: bytes, ends: Sequence[int], keys: bytes, key_of: Sequence[int], refused: bytes
) -> bytes | None:
    """Return for each message, a signature and what it signs, 1 if it surely holds under its Ed25519 key, else 0.

    `sign_open` is the address of libsodium's crypto_sign_open, `refused` are encodings that R must not have.
    """
    loaded = library()
    assert loaded is not None
    out, packed, numbers = bytearray(len(ends)), array("Q", ends), array("i", key_of)
    failed = loaded.ropewalk_signed(
        sign_open,
        signed,
        address(packed),
        len(ends),
        keys,
        len(keys) // KEY_BYTES,
        address(numbers),
        refused,
        len(refused) // KEY_BYTES,
        address(out),
    )
    return None if failed else bytes(out)


def _packed(parts: Sequence[tuple[bytes, bytes, bytes]]) -> tuple[bytes, array[int]]:
    pieces = [piece for each in parts for piece in each]
    return b"".join(pieces), array("Q", accumulate(map(len, pieces)))
