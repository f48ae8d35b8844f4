"""Files that are on disk when we say so.

Every call that changes the disk goes through a `Disk`, so that a test can make the n-th of them fail and see that
nothing half-written is ever taken for the truth.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from ropewalk.errors import Damaged, Unavailable

ACCESS_ADVICE = "Check who may read and write there, or use another clone."
NO_FULL_SYNC: Final = frozenset((errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTTY))


def sync(descriptor: int) -> None:
    """Make a file durable. Every sync of ropewalk goes through here.

    On macOS, fsync leaves the bytes in the cache of the drive; F_FULLFSYNC empties it. File systems that do not know
    it, such as network shares, get fsync.
    """
    full: int | None = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        try:
            fcntl.fcntl(descriptor, full)
            return
        except OSError as error:
            if error.errno not in NO_FULL_SYNC:
                raise
    os.fsync(descriptor)


def open_file(path: Path) -> BinaryIO:
    """Open a file for reading. A pipe, a socket or a device in its place is refused: reading it might never end."""
    return os.fdopen(_open_regular(path), "rb")


def read_file(path: Path, limit: int = -1) -> bytes:
    """Read a file, at most `limit` bytes of it; see `open_file`."""
    if not 0 <= limit <= 4096:
        with open_file(path) as stream:
            return stream.read(limit)
    descriptor = _open_regular(path)  # a small file, read with each event: a stream costs more than the call
    try:
        return os.read(descriptor, limit)
    finally:
        os.close(descriptor)


def read_optional(path: Path) -> bytes | None:
    """Return the bytes of a file; None if there is no such file."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _open_regular(path: Path) -> int:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket, or a device without hardware
            raise _not_regular(path) from error
        raise
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise _not_regular(path)


def _not_regular(path: Path) -> Damaged:
    return Damaged(
        f"{path} must be a regular file; found a pipe, a socket or a device",
        path=str(path),
        advice=f"Move {path} away and put back the file that belongs there, from a backup or another clone.",
    )


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    Disk().fsync_directory(path)


class Disk:
    """The calls that change a file system. Each completes before it returns, or raises `OSError`."""

    def write_new(self, path: Path, raw: bytes | bytearray, *, mode: int = 0o444) -> None:
        """Make a file that must not exist yet and put its bytes on the platter; nothing stays behind on failure."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            try:
                self.write(descriptor, raw)
                self.fsync(descriptor)
            finally:
                os.close(descriptor)
        except BaseException:
            with contextlib.suppress(OSError):
                path.unlink()
            raise

    def replace(self, path: Path, raw: bytes, *, mode: int = 0o644) -> None:
        """Write or replace a whole file: write a temporary file in its folder, then rename it."""
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()  # of a process of the same number that was killed
        self.write_new(temporary, raw, mode=mode)
        self.rename(temporary, path)
        self.fsync_directory(path.parent)

    def write(self, descriptor: int, raw: bytes | bytearray | memoryview) -> None:
        view = memoryview(raw)
        while view:
            view = view[self.write_some(descriptor, view) :]

    def write_some(self, descriptor: int, raw: memoryview) -> int:
        return os.write(descriptor, raw)

    def write_at(self, descriptor: int, raw: bytes, offset: int) -> None:
        """Write bytes in place of others, all of them or an error."""
        view = memoryview(raw)
        while view:
            written = os.pwrite(descriptor, view, offset)
            view, offset = view[written:], offset + written

    def open(self, path: Path, flags: int) -> int:
        return os.open(path, flags | os.O_CLOEXEC, 0o600)

    def truncate(self, descriptor: int, size: int) -> None:
        os.ftruncate(descriptor, size)

    def fsync(self, descriptor: int) -> None:
        sync(descriptor)

    def fsync_directory(self, path: Path) -> None:
        """Make new names in a directory durable."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.fsync(descriptor)
        finally:
            os.close(descriptor)

    def touch_new(self, path: Path, raw: bytes) -> None:
        """Make a marker file; losing it in a power cut does no harm, so it is not synced."""
        self._write_to(path, os.O_EXCL, raw)

    def append(self, path: Path, raw: bytes) -> None:
        self._write_to(path, os.O_APPEND | os.O_NONBLOCK, raw)

    def _write_to(self, path: Path, flags: int, raw: bytes) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | flags, 0o644)
        try:
            self.write(descriptor, raw)
        finally:
            os.close(descriptor)

    def rename(self, old: Path, new: Path) -> None:
        os.rename(old, new)  # noqa: PTH104 - Path.rename hides which call fails

    def link(self, old: Path, new: Path) -> None:
        os.link(old, new)

    def unlink(self, path: Path) -> None:
        os.unlink(path)  # noqa: PTH108

    def make_directories(self, path: Path, mode: int = 0o777) -> None:
        """Make what is missing of a path, and make each new name durable; `mode` is that of the last folder."""
        missing = []
        probe = path
        while not probe.is_dir():
            missing.append(probe)
            probe = probe.parent
        for directory in reversed(missing):
            with contextlib.suppress(FileExistsError):
                directory.mkdir(mode=mode if directory == path else 0o777)
            try:
                self.fsync_directory(directory.parent)
            except OSError:
                with contextlib.suppress(OSError):
                    directory.rmdir()  # the next attempt must not take its name for durable
                raise


@contextmanager
def file_errors(doing: str) -> Iterator[None]:
    """Raise `Unavailable`, with what was being done, for every `OSError` in the block."""
    try:
        yield
    except OSError as error:
        raise unavailable(error, doing) from error


def unavailable(error: OSError, doing: str) -> Unavailable:
    """Return a refusal of the file system in words for the person who must clear it."""
    known = {
        errno.ENOSPC: ("the disk is full", "Free some space, then try again; nothing was changed."),
        errno.EDQUOT: ("the disk quota is used up", "Free some space, then try again; nothing was changed."),
        errno.EROFS: ("the file system is read-only", "Mount it for writing, or write to another clone."),
        errno.EACCES: ("permission denied", ACCESS_ADVICE),
        errno.EPERM: ("permission denied", ACCESS_ADVICE),
    }
    reason, advice = known.get(
        error.errno or 0, (error.strerror or str(error), "Nothing was changed; try again.")
    )
    where = f" ({error.filename})" if error.filename else ""
    return Unavailable(f"{doing}: {reason}{where}", advice=advice, errno=error.errno, reason=reason)
