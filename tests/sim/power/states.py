"""What a disk may hold after a power cut. Pure: recorded calls in, files out.

The rules are POSIX's, and nothing that one file system adds. What was written to a file before a sync of that file is
there afterwards. A name that was made, moved or removed before a sync of its folder is as it was then. Everything else
may be kept or lost, each page and each name alone: a page of a write may be missing, hold zeros or be torn at a sector.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from tests.sim.power.recording import ACKNOWLEDGED, Call, Recording

__all__ = ["CrashState", "crash_states"]

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


@dataclass(slots=True)
class _File:
    durable: bytearray
    pending: list[tuple[int, bytes | None]] = field(
        default_factory=list
    )  # offset and data; None: truncate to offset

    def chunks(self) -> list[tuple[int, bytes | None]]:
        """The pending writes, a page each."""
        found: list[tuple[int, bytes | None]] = []
        for offset, data in self.pending:
            if data is None:
                found.append((offset, None))
                continue
            place = 0
            while place < len(data):
                size = PAGE - (offset + place) % PAGE
                found.append((offset + place, data[place : place + size]))
                place += size
        return found


class _Disk:
    """The durable part of a disk and what waits to become so."""

    def __init__(self, recording: Recording) -> None:
        self.folders = set(recording.folders)
        self.names = {path: inode for path, (inode, _) in recording.files.items()}
        self.files = {inode: _File(bytearray(raw)) for inode, raw in recording.files.values()}
        self.pending: list[Call] = []  # of names
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
                self.files.setdefault(call.inode, _File(bytearray())).pending.append((call.offset, call.data))
            case "W":  # synchronous, and alone
                of_file = self.files.setdefault(call.inode, _File(bytearray()))
                written = _File(of_file.durable, [(call.offset, call.data)])
                of_file.durable = _content(written, [KEPT] * len(written.chunks()))
            case "t":
                self.files.setdefault(call.inode, _File(bytearray())).pending.append((call.offset, None))
            case "s":
                if (synced := self.files.get(call.inode)) is not None:
                    synced.durable = _content(synced, [KEPT] * len(synced.chunks()))
                    synced.pending = []
            case "d":
                of_folder = [each for each in self.pending if _folder(each) == call.path]
                for each in of_folder:
                    _rename(self.names, self.folders, each)
                self.pending = [each for each in self.pending if _folder(each) != call.path]
            case _:
                self.pending.append(call)

    def cut(self, after: int, choice: str, chance: random.Random) -> CrashState:
        """Choose what of the unsynced survives."""
        names, folders, faults = dict(self.names), set(self.folders), set()
        kept_names = _choose(choice, "names", len(self.pending), chance)
        for call, fate in zip(self.pending, kept_names, strict=True):
            if fate == KEPT:
                _rename(names, folders, call)
            else:
                faults.add(f"name {LOST}")
        files: dict[str, tuple[int, bytes]] = {}
        contents: dict[int, bytes] = {}
        for path, inode in names.items():
            if path == ACKNOWLEDGED or any(str(part) not in folders for part in PurePosixPath(path).parents):
                continue
            if inode not in contents:
                of_file = self.files[inode]
                fates = _choose(choice, "data", len(of_file.chunks()), chance)
                faults.update(f"page {fate}" for fate in fates if fate != KEPT)
                contents[inode] = bytes(_content(of_file, fates, chance))
            files[path] = inode, contents[inode]
        return CrashState(after, choice, frozenset(faults), frozenset(folders), files, self.acknowledged)


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
        case "r" if call.path in folders:  # a folder moves with all that is in it
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


def _content(of_file: _File, fates: list[str], chance: random.Random | None = None) -> bytearray:
    raw = bytearray(of_file.durable)
    for (offset, data), fate in zip(of_file.chunks(), fates, strict=True):
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


def crash_states(recording: Recording, *, seed: int, mixes: int, share: int = 1) -> Iterator[CrashState]:
    """Yield the disks after every cut (or one in `share`): fixed choices, then `mixes` random ones, none twice."""
    disk, known = _Disk(recording), set()
    for after in range(len(recording.calls) + 1):
        if after:
            disk.take(recording.calls[after - 1])
        if (after + seed) % share:
            continue
        random_choices = ["one lost" if n % 3 == 0 else f"mix {n}" for n in range(mixes)]
        for choice in (*FIXED, *random_choices):
            state = disk.cut(after, choice, random.Random(f"{seed} {after} {choice}"))
            print_of = hash((state.folders, tuple(sorted(state.files.items())), state.acknowledged))
            if print_of not in known:
                known.add(print_of)
                yield state
