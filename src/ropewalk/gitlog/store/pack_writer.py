"""Pack files (git's version 2), written without git; their indexes are in `stores.packindex`.

We write no deltas: one event is a handful of small objects that share little, and plain entries let small packs be
joined by copying bytes. Everything here is computation; files are the business of `stores.git`.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Literal

from ropewalk.gitlog.store.deflate import adler32, crc32, deflate, deflate_quickly
from ropewalk.gitlog.store.pack_index import build_index, seal_index
from ropewalk.native import is_here

Kind = Literal["blob", "tree", "commit", "tag"]
KIND_NUMBERS: dict[Kind, int] = {"commit": 1, "tree": 2, "blob": 3, "tag": 4}

PACK_HEADER = struct.Struct(">4sII")
COMPILED_MIN = 64  # objects; fewer are packed sooner than the loops are loaded
STORED_MAX = 160  # bytes; trees this small are mostly object ids, which do not compress


def object_id(kind: Kind, raw: bytes) -> str:
    """The name git gives to an object.

    >>> object_id("blob", b"")
    'e69de29bb2d1d6434b8b29ae775ad8c2e48c5391'
    """
    return hashlib.sha1(b"%s %d\x00" % (kind.encode(), len(raw)) + raw, usedforsecurity=False).hexdigest()


def build_pack(objects: Sequence[tuple[str, Kind, bytes]]) -> tuple[str, bytes | bytearray, bytes]:
    """A pack of `(id, kind, bytes)` triples: its checksum (which names it), its bytes, its index.

    >>> name, pack, index = build_pack([(object_id("blob", b"hello"), "blob", b"hello")])
    >>> pack[:4], index[:4]
    (b'PACK', b'\\xfftOc')
    """
    if len(objects) >= COMPILED_MIN and is_here():
        built = _build_compiled(objects)
        if built is not None:
            return built
    listed = list(objects)
    oids = [oid for oid, _, _ in listed]
    if len(set(oids)) < len(oids):  # a pack names each object once
        listed = list({each[0]: each for each in listed}.values())
        oids = [oid for oid, _, _ in listed]
    parts = [
        # Two objects in three are trees of forty bytes: calling anything for them costs more than the bytes.
        _stored_tree_head(len(raw)) + raw + adler32(raw).to_bytes(4, "big")
        if kind == "tree" and len(raw) <= STORED_MAX
        else _packed(kind, raw)
        for _, kind, raw in listed
    ]
    offsets = accumulate(map(len, parts), initial=PACK_HEADER.size)
    body = b"".join((PACK_HEADER.pack(b"PACK", 2, len(parts)), *parts))
    checksum = hashlib.sha1(body, usedforsecurity=False).digest()
    entries = zip(map(bytes.fromhex, oids), map(crc32, parts), offsets, strict=False)
    return checksum.hex(), body + checksum, build_index(entries, checksum)


def _build_compiled(objects: Sequence[tuple[str, Kind, bytes]]) -> tuple[str, bytearray, bytes] | None:
    """The same by compiled loops; None for what is left to Python: an object that comes twice, and whatever the loops
    themselves could not read again.
    """
    from ropewalk.native.object_batch import ObjectBatch

    bale = objects if isinstance(objects, ObjectBatch) else ObjectBatch(objects)
    packed = bale.pack(PACK_HEADER.pack(b"PACK", 2, len(bale)))
    if packed is None:
        return None
    pack, begins, crcs = packed
    columns = bale.columns(begins, crcs)
    ids = bale.ids() if columns is None else []
    if len(set(ids)) < len(ids):
        return None
    checksum = hashlib.sha1(pack, usedforsecurity=False).digest()
    pack += checksum
    if columns is None:  # a pack of gigabytes: made twice, it would not fit in memory
        return checksum.hex(), pack, build_index(zip(ids, crcs, begins, strict=True), checksum)
    return checksum.hex(), pack, seal_index(columns, checksum)


def entry_kind(first_byte: int) -> int:
    """The kind number in the first byte of a packed entry; 6 and 7 are deltas."""
    return (first_byte >> 4) & 7


def _packed(kind: Kind, raw: bytes) -> bytes:
    """An object as it stands in a pack, deflated."""
    # `git gc` keeps commits as differences from one another, so what it makes of them does not depend on us.
    packer = deflate_quickly if kind == "commit" else deflate
    return _entry_header(KIND_NUMBERS[kind], len(raw)) + packer(raw)


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


@lru_cache(maxsize=STORED_MAX + 1)
def _stored_tree_head(size: int) -> bytes:
    """What stands before a small tree: its header, and one stored block announced by hand.

    Calling zlib for forty bytes costs more than the bytes.
    """
    return (
        _entry_header(KIND_NUMBERS["tree"], size) + b"\x78\x01\x01" + struct.pack("<HH", size, size ^ 0xFFFF)
    )
