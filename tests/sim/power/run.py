"""Check every crash state of every workload; the report is what `make simulate` writes."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.sim.power.recording import Recording, record
from tests.sim.power.states import CrashState, crash_states
from tests.sim.power.workloads import WORKLOADS, Workload

__all__ = ["check_state", "recorded", "simulate"]

REBOOTED = time.time() - 600
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # what was synced is known; speed is wanted


@contextmanager
def recorded(name: str) -> Iterator[tuple[Recording, Path]]:
    """Prepare and record a workload in a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="ropewalk-power-", dir=MEMORY) as folder:
        root = Path(folder) / "root"
        root.mkdir()
        WORKLOADS[name].prepare(root)
        yield record(root, name), Path(folder)


def check_state(workload: Workload, state: CrashState, folder: Path) -> list[str]:
    """Lay out a disk as it may be after a cut, open it with a writer, and return what does not hold."""
    root = folder / "state"
    for name in sorted(state.folders):
        (root / name).mkdir(parents=True, exist_ok=True)
    first: dict[int, Path] = {}
    for name, (inode, raw) in state.files.items():
        if inode in first:
            (root / name).hardlink_to(first[inode])
        else:
            (root / name).write_bytes(raw)
            os.utime(root / name, (REBOOTED, REBOOTED))  # a machine takes a while to start again
            first[inode] = root / name
    receipts = state.acknowledged.decode().splitlines()
    found: list[str] = []
    try:
        found.extend(workload.check(root, receipts))
    except Exception as error:
        found.append(f"{type(error).__name__}: {error}")
    finally:
        for path in folder.glob("state*"):
            shutil.rmtree(path)
    return found


def simulate(
    name: str,
    *,
    seed: int,
    mixes: int,
    limit: int | None = None,
    seconds: float = 1e9,
    share: int = 1,
    ignore: str = "",
) -> dict[str, Any]:
    """Run one workload through its crash states, up to a number of states or a time.

    `ignore` names kinds of calls that the disk does not honour, to see that a missing sync is found.
    """
    started, workload = time.monotonic(), WORKLOADS[name]
    problems: list[dict[str, Any]] = []
    faults: Counter[str] = Counter()
    states = 0
    with recorded(name) as (recording, folder):
        honoured = tuple(call for call in recording.calls if call.kind not in ignore)
        recording = replace(recording, calls=honoured)
        for state in crash_states(recording, seed=seed, mixes=mixes, share=share):
            if states == limit or time.monotonic() - started > seconds:
                break
            states += 1
            faults.update(state.faults)
            if found := check_state(workload, state, folder):
                problems.append({"after": state.after, "choice": state.choice, "problems": found})
    return {
        "ok": states > 0 and not problems,
        "engine": workload.engine,
        "calls": len(recording.calls),
        "states": states,
        "seed": seed,
        "faults": dict(sorted(faults.items())),
        "failed": len(problems),
        "problems": problems[:20],
        "seconds": round(time.monotonic() - started, 1),
    }
