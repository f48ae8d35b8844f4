"""What a git log must survive: kills, crowds, failing calls, wild clocks, flipped bytes."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ropewalk.disk.durable import Disk
from ropewalk.disk.repository_paths import RepositoryPaths, make_repository
from ropewalk.errors import RopewalkError
from ropewalk.gitlog.repository.opening import open_repository
from ropewalk.gitlog.store.object_store import GitStore
from ropewalk.kernel import ulid
from ropewalk.repository_check import verify_gitlogs
from tests.waiting import Crew, ended

__all__ = ["crowd", "failing_calls", "flips", "kills", "run", "wild_clock"]

CROWD_S = 3_600.0  # for the largest crowd, on whatever machine

# A writer that says what was acknowledged, one line each, and appends until it is killed: every second thread one by
# one, the others in batches, which the compiled loops pack.
WRITER = """
import sys, threading
from ropewalk.errors import RopewalkError
from ropewalk.gitlog.core.envelope import Draft
from ropewalk.gitlog.repository.opening import open_repository
log = open_repository(sys.argv[1])
name, threads, count = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
guard = threading.Lock()
def write(thread):
    for start in range(0, count, size := 24 if thread % 2 else 1):
        numbers = range(start, min(start + size, count))
        events = [{"type": "t", "payload": {"writer": f"{name}.{thread}", "n": n}} for n in numbers]
        for n, receipt in zip(numbers, log.append_all("demo", list(map(Draft, events)))):
            if isinstance(receipt, RopewalkError):
                raise receipt
            with guard:
                sys.stdout.write(f"{receipt.ulid} {name}.{thread} {n}\\n")
                sys.stdout.flush()
