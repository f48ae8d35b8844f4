"""Kill parts of an ingest with SIGKILL at random moments, many times; after each, the tables are the fold of the logs.

Most kills hit driver programs on a JVM that stays warm; every tenth hits a whole driver, JVM and all, and the next one
starts cold. In between, Python workers die under a run that goes on. `ROPEWALK_KILLS` sets another number.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from tests.pipeline.killing import (
    Driver,
    check_recorded,
    ending,
    executors_of,
    grow,
    kill_one,
    processes_below,
    workers_of,
)
from tests.pipeline.test_ingest import keys_in_log, keys_of
from tests.pipeline.world import World, usual

KILLS, KILLS_QUICK = 500, 12
COMMAND = [sys.executable, "-c", "from ropewalk.cli import main; main()", "pipeline"]
WHOLE_EVERY, WORKER_EVERY, EXECUTOR_EVERY, DEEP_EVERY = 10, 4, 25, 50
ROWS = 8


def run(quick: bool) -> dict[str, Any]:
    kills = int(os.environ.get("ROPEWALK_KILLS", KILLS_QUICK if quick else KILLS))
    chance = random.Random(kills)
    with tempfile.TemporaryDirectory() as folder:
        return _Torture(Path(folder), chance).run(kills)


class _Torture:
    """One warehouse that is never given a quiet hour."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        from ropewalk.pipeline.launch import launch

        self.launch = launch
        self.world: World = usual(folder / "log.git")
        self.warehouse = folder / "tables"
        self.cache = Path(tempfile.gettempdir()) / f"ropewalk-test-cache-{os.getuid()}"
        self.chance = chance
        self.counts = {"drivers": 0, "whole_drivers": 0, "workers": 0, "executors": 0}
        self.recorded = 0

    def run(self, kills: int) -> dict[str, Any]:
        self.spark = self.launch.launch(self.launch.Setting("local[2]", cache=self.cache), os.environ)
        started = time.monotonic()
        try:
            self._driver().finish()
            self.whole_s = self._driver().finish()  # the first had more to take in
            turn = 0
            while sum(self.counts.values()) < kills:
                turn += 1
                self._kill(turn)
                now = check_recorded(self.world, self.warehouse)
                assert now >= self.recorded, "rows that stood are gone"
                self.recorded = now
                if turn % DEEP_EVERY == 0:
                    self._complete()
                    print(
                        f"  {self.counts} after {time.monotonic() - started:.0f} s",
                        file=sys.stderr,
                        flush=True,
                    )
            steps = self._complete()
        finally:
            self.launch.stop(self.spark)
        return {
            "ok": True,
            "kills": sum(self.counts.values()),
            "by_kind": self.counts,
            "rows": self.recorded,
            "steps": steps,
        }

    def _kill(self, turn: int) -> None:
        if turn % EXECUTOR_EVERY == 0:
            self.counts["executors"] += self._command("local-cluster[2,1,1024]", executors_of)
        elif turn % WHOLE_EVERY == 0:
            self.counts["whole_drivers"] += self._command("local[2]", None)
        elif turn % WORKER_EVERY == 0:
            self.counts["workers"] += self._worker()
        else:
            self.counts["drivers"] += self._driver().kill(self.chance.uniform(0, self.whole_s))

    def _driver(self) -> Driver:
        grow(self.world, self.chance)
        jvm = self.launch._running["jvm"]
        return Driver(jvm.port, jvm.secret, self.world, self.warehouse, ROWS)

    def _worker(self) -> bool:
        driver = self._driver()
        root = self.launch._running["jvm"].process.pid
        ended, died = threading.Event(), []

        def kill() -> None:
            died.append(
                kill_one(lambda: workers_of(root), self.chance, self.chance.uniform(0, self.whole_s), ended)
            )

        killer = threading.Thread(target=kill)
        killer.start()
        driver.process.wait()  # with an error if the worker was in use
        ended.set()
        killer.join()
        driver.kill(0)
        return died[0]

    def _command(self, master: str, find: Any) -> bool:
        """A run of the command; either one of its executors dies, or all of it."""
        grow(self.world, self.chance)
        where = ["--warehouse", str(self.warehouse), "--source", str(self.world.path), "--master", master]
        process = subprocess.Popen(
            [*COMMAND, "ingest", *where, "--batch-rows", str(ROWS)],
            env={**os.environ, "ROPEWALK_CACHE": str(self.cache)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        ended = ending(process)
        if find is not None:
            died = kill_one(lambda: find(process.pid), self.chance, self.chance.uniform(0, 10), ended)
            ended.wait()
            return died
        at_work = not ended.wait(self.chance.uniform(2, 4 * self.whole_s + 10))
        everybody = [process.pid, *processes_below(process.pid, lambda _: True)]
        for pid in everybody if at_work else ():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        ended.wait()
        return at_work

    def _complete(self) -> list[Any]:
        """A run in peace: the tables are the logs, and prove it."""
        from ropewalk.pipeline.jobs.ingest import Ingest
        from ropewalk.pipeline.tables.verify import verify_tables
        from ropewalk.pipeline.tables.warehouse import Warehouse

        Ingest(self.spark, self.world.path, self.warehouse, now_ms=lambda: self.world.clock_ms).once()
        assert keys_of(self.warehouse, "events") == keys_in_log(self.world)
        report = verify_tables(self.spark, Warehouse(self.warehouse))
        assert report.ok, report.to_json()
        self.recorded = check_recorded(self.world, self.warehouse)
        return [step.to_json() for step in report.steps]
