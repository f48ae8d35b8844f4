"""Read many objects of one pack in one call. Python reads what this leaves out, and every object the same way."""

from __future__ import annotations

import ctypes
import mmap
from array import array

from ropewalk.native.library import library
from ropewalk.native.object_batch import KINDS, Kind, address

WINDOW_BYTES = 1 << 20  # of the pack, read at a time
ROOM_BYTES = 8 << 20  # for the objects of one call; what does not fit is left out


def unpack(index: mmap.mmap, pack: int, size: int, ids: bytes) -> list[tuple[Kind, bytes] | None]:
    """Return objects by name, hashed again, up to the first that this pack does not have.

    None stands for one that is compressed, a delta, large or damaged. `index` must be writable memory of this process.
    """
    loaded = library()
    assert loaded is not None
    wanted = len(ids) // 20
    window, out = bytearray(min(WINDOW_BYTES, max(size, 1))), bytearray(min(ROOM_BYTES, max(size, 1)))
    ends, kinds = array("Q", bytes(8 * wanted)), bytearray(wanted)
    done = loaded.ropewalk_unpack(
        ctypes.addressof(ctypes.c_char.from_buffer(index)),
        len(index),
        pack,
        size,
        ids,
        wanted,
        address(window),
        len(window),
        address(out),
        len(out),
        address(ends),
        address(kinds),
    )
    view, begin = memoryview(out), 0
    found: list[tuple[Kind, bytes] | None] = []
    for kind, end in zip(kinds[: max(done, 0)], ends, strict=False):
        found.append((KINDS[kind - 1], bytes(view[begin:end])) if kind else None)
        begin = end
    return found
