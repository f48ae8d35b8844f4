"""An index beside the repository: any event by ULID or by height at once, however long the log.

It is disposable and it is never believed on its own. Every record carries a checksum, the position it was built for is
compared with the head before each use, and a log whose head does not stand on that position is walked afresh. Deleting
the folder costs one rebuild.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import lmdb

from ropewalk.errors import BrokenLink, HistoryRewritten, Unavailable
from ropewalk.kernel import ulid
from ropewalk.kernel.digest import ContentId
from ropewalk.stores.gitindexfiles import borrow, give_back, write_stamp
from ropewalk.stores.privatefolder import make_private_folder

__all__ = ["Extent", "GitIndex", "IndexedSlot", "commit_of", "records_of"]

BATCH = 10_000  # records per transaction
SPILL_BYTES_MAX = 1 << 20  # of a walk kept in memory, about 12,000 records; a longer one goes to a file
RECORD = struct.Struct(">16s20s20s32s")  # ULID, commit, blob, content id


class Described(Protocol):
    """What an index must know of a commit."""

    @property
    def ulid(self) -> ulid.Ulid: ...
    @property
    def content_id(self) -> Any: ...
    @property
    def commit(self) -> Any: ...
    @property
    def blob(self) -> Any: ...
    @property
    def parent(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class IndexedSlot:
    """One place of a line."""

    height: int
    ulid: ulid.Ulid
    content_id: ContentId
    commit: str
    blob: str


@dataclass(frozen=True, slots=True)
class Extent:
    """How far a line reaches: its last commit, and how many entries it has."""

    head: str | None
    count: int


class GitIndex:
    """The index of one repository. One LMDB environment a process, shared by everybody who opens the same folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._name = (os.getpid(), str(folder.resolve()))
        self._env = borrow(self._name, folder)

    @classmethod
    def private(cls) -> GitIndex:
        """An index for this process only, for a repository beside which there is no room for one."""
        return cls(make_private_folder())

    def close(self) -> None:
        """Give the files back; the last one to do so closes them."""
        give_back(self._name)

    def extent(self, ref: str) -> Extent:
        """What the index covers of a ref; nothing if it holds nothing, or nothing it can trust."""
        with self._reading() as txn:
            return self._extent(txn, _key(ref))

    def catch_up(
        self, ref: str, head: str | None, describe: Callable[[str], Described], expect: str | None
    ) -> Extent:
        """Make the index cover a ref up to `head` and say how far that is.

        Walks from the head down to what is already covered. `expect` is a commit that must lie on the way (the last
        head somebody verified): a history without it is refused with `HistoryRewritten` and nothing is changed.
        """
        known = self.extent(ref)
        if known.head == head and (expect is None or expect == head or self.holds(ref, expect, describe)):
            return known
        if head is None:
            if expect is not None:
                raise _rewritten(ref, expect, None)
            return Extent(None, 0)
        with self._building():
            return self._build(ref, head, describe, expect)

    def _build(self, ref: str, head: str, describe: Callable[[str], Described], expect: str | None) -> Extent:
        known = self.extent(ref)  # somebody else may have built it while we waited
        with tempfile.SpooledTemporaryFile(max_size=SPILL_BYTES_MAX) as spill:
            stop, met = self._walk_down(head, known, describe, expect, spill)
            if expect is not None and not met and not (stop and self.holds(ref, expect, describe)):
                raise _rewritten(ref, expect, head)
            base = known if stop else Extent(None, 0)
            return self._write_up(ref, head, base, spill)

    def holds(self, ref: str, commit: str, describe: Callable[[str], Described]) -> bool:
        """Whether a commit lies on the covered line."""
        try:
            slot = self.find(ref, describe(commit).ulid)
        except BrokenLink:
            return False
        return slot is not None and slot.commit == commit

    def find(self, ref: str, wanted: ulid.Ulid) -> IndexedSlot | None:
        """The place of a ULID."""
        key = _key(ref)
        with self._reading() as txn:
            raw = txn.get(b"u" + key + ulid.to_bytes(wanted))
            if raw is None:
                return None
            slot = self._slot(txn, key, int.from_bytes(raw, "big"))
        if slot is None or slot.ulid != wanted:
            raise self._damaged(ref)
        return slot

    def first_above(self, ref: str, floor: ulid.Ulid) -> int:
        """The height of the first entry whose ULID is greater; the count if there is none.

        Found by halving, over records that carry their own checksum. Where ULIDs do not rise with the height (a log
        other software wrote), the halving may land between them; the chain's order is then the only truth there is.
        """
        key = _key(ref)
        with self._reading() as txn:
            low, high = 0, self._extent(txn, key).count
            while low < high:
                middle = (low + high) // 2
                slot = self._slot(txn, key, middle)
                if slot is None:
                    break
                low, high = (low, middle) if slot.ulid > floor else (middle + 1, high)
            else:
                return low
        raise self._damaged(ref)

    def span(self, ref: str, start: int, stop: int) -> list[IndexedSlot]:
        """The places from height `start` up to, not including, `stop`."""
        key = _key(ref)
        with self._reading() as txn:
            slots = [self._slot(txn, key, height) for height in range(start, stop)]
        if any(slot is None for slot in slots):
            raise self._damaged(ref)
        return [slot for slot in slots if slot is not None]

    def _damaged(self, ref: str) -> BrokenLink:
        """Drop what is kept of a ref; the next caller builds it again from the log."""
        self.forget(ref)
        return BrokenLink(f"the index of {ref} was damaged and has been dropped; ask again", ref=ref)

    def forget(self, ref: str) -> None:
        """Drop what is kept of a ref."""
        key = _key(ref)
        with self._writing() as txn:
            txn.delete(b"m" + key)
            for kind in (b"h", b"u"):
                with txn.cursor() as cursor:
                    alive = cursor.set_range(kind + key)
                    while alive and cursor.key().startswith(kind + key):
                        alive = cursor.delete()

    def add(self, ref: str, base: Extent, records: Sequence[bytes]) -> bool:
        """Extend a covered line by entries just written on top of it; False if the index is elsewhere."""
        key = _key(ref)
        with self._building(), self._writing() as txn:
            if self._extent(txn, key) != base:
                return False
            _store(txn, key, ref, base.count, records)
        return True

    def _walk_down(
        self,
        head: str,
        known: Extent,
        describe: Callable[[str], Described],
        expect: str | None,
        spill: Any,
    ) -> tuple[bool, bool]:
        """Note every commit from the head down to the covered part (True) or to the root (False)."""
        met = False
        at: str | None = head
        while at is not None and at != known.head:
            met = met or at == expect
            slot = describe(at)
            spill.write(*records_of([slot.ulid], [slot.content_id], [slot.commit], [slot.blob]))
            at = slot.parent
        return at is not None, met or (at is not None and at == expect)

    def _write_up(self, ref: str, head: str, base: Extent, spill: Any) -> Extent:
        if base.head is None:
            self.forget(ref)
        key = _key(ref)
        at = spill.tell()
        height = base.count
        while at > 0:
            chunk = min(at, RECORD.size * BATCH)
            at -= chunk
            spill.seek(at)
            raw = spill.read(chunk)
            records = [raw[n : n + RECORD.size] for n in range(chunk - RECORD.size, -1, -RECORD.size)]
            with self._writing() as txn:
                _store(txn, key, ref, height, records)
            height += len(records)
        return Extent(head, height)

    @contextlib.contextmanager
    def _building(self) -> Iterator[None]:
        """One builder at a time in all processes: two would undo each other's work."""
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):
                descriptor = os.open(
                    self._folder / "build.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666
                )
                stack.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield

    def _extent(self, txn: Any, key: bytes) -> Extent:
        raw = txn.get(b"m" + key)
        if raw is None or len(raw) < 36 or raw[:8] != _check(key + raw[8:]):
            return Extent(None, 0)
        return Extent(raw[16:36].hex(), int.from_bytes(raw[8:16], "big"))

    def _slot(self, txn: Any, key: bytes, height: int) -> IndexedSlot | None:
        raw = txn.get(b"h" + key + struct.pack(">Q", height))
        if (
            raw is None
            or len(raw) != 8 + RECORD.size
            or raw[:8] != _check(key + struct.pack(">Q", height) + raw[8:])
        ):
            return None
        name, commit, blob, content = RECORD.unpack(raw[8:])
        return IndexedSlot(
            height, ulid.from_bytes(name), ContentId("blake3:" + content.hex()), commit.hex(), blob.hex()
        )

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Any]:
        with self._transaction(write=True) as txn:
            yield txn
        write_stamp(self._folder)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Any]:
        with self._transaction(write=False) as txn:
            yield txn

    @contextlib.contextmanager
    def _transaction(self, *, write: bool) -> Iterator[Any]:
        try:
            with self._env.begin(write=write, buffers=False) as txn:
                yield txn
        except lmdb.Error as error:  # a full disk, mostly
            raise Unavailable(
                f"the index {self._folder} cannot be used: {error}",
                path=str(self._folder),
                advice="Free some space; the log itself is whole, and the folder may be deleted at any time.",
            ) from error


