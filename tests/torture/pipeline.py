"""Kill the driver of an ingest at random moments, many times; in the end the tables must be the fold of the logs."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.pipeline.test_ingest import keys_in_log, keys_of
from tests.pipeline.world import usual

COMMAND = [sys.executable, "-c", "from ropewalk.cli import main; main()", "pipeline"]


def run(quick: bool) -> dict[str, Any]:
    kills = 5 if quick else 500
    chance = random.Random(kills)
    with tempfile.TemporaryDirectory() as folder:
        world = usual(Path(folder) / "log.git")
        warehouse = Path(folder) / "tables"
        environment = {**os.environ, "ROPEWALK_CACHE": str(Path(folder) / "cache")}
        where = ["--warehouse", str(warehouse), "--source", str(world.path), "--master", "local[2]"]
        completed = 0
        for _ in range(kills):
            world.git("prod", chance.randrange(1, 5))
            world.ledger("ea.core", chance.randrange(1, 5))
            process = subprocess.Popen(
                [*COMMAND, "ingest", *where, "--batch-rows", "10"],
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            deadline = time.monotonic() + chance.uniform(4, 25)
            while process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.02)
            completed += process.poll() == 0
            process.kill()
            process.wait()
        last = subprocess.run([*COMMAND, "ingest", *where], env=environment, check=False)
        checked = subprocess.run(
            [*COMMAND, "verify", "--tables", "--json", *where],
            env=environment,
            check=False,
            capture_output=True,
            text=True,
        )
        same = keys_of(warehouse, "events") == keys_in_log(world)
        return {
            "ok": last.returncode == 0 and checked.returncode == 0 and same,
            "kills": kills - completed,
            "completed": completed,
            "rows": len(keys_in_log(world)),
            "steps": json.loads(checked.stdout)["steps"] if checked.stdout else [],
        }
