"""Check the disks that power cuts, failing calls and rot leave; the report is what `make simulate` writes."""

from __future__ import annotations

import os
import random
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any
from unittest.mock import patch

import pygit2

from ropewalk.errors import RopewalkError
from ropewalk.gitlog.sharing import remotes
from ropewalk.gitlog.sharing.git_command import run_git
from ropewalk.gitlog.store import git_config
from ropewalk.kernel import signatures
from tests.sim.power.base import Workload
from tests.sim.power.recording import Call, Recording, WorkloadFailed, record
from tests.sim.power.rot import damaged_states
from tests.sim.power.states import FIXED, SECTOR, CrashState, crash_states, last_state
from tests.sim.power.workloads import WORKLOADS

__all__ = [
    "FAULTS",
    "busy_elsewhere",
    "check_state",
    "faster",
    "in_sector",
    "recorded",
    "remembered_signatures",
    "simulate",
    "simulate_again",
    "simulate_faults",
    "simulate_rot",
]

FAULTS = ("sync", "folder", "eio", "full", "short", "slow")  # of calls; the recorder explains them
CALLS = {"full": 3, "slow": 10**9}  # how many calls in a row meet a fault; one of the others
CALLS_AGAIN = 30  # one of so many fails while a disk is opened again
CUTS = 5  # power cuts after a call has failed, with its end
STRICT = signatures.SCHEMES["ed25519"]
REBOOTED = time.time() - 600
NO_HOUSEKEEPING = Path(__file__).with_name("no_housekeeping.gitconfig")
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # what was synced is known; speed is wanted


@contextmanager
def recorded(name: str, fault: str | None = None) -> Iterator[tuple[Recording, Path]]:
    """Prepare and record a workload in a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="ropewalk-power-", dir=MEMORY) as folder:
        root = Path(folder) / "root"
        root.mkdir()
        WORKLOADS[name].prepare(root)
        yield kept(record(root, name, fault), WORKLOADS[name].away), Path(folder)


def kept(recording: Recording, away: str) -> Recording:
    """Return the recording with every call in the folder `away` followed by a sync: another machine lost no power."""
    if not away:
        return recording
    calls: list[Call] = []
    for call in recording.calls:
        calls.append(call)
        name = call.second or call.path
        if name == away or name.startswith(f"{away}/"):
            kind, path = ("s", name) if call.kind in "wWtsf" else ("d", str(PurePosixPath(name).parent))
            calls.append(Call(kind, call.inode, 0, path, "", b""))
    return replace(recording, calls=tuple(calls))


def busy_elsewhere(recording: Recording, away: str) -> frozenset[int]:
    """Return the cuts that part a call on the other machine from its sync, or at which git there holds a lock.

    It keeps its power: it goes on and lets go.
    """
    begun: dict[str, int] = {}
    busy: set[int] = set()
    for after, call in enumerate(recording.calls if away else (), 1):
        if call.kind not in "sd" and (call.second or call.path).startswith(f"{away}/"):
            busy.add(after)
        if call.kind == "c" and call.path.startswith(f"{away}/") and call.path.endswith(".lock"):
            begun[call.path] = after
        elif call.kind in "ru" and call.path in begun:
            busy.update(range(begun.pop(call.path), after))
    return frozenset(busy)


def check_state(
    workload: Workload, state: CrashState, folder: Path, *, before: list[str] | None = None
) -> list[str]:
    """Lay out a disk, open it with a writer, and return what does not hold.

    `before` is what the log held before its disk was damaged.
    """
    root = folder / "state"
    _lay_out(state, str(root))
    receipts = state.acknowledged.decode().splitlines()

    def found() -> list[str]:
        wrong: list[str] = []
        try:
            if before is None:
                wrong.extend(workload.check(root, receipts))
            else:
                wrong.extend(workload.check_damaged(root, receipts, before))
        except Exception as error:
            wrong.append(f"{type(error).__name__}: {error}")
        return wrong

    try:
        with faster():
            return _in_child(found) if before is not None and workload.own_process else found()
    finally:
        for path in folder.glob("state*"):
            _remove(str(path))


def _lay_out(state: CrashState, root: str) -> None:
    for name in sorted(state.folders):  # parents come first
        os.mkdir(root if name == "." else f"{root}/{name}")  # noqa: PTH102 - paths as objects took a third of the time
    first: dict[int, str] = {}
    for name, (inode, raw) in state.files.items():
        path = f"{root}/{name}"
        if inode in first:
            os.link(first[inode], path)
            continue
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            written = os.write(descriptor, raw)
            assert written == len(raw), f"{path}: {written} of {len(raw)} bytes were written"
            os.utime(descriptor, (REBOOTED, REBOOTED))  # a machine takes a while to start again
        finally:
            os.close(descriptor)
        first[inode] = path


def _remove(folder: str) -> None:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                _remove(entry.path)
            else:
                os.unlink(entry.path)  # noqa: PTH108
    os.rmdir(folder)  # noqa: PTH106


def _in_child(question: Callable[[], list[str]]) -> list[str]:
    """Ask in a forked process; one that a damaged file ends has answered nothing wrong."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        with os.fdopen(writing, "w") as stream:
            stream.write("\n".join(question()))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        said = stream.read()
    os.waitpid(child, 0)
    return said.splitlines()


