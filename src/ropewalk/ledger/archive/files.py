"""Archive files: written atomically, never overwritten, read-only afterwards; read as a stream.

    <folder>/<first height, 20 digits>-<last height>/…    one archive, a folder of files
    <folder>/.archiving.tmp/…                              an unfinished one; the next writer removes it

An archive gets its name by one rename, when all its files are on disk. Blocks are stored as in a segment, so
the same faults are found, with their height.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import zstandard
from blake3 import blake3

from ropewalk.disk.closing import Closing
from ropewalk.disk.durable import Disk, file_errors, unavailable
from ropewalk.errors import Conflict, Damaged, Invalid, NotFound, RopewalkError, TooLarge
from ropewalk.kernel.digest import blake3 as digest_of
from ropewalk.ledger.bundle.zstd_file import UnpackLimits, read_packed
from ropewalk.ledger.channel.segments.format import (
    ALIGN,
    BODY_BYTES_MAX,
    lines_of,
    parse_head,
    record_head,
    segment_head,
)

LEVEL = 3  # written once and kept for years, so it may cost more than a bundle
THREADS = 2  # any number but zero gives the same bytes
FLUSH_BYTES = 1 << 18
SMALL_BYTES_MAX = 16 << 20  # manifests and settings; blocks are streamed without a limit
FILE_MODE = 0o444
PARTIAL = ".archiving.tmp"

Blocks = Iterable[tuple[int, list[bytes]]]
Watch = Callable[[Blocks, int], Blocks]
"""Passes blocks of a known number through, for a progress bar."""

_NAME = re.compile(r"([0-9]{20})-([0-9]{20})")


@dataclass(frozen=True, slots=True)
class ArchiveFolder:
    """One archive by its name: its claimed heights, and its path."""

    first: int
    last: int
    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    def names(self) -> set[str]:
        with file_errors(f"archive {self.name}"):
            return {path.name for path in self.path.iterdir()}


def archive_folders(folder: Path) -> list[ArchiveFolder]:
    """Return the archives in a folder, lowest first, by their names alone; damaged ones are included."""
    try:
        names = [path.name for path in folder.iterdir() if path.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise unavailable(error, f"archives in {folder}") from error
    found = [(int(match[1]), int(match[2]), name) for name in names if (match := _NAME.fullmatch(name))]
    return [ArchiveFolder(first, last, folder / name) for first, last, name in sorted(found)]


def digest_file(path: Path, size_max: int) -> tuple[str, int]:
    """Return digest and size of a file, read as a stream; raise if it is larger: a sparse file may seem endless."""
    hasher, size = blake3(), 0
    _require_file(path)
    with file_errors(f"reading {path.name}"), path.open("rb", buffering=0) as stream:
        if os.fstat(stream.fileno()).st_size > size_max:
            raise TooLarge(f"{path.name} is larger than {size_max} bytes", limit=size_max)
        while piece := stream.read(1 << 20):
            hasher.update(piece)
            size += len(piece)
    return hasher.hexdigest(), size


def read_small(path: Path) -> bytes:
    """Read a small file."""
    _require_file(path)
    with file_errors(f"reading {path.name}"), path.open("rb") as stream:
        size = min(os.fstat(stream.fileno()).st_size, SMALL_BYTES_MAX)
        raw = stream.read(size + 1)  # do not allocate the limit at once
    if len(raw) > SMALL_BYTES_MAX:
        raise TooLarge(f"{path} must have at most {SMALL_BYTES_MAX} bytes", limit=SMALL_BYTES_MAX)
    return raw


def _require_file(path: Path) -> None:
    """Raise unless it is a regular file, before it is opened: a pipe might never end."""
    if not path.is_file():
        raise NotFound(f"{path.name} is {'no file' if os.path.lexists(path) else 'missing'}", name=str(path))


def read_blocks(path: Path, first: int, last: int) -> Iterator[tuple[int, list[bytes]]]:
    """Yield heights and lines of the blocks in a packed file; raise `Damaged` with the height where they end."""
    _require_file(path)
    height, waiting, head = first, bytearray(), segment_head(first)
    pieces = _unpacked(path, last - first + 1, lambda: height)
    for piece in pieces:
        waiting += piece
        if head:
            if len(waiting) < ALIGN:
                continue
            if waiting[:ALIGN] != head:
                raise _damage(path, height, "it is not the beginning of that range")
            del waiting[:ALIGN]
            head = b""
        at = 0
        while len(waiting) - at >= ALIGN:
            found = parse_head(bytes(waiting[at : at + ALIGN]))
            if found is None or found[0] != height:
                raise _damage(path, height, "no record of that block here")
            if height > last:
                raise _damage(path, height, f"it goes on beyond block {last}")
            end = at + ALIGN + found[1]
            if len(waiting) < end:
                break
            with memoryview(waiting) as view:
                body = bytes(view[at + ALIGN : end])
            if digest_of(body) != found[2]:
                raise _damage(path, height, "body differs from its checksum")
            yield height, lines_of(body)
            at, height = end, height + 1
        del waiting[:at]
    if waiting or height != last + 1:
        raise _damage(path, height, "it ends inside the range")


def _unpacked(path: Path, blocks: int, height: Callable[[], int]) -> Iterator[bytes]:
    """Yield the unpacked bytes of so many blocks; errors name the block."""
    # At any ratio: payloads may be very repetitive, and reading ends at the first bytes that are not a block.
    most = ALIGN + blocks * (ALIGN + BODY_BYTES_MAX)
    try:
        yield from read_packed(path, UnpackLimits(bytes_max=most, ratio_from=most))
    except (Damaged, Invalid) as error:
        packed = isinstance(error, Damaged | TooLarge)
        what = error.detail if packed else "not packed with Zstandard"
        raise _damage(path, height(), what) from error


def _damage(path: Path, height: int, what: str) -> Damaged:
    return Damaged(
        f"archive {path.parent.name}, {path.name}, block {height}: {what}",
        height=height,
        archive=path.parent.name,
        file=path.name,
        reason=what,
        advice="Take this archive from another copy; nothing was changed.",
    )


class ArchiveWriter(Closing):
    """An archive being written: add blocks, then finish it. Without `finish` nothing remains.

    The caller must hold the folder lock.
    """

    def __init__(self, folder: Path, first: int, blocks_name: str, disk: Disk) -> None:
        self._folder, self._disk, self._name = folder, disk, blocks_name
        self._begun = folder / PARTIAL
        self._descriptor, self._kept = -1, False
        self._hasher, self._waiting = blake3(), bytearray()
        self.first, self.height = first, first  # height of its first block, and of the next one
        self.size = 0  # bytes before packing
        self.packed = 0
        # A checksum inside too, so that the zstd tool detects damage.
        self._packer = zstandard.ZstdCompressor(
            level=LEVEL, write_checksum=True, threads=THREADS
        ).compressobj()
        with self._annotating_errors():
            self._clear()
            disk.make_directories(self._begun)
            path, flags = self._begun / blocks_name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._descriptor = os.open(path, flags, FILE_MODE)
            self._take(segment_head(first))

    def add(self, lines: Sequence[bytes]) -> None:
        """Add the next block, in segment format."""
        body = b"\n".join(lines) + b"\n"
        body += b"\n" * (-len(body) % ALIGN)
        with self._annotating_errors():
            self._take(record_head(self.height, body))
            self._take(body)
        self.height += 1

    def pack(self) -> tuple[str, int]:
        """End the blocks; return digest and size of their file, which is then on disk."""
        with self._annotating_errors():
            self._write(self._packer.flush(), at_once=True)
            self._disk.fsync(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
        return self._hasher.hexdigest(), self.packed

    def finish(self, files: dict[str, bytes]) -> ArchiveFolder:
        """Write the other files, then rename the archive. Raise `Conflict` if the name exists."""
        found = ArchiveFolder(
            self.first, self.height - 1, self._folder / f"{self.first:020d}-{self.height - 1:020d}"
        )
        with self._annotating_errors():
            for name, raw in files.items():
                self._disk.write_new(self._begun / name, raw, mode=FILE_MODE)
            self._disk.fsync_directory(self._begun)
            if os.path.lexists(found.path):  # a rename would replace an empty folder
                raise Conflict(f"{found.path} is there already", advice="Nothing was written over.")
            self._disk.rename(self._begun, found.path)
            self._kept = True
            self._disk.fsync_directory(self._folder)
        return found

    def _take(self, raw: bytes) -> None:
        self.size += len(raw)
        self._write(self._packer.compress(raw))

    def _write(self, raw: bytes, *, at_once: bool = False) -> None:
        self._waiting += raw
        if self._waiting and (at_once or len(self._waiting) >= FLUSH_BYTES):
            ready, self._waiting = bytes(self._waiting), bytearray()
            self._disk.write(self._descriptor, ready)
            self._hasher.update(ready)
            self.packed += len(ready)

    def _clear(self) -> None:
        """Remove what a previous process had begun. The folder holds only unpublished files."""
        if os.path.lexists(self._begun) and (self._begun.is_symlink() or not self._begun.is_dir()):
            self._disk.unlink(self._begun)  # not made here; the target of a link is not ours
        elif self._begun.is_dir():
            for left in self._begun.iterdir():
                self._disk.unlink(left)
            self._begun.rmdir()

    @contextlib.contextmanager
    def _annotating_errors(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise unavailable(error, f"archive in {self._folder}") from error
            raise

    def close(self) -> None:
        """Close; remove what was not finished."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        if not self._kept:
            with contextlib.suppress(OSError, RopewalkError):
                self._clear()
