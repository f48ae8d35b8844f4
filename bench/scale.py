"""How ingest and verify grow with the log: time, CPU and peak memory of driver, workers and JVM, and the slope.

`python -m bench.scale [--engine gitlog|ledger] [--sizes 100000,1000000,10000000] [--folder DIR]`.
Each log is made in the folder and removed after its run. Results go to `build/scale-ENGINE.json`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.bench_pipeline import CACHE, fill_git, fill_ledger
from ropewalk.disk.repository_paths import make_repository
from ropewalk.pipeline.launch.launch import Setting, launch, stop

TICKS = os.sysconf("SC_CLK_TCK")


def processes() -> dict[int, tuple[str, float, int]]:
    """Every process below this one, and itself: its kind, CPU seconds and resident bytes."""
    stats: dict[int, tuple[int, float]] = {}
    for each in Path("/proc").iterdir():
        try:
            fields = (each / "stat").read_text().rsplit(")", 1)[1].split() if each.name.isdigit() else []
        except OSError:
            continue
        if fields:
            stats[int(each.name)] = int(fields[1]), sum(map(int, fields[11:13])) / TICKS
    ours, found = [os.getpid()], {}
    for pid in ours:  # grows: a child may have a lower number than its parent
        ours += [child for child, (parent, _) in stats.items() if parent == pid]
        try:
            name = Path(f"/proc/{pid}/comm").read_text().strip()
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except OSError:
            continue
        kind = "driver" if pid == os.getpid() else "jvm" if name == "java" else "worker"
        found[pid] = kind, stats[pid][1], pages * os.sysconf("SC_PAGE_SIZE")
    return found


@contextmanager
def measured(into: dict[str, Any]) -> Iterator[None]:
    """Write down what a block takes: seconds, CPU seconds, and the peak of each kind of process in MB."""
    peaks, ended = {"driver": 0, "jvm": 0, "worker": 0}, threading.Event()
    used: dict[
        int, float
    ] = {}  # also of workers that end meanwhile: Spark ends idle ones, and nothing counts them

    def look() -> None:
        for pid, (kind, cpu, resident) in processes().items():
            peaks[kind], used[pid] = max(peaks[kind], resident), cpu

    def watch() -> None:
        while not ended.wait(0.5):
            look()

    look()
    before, started = sum(used.values()), time.monotonic()
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    yield
    ended.set()
    thread.join()
    into["seconds"] = round(time.monotonic() - started, 1)
    into["load"] = round(os.getloadavg()[0], 1)
    look()
    into["cpu_s"] = round(sum(used.values()) - before, 1)
    into["peak_mb"] = {kind: value >> 20 for kind, value in peaks.items()}


def exponent(sizes: list[int], values: list[float]) -> float:
    """Return the slope of a straight line through the logarithms: 1 is linear, 0 is flat."""
    xs, ys = [math.log(size) for size in sizes], [math.log(max(value, 1e-9)) for value in values]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum((a - x) ** 2 for a in xs)


def run(engine: str, sizes: list[int], folder: Path, keep: bool) -> dict[str, Any]:
    from ropewalk.pipeline.jobs.ingest import Ingest
    from ropewalk.pipeline.jobs.verify import verify_logs

    results: list[dict[str, Any]] = []
    for size in sizes:
        path = folder / f"{engine}-{size}.git"
        one: dict[str, Any] = {"size": size, "ingest": {}, "verify": {}}
        if not path.exists():
            home = make_repository(path)[0].home
            with measured(one.setdefault("make", {})):
                if engine == "ledger":
                    fill_ledger(home, "signed", size, signed=True)
                else:
                    fill_git(path, "prod", size)
        spark = launch(Setting("local[2]", cache=CACHE, memory_mb=1024, quick=False), os.environ)
        try:
            with tempfile.TemporaryDirectory(dir=folder) as tables:
                with measured(one["ingest"]):
                    done = Ingest(spark, path, Path(tables) / "t", now_ms=lambda: 0, engine=engine).once()
                assert done.rows == size
                with measured(one["verify"]):
                    assert verify_logs(spark, path, engine=engine)[0].ok
                if engine == "ledger":
                    with measured(one.setdefault("seals", {})):
                        assert verify_logs(spark, path, engine=engine, deep=False)[0].ok
        finally:
            stop(spark)
        print(json.dumps(one), flush=True)
        results.append(one)
        if not keep:
            shutil.rmtree(path)
    if len(sizes) < 2:
        return {"engine": engine, "results": results, "exponents": {}}
    slopes = (
        {
            f"{job} {what}": round(exponent(sizes, [each[job][what] for each in results]), 2)
            for job in results[0].keys() - {"size", "make"}
            for what in ("seconds", "cpu_s")
        }
        | {
            f"{job} cpu µs/event": round(
                (results[-1][job]["cpu_s"] - results[0][job]["cpu_s"]) * 1e6 / (sizes[-1] - sizes[0]), 1
            )
            for job in results[0].keys() - {"size", "make"}
        }
        | {
            f"{job} memory": round(
                exponent(sizes, [sum(each[job]["peak_mb"].values()) for each in results]), 2
            )
            for job in results[0].keys() - {"size", "make"}
        }
    )
    return {"engine": engine, "results": results, "exponents": slopes}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    parser.add_argument("--engine", choices=("gitlog", "ledger"), default="gitlog")
    parser.add_argument("--sizes", default="100000,1000000,10000000")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--keep", action="store_true", help="leave the logs in the folder, for another run")
    options = parser.parse_args()
    report = run(
        options.engine, [int(each) for each in options.sizes.split(",")], options.folder, options.keep
    )
    Path("build").mkdir(exist_ok=True)
    Path(f"build/scale-{options.engine}.json").write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report["exponents"]))


if __name__ == "__main__":
    main()