def _store(txn: Any, key: bytes, ref: str, height: int, records: Sequence[bytes]) -> None:
    if not records:
        return
    numbers = [struct.pack(">Q", height + n) for n in range(len(records))]
    h, u, check = b"h" + key, b"u" + key, _check_under(key)
    by_height = [
        (h + number, check(number + record) + record) for number, record in zip(numbers, records, strict=True)
    ]
    by_ulid = [(u + record[:16], number) for number, record in zip(numbers, records, strict=True)]
    with txn.cursor() as cursor:
        cursor.putmulti(by_height)
        # The first event of a ULID keeps it: a log that repeats one is broken, and `verify` says so.
        cursor.putmulti(by_ulid, overwrite=False)
    meta = struct.pack(">Q", height + len(records)) + records[-1][16:36] + ref.encode()
    txn.put(b"m" + key, _check(key + meta) + meta)


def records_of(
    ulids: Sequence[ulid.Ulid], content_ids: Sequence[str], commits: Sequence[str], blobs: Sequence[str]
) -> list[bytes]:
    """What the index keeps of entries. Bytes, because thousands may wait, and the garbage collector need not know."""
    names = ulid.all_to_bytes(ulids)
    of_commits, of_blobs = bytes.fromhex("".join(commits)), bytes.fromhex("".join(blobs))
    contents = bytes.fromhex("".join(content_ids).replace("blake3:", ""))
    return [
        name + of_commits[at : at + 20] + of_blobs[at : at + 20] + contents[content : content + 32]
        for name, at, content in zip(names, count(0, 20), count(0, 32), strict=False)
    ]


def commit_of(record: bytes) -> str:
    """The commit a record speaks of."""
    return record[16:36].hex()


def _key(ref: str) -> bytes:
    return hashlib.blake2b(ref.encode(), digest_size=8).digest()


_CHECK = hashlib.blake2b(digest_size=8, person=b"gitindex")


def _check(raw: bytes) -> bytes:
    check = _CHECK.copy()
    check.update(raw)
    return check.digest()


def _check_under(key: bytes) -> Callable[[bytes], bytes]:
    """`_check` of what follows a key."""
    begun = _CHECK.copy()
    begun.update(key)

    def check(raw: bytes) -> bytes:
        one = begun.copy()
        one.update(raw)
        return one.digest()

    return check


def _rewritten(ref: str, expect: str, head: str | None) -> HistoryRewritten:
    return HistoryRewritten(
        f"{ref} is at {head[:7] if head else 'nothing'}, which does not contain {expect[:7]}, seen before",
        ref=ref,
        expected=expect,
        got=head,
    )
