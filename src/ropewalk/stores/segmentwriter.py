"""The one writer of a channel's segments: append, sync, and what a crash left behind cut off at opening."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

from ropewalk.errors import HeadMoved, TooLarge, Unavailable
from ropewalk.stores.segmentform import ALIGN, BODY_BYTES_MAX, Place, Torn, record_head, segment_head
from ropewalk.stores.segments import Segments

__all__ = ["Files", "Writer", "hold_lock", "is_awaited"]

SEGMENT_BYTES = 64 << 20  # a new file is begun beyond this; one block may stand across the limit
LOCK_POLL_S = 0.02


class Files:
    """The calls that touch the disk, in one place, so that a test can make any one of them fail."""

    def open(self, path: Path, flags: int) -> int:
        return os.open(path, flags | os.O_CLOEXEC, 0o600)

    def write(self, fd: int, raw: bytes | memoryview) -> int:
        return os.write(fd, raw)

    def sync(self, fd: int) -> None:
        if hasattr(fcntl, "F_FULLFSYNC"):  # macOS: fsync alone leaves the bytes in the drive's cache
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        else:
            os.fsync(fd)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def sync_folder(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.sync(fd)
        finally:
            os.close(fd)


class Writer(Segments):
    """The one writer of a channel. Opening it takes the lock and cuts a torn tail; `torn` says what was cut."""

    def __init__(
        self,
        folder: Path,
        *,
        after: Place | None = None,
        height: int = 0,
        wait_s: float = 0.0,
        files: Files | None = None,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        super().__init__(folder)
        self._files = files or Files()
        self._segment_bytes = segment_bytes
        self._broken: str | None = None
        self._fd, self._segment, self._end = -1, 0, 0
        self._unsynced_folder = False
        try:
            self.files_folder.mkdir(parents=True, exist_ok=True)
            self._lock = _take_lock(folder / "lock", wait_s)
            _writers.add(self)
        except OSError as error:
            raise Unavailable(f"channel {folder.name}: {error.strerror}", path=str(folder)) from error
        try:
            self.found, torn = self.tail(after, height)
            self._last = self.found[-1].place if self.found else after
            self.height = height + len(self.found)  # the next block's
            self.torn = self._cut(torn) if torn is not None else None
            self._open_last()
        except OSError as error:
            self.close()
            raise Unavailable(f"channel {folder.name}: {error.strerror}", path=str(folder)) from error
        except BaseException:
            self.close()
            raise

    def append(self, height: int, lines: Sequence[bytes]) -> Place:
        """Write one block's lines as the record of `height`. Durable only after `sync`."""
        if self._broken is not None:
            raise Unavailable(f"channel {self.folder.name} stopped writing: {self._broken}")
        if height != self.height:
            raise HeadMoved(f"block {height} cannot follow block {self.height - 1}", height=height)
        body = b"\n".join(lines) + b"\n"
        body += b"\n" * (-len(body) % ALIGN)
        if len(body) > BODY_BYTES_MAX:
            raise TooLarge(
                f"block of {len(body)} bytes; at most {BODY_BYTES_MAX}", size=len(body), limit=BODY_BYTES_MAX
            )
        try:
            if self._end >= self._segment_bytes:
                self._begin_segment(height)
            place = Place(self._segment, self._end, len(body))
            self._write(record_head(height, body) + body)
            self._last, self._end, self.height = place, place.end, height + 1
        except OSError as error:
            self._back_out(error.strerror or str(error))
            raise Unavailable(
                f"channel {self.folder.name}, block {height}: {error.strerror}", height=height
            ) from error
        except BaseException as error:  # interrupted: what comes next must not stand behind half a block
            self._back_out(repr(error))
            raise
        return place

    def sync(self) -> None:
        """Make everything appended durable.

        After a failure nothing more is written: the system may have dropped the pages it could not write.
        """
        try:
            self._files.sync(self._fd)
            if self._unsynced_folder:
                self._files.sync_folder(self.files_folder)
                self._files.sync_folder(self.folder)
                self._unsynced_folder = False
        except OSError as error:
            self._broken = f"sync: {error.strerror}"
            raise Unavailable(f"channel {self.folder.name}: sync: {error.strerror}") from error

    def close(self) -> None:
        """Release the lock; the process may go."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._lock >= 0:
            os.close(self._lock)  # closing the descriptor gives up the lock
            self._lock = -1
        self._broken = "closed"

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _cut(self, torn: Torn) -> Torn:
        """Keep the torn bytes beside the log, then cut them off."""
        folder = self.folder / "torn"
        folder.mkdir(exist_ok=True)
        kept = folder / f"{torn.segment:020d}-{torn.offset}-{time.time_ns()}.bin"
        fd = self._files.open(kept, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            self._write_all(fd, self.peek(torn.segment, torn.offset, torn.size))
            self._files.sync(fd)
        finally:
            os.close(fd)
        fd = self._files.open(self.path(torn.segment), os.O_RDWR)
        try:
            self._files.truncate(fd, torn.offset)
            self._files.sync(fd)
        finally:
            os.close(fd)
        return Torn(torn.segment, torn.offset, torn.size, kept)

    def _open_last(self) -> None:
        starts = self.starts()
        if not starts:
            self._begin_segment(0)
            return
        self._segment = starts[-1]
        path = self.path(self._segment)
        self._fd = self._files.open(path, os.O_WRONLY | os.O_APPEND)
        self._end = path.stat().st_size
        self._unsynced_folder = True  # whoever made the file may have died before syncing its folder
        if self._end == 0:
            self._write(segment_head(self._segment))
            self._end = ALIGN

    def _begin_segment(self, height: int) -> None:
        if self._fd >= 0:
            self._files.sync(self._fd)
        path = self.path(height)
        fd = self._files.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._segment, self._end, self._unsynced_folder = fd, height, 0, True
        self._files.truncate(fd, 0)  # what an attempt before us left of this header
        self._write(segment_head(height))
        self._end = ALIGN

    def _write(self, raw: bytes) -> None:
        self._write_all(self._fd, raw)

    def _write_all(self, fd: int, raw: bytes) -> None:
        view = memoryview(raw)
        while view:
            view = view[self._files.write(fd, view) :]

    def _back_out(self, why: str) -> None:
        """Leave the file as it was before a write that did not succeed, or stop writing."""
        try:
            self._files.truncate(self._fd, self._end)
            if self._end == 0:
                self._write(segment_head(self._segment))
                self._end = ALIGN
        except OSError:
            self._broken = f"write: {why}"


# A child of the writer's process shares its lock: it must neither write nor hold the lock when the writer has gone.
_writers: weakref.WeakSet[Writer] = weakref.WeakSet()


def _after_fork() -> None:
    for writer in list(_writers):
        writer.close()


os.register_at_fork(after_in_child=_after_fork)


@contextlib.contextmanager
def hold_lock(folder: Path, wait_s: float = 0.0) -> Iterator[None]:
    """Keep writers out of a channel for a while, without becoming one."""
    descriptor = _take_lock(folder / "lock", wait_s)
    try:
        yield
    finally:
        os.close(descriptor)


def is_awaited(folder: Path) -> bool:
    """Whether somebody waits to write to a channel, or to keep writers out of it."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # whoever waits shares it
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def _take_lock(path: Path, wait_s: float) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + wait_s
    line: int | None = None  # held while we wait, for whoever writes to see
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES) or time.monotonic() >= deadline:
                    holder = os.pread(fd, 20, 0).decode("ascii", "replace").strip()
                    os.close(fd)
                    if error.errno not in (errno.EAGAIN, errno.EACCES):
                        raise
                    raise Unavailable(
                        f"channel {path.parent.name} is being written by process {holder or 'unknown'}",
                        holder=holder,
                        advice="A channel has one writer at a time; wait for it to end.",
                    ) from error
                if line is None:
                    line = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
                    fcntl.flock(line, fcntl.LOCK_SH)
                time.sleep(LOCK_POLL_S)
    finally:
        if line is not None:
            os.close(line)
    with contextlib.suppress(OSError):  # the number is a courtesy to people, the lock itself is held
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
    return fd
