"""How the pipeline's jobs grow: time and peak memory at several sizes of one ledger, with the slope.

Each job runs as the command does, in processes of its own, so that its peak is its own. What a start costs is measured
on a tiny log and taken off before the slope is drawn. A slope of 1 is linear: ten times the log, ten times the time.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bench.bench_pipeline import CACHE, fill_ledger
from bench.harness import Result, fixed
from ropewalk.disk import key_files
from ropewalk.disk.repository_paths import make_repository

CHANNELS = 4
TINY = 400
PAUSE_S = 0.1
CLEAR = 0.25  # a slope is told where the work is at least this much of a start; less is noise
JOBS: dict[str, tuple[str, ...]] = {
    "ingest": (),
    "verify": (),
    "replay": ("--reducer", "counts"),
    "export": ("--blocks", "100"),
}


@dataclass(frozen=True, slots=True)
class Cost:
    """What one run took: seconds, and the most memory that all its processes held at once."""

    seconds: float
    peak_mb: float


def run(quick: bool) -> list[Result]:
    sizes = (4_000, 40_000) if quick else (100_000, 300_000, 1_000_000)
    with tempfile.TemporaryDirectory() as folder:
        if not any(CACHE.glob("spark-*.jsa")):
            _costs(Path(folder), TINY)  # leaves the class-data archive behind
        tiny = _costs(Path(folder), TINY)
        costs = {size: _costs(Path(folder), size) for size in sizes}
    return [
        result for job in JOBS for result in _told(job, tiny[job], {size: costs[size][job] for size in sizes})
    ]


def _told(job: str, start: Cost, costs: dict[int, Cost]) -> list[Result]:
    """Times as they were measured, start and all; the start is taken off for the slope only."""
    small, large = min(costs), max(costs)
    results = []
    for size, cost in costs.items():
        results.append(
            fixed(
                f"{job} {size:,} envelopes",
                f"{cost.seconds:.1f} s, {cost.peak_mb:,.0f} MiB",
                f"{small:,} envelopes",
                size / cost.seconds,
                small / costs[small].seconds,
                None,
                "envelopes",
                _growth(start, small, costs[small], large, costs[large]) if size == large else "",
            )
        )
    return results


def _growth(start: Cost, small: int, low: Cost, large: int, high: Cost) -> str:
    memory = _slope(small, low.peak_mb, large, high.peak_mb)
    begun = f"a start alone is {start.seconds:.1f} s, {start.peak_mb:,.0f} MiB"
    if low.seconds - start.seconds < start.seconds * CLEAR:
        return f"peak memory grows as n^{memory:.2f}; too small for a slope of time: {begun}"
    spent = _slope(small, low.seconds - start.seconds, large, high.seconds - start.seconds)
    return f"time grows as n^{spent:.2f}, peak memory as n^{memory:.2f}; {begun}"


def _slope(small: int, low: float, large: int, high: float) -> float:
    return math.log(high / low) / math.log(large / small)


def _costs(folder: Path, size: int) -> dict[str, Cost]:
    repository, warehouse = folder / f"{size}.git", folder / f"tables-{size}-{time.monotonic_ns()}"
    if not repository.exists():
        place = make_repository(repository)[0]
        key_files.make(place.keys, "node", "ed25519", b"node" + bytes(28))
        for channel in range(CHANNELS):
            fill_ledger(place.home, f"growth-{channel}", size // CHANNELS, signed=True)
    where = ("--warehouse", str(warehouse), "--source", str(repository), "--master", "local[2]", "--json")
    return {job: _cost([job, *options, *where]) for job, options in JOBS.items()}


def _cost(arguments: list[str]) -> Cost:
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", "from ropewalk.cli import main; main()", "pipeline", *arguments],
        env={**os.environ, "ROPEWALK_CACHE": str(CACHE), "ROPEWALK_SPARK_MEMORY_MB": "2048"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    peak, ended = [0.0], threading.Event()
    watcher = threading.Thread(target=_watch, args=(process.pid, peak, ended))
    watcher.start()
    out, err = process.communicate()
    seconds = time.perf_counter() - started
    ended.set()
    watcher.join()
    assert process.returncode == 0, f"{' '.join(arguments)}: {err or json.loads(out)}"
    return Cost(seconds, peak[0])


def _watch(root: int, peak: list[float], ended: threading.Event) -> None:
    while not ended.wait(PAUSE_S):
        peak[0] = max(peak[0], _held_mb(root))


def _held_mb(root: int) -> float:
    """What a process and all below it hold; memory they share counts once (PSS)."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, IndexError, ValueError):
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    total, waiting = 0, [root]
    while waiting:
        process = waiting.pop()
        waiting += children.get(process, [])
        with suppress(OSError, StopIteration):
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
            total += int(next(line for line in lines if line.startswith("Pss:")).split()[1])
    return total / 1024
