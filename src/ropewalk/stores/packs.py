"""Pack files and their indexes (git's version 2 of both), written and read without git.

We write no deltas: one event is a handful of small objects that share little, and plain entries let small packs be
joined by copying bytes. Everything here is computation; files are the business of `stores.git`.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from binascii import crc32
from collections.abc import Iterable
from functools import lru_cache
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import Literal, NamedTuple

from ropewalk.errors import DigestMismatch, Invalid
from ropewalk.stores.deflate import deflate

__all__ = [
    "INDEX_HEAD_BYTES",
    "KIND_NUMBERS",
    "Kind",
    "PackEntry",
    "build_index",
    "build_pack",
    "entry_kind",
    "index_fits",
    "object_id",
    "read_index",
]

Kind = Literal["blob", "tree", "commit", "tag"]
KIND_NUMBERS: dict[Kind, int] = {"commit": 1, "tree": 2, "blob": 3, "tag": 4}

PACK_HEADER = struct.Struct(">4sII")
IDX_MAGIC = b"\xfftOc\x00\x00\x00\x02"
STORED_MAX = 160  # bytes; trees this small are mostly object ids, which do not compress
OFFSET_31_BITS = 0x8000_0000
INDEX_HEAD_BYTES = len(IDX_MAGIC) + 1024


class PackEntry(NamedTuple):
    """Where one object lies in a pack; `crc` covers its packed bytes."""

    oid: bytes
    crc: int
    offset: int


def object_id(kind: Kind, raw: bytes) -> str:
    """The name git gives to an object.

    >>> object_id("blob", b"")
    'e69de29bb2d1d6434b8b29ae775ad8c2e48c5391'
    """
    return hashlib.sha1(b"%s %d\x00" % (kind.encode(), len(raw)) + raw, usedforsecurity=False).hexdigest()


def build_pack(objects: Iterable[tuple[str, Kind, bytes]]) -> tuple[str, bytes, bytes]:
    """A pack of `(id, kind, bytes)` triples: its checksum (which names it), its bytes, its index.

    >>> name, pack, index = build_pack([(object_id("blob", b"hello"), "blob", b"hello")])
    >>> pack[:4], len(read_index(index))
    (b'PACK', 1)
    """
    unique = {each[0]: each for each in objects}  # a pack names each object once
    parts = [_packed(kind, raw) for _, kind, raw in unique.values()]
    offsets = accumulate(map(len, parts), initial=PACK_HEADER.size)
    body = b"".join((PACK_HEADER.pack(b"PACK", 2, len(parts)), *parts))
    checksum = hashlib.sha1(body, usedforsecurity=False).digest()
    entries = zip(map(bytes.fromhex, unique), map(crc32, parts), offsets, strict=False)
    return checksum.hex(), body + checksum, build_index(entries, checksum)


def build_index(entries: Iterable[tuple[bytes, int, int]], checksum: bytes) -> bytes:
    """The index (version 2) of a pack whose trailing checksum is given; entries as in `PackEntry`, in any order."""
    ordered = sorted(entries, key=itemgetter(0))
    oids, crcs, offsets = zip(*ordered, strict=True) if ordered else ((), (), ())
    counts = [0] * 256
    for oid in oids:
        counts[oid[0]] += 1
    far = [offset for offset in offsets if offset >= OFFSET_31_BITS]
    places = iter(range(OFFSET_31_BITS, OFFSET_31_BITS + len(far)))
    near = [offset if offset < OFFSET_31_BITS else next(places) for offset in offsets] if far else offsets
    body = b"".join(
        (
            IDX_MAGIC,
            struct.pack(">256I", *accumulate(counts)),
            *oids,
            struct.pack(f">{len(oids)}I", *crcs),
            struct.pack(f">{len(oids)}I", *near),
            struct.pack(f">{len(far)}Q", *far),
            checksum,
        )
    )
    return body + hashlib.sha1(body, usedforsecurity=False).digest()


def read_index(raw: bytes) -> list[PackEntry]:
    """What an index says, in order of object id; its own checksum is checked first."""
    if len(raw) < len(IDX_MAGIC) + 1024 + 40 or not raw.startswith(IDX_MAGIC):
        raise Invalid("not a pack index of version 2")
    if hashlib.sha1(raw[:-20], usedforsecurity=False).digest() != raw[-20:]:
        raise DigestMismatch("the checksum of a pack index does not hold", where="pack index")
    (count,) = struct.unpack_from(">I", raw, len(IDX_MAGIC) + 255 * 4)
    oids_at = len(IDX_MAGIC) + 1024
    crcs_at = oids_at + 20 * count
    near_at = crcs_at + 4 * count
    far_at = near_at + 4 * count
    crcs = struct.unpack_from(f">{count}I", raw, crcs_at)
    entries = []
    for position, offset in enumerate(struct.unpack_from(f">{count}I", raw, near_at)):
        if offset & OFFSET_31_BITS:
            (offset,) = struct.unpack_from(">Q", raw, far_at + 8 * (offset & ~OFFSET_31_BITS))
        at = oids_at + 20 * position
        entries.append(PackEntry(raw[at : at + 20], crcs[position], offset))
    return entries


def index_fits(head: bytes, size: int) -> bool:
    """Whether the first bytes of an index and its size fit together, so that a reader stays inside the file.

    >>> _, _, index = build_pack([(object_id("blob", b"hello"), "blob", b"hello")])
    >>> index_fits(index[:INDEX_HEAD_BYTES], len(index)), index_fits(index[:INDEX_HEAD_BYTES], len(index) - 1)
    (True, False)
    """
    if len(head) != INDEX_HEAD_BYTES or not head.startswith(IDX_MAGIC):
        return False
    fanout = struct.unpack_from(">256I", head, len(IDX_MAGIC))
    least = INDEX_HEAD_BYTES + fanout[255] * 28 + 40
    rising = all(low <= high for low, high in pairwise(fanout))
    return rising and least <= size <= least + 8 * fanout[255] and (size - least) % 8 == 0


def entry_kind(first_byte: int) -> int:
    """The kind number in the first byte of a packed entry; 6 and 7 are deltas."""
    return (first_byte >> 4) & 7


def _packed(kind: Kind, raw: bytes) -> bytes:
    """An object as it stands in a pack."""
    size = len(raw)
    if kind == "tree" and size <= STORED_MAX:
        return _stored_tree_head(size) + raw + zlib.adler32(raw).to_bytes(4, "big")
    return _entry_header(KIND_NUMBERS[kind], size) + deflate(raw)


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