crew = [threading.Thread(target=write, args=(t,)) for t in range(threads)]
for t in crew: t.start()
for t in crew: t.join()
log.close()
"""


def kills(folder: Path, count: int, seed: int = 1) -> dict[str, Any]:
    """kill −9 of appending processes at random points: no acknowledged event is lost, nothing needs repair."""
    chance = random.Random(seed)
    place = make_repository(folder / "kills.git")[0]
    acknowledged: list[str] = []
    killed = fell = 0
    while killed < count:
        with ExitStack() as stack:
            crew = [stack.enter_context(ended(_start(place, f"{killed}-{n}", 2, 10**9))) for n in range(4)]
            firsts = ["" for _ in crew]
            if chance.random() < 0.9:  # mostly while they append; now and then while they start
                firsts = [process.stdout.readline() for process in crew if process.stdout is not None]
            for process in chance.sample(crew, len(crew)):
                time.sleep(chance.random() * 0.03)
                process.send_signal(signal.SIGKILL)
            outputs = [process.communicate()[0] for process in crew]
        for process, first, output in zip(crew, firsts, outputs, strict=True):
            # What follows the last newline was cut off in the middle.
            lines = (first + output).split("\n")[:-1]
            acknowledged += [line.split()[0] for line in lines if len(line.split()) == 3]
            # Only a kill that met a living writer counts; one that fell by itself stumbled over what others left.
            killed += process.returncode == -signal.SIGKILL
            fell += process.returncode != -signal.SIGKILL
        if fell:
            break
    with open_repository(place.git_dir) as log:
        # One more append by a fresh process: no lock, no leftover stands in its way.
        log.append("demo", {"type": "t", "payload": {"writer": "after", "n": 0}})
        standing = [event.ulid for event in log.events("demo")]
    lost = set(acknowledged) - set(standing)
    locks = list(place.git_dir.glob("refs/**/*.lock"))
    report = verify_gitlogs(GitStore(place), deep=True)
    ordered = standing == sorted(set(standing))
    return {
        "ok": not lost and not fell and not locks and report.ok and ordered and _fsck(place),
        "seed": seed,
        "kills": killed,
        "fell_by_themselves": fell,
        "acknowledged": len(acknowledged),
        "standing": len(standing),
        "lost": len(lost),
        "locks_left": len(locks),
        "verify": [step.to_json() for step in report.steps if step.status == "failed"],
    }


def crowd(folder: Path, processes: int, threads: int, each: int) -> dict[str, Any]:
    """Processes and threads append while git collects garbage, fetches and pushes: every event once, in order."""
    place = make_repository(folder / "crowd.git")[0]
    mirror = folder / "mirror.git"
    subprocess.run(
        ["git", "clone", "-q", "--mirror", str(place.git_dir), str(mirror)], check=True, capture_output=True
    )
    stop = threading.Event()
    tools = {"gc": 0, "repack": 0, "pack-refs": 0, "fetch": 0, "push": 0}
    complaints: list[str] = []

    def disturb() -> None:
        spec = "refs/gatos/*:refs/gatos/*"
        acts: list[tuple[str, list[str], Path]] = [
            ("gc", ["git", "gc", "-q", "--prune=now"], place.git_dir),
            ("fetch", ["git", "fetch", "-q", str(place.git_dir), spec], mirror),
            ("repack", ["git", "repack", "-q", "-a", "-d"], place.git_dir),
            ("push", ["git", "push", "-q", str(mirror), spec], place.git_dir),
            ("pack-refs", ["git", "pack-refs", "--all", "--prune"], place.git_dir),
        ]
        while not stop.is_set():
            for name, command, where in acts:
                done = subprocess.run(command, cwd=where, capture_output=True, text=True, check=False)
                tools[name] += done.returncode == 0
                if done.returncode:
                    complaints.append(f"{name}: {done.stderr.strip()[-300:]}")

    disturbed = Crew(1).submit(disturb)
    try:
        with ExitStack() as stack:
            crew = [
                stack.enter_context(ended(_start(place, str(n), threads, each), CROWD_S))
                for n in range(processes)
            ]
            outputs = [process.communicate()[0] for process in crew]
    finally:
        stop.set()
    disturbed.result(CROWD_S)
    codes = [process.returncode for process in crew]
    acknowledged = sorted(line.split()[0] for output in outputs for line in output.splitlines())
    with open_repository(place.git_dir) as log:
        events = list(log.events("demo"))
    by_writer: dict[str, list[int]] = {}
    for event in events:
        by_writer.setdefault(event.payload["writer"], []).append(event.payload["n"])
    whole = all(numbers == list(range(each)) for numbers in by_writer.values())
    report = verify_gitlogs(GitStore(place), deep=True)
    once = [event.ulid for event in events] == acknowledged
    return {
        "ok": once
        and whole
        and len(by_writer) == processes * threads
        and not any(codes)
        and report.ok
        and _fsck(place),
        "events": len(events),
        "writers": len(by_writer),
        "exit_codes": sorted(set(codes)),
        "git_runs": tools,
        "git_complaints": complaints[:10],
        "verify": [step.to_json() for step in report.steps if step.status == "failed"],
    }


class FailingDisk(Disk):
    """Fails one call, the n-th, as a full disk would."""

    def __init__(self, nth: int) -> None:
        self.left = nth
        self.failed = ""

    def _tick(self, name: str) -> None:
        self.left -= 1
        if self.left == 0:
            self.failed = name
            raise OSError(28, "No space left on device")

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name in ("write", "fsync", "rename", "link", "unlink", "touch_new", "append", "make_directories"):

            def ticking(*args: Any, **kwargs: Any) -> Any:
                self._tick(name)
                return found(*args, **kwargs)

            return ticking
        return found


def failing_calls(folder: Path, rounds: int = 1) -> dict[str, Any]:
    """Every write call fails once, in turn: what was acknowledged stands, and a fresh process goes on."""
    failures: list[dict[str, Any]] = []
    calls: list[str] = []
    for number in range(rounds):
        nth = 0
        while True:
            nth += 1
            place = make_repository(folder / f"fail-{number}-{nth}.git")[0]
            disk = FailingDisk(nth)
            acknowledged: list[str] = []
            with open_repository(place.git_dir, disk=disk) as log:
                for n in range(4):
                    try:
                        acknowledged.append(log.append("demo", {"type": "t", "payload": {"n": n}}).ulid)
                    except RopewalkError:
                        continue
            with open_repository(place.git_dir) as log:
                acknowledged.append(log.append("demo", {"type": "t", "payload": {"n": "after"}}).ulid)
                standing = [event.ulid for event in log.events("demo")]
            report = verify_gitlogs(GitStore(place), deep=True)
            if not set(acknowledged) <= set(standing) or not report.ok:
                failures.append({"nth": nth, "call": disk.failed, "report": report.to_json()})
            shutil.rmtree(place.git_dir)
            if not disk.failed:
                break
            calls.append(disk.failed)
    return {
        "ok": not failures and bool(calls),
        "calls_failed": len(calls),
        "kinds": sorted(set(calls)),
        "failures": failures,
    }


def wild_clock(count: int, seed: int = 7) -> dict[str, Any]:
    """A clock that runs backwards and jumps: every ULID is above the one before."""
    chance = random.Random(seed)
    now, last = 1_700_000_000_000, None
    for _ in range(count):
        if chance.random() < 0.3:
            now += chance.choice((-86_400_000, -1, 1, 1_000, 3_600_000))
        fresh = ulid.next_ulid(last, max(now, 0), chance.randbytes(10))
        if last is not None and fresh <= last:
            return {"ok": False, "seed": seed, "last": last, "fresh": fresh}
        last = fresh
    return {"ok": True, "seed": seed, "ulids": count}


def flips(folder: Path, events: int, step: int = 1) -> dict[str, Any]:
    """Flip every byte of a small repository's packs, one at a time: deep verification notices each."""
    place = make_repository(folder / "flips.git")[0]
    with open_repository(place.git_dir) as log:
        for n in range(events):
            log.append("demo", {"type": "t", "payload": {"n": n}})
    missed: list[str] = []
    read_wrongly: list[str] = []
    flipped = 0
    truth = _read_all(place)
    for path in sorted((place.git_dir / "objects/pack").iterdir()):
        raw = path.read_bytes()
        path.chmod(0o644)
        for at in range(0, len(raw), step):
            _poke(path, at, raw[at] ^ 0xFF)
            flipped += 1
            if verify_gitlogs(GitStore(place), deep=True).ok:
                missed.append(f"{path.suffix}@{at}")
            if at % (step * 16) == 0 and _read_all(place) not in (truth, None):
                read_wrongly.append(f"{path.suffix}@{at}")
            _poke(path, at, raw[at])
    whole = verify_gitlogs(GitStore(place), deep=True).ok
    return {
        "ok": not missed and not read_wrongly and whole,
        "flipped": flipped,
        "missed": missed[:20],
        "read_wrongly": read_wrongly[:20],
    }


