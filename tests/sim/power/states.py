"""What a disk may hold after a power cut. Pure: recorded calls in, files out.

The rules are POSIX's, and nothing that one file system adds. What was written to a file before a sync of that file is
there afterwards. A name that was made, moved or removed before a sync of its folder is as it was then. Everything else
may be kept or lost, each page and each name alone: a page of a write may be missing, hold zeros or be torn at a sector.
A sync that fails drops what it should have written: the system shows those pages, but a later sync does not write them.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import PurePosixPath

from tests.sim.power.recording import Call, Recording

__all__ = ["ACKNOWLEDGED", "FIXED", "PAGE", "SECTOR", "CrashState", "crash_states", "last_state"]

ACKNOWLEDGED = ".acknowledged"  # a file that a workload writes its receipts to; no part of the disk
PAGE, SECTOR = 4096, 512
KEPT, LOST, ZEROS, TORN = "kept", "lost", "zeros", "torn"


@dataclass(frozen=True, slots=True)
class CrashState:
    """A disk after a cut, and the receipts that were given before it."""

    after: int  # calls before the cut
    choice: str  # how the unsynced calls were chosen
    faults: frozenset[str]
    folders: frozenset[str]
    files: dict[str, tuple[int, bytes]]  # inode and content: equal inodes are hard links
    acknowledged: bytes
    repeats: int = 0  # states since the last one that were equal to earlier ones

    def digest(self) -> int:
        """Return a number that equal disks with equal receipts share."""
        return hash((self.folders, tuple(sorted(self.files.items())), self.acknowledged))


PENDING, COVERED, SYNCED, DROPPED = "pending", "covered", "synced", "dropped"


@dataclass(slots=True)
class _Change:
    offset: int
    data: bytes | None  # None: truncate to offset
    state: str = PENDING


@dataclass(slots=True)
class _File:
    durable: bytearray
    changes: list[_Change] = field(default_factory=list)

    def chunks(self) -> list[_Change]:
        """Return the changes, a page each."""
        found: list[_Change] = []
        for change in self.changes:
            offset, data = change.offset, change.data
            if data is None or offset % PAGE + len(data) <= PAGE:
                found.append(change)
                continue
            place = 0
            while place < len(data):
                size = PAGE - (offset + place) % PAGE
                found.append(_Change(offset + place, data[place : place + size], change.state))
                place += size
        return found

    def write(self, offset: int, data: bytes) -> None:
        """Note a write. One that goes on within a sector belongs to the one before: a disk writes a sector whole."""
        last = self.changes[-1] if self.changes else _Change(0, None)
        end = None if last.data is None or last.state != PENDING else last.offset + len(last.data)
        if last.data is not None and end == offset and last.offset // SECTOR == offset // SECTOR:
            last.data += data
        else:
            self.changes.append(_Change(offset, data))

    def begin_sync(self) -> None:
        """Take note of what a slow sync covers: not what is written before it ends."""
        for change in self.changes:
            if change.state == PENDING:
                change.state = COVERED

    def sync(self) -> None:
        """Make what is pending durable; what a failed sync dropped stays uncertain."""
        if not any(change.state == COVERED for change in self.changes):
            self.begin_sync()
        for change in self.changes:
            if change.state == COVERED:
                change.state = SYNCED
        settled = next((n for n, each in enumerate(self.changes) if each.state != SYNCED), len(self.changes))
        self.durable = content(_File(self.durable, self.changes[:settled]), [])
        del self.changes[:settled]

    def drop(self) -> None:
        """Take note that a sync failed."""
        for change in self.changes:
            if change.state in (PENDING, COVERED) and change.data is not None:
                change.state = DROPPED


class _Disk:
    """The durable part of a disk and what waits to become so."""

    def __init__(self, recording: Recording) -> None:
        self.folders = set(recording.folders)
        self.names = {path: inode for path, (inode, _) in recording.files.items()}
        self.files = {inode: _File(bytearray(raw)) for inode, raw in recording.files.values()}
        self.pending: list[Call] = []  # of names
        self.covered: dict[
            str, list[Call]
        ] = {}  # by folder: names that were pending when a slow sync of it began
        self.acknowledged = b""

    def take(self, call: Call) -> None:
        if call.path == ACKNOWLEDGED:
            self.acknowledged += call.data
            return
        match call.kind:
            case "c":
                self.files[call.inode] = _File(bytearray())
                self.pending.append(call)
            case "w":
                self._file(call).write(call.offset, call.data)
            case "W":  # synchronous, and alone
                alone = _File(self._file(call).durable, [_Change(call.offset, call.data, SYNCED)])
                self._file(call).durable = content(alone, [])
                if self._file(call).changes:
                    self._file(call).changes.append(_Change(call.offset, call.data, SYNCED))
            case "t":
                self._file(call).changes.append(_Change(call.offset, None))
            case "s":
                self._file(call).sync()
            case "f":
                self._file(call).drop()
            case "B":
                self._file(call).begin_sync()
            case "b":
                self.covered[call.path] = self._pending_in(call.path)
            case "d":
                synced = self.covered.pop(call.path, None)
                synced = self._pending_in(call.path) if synced is None else synced
                for each in synced:
                    _rename(self.names, self.folders, each)
                done = {id(each) for each in synced}
                self.pending = [each for each in self.pending if id(each) not in done]
            case "r" if call.inode not in self.files:  # a folder
                if not self._born(call):
                    self.pending.append(replace(call, kind="R"))
            case _:
                self.pending.append(call)

    def _pending_in(self, folder: str) -> list[Call]:
        return [each for each in self.pending if _folder(each) == folder]

    def _born(self, call: Call) -> bool:
        """Move a folder that is not durable yet to its new name, with all in it; a sync there makes it durable."""
        if not any(each.kind == "m" and each.path == call.path for each in self.pending):
            return False

        def moved(path: str) -> str:
            inside = path == call.path or path.startswith(f"{call.path}/")
            return call.second + path.removeprefix(call.path) if inside else path

        self.covered.clear()  # they have other names now
        self.names = {moved(path): inode for path, inode in self.names.items()}
        self.folders = {moved(path) for path in self.folders}
        self.pending = [
            replace(each, path=moved(each.path), second=moved(each.second)) for each in self.pending
        ]
        return True

    def _file(self, call: Call) -> _File:
        return self.files.setdefault(call.inode, _File(bytearray()))

    def cut(self, after: int, choice: str, chance: random.Random) -> CrashState:
        """Choose what of the unsynced survives."""
        names, folders, faults = dict(self.names), set(self.folders), set()
        kept_names = _choose(choice, "names", len(self.pending), chance)
        for call, fate in zip(self.pending, kept_names, strict=True):
            if fate == KEPT:
                _rename(names, folders, call)
            else:
                faults.add(f"name {LOST}")
        folders = {path for path in folders if folders.issuperset(_parents(path))}
        files: dict[str, tuple[int, bytes]] = {}
        contents: dict[int, bytes] = {}
        for path, inode in names.items():
            if path == ACKNOWLEDGED or not folders.issuperset(_parents(path)):
                continue
            if inode not in contents:
                of_file = self.files[inode]
                if not of_file.changes:
                    contents[inode] = bytes(of_file.durable)
                else:
                    uncertain = [each for each in of_file.chunks() if each.state != SYNCED]
                    fates = _choose(choice, "data", len(uncertain), chance)
                    faults.update(f"page {fate}" for fate in fates if fate != KEPT)
                    pairs = zip(uncertain, fates, strict=True)
                    if any(each.state == DROPPED and fate != KEPT for each, fate in pairs):
                        faults.add("page dropped by sync")
                    contents[inode] = bytes(content(of_file, fates, chance))
            files[path] = inode, contents[inode]
        return CrashState(after, choice, frozenset(faults), frozenset(folders), files, self.acknowledged)


@cache
def _parents(path: str) -> frozenset[str]:
    return frozenset(str(each) for each in PurePosixPath(path).parents)


def _folder(call: Call) -> str:
    return str(PurePosixPath(call.second or call.path).parent)


def _rename(names: dict[str, int], folders: set[str], call: Call) -> None:
    match call.kind:
        case "m":
            folders.add(call.path)
        case "c":
            names[call.path] = call.inode
        case "l":
            names[call.second] = call.inode
        case "u":
            names.pop(call.path, None)
            folders.discard(call.path)
        case "R" if call.path in folders:  # a folder moves with all that is in it
            moved = {
                path for path in (*names, *folders) if path == call.path or path.startswith(f"{call.path}/")
            }
            for path in moved:
                to = call.second + path.removeprefix(call.path)
                if path in folders:
                    folders.remove(path)
                    folders.add(to)
                else:
                    names[to] = names.pop(path)
        case "r":
            names.pop(call.path, None)
            names[call.second] = call.inode


def content(of_file: _File, fates: list[str], chance: random.Random | None = None) -> bytearray:
    """Return what a file holds if its uncertain chunks have these fates."""
    raw, left = bytearray(of_file.durable), iter(fates)
    for change in of_file.chunks():
        offset, data = change.offset, change.data
        fate = KEPT if change.state == SYNCED else next(left)
        if fate == LOST:
            continue
        if data is None:
            del raw[offset:]
            raw.extend(bytes(offset - len(raw)))
            continue
        if fate == ZEROS:  # the size came first; what had bytes keeps them
            raw.extend(bytes(max(0, offset + len(data) - len(raw))))
            continue
        if fate == TORN and chance is not None:
            cut = SECTOR - offset % SECTOR + SECTOR * chance.randrange(PAGE // SECTOR)
            data = data[:cut]
        raw.extend(bytes(max(0, offset - len(raw))))
        raw[offset : offset + len(data)] = data
    return raw


def _choose(choice: str, of: str, count: int, chance: random.Random) -> list[str]:
    match choice:
        case "none":
            return [LOST] * count
        case "all":
            return [KEPT] * count
        case "names":
            return [KEPT if of == "names" else LOST] * count
        case "sizes":
            return [KEPT if of == "names" else ZEROS] * count
        case "data":
            return [KEPT if of == "data" else LOST] * count
        case "torn":
            return [TORN if of == "data" and n == count - 1 else KEPT for n in range(count)]
        case "one lost":
            lost = chance.randrange(count) if count else 0
            return [LOST if n == lost else KEPT for n in range(count)]
        case "last only":
            return [KEPT if n == count - 1 else LOST for n in range(count)]
    weights = chance.random()  # swarm: each state has its own mix
    fates = (KEPT, LOST) if of == "names" else (KEPT, LOST, ZEROS, TORN)
    return [KEPT if chance.random() < weights else chance.choice(fates) for _ in range(count)]


FIXED = ("none", "all", "names", "sizes", "data", "torn", "last only")


def crash_states(
    recording: Recording,
    *,
    seed: int,
    mixes: int,
    cuts: Collection[int] | None = None,
) -> Iterator[CrashState]:
    """Yield the disks after every cut: fixed choices, then `mixes` random ones, none twice.

    `cuts` names some by the number of calls before.
    """
    disk, known, repeats = _Disk(recording), set(), 0
    for after in range(len(recording.calls) + 1):
        if after:
            disk.take(recording.calls[after - 1])
        if cuts is not None and after not in cuts:
            continue
        random_choices = ["one lost" if n % 3 == 0 else f"mix {n}" for n in range(mixes)]
        for choice in (*FIXED, *random_choices):
            state = disk.cut(after, choice, random.Random(f"{seed} {after} {choice}"))
            if (digest := state.digest()) in known:
                repeats += 1
                continue
            known.add(digest)
            yield replace(state, repeats=repeats)
            repeats = 0


def last_state(recording: Recording, after: int | None = None) -> CrashState:
    """Return the disk with everything written, at the end or after a call."""
    disk = _Disk(recording)
    calls = recording.calls[:after]
    for call in calls:
        disk.take(call)
    return disk.cut(len(calls), "all", random.Random(0))
