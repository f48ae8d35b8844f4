"""Blocks on disk: append-only segment files of one channel, one writer, any number of readers.

    <channel>/segments/<first height, 20 digits>.seg      64-byte header, then records, each aligned to 64 bytes
    <channel>/torn/…                                       bytes cut off after a crash, kept for whoever asks
    <channel>/lock                                         held by the writer, with its process id inside

A record is a 64-byte header (magic, body length, height, BLAKE3 of the body, checksum of the header) and a body:
lines of text, the block record first, then one envelope a line, filled up with newlines. Text holds no NUL byte, so a
run of zeros inside a body can only be a sector that a crash left unwritten. That, a file that ends too early, or
nothing but zeros to its end is a *torn tail*: such a block was never acknowledged and is cut off. Everything else that
does not add up is *damage*: reading stops there with its place, and nothing is written or deleted any more.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType

from ropewalk.errors import Damaged, HeadMoved, NotFound, TooLarge, Unavailable
from ropewalk.kernel.digest import blake3
from ropewalk.stores.segmentform import (
    ALIGN,
    BODY_BYTES_MAX,
    Place,
    Record,
    Torn,
    has_unwritten_sector,
    lines_of,
    parse_head,
    record_at,
    record_head,
    segment_head,
    segment_head_holds,
)

__all__ = ["ALIGN", "Files", "Place", "Record", "Segments", "Torn", "Writer", "hold_lock", "record_at"]

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


class Segments:
    """The records of one channel, for reading. Never blocks a writer and is never blocked by one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files_folder = folder / "segments"

    def starts(self) -> list[int]:
        """First heights of the segments, ascending."""
        try:
            names = [path.name for path in self.files_folder.iterdir()]
        except FileNotFoundError:
            return []
        return sorted(int(name[:20]) for name in names if len(name) == 24 and name.endswith(".seg"))

    def path(self, start: int) -> Path:
        """The file of the segment that begins at a height."""
        return self.files_folder / f"{start:020d}.seg"

    def scan(self, after: Place | None = None, height: int = 0) -> Iterator[Record]:
        """Every whole record after a place (from the beginning without one), `height` being the first expected.

        Ends at a torn tail; raises `Damaged` at anything else that does not add up.
        """
        starts = self.starts()
        if after is None and starts and starts[0] != 0:
            raise self._damage(starts[0], 0, 0, f"the first segment begins at height {starts[0]}, not 0")
        if after is not None:
            starts = [start for start in starts if start >= after.segment]
        for number, start in enumerate(starts):
            resumed = after is not None and start == after.segment
            if not resumed and start != height:
                raise self._damage(start, 0, height, f"segment {start} follows block {height - 1}")
            last = number == len(starts) - 1
            offset = after.end if resumed and after is not None else 0
            for record in self._scan_file(start, offset, height, last):
                yield record
                height = record.height + 1

    def places(self, height: int = 0, at: Place | None = None) -> Iterator[tuple[int, Place]]:
        """Heights and places of the records from a height on, by their headers alone; bodies stay unread.

        `at` is where the record of that height stands, if the caller knows. Ends at the last whole record, or at a
        header that does not hold; whoever reads the place hears of damage.
        """
        starts = self.starts()
        begin = (
            at.segment if at is not None else max((start for start in starts if start <= height), default=0)
        )
        expected = begin
        for start in (start for start in starts if start >= begin):
            if start != expected:
                return
            first = ALIGN
            if at is not None and start == begin:
                first, expected = at.offset, height
            try:
                stream = self.path(start).open("rb", buffering=0)
            except FileNotFoundError:
                return
            with stream:
                size, offset = os.fstat(stream.fileno()).st_size, first
                while offset + ALIGN <= size:
                    head = parse_head(os.pread(stream.fileno(), ALIGN, offset))
                    if head is None or head[0] != expected or offset + ALIGN + head[1] > size:
                        break
                    if expected >= height:
                        yield expected, Place(start, offset, head[1])
                    offset, expected = offset + ALIGN + head[1], expected + 1

    def find(self, height: int) -> Record:
        """The record at a height, found by walking the headers of its segment."""
        candidates = [start for start in self.starts() if start <= height]
        if candidates:
            with self.path(candidates[-1]).open("rb") as stream:
                offset, expected = ALIGN, candidates[-1]
                while expected < height:
                    stream.seek(offset)
                    head = parse_head(stream.read(ALIGN))
                    if head is None or head[0] != expected:
                        break
                    offset, expected = offset + ALIGN + head[1], expected + 1
                if expected == height:
                    for record in self._scan_file(candidates[-1], offset, height, last=True):
                        return record
        raise NotFound(f"block {height} is not in {self.folder.name}", height=height)

    def read(self, place: Place, height: int) -> Record:
        """The record at a known place; `Damaged` if it is not the block of that height."""
        try:
            with self.path(place.segment).open("rb") as stream:
                stream.seek(place.offset)
                raw = stream.read(ALIGN + place.length)
        except FileNotFoundError as error:
            raise self._damage(place.segment, 0, height, "segment file is missing") from error
        head = parse_head(raw[:ALIGN])
        if head is None or head[:2] != (height, place.length) or len(raw) != ALIGN + place.length:
            raise self._damage(place.segment, place.offset, height, "no record of that block here")
        if blake3(raw[ALIGN:]) != head[2]:
            raise self._damage(place.segment, place.offset, height, "body differs from its checksum")
        return Record(height, lines_of(raw[ALIGN:]), place)

    def tail(self, after: Place | None, height: int) -> tuple[list[Record], Torn | None]:
        """All records after a place, and the torn tail behind them if there is one."""
        records = list(self.scan(after, height))
        end = records[-1].place if records else after
        starts = self.starts()
        if not starts:
            return records, None
        last = starts[-1]
        size = self.path(last).stat().st_size
        whole = end.end if end is not None and end.segment == last else (ALIGN if size >= ALIGN else 0)
        if whole == ALIGN and not segment_head_holds(self._peek(last, 0, ALIGN), last):
            whole = 0
        return records, Torn(last, whole, size - whole) if size > whole else None

    def _scan_file(self, start: int, offset: int, height: int, last: bool) -> Iterator[Record]:
        with self.path(start).open("rb", buffering=1 << 18) as stream:
            if offset == 0:
                head = stream.read(ALIGN)
                if not segment_head_holds(head, start):
                    if last and (len(head) < ALIGN or not any(head + stream.read())):
                        return
                    raise self._damage(start, 0, height, "segment header is not ours")
                offset = ALIGN
            else:
                stream.seek(offset)
            while raw := stream.read(ALIGN):
                body = self._body(stream.read, raw, start, offset, height, last)
                if body is None:
                    return
                yield Record(height, lines_of(body), Place(start, offset, len(body)))
                offset, height = offset + ALIGN + len(body), height + 1

    def _body(
        self, read: Callable[[int], bytes], raw: bytes, start: int, offset: int, height: int, last: bool
    ) -> bytes | None:
        """The body behind a record header; None at a torn tail, `Damaged` otherwise."""
        head = parse_head(raw)
        if head is None:
            if last and (len(raw) < ALIGN or not any(raw + read(-1))):
                return None
            raise self._damage(start, offset, height, "record header does not hold")
        if head[0] != height:
            raise self._damage(start, offset, height, f"record says height {head[0]}")
        body = read(head[1])
        if len(body) < head[1]:
            if last:
                return None
            raise self._damage(start, offset, height, "segment ends inside a record")
        if blake3(body) != head[2]:
            if last and not read(1) and has_unwritten_sector(body):
                return None
            raise self._damage(start, offset, height, "body differs from its checksum")
        return body

    def _peek(self, start: int, offset: int, size: int) -> bytes:
        with self.path(start).open("rb") as stream:
            stream.seek(offset)
            return stream.read(size)

    def _damage(self, start: int, offset: int, height: int, what: str) -> Damaged:
        return Damaged(
            f"channel {self.folder.name}, block {height}: {what} (segment {start}, offset {offset})",
            height=height,
            segment=start,
            offset=offset,
            reason=what,
        )


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
        except OSError as error:
            self._back_out(error)
            raise Unavailable(
                f"channel {self.folder.name}, block {height}: {error.strerror}", height=height
            ) from error
        self._last, self._end, self.height = place, place.end, height + 1
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
            self._write_all(fd, self._peek(torn.segment, torn.offset, torn.size))
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

    def _back_out(self, error: OSError) -> None:
        """Leave the file as it was before a write that did not succeed, or stop writing."""
        try:
            self._files.truncate(self._fd, self._end)
            if self._end == 0:
                self._write(segment_head(self._segment))
                self._end = ALIGN
        except OSError:
            self._broken = f"write: {error.strerror}"


@contextlib.contextmanager
def hold_lock(folder: Path, wait_s: float = 0.0) -> Iterator[None]:
    """Keep writers out of a channel for a while, without becoming one."""
    descriptor = _take_lock(folder / "lock", wait_s)
    try:
        yield
    finally:
        os.close(descriptor)


def _take_lock(path: Path, wait_s: float) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + wait_s
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
            time.sleep(LOCK_POLL_S)
    with contextlib.suppress(OSError):  # the number is a courtesy to people, the lock itself is held
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
    return fd
