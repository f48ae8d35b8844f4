"""The index of a repository: finds any event by ULID or by height.

It is disposable and never trusted alone. Each ref has its own index (`disk.index_files`), which is checked
whenever it is read, also where a ULID is absent. The position it was built for is compared with the head
before each use, and a log whose head does not stand on that position is walked afresh. Deleting the folder costs one
rebuild.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from ropewalk.disk.folder_lock import hold_file
from ropewalk.disk.index_files import IndexExtent, IndexFiles
from ropewalk.disk.index_pages import IndexDamaged
from ropewalk.disk.temporary_folder import make_private_folder
from ropewalk.errors import BrokenLink, HistoryRewritten, Unavailable
from ropewalk.gitlog.core.objects import Oid
from ropewalk.gitlog.core.planning import EntryRecord, IndexedEntry
from ropewalk.kernel import ulid
from ropewalk.kernel.digest import ContentId

BATCH = 10_000  # records that are stored at a time
FILES_MODE = 0o666  # as git's own files, less the umask
LOCK = "build.lock"
REFS_OPEN_MAX = 32  # whose files are kept open
SPILL_BYTES_MAX = 1 << 20  # of a walk kept in memory, about 12,000 records; a longer one goes to a file
RECORD = struct.Struct(">16s20s20s32s")  # ULID, commit, blob, content id
CHECK_BYTES = 8
_HEIGHT = struct.Struct(">QI")

T = TypeVar("T")
Describe: TypeAlias = Callable[[Oid], EntryRecord]


@dataclass(frozen=True, slots=True)
class LogExtent:
    """How far a log reaches: its last commit, and how many entries it has."""

    head: str | None
    count: int


class GitIndex:
    """The index of one repository. Threads may share it; a child after `fork` opens the files again."""

    def __init__(self, folder: Path) -> None:
        self._folder = _writable(folder)
        self._mutex = threading.RLock()
        self._process = os.getpid()
        self._refs: OrderedDict[str, IndexFiles] = OrderedDict()

    @classmethod
    def private(cls) -> GitIndex:
        """Return an index for this process only, for a repository that cannot be written."""
        return cls(make_private_folder())

    def close(self) -> None:
        """Close the files."""
        with self._reading():
            while self._refs:
                self._refs.popitem()[1].close()

    def extent(self, ref: str) -> LogExtent:
        """Return what the index covers of a ref; nothing if it holds nothing, or nothing it can trust."""
        with self._reading():
            return _extent(self._files(ref), ref)

    def catch_up(self, ref: str, head: str | None, describe: Describe, expect: str | None) -> LogExtent:
        """Make the index cover a ref up to `head` and say how far that is.

        Walks from the head down to what is already covered. `expect` is a commit that must lie on the way (the last
        verified head): a history without it is refused with `HistoryRewritten` and nothing is changed.
        """
        known = self.extent(ref)
        if known.head == head and (expect is None or expect == head or self.holds(ref, expect, describe)):
            return known
        if head is None:
            if expect is not None:
                raise _rewritten(ref, expect, None)
            return LogExtent(None, 0)
        with self._building():
            return self._build(ref, head, describe, expect)

    def _build(self, ref: str, head: str, describe: Describe, expect: str | None) -> LogExtent:
        while True:
            known = self.extent(ref)  # another process may have built it while we waited
            with tempfile.SpooledTemporaryFile(max_size=SPILL_BYTES_MAX) as spill:
                stop, met = self._walk_down(head, known, describe, expect, spill)
                lost = expect is not None and not met and not (stop and self.holds(ref, expect, describe))
                if not lost and self._write_up(ref, head, known if stop else LogExtent(None, 0), spill):
                    return self.extent(ref)
                if self.extent(ref) == known or known.head is None:
                    # Nothing was damaged, or nothing was there that could be.
                    if lost:
                        raise _rewritten(ref, expect or "", head)
                    raise self._damaged(ref)

    def holds(self, ref: str, commit: str, describe: Describe) -> bool:
        """Return whether a commit lies on the covered line."""
        try:
            slot = self.find(ref, describe(Oid(commit)).ulid)
        except BrokenLink:
            return False
        return slot is not None and slot.commit == commit

    def find(self, ref: str, wanted: ulid.Ulid) -> IndexedEntry | None:
        """Return the place of a ULID."""
        with self._reading():
            try:
                files = self._files(ref)
                value = files.find(ulid.to_bytes(wanted)) if _count(files, ref) else None
            except IndexDamaged as error:
                raise self._damaged(ref) from error
            if value is None:
                return None
            height = _HEIGHT.unpack(value)[0]
            slots = _slots(files, ref, height, height + 1)
        if slots is None or slots[0].ulid != wanted:
            raise self._damaged(ref)
        return slots[0]

    def first_above(self, ref: str, floor: ulid.Ulid) -> int:
        """Return the height of the first entry whose ULID is greater; the count if there is none.

        Found by halving, over records that carry their own checksum. Where ULIDs do not rise with the height (a log
        other software wrote), the halving may land between them; the chain's order is then the only truth there is.
        """
        name = ulid.to_bytes(floor)
        with self._reading():
            files = self._files(ref)
            low, high = 0, _count(files, ref)
            while low < high:
                middle = (low + high) // 2
                records = _records(files, ref, middle, middle + 1)
                if records is None:
                    break
                low, high = (low, middle) if records[0][:16] > name else (middle + 1, high)
            else:
                return low
        raise self._damaged(ref)

    def span(self, ref: str, start: int, stop: int) -> list[IndexedEntry]:
        """Return the places from height `start` up to, not including, `stop`."""
        with self._reading():
            slots = _slots(self._files(ref), ref, start, stop)
        if slots is None:
            raise self._damaged(ref)
        return slots

    def records(self, ref: str, start: int, stop: int) -> list[bytes]:
        """Return the records of `span` as stored: `RECORD` unpacks them."""
        with self._reading():
            records = _records(self._files(ref), ref, start, stop)
        if records is None:
            raise self._damaged(ref)
        return records

    def _damaged(self, ref: str) -> BrokenLink:
        """Drop what is kept of a ref; the next caller builds it again from the log."""
        self.forget(ref)
        return BrokenLink(f"the index of {ref} was damaged and has been dropped; ask again", ref=ref)

    def forget(self, ref: str) -> None:
        """Drop what is kept of a ref."""
        self._writing(lambda: self._files(ref).drop())

    def add(self, ref: str, base: LogExtent, records: Sequence[bytes]) -> bool:
        """Extend a covered line by entries just written on top of it; return False if the index is at another head."""
        with self._building():
            return self._writing(lambda: self._store(ref, base, records))

    def _walk_down(
        self,
        head: str,
        known: LogExtent,
        describe: Describe,
        expect: str | None,
        spill: Any,
    ) -> tuple[bool, bool]:
        """Note every commit from the head down to the covered part (True) or to the root (False)."""
        met = False
        at: str | None = head
        while at is not None and at != known.head:
            met = met or at == expect
            slot = describe(Oid(at))
            spill.write(*records_of([slot.ulid], [slot.content_id], [slot.commit], [slot.blob]))
            at = slot.parent
        return at is not None, met or (at is not None and at == expect)

    def _write_up(self, ref: str, head: str, base: LogExtent, spill: Any) -> bool:
        """Store what was walked on top of what is covered; False if that is not what is stored."""
        if base.head is None:
            self.forget(ref)
        at = spill.tell()
        while at > 0:
            chunk = min(at, RECORD.size * BATCH)
            at -= chunk
            spill.seek(at)
            raw = spill.read(chunk)
            records = [raw[n : n + RECORD.size] for n in range(chunk - RECORD.size, -1, -RECORD.size)]
            if not self._writing(partial(self._store, ref, base, records)):
                return False
            base = LogExtent(commit_of(records[-1]), base.count + len(records))
        return base.head == head

    def _store(self, ref: str, base: LogExtent, records: Sequence[bytes]) -> bool:
        files = self._files(ref)
        try:
            with files.hold():
                stored = files.stored()
                if _extent_of(stored, ref) != base:
                    files.load()
                    return False
                if records:
                    entries, rows = _entries(ref, base.count, records)
                    files.write(stored, entries, rows.items(), records[-1][16:36] + ref.encode())
        except IndexDamaged:
            files.drop()
            return False
        return True

    @contextlib.contextmanager
    def _building(self) -> Iterator[None]:
        """Be the only builder of all processes: two would undo each other's work."""
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):
                stack.enter_context(hold_file(self._folder / LOCK, FILES_MODE))
            yield

    def _files(self, ref: str) -> IndexFiles:
        """Return the files of a ref as they are now."""
        files = self._refs.pop(ref, None)
        if files is None:
            files = IndexFiles(self._folder / _name(ref), FILES_MODE)
            if len(self._refs) >= REFS_OPEN_MAX:
                self._refs.popitem(last=False)[1].close()
        else:
            files.refresh()
        self._refs[ref] = files
        return files

    def _reading(self) -> contextlib.AbstractContextManager[bool]:
        if self._process != os.getpid():  # a thread that did not come along may hold the mutex
            self._process, self._mutex = os.getpid(), threading.RLock()
        return self._mutex

    def _writing(self, act: Callable[[], T]) -> T:
        """Do something that writes. Raises `Unavailable`."""
        with self._reading():
            try:
                return act()
            except OSError as error:
                raise Unavailable(
                    f"the index {self._folder} cannot be used: {error.strerror}",
                    path=str(self._folder),
                    advice="Free some space; the log itself is whole, and the folder may be deleted at any time.",
                ) from error


