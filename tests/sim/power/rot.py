"""What a disk may do to bytes that were synced: rot, lost and misdirected writes. Pure: states in, states out."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from dataclasses import replace

from tests.sim.power.states import PAGE, SECTOR, CrashState

REPEATS_MAX = 1000  # in a row: nearly every fault of a small disk was seen

__all__ = ["damaged_states", "without_sectors"]


def damaged_states(
    now: CrashState, older: CrashState, *, kinds: Collection[str], seed: int
) -> Iterator[CrashState]:
    """Yield disks with one fault each, none twice, until few are left: in `now`, or for a lost write from `older`.

    bit           one bit flips
    zeros         a sector reads as zeros
    stale         a page was not written: it holds what it held before
    misdirected   a page was written over another one, which may be in another file
    cut           the end of a file is missing
    gone          a file is missing
    """
    chance = random.Random(f"{seed} rot")
    known, repeats = {now.digest()}, 0
    names = [name for name, (_, raw) in now.files.items() if raw]
    while True:
        kind, name = chance.choice(sorted(kinds)), chance.choice(names)
        files = dict(now.files)
        inode, whole = files[name]
        raw = bytearray(whole)
        match kind:
            case "bit":
                raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
            case "zeros":
                start = SECTOR * chance.randrange((len(raw) + SECTOR - 1) // SECTOR)
                raw[start : start + SECTOR] = bytes(len(raw[start : start + SECTOR]))
            case "stale" | "misdirected":
                start = PAGE * chance.randrange((len(raw) + PAGE - 1) // PAGE)
                page = bytes(raw[start : start + PAGE])
                same = name in older.files and older.files[name][0] == inode
                before = older.files[name][1][start : start + PAGE] if same else b""
                raw[start : start + PAGE] = before.ljust(len(page), b"\0")
                if kind == "misdirected":
                    other = chance.choice(names)
                    over = raw if other == name else bytearray(files[other][1])
                    there = PAGE * chance.randrange((len(over) + PAGE - 1) // PAGE)
                    over[there : there + len(page)] = page[: max(0, len(over) - there)]
                    files[other] = files[other][0], bytes(over)
            case "cut":
                del raw[chance.randrange(len(raw)) :]
            case "gone":
                del files[name]
        if kind != "gone":
            files[name] = inode, bytes(raw)
        state = replace(now, choice=f"{kind} {name}", faults=frozenset((kind,)), files=files, repeats=repeats)
        if (digest := state.digest()) in known:
            repeats += 1
            if repeats > REPEATS_MAX:
                return
            continue
        known.add(digest)
        yield state
        repeats = 0


def without_sectors(now: CrashState, suffix: str) -> Iterator[CrashState]:
    """Yield a disk for each sector of the files with a suffix, in which that sector reads as zeros."""
    for name, (inode, raw) in now.files.items():
        for start in range(0, len(raw), SECTOR) if name.endswith(suffix) else ():
            size = len(raw[start : start + SECTOR])
            files = {**now.files, name: (inode, raw[:start] + bytes(size) + raw[start + size :])}
            yield replace(now, choice=f"zeros {name} {start}", faults=frozenset(("zeros",)), files=files)
