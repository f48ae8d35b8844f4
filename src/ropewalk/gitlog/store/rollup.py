"""Roll many small packs into few larger ones, so that reading stays fast however small the appends were.

Appends store objects uncompressed; rolling up compresses them and copies the rest. A pack is removed only after a
larger one with all its objects is on disk; readers that had it open keep it, the others look again. Some packs are left
alone: kept ones, ones with deltas or bitmaps, promisor and cruft packs, and those a multi-pack-index names.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import mmap
import os
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from ropewalk.disk.durable import Disk, open_file, read_file, unavailable
from ropewalk.errors import RopewalkError
from ropewalk.gitlog.store.deflate import crc32
from ropewalk.gitlog.store.object_store import KEEP_MARK, in_flight_mark
from ropewalk.gitlog.store.pack_index import GrowingIndex, PackEntry, PackIndex, read_index
from ropewalk.gitlog.store.pack_writer import PACK_HEADER, STORED_OBJECTS_MAX, compressed_entry, entry_kind

PACKS_SMALL_MAX = 48  # more packs than this and a roll-up is worth its while
# Bounds the time and memory of one roll-up; larger packs are left to `git gc`.
PACK_OBJECTS_MAX = 2 * STORED_OBJECTS_MAX
PACK_TAIL_BYTES = 20  # its checksum
WRITE_BYTES = 1 << 20  # written at a time
KIND_WHOLE_MAX = 4  # kinds above are deltas
GEOMETRIC_FACTOR = 2  # each pack holds at least twice what all smaller ones hold together
LEFTOVER_AGE_MIN_S = 3_600.0  # a temporary file this old has no living owner
UNTOUCHABLE = (".keep", ".bitmap", ".promisor", ".mtimes")


@dataclass(frozen=True, slots=True)
class _Pack:
    path: Path
    objects: int


def pack_count(folder: Path) -> int:
    """Return how many packs a reader has to look through."""
    with os.scandir(folder) as entries:
        return sum(entry.name.endswith(".idx") and entry.name.startswith("pack-") for entry in entries)


def roll_up(folder: Path, locks: Path, disk: Disk, *, at_most: int = PACKS_SMALL_MAX) -> int:
    """Join small packs until sizes grow geometrically; return how many packs went away. One roller at a time."""
    locks.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(locks / "roll-up", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return 0
        sweep(folder, disk)
        gone = 0
        small = list(_candidates(folder))
        if len(small) <= at_most:
            return 0
        # A pack may hold only so much, so many packs become several, not one.
        while len(small) > at_most // 3 and len(chosen := _choose(small)) > 1:
            fewer = _join(folder, chosen, disk)
            if fewer <= 0:  # nothing to join, or the old packs cannot be removed
                break
            gone += fewer
            small = list(_candidates(folder))
        return gone
    finally:
        os.close(descriptor)


def sweep(folder: Path, disk: Disk) -> None:
    """Remove what killed writers left: our temporary files, and our `.keep` marks on packs that are complete."""
    for path in folder.glob("pack-*.keep"):
        with contextlib.suppress(OSError, RopewalkError):
            if not _held(read_file(path).decode("utf-8", "replace"), path):
                disk.unlink(path)
    for path in folder.glob(".ropewalk-*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > LEFTOVER_AGE_MIN_S:
                disk.unlink(path)


def _held(mark: str, path: Path) -> bool:
    """Tell whether a `.keep` has an owner: a person or a living writer."""
    words = mark.split()
    if " ".join(words[:3]) != KEEP_MARK or len(words) != 5 or not words[3].isdigit():
        return bool(mark) or time.time() - path.stat().st_mtime < LEFTOVER_AGE_MIN_S
    if words[4] != socket.gethostname():
        return time.time() - path.stat().st_mtime < LEFTOVER_AGE_MIN_S * 24
    with contextlib.suppress(PermissionError):
        try:
            os.kill(int(words[3]), 0)
        except ProcessLookupError:
            return False
    return True


def _candidates(folder: Path) -> Iterator[_Pack]:
    named = b""
    with contextlib.suppress(FileNotFoundError):
        named = read_file(folder / "multi-pack-index")
    for index in sorted(folder.glob("pack-*.idx")):
        pack = index.with_suffix(".pack")
        if any(index.with_suffix(suffix).exists() for suffix in UNTOUCHABLE) or index.name.encode() in named:
            continue
        with contextlib.suppress(OSError, RopewalkError, struct.error), open_file(index) as stream:
            header = stream.read(8 + 1024)
            (objects,) = struct.unpack_from(">I", header, 8 + 255 * 4)
            if objects <= STORED_OBJECTS_MAX and pack.exists():
                yield _Pack(pack, objects)


def _choose(packs: list[_Pack]) -> list[_Pack]:
    """Return the smallest packs, up to the first that is large compared with their sum."""
    chosen: list[_Pack] = []
    total = 0
    for pack in sorted(packs, key=lambda pack: pack.objects):
        if chosen and (
            (pack.objects >= GEOMETRIC_FACTOR * total and len(chosen) > 8)
            or total + pack.objects > PACK_OBJECTS_MAX
        ):
            break
        chosen.append(pack)
        total += pack.objects
    return chosen


def _join(folder: Path, packs: list[_Pack], disk: Disk) -> int:
    """Write one pack with the objects of all, then remove them; return how many packs fewer there are."""
    temporary = folder / f".ropewalk-{os.getpid()}-rollup.new-pack"
    try:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444)
        try:
            disk.write(descriptor, PACK_HEADER.pack(b"PACK", 2, 0))
            growing = _GrowingPack(descriptor, disk, _doubled(packs))
            joined = [pack for pack in packs if growing.take(pack.path)]
            checksum = _seal(descriptor, len(growing.index), disk)
        finally:
            os.close(descriptor)
        if len(joined) < 2:
            disk.unlink(temporary)
            return 0
        _publish(folder, temporary, growing.index.finish(checksum), checksum, disk)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise unavailable(error, "rolling up packs") from error
    target = folder / f"pack-{checksum.hex()}.pack"
    removed = sum(_remove(pack.path, disk) for pack in joined if pack.path != target)
    return removed - (target not in {pack.path for pack in joined})


class _GrowingPack:
    """The pack that the objects of other packs are added to, each once."""

    def __init__(self, descriptor: int, disk: Disk, doubled: set[bytes]) -> None:
        self.index = GrowingIndex()
        self._descriptor = descriptor
        self._disk = disk
        self._doubled = doubled  # of these we must remember which are here already
        self._here: set[bytes] = set()
        self._end = PACK_HEADER.size

    def take(self, path: Path) -> bool:
        """Add a pack's objects; return False, with none added, if it is gone, damaged or has deltas."""
        try:
            listed = read_index(read_file(path.with_suffix(".idx")))
            with open_file(path) as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as raw:
                extents = _extents(listed, len(raw))
                if not _holds_whole_objects(extents, raw):
                    return False
                self._copy(extents, raw)
                return True
        except (FileNotFoundError, PermissionError, ValueError, RopewalkError):  # ValueError: an empty file
            return False

    def _copy(self, extents: list[tuple[PackEntry, int]], raw: mmap.mmap) -> None:
        waiting = bytearray()
        for entry, end in extents:
            if entry.oid in self._here:
                continue
            if entry.oid in self._doubled:
                self._here.add(entry.oid)
            before = raw[entry.offset : end]
            packed = compressed_entry(before)
            crc = entry.crc if packed is before else crc32(packed)
            self.index.add(entry.oid, crc, self._end + len(waiting))
            waiting += packed
            if len(waiting) >= WRITE_BYTES:
                self._write(waiting)
                waiting = bytearray()
        self._write(waiting)

    def _write(self, raw: bytearray) -> None:
        self._disk.write(self._descriptor, raw)
        self._end += len(raw)


