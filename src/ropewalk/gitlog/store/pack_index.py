"""Indexes of packs (git's version 2): which object lies where. Computation only, as in `stores.packs`.

A pack may hold millions of objects, so nothing here makes an object of ours for each of git's: an index that is read
stays as its bytes, one that grows keeps 32 bytes an entry.
"""

from __future__ import annotations

import hashlib
import struct
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from operator import attrgetter, itemgetter
from typing import Final, NamedTuple

from ropewalk.errors import DigestMismatch, Invalid

MAGIC: Final = b"\xfftOc\x00\x00\x00\x02"
FANOUT: Final = struct.Struct(">256I")
INDEX_HEAD_BYTES: Final = len(MAGIC) + FANOUT.size
INDEX_TAIL_BYTES: Final = 40  # the checksum of the pack, and that of the index
OFFSET_31_BITS: Final = 0x8000_0000
ROW: Final = struct.Struct(">20sIQ")


class PackEntry(NamedTuple):
    """Where one object lies in a pack; `crc` covers its packed bytes."""

    oid: bytes
    crc: int
    offset: int


def build_index(entries: Iterable[tuple[bytes, int, int]], checksum: bytes) -> bytes:
    """Return the index of a pack whose trailing checksum is given; entries as in `PackEntry`, in any order.

    >>> list(read_index(build_index([(b"b" * 20, 7, 99), (b"a" * 20, 8, 12)], bytes(20))))[0].offset
    12
    """
    ordered = sorted(entries, key=itemgetter(0))
    oids, crcs, offsets = zip(*ordered, strict=True) if ordered else ((), (), ())
    counts = [0] * 256
    for oid in oids:
        counts[oid[0]] += 1
    return _assembled(counts, b"".join(oids), crcs, offsets, checksum)


class GrowingIndex:
    """The index of a pack that is still being written.

    >>> growing = GrowingIndex()
    >>> growing.add(b"a" * 20, 8, 12)
    >>> growing.finish(bytes(20)) == build_index([(b"a" * 20, 8, 12)], bytes(20))
    True
    """

    def __init__(self) -> None:
        self._rows = [bytearray() for _ in range(256)]  # by the first byte of the id: sorted a few at a time

    def add(self, oid: bytes, crc: int, offset: int) -> None:
        """Note one object; each is noted once."""
        self._rows[oid[0]] += ROW.pack(oid, crc, offset)

    def __len__(self) -> int:
        return sum(map(len, self._rows)) // ROW.size

    def finish(self, checksum: bytes) -> bytes:
        """Return the whole index, for a pack whose trailing checksum is given."""
        oids, crcs, offsets = bytearray(), array("I"), array("Q")
        for rows in self._rows:
            for oid, crc, offset in sorted(ROW.iter_unpack(rows)):
                oids += oid
                crcs.append(crc)
                offsets.append(offset)
        counts = [len(rows) // ROW.size for rows in self._rows]
        return _assembled(counts, oids, crcs, offsets, checksum)


class PackIndex:
    """The entries of an index, in order of object id."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._fanout: tuple[int, ...] = FANOUT.unpack_from(raw, len(MAGIC))
        self._crcs_at = INDEX_HEAD_BYTES + 20 * len(self)
        self._near_at = self._crcs_at + 4 * len(self)
        self._far_at = self._near_at + 4 * len(self)

    @property
    def pack_checksum(self) -> bytes:
        """The checksum at the end of the pack this index was made for."""
        return self._raw[-40:-20]

    def __len__(self) -> int:
        return self._fanout[255]

    def __iter__(self) -> Iterator[PackEntry]:
        return map(self._entry, range(len(self)))

    def _entry(self, at: int) -> PackEntry:
        oid_at = INDEX_HEAD_BYTES + 20 * at
        (crc,) = struct.unpack_from(">I", self._raw, self._crcs_at + 4 * at)
        (offset,) = struct.unpack_from(">I", self._raw, self._near_at + 4 * at)
        if offset & OFFSET_31_BITS:
            far_at = self._far_at + 8 * (offset & ~OFFSET_31_BITS)
            if far_at + 8 > len(self._raw) - INDEX_TAIL_BYTES:
                raise Invalid("a pack index names an offset it does not hold")
            (offset,) = struct.unpack_from(">Q", self._raw, far_at)
        return PackEntry(self._raw[oid_at : oid_at + 20], crc, offset)

    def in_pack_order(self) -> list[PackEntry]:
        """Return the entries in the order of the pack."""
        return sorted(self, key=attrgetter("offset"))

    def oids_under(self, first: int) -> bytes:
        """Return the ids that begin with a byte, one behind the other."""
        start = self._fanout[first - 1] if first else 0
        return self._raw[INDEX_HEAD_BYTES + 20 * start : INDEX_HEAD_BYTES + 20 * self._fanout[first]]


def read_index(raw: bytes) -> PackIndex:
    """Parse an index after checking its checksum and its size."""
    if len(raw) < INDEX_HEAD_BYTES + INDEX_TAIL_BYTES or not raw.startswith(MAGIC):
        raise Invalid("not a pack index of version 2")
    if hashlib.sha1(memoryview(raw)[:-20], usedforsecurity=False).digest() != raw[-20:]:
        raise DigestMismatch("the checksum of a pack index does not hold", where="pack index")
    if not index_fits(raw[:INDEX_HEAD_BYTES], len(raw)):
        raise Invalid("the size of a pack index must match its object count")
    return PackIndex(raw)


def index_fits(head: bytes, size: int) -> bool:
    """Return whether the first bytes of an index and its size fit together, so that a reader stays inside the file.

    >>> index = build_index([(b"a" * 20, 0, 12)], bytes(20))
    >>> index_fits(index[:INDEX_HEAD_BYTES], len(index)), index_fits(index[:INDEX_HEAD_BYTES], len(index) - 1)
    (True, False)
    """
    if len(head) != INDEX_HEAD_BYTES or not head.startswith(MAGIC):
        return False
    fanout = FANOUT.unpack_from(head, len(MAGIC))
    least = INDEX_HEAD_BYTES + fanout[255] * 28 + INDEX_TAIL_BYTES
    rising = all(low <= high for low, high in pairwise(fanout))
    return rising and least <= size <= least + 8 * fanout[255] and (size - least) % 8 == 0


def _assembled(
    counts: Sequence[int],
    oids: bytes | bytearray,
    crcs: Iterable[int],
    offsets: Sequence[int],
    checksum: bytes,
) -> bytes:
    near, far = offsets, [offset for offset in offsets if offset >= OFFSET_31_BITS]
    if far:
        places = iter(range(OFFSET_31_BITS, OFFSET_31_BITS + len(far)))
        near = [offset if offset < OFFSET_31_BITS else next(places) for offset in offsets]
    return seal_index(
        b"".join(
            (
                FANOUT.pack(*accumulate(counts)),
                oids,
                _big_endian("I", crcs),
                _big_endian("I", near),
                _big_endian("Q", far),
            )
        ),
        checksum,
    )


def seal_index(columns: bytes, checksum: bytes) -> bytes:
    """Return an index of its columns: the fanout and what follows it, and the checksum of the pack they belong to."""
    body = MAGIC + columns + checksum
    return body + hashlib.sha1(body, usedforsecurity=False).digest()


def _big_endian(code: str, numbers: Iterable[int]) -> bytes:
    column = array(code, numbers)
    if sys.byteorder == "little":
        column.byteswap()
    return column.tobytes()
