"""Read objects from git's packs, deltas and all, staying inside the files for any bytes.

We read packs ourselves because damage must be *reported*: libgit2 1.9 ends the process on a flipped byte in a pack or
its index, and spins for ever on some truncated files. Here every offset is held against the file, every inflation
against the size that was announced, and the caller hashes what comes out.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

from ropewalk.disk.durable import open_file
from ropewalk.errors import DigestMismatch, TooLarge
from ropewalk.gitlog.store.pack_index import INDEX_HEAD_BYTES, OFFSET_31_BITS, index_fits
from ropewalk.gitlog.store.pack_writer import KIND_NUMBERS, Kind

OBJECT_BYTES_MAX = 256 << 20  # inflated; far above anything a log holds
CHAIN_MAX = 4_096  # deltas on deltas, as git allows at most
READ_BYTES = 4_096  # one read holds nearly every packed event
CACHE_BYTES_MAX = 16 << 20  # resolved delta bases, shared by all packs
OPEN_PACKS_MAX = 256
SETTLED_NS = 2_000_000_000  # coarser than the time stamps of any file system we serve
KINDS: dict[int, Kind] = {number: kind for kind, number in KIND_NUMBERS.items()}
OFS_DELTA, REF_DELTA = 6, 7

_Base = tuple[int, bytes]  # kind number, bytes


class PackFolder:
    """The packs of one `objects/pack` folder, found again when they change."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._packs: OrderedDict[str, _Pack] = OrderedDict()
        self._signature: tuple[int, ...] = ()
        self._guard = threading.Lock()
        self._bases = _Bases()
        self._recent: _Pack | None = None

    def close(self) -> None:
        """Release the open files; the next read opens them again."""
        with self._guard:
            self._packs.clear()
            self._signature, self._recent = (), None

    def refresh(self) -> bool:
        """Look at the folder again; whether anything changed."""
        with self._guard:
            try:
                stat = self._folder.stat()
                signature: tuple[int, ...] = (stat.st_mtime_ns, stat.st_ino)
                if signature == self._signature:
                    return False
                present = {path.name for path in self._folder.glob("pack-*.idx")}
            except OSError:
                present, signature = set(), ()
            for name in [name for name in self._packs if name not in present]:
                del self._packs[name]
            for name in sorted(present - set(self._packs)):
                self._packs[name] = _Pack(self._folder / name)
                self._packs.move_to_end(name, last=False)
            # A folder that changed a moment ago may change again without a new time: look again next time.
            settled = signature and time.time_ns() - signature[0] > SETTLED_NS
            self._signature = signature if settled else ()
            return True

    def resolve(self, prefix: str) -> list[str]:
        """Return the ids that begin with some hex digits, at most two of them."""
        found: set[str] = set()
        for pack in list(self._packs.values()):
            found.update(pack.beginning_with(prefix))
        return sorted(found)[:2]

    def read(self, oid: str) -> tuple[Kind, bytes] | None:
        """Return an object, None if no pack here has it. Its bytes are not hashed yet."""
        place = self._find(bytes.fromhex(oid))
        if place is None:
            return None
        number, raw = self._resolve(*place)
        return KINDS[number], raw

    def read_many(self, ids: bytes) -> list[tuple[Kind, bytes] | None]:
        """Return objects by their 20-byte ids, hashed; None for those that only `read` can bring or explain."""
        found: list[tuple[Kind, bytes] | None] = []
        self.refresh()
        while 20 * len(found) < len(ids):
            at = 20 * len(found)
            place = self._find(ids[at : at + 20])
            some = place[0].unpack(ids[at:]) if place is not None else []
            found += some or [None]
        return found

    def _find(self, oid: bytes) -> tuple[_Pack, int] | None:
        # The pack that had the last object most likely has the next one.
        recent = self._recent
        if recent is not None and (offset := recent.offset_of(oid)) is not None:
            return recent, offset
        for name, pack in list(self._packs.items()):
            offset = pack.offset_of(oid)
            if offset is not None:
                with self._guard, contextlib.suppress(KeyError):
                    self._packs.move_to_end(name, last=False)
                    self._close_oldest()
                    self._recent = pack
                return pack, offset
        return None

    def _close_oldest(self) -> None:
        """Close the least recently used packs; a reader of one keeps it open until it is done."""
        for name in list(self._packs)[OPEN_PACKS_MAX:]:
            if self._packs[name].is_open:
                self._packs[name] = _Pack(self._folder / name)

    def _resolve(self, pack: _Pack, offset: int) -> _Base:
        """Return an entry with its deltas applied: down to the base, then up again."""
        deltas: list[tuple[_Pack, int, bytes]] = []
        while True:
            known = self._bases.get((pack.name, offset))
            if known is not None:
                break
            number, raw, base = pack.entry(offset)
            if number in KINDS:
                known = number, raw
                break
            if len(deltas) >= CHAIN_MAX:
                raise pack.damage("its deltas go round in a circle")
            deltas.append((pack, offset, raw))
            if isinstance(base, int):
                offset = base
            else:
                found = self._find(base)
                if found is None:
                    raise pack.damage(f"the base {base.hex()} of a delta is missing")
                pack, offset = found
        if deltas:
            self._bases.put((pack.name, offset), known)
        for at, where, delta in reversed(deltas):
            known = known[0], _patched(known[1], delta, at)
            self._bases.put((at.name, where), known)
        return known