def _poke(path: Path, at: int, byte: int) -> None:
    """Change one byte in place: a file that shrinks under a reader's map is another kind of harm."""
    with path.open("r+b") as stream:
        stream.seek(at)
        stream.write(bytes([byte]))


def _read_all(place: RepositoryPaths) -> list[bytes] | None:
    """What a reader gets, None if it was refused."""
    try:
        with open_repository(place.git_dir) as log:
            return [event.raw for event in log.events("demo")]
    except RopewalkError:
        return None


def _start(place: RepositoryPaths, name: str, threads: int, each: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(place.git_dir), name, str(threads), str(each)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )


def _fsck(place: RepositoryPaths) -> bool:
    done = subprocess.run(
        ["git", "fsck", "--full", "--strict", "--no-dangling"],
        cwd=place.git_dir,
        capture_output=True,
        check=False,
    )
    return done.returncode == 0


def run(quick: bool) -> dict[str, Any]:
    """Everything, at full size unless `quick`."""
    acts: dict[str, Callable[[Path], dict[str, Any]]] = {
        "kill": lambda folder: kills(folder, 10 if quick else 1_000),
        "crowd": lambda folder: crowd(folder, 4 if quick else 16, 4, 10 if quick else 100),
        "failing_calls": failing_calls,
        "wild_clock": lambda _folder: wild_clock(10_000 if quick else 1_000_000),
        "flips": lambda folder: flips(folder, 2, 7 if quick else 1),
    }
    report: dict[str, Any] = {"ok": True}
    for name, act in acts.items():
        with tempfile.TemporaryDirectory(prefix="ropewalk-torture-") as folder:
            started = time.monotonic()
            part = act(Path(folder))
            part["seconds"] = round(time.monotonic() - started, 1)
            print(f"  {name}: {json.dumps(part)[:400]}", file=sys.stderr, flush=True)
            report[name] = part
            report["ok"] = report["ok"] and part["ok"]
    return report