@lru_cache(maxsize=50_000)
def _verified(key: bytes, message: bytes, signature: bytes) -> RopewalkError | None:
    """Return why a signature is refused, or None."""
    try:
        STRICT.verify(key, message, signature)
    except RopewalkError as error:
        return error
    return None


def _verify(key: bytes, message: bytes, signature: bytes) -> None:
    if (error := _verified(key, message, signature)) is not None:
        raise error


@contextmanager
def remembered_signatures() -> Iterator[None]:
    """Check each Ed25519 signature once: the verdict depends on key, message and signature alone."""
    with patch.dict(signatures.SCHEMES, ed25519=replace(STRICT, verify=_verify)):
        yield


@contextmanager
def faster() -> Iterator[None]:
    """Remember signatures, and read git's settings without starting git, as ropewalk does where there is none."""
    with (
        remembered_signatures(),
        patch.object(git_config, "_ask_git", _no_git),
        patch.object(remotes, "run_git", _run_git),
        patch.dict(os.environ, GIT_CONFIG_GLOBAL=str(NO_HOUSEKEEPING)),
    ):
        yield


def _no_git(_git_dir: Path) -> None:
    return None


def _run_git(git_dir: Path, *arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Run git, except to ask what the repository's configuration says."""
    if arguments[:2] not in (("config", "--get"), ("config", "--get-all")):
        return run_git(git_dir, *arguments, **options)
    values = [*pygit2.Config(str(git_dir / "config")).get_multivar(arguments[2])]
    said = "".join(f"{value}\n" for value in values).encode()
    return subprocess.CompletedProcess(arguments, 0 if values else 1, said, b"")


class _Count:
    """What is counted while states are checked, until there are enough or time is up."""

    def __init__(self, limit: int | None, seconds: float) -> None:
        self.limit, self._started, self._seconds = limit, time.monotonic(), seconds
        self.states, self.failed, self.enumerated = 0, 0, 0
        self.faults: Counter[str] = Counter()
        self.problems: list[dict[str, Any]] = []

    def enough(self) -> bool:
        late = time.monotonic() - self._started > self._seconds
        return late or (self.limit is not None and self.states >= self.limit)

    def add(self, state: CrashState, found: list[str], *kinds: str, **where: Any) -> None:
        self.states += 1
        self.enumerated += 1 + state.repeats
        self.faults.update((*state.faults, *kinds))
        if found:
            self.fail(found, after=state.after, choice=state.choice, **where)

    def fail(self, found: list[str], **where: Any) -> None:
        self.failed += 1
        if len(self.problems) < 20:
            self.problems.append({**where, "problems": found})

    def report(self, name: str, seed: int, calls: int) -> dict[str, Any]:
        return {
            "ok": self.states > 0 and not self.failed,
            "engine": WORKLOADS[name].engine,
            "calls": calls,
            "states": self.states,
            "enumerated": self.enumerated,
            "seed": seed,
            "faults": dict(sorted(self.faults.items())),
            "failed": self.failed,
            "problems": self.problems,
            "seconds": round(time.monotonic() - self._started, 1),
        }


def simulate(
    name: str,
    *,
    seed: int,
    mixes: int,
    limit: int | None = None,
    seconds: float = 1e9,
    ignore: str = "",
) -> dict[str, Any]:
    """Run one workload through its crash states, up to a number of states or a time; a low limit draws cuts.

    `ignore` names kinds of calls that the disk does not honour, to see that a missing sync is found.
    """
    count = _Count(limit, seconds)
    with recorded(name) as (recording, folder):
        honoured = tuple(call for call in recording.calls if call.kind not in ignore)
        recording = replace(recording, calls=honoured)
        cuts = sorted({*range(len(recording.calls) + 1)} - busy_elsewhere(recording, WORKLOADS[name].away))
        groups = [cuts]
        if limit is not None and limit < len(cuts) * (
            len(FIXED) + mixes
        ):  # the first alone would miss the rest
            random.Random(seed).shuffle(cuts)
            groups = [cuts[start : start + CUTS] for start in range(0, len(cuts), CUTS)]
        states = (crash_states(recording, seed=seed, mixes=mixes, cuts=each) for each in groups)
        for state in chain.from_iterable(states):
            if count.enough():
                break
            count.add(state, check_state(WORKLOADS[name], state, folder))
    return count.report(name, seed, len(recording.calls))


def simulate_faults(
    name: str, kind: str, *, seed: int, limit: int | None = None, seconds: float = 1e9, mixes: int = 2
) -> dict[str, Any]:
    """Let one call after another of a workload fail; the process goes on, and the power is cut some time later."""
    count, chance = _Count(limit, seconds), random.Random(f"{seed} {name} {kind}")
    with recorded(name, f"{kind}:{10**9}:1") as (whole, _):
        places = list(range(1, whole.eligible + 1))
    chance.shuffle(places)
    for at in places:
        if count.enough():
            break
        try:
            with recorded(name, f"{kind}:{at}:{CALLS.get(kind, 1)}") as (recording, folder):
                calls = len(recording.calls)
                cuts = {calls, *(chance.randrange(calls) for _ in range(CUTS - 1))}
                cuts -= busy_elsewhere(recording, WORKLOADS[name].away)
                cuts = {cut for cut in cuts if not in_sector(recording, cut)}
                for state in crash_states(recording, seed=seed, mixes=mixes, cuts=cuts):
                    if count.enough():
                        break
                    count.add(state, check_state(WORKLOADS[name], state, folder), kind, fault=f"{kind}:{at}")
        except WorkloadFailed as error:
            count.fail([str(error)], fault=f"{kind}:{at}")
    return count.report(name, seed, len(whole.calls))


def simulate_again(name: str, *, seed: int, limit: int, seconds: float = 1e9) -> dict[str, Any]:
    """Cut off the writer that opens a disk after a cut; one of its calls may fail. The next writer opens that disk."""
    count, chance, workload = _Count(limit, seconds), random.Random(f"{seed} {name} again"), WORKLOADS[name]
    with recorded(name) as (whole, folder):
        root = folder / "again"
        while not count.enough():
            after = chance.randrange(len(whole.calls) + 1)
            if after in busy_elsewhere(whole, workload.away):
                continue
            firsts = crash_states(whole, seed=chance.randrange(1 << 30), mixes=3, cuts=(after,))
            first = chance.choice(list(firsts))
            fault = chance.choice(["", *(each for each in FAULTS if each not in workload.without)])
            at = chance.randrange(1, CALLS_AGAIN)
            where = {"first": [first.after, first.choice], "fault": f"{fault}:{at}"}
            _lay_out(first, str(root))
            try:
                failing = f"{fault}:{at}:{CALLS.get(fault, 1)}" if fault else None
                opening = record(root, f"{name} again", failing)
                opening = kept(opening, workload.away)
                calls = len(opening.calls)
                cuts = {calls, *(chance.randrange(calls + 1) for _ in range(CUTS - 1))}
                cuts -= busy_elsewhere(opening, workload.away)
                cuts = {cut for cut in cuts if not in_sector(opening, cut)}
                for state in crash_states(opening, seed=seed, mixes=1, cuts=cuts):
                    if count.enough():
                        break
                    both = replace(state, acknowledged=first.acknowledged + state.acknowledged)
                    found = check_state(workload, both, folder)
                    count.add(both, found, *filter(None, ("again", fault)), **where)
            except WorkloadFailed as error:
                count.fail([str(error)], **where)
            finally:
                for path in folder.glob("again*"):
                    _remove(str(path)) if path.is_dir() else path.unlink()
    return count.report(name, seed, len(whole.calls))


def in_sector(recording: Recording, cut: int) -> bool:
    """Return whether a cut parts the halves of a short write within one sector, which a disk writes whole."""
    if not 0 < cut < len(recording.calls):
        return False
    one, two = recording.calls[cut - 1 : cut + 1]
    joined = (one.kind, one.inode, one.offset + len(one.data)) == (two.kind, two.inode, two.offset)
    return one.kind == "w" and joined and one.offset // SECTOR == two.offset // SECTOR


def simulate_rot(name: str, *, seed: int, limit: int, seconds: float = 1e9) -> dict[str, Any]:
    """Damage what a workload has synced, once in each state, and let a writer, a reader and a verifier open it."""
    count, workload = _Count(limit, seconds), WORKLOADS[name]
    with recorded(name) as (recording, folder):
        now = last_state(recording)
        older = last_state(recording, after=len(recording.calls) * 2 // 3)
        before = workload.read(folder / "root")
        for state in damaged_states(now, older, kinds=workload.rot, seed=seed):
            if count.enough():
                break
            count.add(state, check_state(workload, state, folder, before=before))
    return count.report(name, seed, len(recording.calls))