class _Bases:
    """Objects other objects are deltas of, the most recent ones."""

    def __init__(self) -> None:
        self._held: OrderedDict[tuple[str, int], _Base] = OrderedDict()
        self._size = 0
        self._guard = threading.Lock()

    def get(self, key: tuple[str, int]) -> _Base | None:
        return self._held.get(key)

    def put(self, key: tuple[str, int], base: _Base) -> None:
        with self._guard:
            if key in self._held or len(base[1]) > CACHE_BYTES_MAX // 4:
                return
            self._held[key] = base
            self._size += len(base[1]) + 200
            while self._size > CACHE_BYTES_MAX:
                _, gone = self._held.popitem(last=False)
                self._size -= len(gone[1]) + 200


class _Pack:
    """One pack and its index, opened on first use."""

    def __init__(self, index: Path) -> None:
        self.path = index.with_suffix(".pack")
        self.name = self.path.name
        self._index: mmap.mmap | None = None
        self._count = 0
        self._fanout: tuple[int, ...] = ()
        self._descriptor = -1
        self._size = 0
        self._guard = threading.Lock()

    def __del__(self) -> None:
        # Only here, when no reader holds the pack: closing it earlier would give its number to another file.
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)

    @property
    def is_open(self) -> bool:
        """Whether it holds files."""
        return self._index is not None

    def damage(self, reason: str) -> DigestMismatch:
        return DigestMismatch(
            f"{self.path.name} is damaged: {reason}",
            where=str(self.path),
            advice="Fetch the log again from another clone; a damaged index alone is rebuilt by `git index-pack`.",
        )

    def offset_of(self, oid: bytes) -> int | None:
        """Return where an object lies in the pack, None if it is not in it."""
        index = self._index or self._open()
        if index is None:
            return None
        first = oid[0]
        low, high = (self._fanout[first - 1] if first else 0), self._fanout[first]
        # Ids are spread evenly: the first look goes to where this one should stand, and lands close to it.
        middle = low + ((high - low) * (oid[1] << 8 | oid[2]) >> 16)
        reach = 2
        while low < high:
            at = INDEX_HEAD_BYTES + 20 * middle
            here = index[at : at + 20]
            if here == oid:
                return self._offset(index, middle)
            if here < oid:
                low = middle + 1
                middle = min(middle + reach, (low + high) >> 1) if reach < 64 else (low + high) >> 1
            else:
                high = middle
                middle = max(middle - reach, (low + high) >> 1) if reach < 64 else (low + high) >> 1
            reach <<= 2
        return None

    def unpack(self, ids: bytes) -> list[tuple[Kind, bytes] | None]:
        """Return plainly stored objects, by a compiled loop; up to the first that is not in this pack."""
        from ropewalk.native.unpack import unpack

        index = self._index or self._open()
        return [] if index is None else unpack(index, self._descriptor, self._size, ids)

    def beginning_with(self, prefix: str) -> Iterable[str]:
        index = self._index or self._open()
        if index is None:
            return
        floor = bytes.fromhex((prefix + "0" * 40)[:40])
        low, high = 0, self._count
        while low < high:
            middle = (low + high) >> 1
            at = INDEX_HEAD_BYTES + 20 * middle
            low, high = (middle + 1, high) if index[at : at + 20] < floor else (low, middle)
        for place in range(low, min(low + 2, self._count)):
            at = INDEX_HEAD_BYTES + 20 * place
            name = index[at : at + 20].hex()
            if name.startswith(prefix):
                yield name

    def entry(self, offset: int) -> tuple[int, bytes, int | bytes]:
        """Return an entry as packed: its kind, its inflated bytes, and for a delta where its base is."""
        chunk = self._at(offset, READ_BYTES)
        number, size, at = self._header(chunk)
        base: int | bytes = 0
        if number == OFS_DELTA:
            back, at = self._back(chunk, at)
            base = offset - back
            if not 0 < back < offset:
                raise self.damage("the base of a delta must lie in the pack")
        elif number == REF_DELTA:
            base = chunk[at : at + 20]
            at += 20
        elif number not in KINDS:
            raise self.damage(f"an entry has the unknown kind {number}")
        if size > OBJECT_BYTES_MAX:
            raise TooLarge(
                f"{self.path.name} holds an object of {size} bytes", size=size, limit=OBJECT_BYTES_MAX
            )
        return number, self._inflate(chunk[at:], offset + len(chunk), size), base

    def _inflate(self, chunk: bytes, following: int, size: int) -> bytes:
        inflate = zlib.decompressobj()
        try:
            raw = inflate.decompress(chunk, size + 1)
            if inflate.eof and len(raw) == size:
                return raw
            parts = [raw]
            while not inflate.eof and sum(map(len, parts)) <= size:
                more = inflate.unconsumed_tail or self._at(following, 1 << 16)
                if not inflate.unconsumed_tail:
                    following += len(more)
                if not more:
                    break
                parts.append(inflate.decompress(more, size + 1))
        except zlib.error as error:
            raise self.damage(str(error)) from error
        raw = b"".join(parts)
        if not inflate.eof or len(raw) != size:
            raise self.damage("an entry does not inflate to its size")
        return raw

    def _header(self, chunk: bytes) -> tuple[int, int, int]:
        if not chunk:
            raise self.damage("an entry lies behind its end")
        byte = chunk[0]
        number, size, shift, at = (byte >> 4) & 7, byte & 15, 4, 1
        while byte & 0x80:
            if at >= len(chunk) or shift > 60:
                raise self.damage("an entry has no end to its header")
            byte = chunk[at]
            size |= (byte & 0x7F) << shift
            shift += 7
            at += 1
        return number, size, at

    def _back(self, chunk: bytes, at: int) -> tuple[int, int]:
        """Return how far back a delta's base is, as git counts it."""
        byte = chunk[at] if at < len(chunk) else 0
        back = byte & 0x7F
        while byte & 0x80:
            at += 1
            if at >= len(chunk) or back > 1 << 56:
                raise self.damage("a delta has no end to its header")
            byte = chunk[at]
            back = ((back + 1) << 7) | (byte & 0x7F)
        return back, at + 1

    def _at(self, offset: int, length: int) -> bytes:
        end = self._size - 20
        if not 12 <= offset <= end:
            raise self.damage("an entry lies outside it")
        return os.pread(self._descriptor, min(length, end - offset), offset)

    def _offset(self, index: mmap.mmap, place: int) -> int:
        near_at = INDEX_HEAD_BYTES + 24 * self._count
        (offset,) = struct.unpack_from(">I", index, near_at + 4 * place)
        if offset & OFFSET_31_BITS:
            far_at = near_at + 4 * self._count + 8 * (offset & ~OFFSET_31_BITS)
            if far_at + 8 > len(index) - 40:
                raise self.damage("its index points outside itself")
            (offset,) = struct.unpack_from(">Q", index, far_at)
        return int(offset)

    def _open(self) -> mmap.mmap | None:
        with self._guard:  # two openers would leave a file open for good
            return self._index or self._opened()

    def _opened(self) -> mmap.mmap | None:
        try:
            with open_file(self.path) as pack:
                descriptor = os.dup(pack.fileno())
        except FileNotFoundError:
            return None  # being removed, or never completed
        try:
            with open_file(self.path.with_suffix(".idx")) as stream:
                head = stream.read(INDEX_HEAD_BYTES)
                if not index_fits(head, os.fstat(stream.fileno()).st_size):
                    raise self.damage("its index does not fit its own size")
                index = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
        except FileNotFoundError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        self._fanout = struct.unpack_from(">256I", head, 8)
        self._count, self._size = self._fanout[255], os.fstat(descriptor).st_size
        self._descriptor, self._index = descriptor, index
        return index


def _patched(base: bytes, delta: bytes, pack: _Pack) -> bytes:
    """Return a delta applied to its base: copies from the base, and new bytes."""
    try:
        source, at = _varint(delta, 0)
        target, at = _varint(delta, at)
        if source != len(base) or target > OBJECT_BYTES_MAX:
            raise pack.damage("a delta does not fit its base")
        parts: list[bytes] = []
        while at < len(delta):
            order = delta[at]
            at += 1
            if order & 0x80:
                start = length = 0
                for bit in range(4):
                    if order >> bit & 1:
                        start |= delta[at] << 8 * bit
                        at += 1
                for bit in range(3):
                    if order >> (4 + bit) & 1:
                        length |= delta[at] << 8 * bit
                        at += 1
                parts.append(base[start : start + (length or 0x10000)])
            else:
                parts.append(delta[at : at + order])
                at += order or len(delta) + 1  # a zero order means nothing: stop, the size below will not fit
    except IndexError as error:
        raise pack.damage("a delta ends in the middle") from error
    raw = b"".join(parts)
    if len(raw) != target:
        raise pack.damage("a delta does not give the size it announces")
    return raw


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[at]
        value |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if not byte & 0x80:
            return value, at
