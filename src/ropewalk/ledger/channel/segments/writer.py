"""The single writer of a channel's segments: append, sync, and cut a torn tail when opened."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path

from ropewalk.disk.closing import Closing
from ropewalk.disk.durable import Disk
from ropewalk.errors import Damaged, HeadMoved, RopewalkError, TooLarge, Unavailable
from ropewalk.ledger.block.block import Header, parse_record
from ropewalk.ledger.channel.losses import Repair, blocks_text, open_loss, read_repairs
from ropewalk.ledger.channel.receipted import ReceiptMark, ReceiptMarkFile, make_mark, repair_advice
from ropewalk.ledger.channel.segments.format import (
    ALIGN,
    BODY_BYTES_MAX,
    BlockPlace,
    TornTail,
    digest_in,
    record_head,
    segment_head,
)
from ropewalk.ledger.channel.segments.reader import Segments

SEGMENT_BYTES = 64 << 20  # a new file is begun beyond this; one block may exceed it
LOCK_POLL_S = 0.02
HEADER_PEEK_BYTES = 4096  # most headers are shorter
REWRITE_BYTES = 1 << 20  # written at a time
LARGE_BYTES = 1 << 17  # from here on, one more copy costs more than one more call


class SegmentWriter(Segments, Closing):
    """The single writer of a channel. Opening it takes the lock and cuts a torn tail; `torn` is what was cut."""

    def __init__(
        self,
        folder: Path,
        *,
        after: BlockPlace | None = None,
        height: int = 0,
        wait_s: float = 0.0,
        disk: Disk | None = None,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        super().__init__(folder)
        self._mark: ReceiptMarkFile | None = None
        self._pending: ReceiptMark | None = None  # the mark to write after the next sync
        self.statements: int | None = None  # number of blocks with key statements, if known
        self._disk = disk or Disk()
        self._segment_bytes = segment_bytes
        self._broken: str | None = None
        self._fd, self._segment, self._end = -1, 0, 0
        self._unsynced_folder = False
        self._owner = os.getpid()
        try:
            self.files_folder.mkdir(parents=True, exist_ok=True)
            if not (folder / "lock").exists() and not self.starts():
                make_mark(folder, self._disk)  # no writer was ever here
            self._lock = _take_lock(folder / "lock", wait_s)
            _writers.add(self)
        except OSError as error:
            raise Unavailable(f"channel {folder.name}: {error.strerror}", path=str(folder)) from error
        try:
            loss = open_loss(read_repairs(folder))
            if loss is not None:
                raise _closed(folder.name, loss)
            mark = self._read_mark()
            self.found, torn = self.tail(after, height)
            self._last = self.found[-1].place if self.found else after
            self.height = height + len(self.found)  # height of the next block
            self.torn = self._cut(torn) if torn is not None else None
            self._open_last()
            self._open_mark(mark)
        except OSError as error:
            self.close()
            raise Unavailable(f"channel {folder.name}: {error.strerror}", path=str(folder)) from error
        except BaseException:
            self.close()
            raise

    def append(
        self,
        height: int,
        lines: Sequence[bytes],
        block_hash: bytes = bytes(32),
        *,
        statement: bool | None = None,
    ) -> BlockPlace:
        """Write one block's lines as the record of `height`. Durable only after `sync`.

        `statement` is whether the block has a key statement, if known.
        """
        self._require_writing()
        if height != self.height:
            raise HeadMoved(f"block {height} cannot follow block {self.height - 1}", height=height)
        size = sum(map(len, lines)) + len(lines)
        body = b"\n".join((*lines, b"\n" * (-size % ALIGN)))  # copied once: a block may have megabytes
        if len(body) > BODY_BYTES_MAX:
            raise TooLarge(
                f"a block must have at most {BODY_BYTES_MAX} bytes, got {len(body)}",
                size=len(body),
                limit=BODY_BYTES_MAX,
            )
        try:
            if self._end >= self._segment_bytes:
                self._begin_segment(height)
            place = BlockPlace(self._segment, self._end, len(body))
            head = record_head(height, body)
            if size < LARGE_BYTES:
                self._write(head + body)
            else:  # not copied once more
                self._write(head)
                self._write(body)
            self._last, self._end, self.height = place, place.end, height + 1
            known = self.statements is not None and statement is not None
            self.statements = (self.statements or 0) + bool(statement) if known else None
            self._pending = ReceiptMark(height + 1, place, digest_in(head), block_hash, self.statements)
        except OSError as error:
            self._back_out(error.strerror or str(error))
            raise Unavailable(
                f"channel {self.folder.name}, block {height}: {error.strerror}", height=height
            ) from error
        except BaseException as error:  # interrupted: the next block must not follow half a block
            self._back_out(repr(error))
            raise
        return place

    def last_header(self) -> Header | None:
        """Return the header of the last block; None before the first, or if it cannot be parsed."""
        if self._last is None:
            return None
        place, raw = self._last, b""
        for size in (HEADER_PEEK_BYTES, self._last.length):
            raw, end, _ = self.peek(place.segment, place.offset + ALIGN, size).partition(b"\n")
            if end:
                break
        with contextlib.suppress(RopewalkError):  # damage is found by who verifies the block
            return parse_record(raw).header
        return None

    def sync(self) -> None:
        """Make everything appended durable, then set the mark: now receipts may be given.

        After a failure nothing more is written: the system may have dropped the pages it could not write.
        """
        self._require_writing()
        try:
            with self._stopping():
                self._sync_segment()
                if self._pending is not None and self._mark is not None:
                    self._mark.write(self._pending)
                    self._pending = None
        except OSError as error:
            raise Unavailable(f"channel {self.folder.name}: sync: {error.strerror}") from error

    def _require_writing(self) -> None:
        if self._broken is not None:
            raise Unavailable(f"channel {self.folder.name} stopped writing: {self._broken}")

    @contextlib.contextmanager
    def _stopping(self) -> Iterator[None]:
        """If a sync fails, write nothing more: the next one would not write the pages that this one dropped."""
        try:
            yield
        except OSError as error:
            self._broken = f"sync: {error.strerror}"
            raise

    def _sync_segment(self) -> None:
        self._disk.fsync(self._fd)
        if self._unsynced_folder:
            for folder in (self.files_folder, self.folder, self.folder.parent):
                self._disk.fsync_directory(folder)
            self._unsynced_folder = False

    def sync_mark(self) -> None:
        """Make the mark durable too, before the log is installed."""
        if self._mark is not None:
            self._mark.sync()

    def close(self) -> None:
        if self._mark is not None:
            if self._owner == os.getpid():
                with contextlib.suppress(OSError):  # it may be late, and the segments are synced
                    self._mark.sync()
            self._mark.close()
            self._mark = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._lock >= 0:
            if self._owner == os.getpid():  # a forked child may not have closed its copy yet
                fcntl.flock(self._lock, fcntl.LOCK_UN)
            os.close(self._lock)
            self._lock = -1
        self._broken = "closed"

    def _cut(self, torn: TornTail) -> TornTail:
        """Save the torn bytes, then cut them off."""
        folder = self.folder / "torn"
        folder.mkdir(exist_ok=True)
        kept = folder / f"{torn.segment:020d}-{torn.offset}-{time.time_ns()}.bin"
        fd = self._disk.open(kept, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            self._disk.write(fd, self.peek(torn.segment, torn.offset, torn.size))
            self._disk.fsync(fd)
        finally:
            os.close(fd)
        fd = self._disk.open(self.path(torn.segment), os.O_RDWR)
        try:
            self._disk.truncate(fd, torn.offset)
            self._disk.fsync(fd)
        finally:
            os.close(fd)
        return TornTail(torn.segment, torn.offset, torn.size, kept)

    def _read_mark(self) -> ReceiptMark:
        """Return the mark, checked against the log. An index cannot replace it: any reader may have rebuilt it."""
        mark = self.check_receipted()
        if mark is None:
            raise Damaged(
                f"channel {self.folder.name}: the mark of receipted blocks is missing",
                reason="mark",
                advice=repair_advice(self.folder.name),
            )
        return mark

    def _open_mark(self, mark: ReceiptMark) -> None:
        """Set the mark to the last complete block: the log was checked up to there, and the next block follows it."""
        self._mark = ReceiptMarkFile(self.folder, self._disk)
        now = ReceiptMark(statements=0)
        if self._last is not None:
            if mark.place == self._last:
                now = mark
            else:
                self._rewrite(mark)
                head = self.peek(self._last.segment, self._last.offset, ALIGN)
                now = ReceiptMark(self.height, self._last, digest_in(head))
        self.statements = now.statements
        if now != mark:
            self._mark.write(now)
            self._mark.sync()
            self._disk.fsync_directory(self.folder)

    def _rewrite(self, mark: ReceiptMark) -> None:
        """Write the blocks above the mark again, and sync them.

        A writer may have been killed before its sync, or its sync may have failed. After a failure the system can show
        pages that it has dropped, and a second sync would not write them.
        """
        first, end = (mark.place.segment, mark.place.end) if mark.place is not None else (0, 0)
        for start in self.starts():
            if start < first or not self.path(start).exists():  # a packed segment is durable
                continue
            offset = end if start == first else 0
            fd = self._disk.open(self.path(start), os.O_RDWR)
            try:
                while raw := os.pread(fd, REWRITE_BYTES, offset):
                    self._disk.write_at(fd, raw, offset)
                    offset += len(raw)
                self._disk.fsync(fd)
            finally:
                os.close(fd)
        # Else the mark would name a block in a file whose name may be lost.
        self._disk.fsync_directory(self.files_folder)

    def _open_last(self) -> None:
        starts = self.starts()
        if not starts:
            self._begin_segment(self.height)
            return
        self._segment = starts[-1]
        path = self.path(self._segment)
        self._fd = self._disk.open(path, os.O_WRONLY | os.O_APPEND)
        self._end = path.stat().st_size
        self._unsynced_folder = True  # the creator of the file may have died before syncing its folder
        if self._end <= ALIGN:  # a header whose sync failed can be seen, and would never be written
            self._disk.truncate(self._fd, 0)
            self._write(segment_head(self._segment))
            self._end = ALIGN

    def _begin_segment(self, height: int) -> None:
        if self._fd >= 0:
            with self._stopping():
                self._sync_segment()  # with its name: a segment after one that is gone would be damage
                if self._mark is not None:
                    self._mark.sync()
        path = self.path(height)
        fd = self._disk.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._segment, self._end, self._unsynced_folder = fd, height, 0, True
        self._disk.truncate(fd, 0)  # a previous attempt left part of this header
        self._write(segment_head(height))
        self._end = ALIGN

    def _write(self, raw: bytes) -> None:
        self._disk.write(self._fd, raw)

    def _back_out(self, why: str) -> None:
        """Restore the file to its state before a failed write, or stop writing."""
        try:
            self._disk.truncate(self._fd, self._end)
            if self._end == 0:
                self._write(segment_head(self._segment))
                self._end = ALIGN
        except OSError:
            self._broken = f"write: {why}"


# A forked child shares the lock: it must neither write nor hold the lock after the writer has ended.
_writers: weakref.WeakSet[SegmentWriter] = weakref.WeakSet()


def _after_fork() -> None:
    for writer in list(_writers):
        writer.close()


os.register_at_fork(after_in_child=_after_fork)


def _closed(channel: str, loss: Repair) -> Damaged:
    """Return the error for a channel that has lost receipted blocks: their heights are never sealed again."""
    return Damaged(
        f"channel {channel} is closed: a repair on {loss.at} gave up {blocks_text(loss.blocks, loss.receipted)}, "
        "for which receipts had been given",
        height=loss.blocks,
        receipted=loss.receipted,
        reason="closed",
        advice="Append to a new channel. If the blocks are found, restore them with "
        f"`ropewalk ledger repair --channel {channel} --from-archive DIR` or --from-replica REPO.",
    )


@contextlib.contextmanager
def hold_lock(folder: Path) -> Iterator[None]:
    """Keep writers out of a channel for a while, without becoming one."""
    descriptor = _take_lock(folder / "lock", 0.0)
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def has_waiters(folder: Path) -> bool:
    """Return whether another process waits for the channel's lock."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # waiting processes share it
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def _take_lock(path: Path, wait_s: float) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + wait_s
    queue: int | None = None  # held while we wait, visible to the writer
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
                if queue is None:
                    queue = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
                    fcntl.flock(queue, fcntl.LOCK_SH)
                time.sleep(LOCK_POLL_S)
    finally:
        if queue is not None:
            os.close(queue)
    with contextlib.suppress(OSError):  # the process id is informative; the lock itself is what counts
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
    return fd