def _writable(folder: Path) -> Path:
    """Return the folder, made where it is missing, or a private one where it may not be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        os.close(os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILES_MODE))
    except OSError:
        # A repository we may not write to is still readable: index it for this process only.
        return make_private_folder()
    return folder


def _entries(ref: str, first: int, records: Sequence[bytes]) -> tuple[list[bytes], dict[bytes, bytes]]:
    """Return what is stored of records from a height on: entries, and rows that find them by ULID."""
    check, entries = _check_under(ref), []
    rows: dict[bytes, bytes] = {}
    for height, record in enumerate(records, first):
        entries.append(check(height, record) + record)
        # The first event of a ULID keeps it: a log that repeats one is broken, and `verify` reports it.
        rows.setdefault(record[:16], _HEIGHT.pack(height, 0))
    return entries, rows


def _extent(files: IndexFiles, ref: str) -> LogExtent:
    return LogExtent(None, 0) if files.damage is not None else _extent_of(files.extent, ref)


def _extent_of(extent: IndexExtent, ref: str) -> LogExtent:
    if not extent.count or extent.state[20:] != ref.encode():
        return LogExtent(None, 0)
    return LogExtent(extent.state[:20].hex(), extent.count)


def _count(files: IndexFiles, ref: str) -> int:
    """Return only how many entries `_extent` has."""
    extent = files.extent
    return extent.count if files.damage is None and extent.state[20:] == ref.encode() else 0


def _slots(files: IndexFiles, ref: str, start: int, stop: int) -> list[IndexedEntry] | None:
    """Return the places of some heights; None if one of them is not covered, or not what was written."""
    records = _records(files, ref, start, stop)
    if records is None:
        return None
    slots = []
    for height, record in enumerate(records, start):
        name, commit, blob, content = RECORD.unpack(record)
        slots.append(
            IndexedEntry(
                height, ulid.from_bytes(name), ContentId("blake3:" + content.hex()), commit.hex(), blob.hex()
            )
        )
    return slots


def _records(files: IndexFiles, ref: str, start: int, stop: int) -> list[bytes] | None:
    if stop > _count(files, ref):
        return None
    try:
        found = files.entries(start, stop)
    except IndexDamaged:
        return None
    check, records = _check_under(ref), []
    for height, raw in enumerate(found, start):
        record = raw[CHECK_BYTES:]
        if len(record) != RECORD.size or raw[:CHECK_BYTES] != check(height, record):
            return None
        records.append(record)
    return records


def records_of(
    ulids: Sequence[ulid.Ulid], content_ids: Sequence[str], commits: Sequence[str], blobs: Sequence[str]
) -> list[bytes]:
    """Return what the index keeps of entries, as bytes: thousands may wait, unseen by the garbage collector."""
    names = ulid.all_to_bytes(ulids)
    of_commits, of_blobs = bytes.fromhex("".join(commits)), bytes.fromhex("".join(blobs))
    contents = bytes.fromhex("".join(content_ids).replace("blake3:", ""))
    return [
        name + of_commits[at : at + 20] + of_blobs[at : at + 20] + contents[content : content + 32]
        for name, at, content in zip(names, count(0, 20), count(0, 32), strict=False)
    ]


def commit_of(record: bytes) -> str:
    """Return the commit a record speaks of."""
    return record[16:36].hex()


def _name(ref: str) -> str:
    return hashlib.blake2b(ref.encode(), digest_size=16).hexdigest()


def _check_under(ref: str) -> Callable[[int, bytes], bytes]:
    """Return the function that makes the checksum of a record at a height of a ref."""
    begun = hashlib.blake2b(ref.encode() + b"\0", digest_size=CHECK_BYTES, person=b"gitindex")

    def check(height: int, record: bytes) -> bytes:
        one = begun.copy()
        one.update(height.to_bytes(8, "big") + record)
        return one.digest()

    return check


def _rewritten(ref: str, expect: str, head: str | None) -> HistoryRewritten:
    return HistoryRewritten(
        f"{ref} is at {head[:7] if head else 'nothing'}, which does not contain {expect[:7]}, seen before",
        ref=ref,
        expected=expect,
        got=head,
    )
