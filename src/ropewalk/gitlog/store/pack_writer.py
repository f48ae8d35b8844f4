"""Build pack files (git's version 2) without git; `pack_index` builds their indexes.

Packs hold no deltas, so that `rollup` can join them object by object. Appends store objects uncompressed; `rollup`
compresses them. A pack too large for `rollup` is compressed at once. `object_store` writes the files.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Literal

from ropewalk.gitlog.store.deflate import crc32, deflate, is_stored, store
from ropewalk.gitlog.store.pack_index import build_index, seal_index
from ropewalk.native import is_here

Kind = Literal["blob", "tree", "commit", "tag"]
KIND_NUMBERS: dict[Kind, int] = {"commit": 1, "tree": 2, "blob": 3, "tag": 4}

PACK_HEADER = struct.Struct(">4sII")
COMPILED_MIN = 64  # objects; fewer are packed sooner than the loops are loaded
STORED_OBJECTS_MAX = 60_000  # larger packs are not rolled up, so they are compressed when they are written
STORED_TREE_MAX = 160  # bytes; trees this small are mostly object ids, which do not compress


def build_pack(objects: Sequence[tuple[str, Kind, bytes]]) -> tuple[str, bytes | bytearray, bytes]:
    """Build a pack of `(id, kind, bytes)` triples; return its checksum (which names it), its bytes and its index.

    >>> name, pack, index = build_pack([("b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0", "blob", b"hello")])
    >>> pack[:4], index[:4]
    (b'PACK', b'\\xfftOc')
    """
    if COMPILED_MIN <= len(objects) <= STORED_OBJECTS_MAX and is_here():
        built = _build_compiled(objects)
        if built is not None:
            return built
    listed = list(objects)
    oids = [oid for oid, _, _ in listed]
    if len(set(oids)) < len(oids):  # a pack names each object once
        listed = list({each[0]: each for each in listed}.values())
        oids = [oid for oid, _, _ in listed]
    to_stream = store if len(listed) <= STORED_OBJECTS_MAX else deflate
    parts = [_entry_header(KIND_NUMBERS[kind], len(raw)) + to_stream(raw) for _, kind, raw in listed]
    offsets = accumulate(map(len, parts), initial=PACK_HEADER.size)
    body = b"".join((PACK_HEADER.pack(b"PACK", 2, len(parts)), *parts))
    checksum = hashlib.sha1(body, usedforsecurity=False).digest()
    entries = zip(map(bytes.fromhex, oids), map(crc32, parts), offsets, strict=False)
    return checksum.hex(), body + checksum, build_index(entries, checksum)


def _build_compiled(objects: Sequence[tuple[str, Kind, bytes]]) -> tuple[str, bytearray, bytes] | None:
    """Do the same by compiled loops; return None if an object comes twice or memory is short."""
    from ropewalk.native.object_batch import ObjectBatch

    batch = objects if isinstance(objects, ObjectBatch) else ObjectBatch(objects)
    packed = batch.pack(PACK_HEADER.pack(b"PACK", 2, len(batch)))
    if packed is None:
        return None
    pack, begins, crcs = packed
    columns = batch.columns(begins, crcs)
    ids = batch.ids() if columns is None else []
    if len(set(ids)) < len(ids):
        return None
    checksum = hashlib.sha1(pack, usedforsecurity=False).digest()
    pack += checksum
    if columns is None:  # a pack of gigabytes: made twice, it would not fit in memory
        return checksum.hex(), pack, build_index(zip(ids, crcs, begins, strict=True), checksum)
    return checksum.hex(), pack, seal_index(columns, checksum)


def entry_kind(first_byte: int) -> int:
    """Return the kind number in the first byte of a packed entry; 6 and 7 are deltas."""
    return (first_byte >> 4) & 7


def compressed_entry(packed: bytes) -> bytes:
    """Return a packed entry with its object compressed, or as it is where that saves nothing or is not ours to do."""
    if len(packed) <= STORED_TREE_MAX and entry_kind(packed[0]) == KIND_NUMBERS["tree"]:
        return packed
    start = 1
    while start < len(packed) and packed[start - 1] & 0x80:
        start += 1
    if not is_stored(packed[start : start + 3]):
        return packed
    inflater = zlib.decompressobj()
    try:
        raw = inflater.decompress(packed[start:], len(packed))
    except zlib.error:  # a foreign writer's damage: reading the object reports it
        return packed
    stream = deflate(raw)
    # The stored entry is removed after this, so the compressed one is read again before it counts.
    if not inflater.eof or start + len(stream) >= len(packed) or zlib.decompress(stream) != raw:
        return packed
    return packed[:start] + stream


@lru_cache(maxsize=4_096)
def _entry_header(kind: int, size: int) -> bytes:
    byte = (kind << 4) | (size & 15)
    size >>= 4
    header = bytearray()
    while size:
        header.append(byte | 0x80)
        byte = size & 0x7F
        size >>= 7
    header.append(byte)
    return bytes(header)
