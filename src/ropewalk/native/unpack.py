"""Read many objects of one pack in one call. Python reads what this leaves out, and every object the same way."""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import zlib
from array import array

from ropewalk.native.library import library
from ropewalk.native.object_batch import KINDS, Kind, address

WINDOW_BYTES = 1 << 20  # of the pack, read at a time
ROOM_BYTES = 8 << 20  # for the objects of one call; what does not fit is left out
PACKED = 8  # in a kind: the object is compressed


def unpack(index: mmap.mmap, pack: int, size: int, ids: bytes) -> list[tuple[Kind, bytes] | None]:
    """Return objects by name, hashed again, up to the first that this pack does not have.

    None stands for one that is a delta, large or damaged. `index` must be writable memory of this process.
    """
    loaded = library()
    assert loaded is not None
    wanted = len(ids) // 20
    window = bytearray(min(WINDOW_BYTES, max(size, 1)))
    out = bytearray(min(ROOM_BYTES, 4 * size + 64 * wanted + 1))
    ends, sizes, kinds = array("Q", bytes(8 * wanted)), array("Q", bytes(8 * wanted)), bytearray(wanted)
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
        address(sizes),
        address(kinds),
    )
    view, begin = memoryview(out), 0
    found: list[tuple[Kind, bytes] | None] = []
    for kind, size, end in zip(kinds[: max(done, 0)], sizes, ends, strict=False):
        if kind & PACKED:
            at = 20 * len(found)
            found.append(_inflated(KINDS[kind - PACKED - 1], view[begin:end], size, ids[at : at + 20]))
        else:
            found.append((KINDS[kind - 1], bytes(view[begin:end])) if kind else None)
        begin = end
    return found


def _inflated(kind: Kind, stream: memoryview, size: int, name: bytes) -> tuple[Kind, bytes] | None:
    """Return the object that begins a stream, None if it is not the one of this name and size."""
    inflate = zlib.decompressobj()
    try:
        raw = inflate.decompress(stream, size + 1)
    except zlib.error:
        return None
    named = hashlib.sha1(b"%s %d\x00" % (kind.encode(), size), usedforsecurity=False)
    named.update(raw)
    return (kind, raw) if inflate.eof and len(raw) == size and named.digest() == name else None
