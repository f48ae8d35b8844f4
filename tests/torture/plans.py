"""Ask Spark and DuckDB thousands of random queries over one repository; every answer must be the same.

`python -m tests.torture.plans [COUNT] [SECONDS]` asks COUNT queries (`ROPEWALK_PLANS`, or 10,000),
or as many as SECONDS allow.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.pipeline.test_plans import compare
from tests.pipeline.world import usual

COUNT, SLICE = int(os.environ.get("ROPEWALK_PLANS", "10000")), 50


def run(quick: bool, count: int = COUNT, seconds: float = float("inf")) -> dict[str, Any]:
    """Return how many queries were asked, and the first that was answered in two ways."""
    from ropewalk.cli.pipeline.running import cache_folder
    from ropewalk.pipeline.launch.launch import Setting, launch, stop

    count, asked, wrong = 100 if quick else count, 0, ""
    end = time.monotonic() + seconds
    spark = launch(Setting("local[2]", cache=cache_folder(), quick=quick), os.environ)
    try:
        with tempfile.TemporaryDirectory() as folder:
            world = usual(Path(folder) / "log.git")
            while asked < count and not wrong and time.monotonic() < end:
                size = min(SLICE, count - asked)
                try:
                    compare(spark, world, size, seed=1_000 + asked // SLICE)
                except AssertionError as error:
                    wrong = str(error)
                asked += size
                print(f"{asked} queries", file=sys.stderr, flush=True)
    finally:
        stop(spark)
    return {"ok": not wrong, "queries": asked, "wrong": wrong}


if __name__ == "__main__":
    given = [float(each) for each in sys.argv[1:]]
    report = run(False, int(given[0]) if given else COUNT, *given[1:2])
    Path("build").mkdir(exist_ok=True)
    Path("build/torture-plans.json").write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report))
    sys.exit(0 if report["ok"] else 1)