def _extents(listed: PackIndex, size: int) -> list[tuple[PackEntry, int]]:
    """Return every entry in the order of the pack, with where it ends."""
    entries = listed.in_pack_order()
    ends = [*(entry.offset for entry in entries[1:]), size - PACK_TAIL_BYTES]
    return list(zip(entries, ends, strict=False))


def _holds_whole_objects(extents: list[tuple[PackEntry, int]], raw: mmap.mmap) -> bool:
    """Tell whether every byte of a pack belongs to an object without a delta base and matches the index."""
    at = PACK_HEADER.size
    for entry, end in extents:
        packed = raw[entry.offset : end]
        if (
            entry.offset != at
            or not packed
            or entry_kind(packed[0]) > KIND_WHOLE_MAX
            or crc32(packed) != entry.crc
        ):
            return False
        at = end
    return at == len(raw) - PACK_TAIL_BYTES


def _doubled(packs: list[_Pack]) -> set[bytes]:
    """Return the objects that stand in more than one pack: few, if any."""
    oids = [bytearray() for _ in range(256)]
    for pack in packs:
        with contextlib.suppress(OSError, RopewalkError):
            listed = read_index(read_file(pack.path.with_suffix(".idx")))
            for first in range(256):
                oids[first] += listed.oids_under(first)
    doubled: set[bytes] = set()
    for under in oids:
        ordered = sorted(bytes(under[at : at + 20]) for at in range(0, len(under), 20))
        doubled.update(low for low, high in pairwise(ordered) if low == high)
    return doubled


def _seal(descriptor: int, count: int, disk: Disk) -> bytes:
    """Write the true count into the header and the checksum behind everything, then sync."""
    os.pwrite(descriptor, PACK_HEADER.pack(b"PACK", 2, count), 0)
    digest = hashlib.sha1(usedforsecurity=False)
    os.lseek(descriptor, 0, os.SEEK_SET)
    while chunk := os.read(descriptor, 1 << 20):
        digest.update(chunk)
    disk.write(descriptor, digest.digest())
    disk.fsync(descriptor)
    return digest.digest()


def _publish(folder: Path, temporary: Path, index_bytes: bytes, checksum: bytes, disk: Disk) -> None:
    target = folder / f"pack-{checksum.hex()}.pack"
    index = temporary.with_suffix(".new-idx")  # git takes every `.idx` for one that is complete
    with contextlib.suppress(FileNotFoundError):
        index.unlink()
    disk.write_new(index, index_bytes)
    # Kept until it is complete: a repack that starts now must not count on packs we are about to remove.
    keep = target.with_suffix(".keep")
    is_ours = True
    try:
        disk.touch_new(keep, in_flight_mark())
    except FileExistsError:
        is_ours = False
    try:
        disk.rename(temporary, target)
        disk.rename(index, target.with_suffix(".idx"))
        disk.fsync_directory(folder)
    finally:
        if is_ours:
            with contextlib.suppress(OSError):
                disk.unlink(keep)


def _remove(pack: Path, disk: Disk) -> bool:
    """Remove a pack; return False, with all its files left, if its index cannot be removed."""
    try:  # the index first: from then on no new reader finds the pack
        disk.unlink(pack.with_suffix(".idx"))
    except FileNotFoundError:
        pass
    except OSError:
        return False
    for suffix in (".rev", ".pack"):
        with contextlib.suppress(OSError):
            disk.unlink(pack.with_suffix(suffix))
    return True
