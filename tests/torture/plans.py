"""Ask Spark and DuckDB thousands of random queries over one repository; every answer must be the same.

`python -m tests.torture.plans [COUNT] [SECONDS] [SEED]` asks COUNT queries (`ROPEWALK_PLANS`, or 10,000),
or as many as SECONDS allow; another SEED asks others. Several threads ask at once, each in a session of its own.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.pipeline.random_plans import Asker
from tests.pipeline.world import usual

COUNT, SLICE, THREADS = int(os.environ.get("ROPEWALK_PLANS", "10000")), 50, 4
WRONG = 5  # answers that end a run
SEED = 1_000


def run(quick: bool, count: int = COUNT, seconds: float = float("inf"), seed: int = SEED) -> dict[str, Any]:
    """Return how many queries were asked, in which ways, and those that were answered in two ways."""
    from ropewalk.cli.pipeline.running import cache_folder
    from ropewalk.pipeline.launch.launch import Setting, launch, stop

    count = 100 if quick else count
    started, slices = time.monotonic(), iter(range(0, count, SLICE))
    wrong: list[str] = []
    lock = threading.Lock()

    def ask(asker: Asker) -> Counter[str]:
        while len(wrong) < WRONG and time.monotonic() - started < seconds:
            with lock:
                start = next(slices, None)
            if start is None:
                break
            try:
                asker.ask(min(SLICE, count - start))
            except AssertionError as error:
                wrong.append(str(error))
                print(error, file=sys.stderr)
            print(f"{start + SLICE} queries, {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
        return asker.asked

    spark = launch(Setting("local[4]", cache=cache_folder(), quick=False), os.environ)
    try:
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(THREADS) as threads:
            world = usual(Path(folder) / "log.git")
            askers = [Asker(spark, world, seed + each) for each in range(THREADS)]
            asked = sum(threads.map(ask, askers), Counter())
    finally:
        stop(spark)
    return {
        "ok": not wrong,
        **asked,
        "seconds": round(time.monotonic() - started),
        "seed": seed,
        "wrong": wrong,
    }


if __name__ == "__main__":
    count, seconds, seed, *_ = (*sys.argv[1:], *(str(COUNT), "inf", str(SEED))[len(sys.argv) - 1 :])
    report = run(False, int(count), float(seconds), int(seed))
    Path("build").mkdir(exist_ok=True)
    Path("build/torture-plans.json").write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report))
    sys.exit(0 if report["ok"] else 1)
