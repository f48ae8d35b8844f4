"""A writer that dies between any two steps: the next run completes the tables, with no row lost or doubled."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ropewalk.errors import Unavailable
from ropewalk.pipeline import launch
from ropewalk.pipeline.ingest import Ingest
from ropewalk.pipeline.verify import verify_tables
from ropewalk.pipeline.warehouse import Manifest, Warehouse
from tests.pipeline.killing import Driver, check_recorded, grow, kill_one, workers_of
from tests.pipeline.test_ingest import keys_in_log, keys_of
from tests.pipeline.world import World

pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]
DRIVERS_KILLED = 13  # with those of `tests/launched`, twenty kills
WORKERS_KILLED = 3
STEPS = 10  # eight folders put in their places, then the manifest, then the cursors


class Crash(BaseException):
    """The process is gone: nobody catches this."""


class Mortal(Warehouse):
    """A warehouse whose writer dies before its n-th step."""

    def __init__(self, path: Path, lives: int) -> None:
        super().__init__(path)
        self.lives = lives

    def _step(self) -> None:
        self.lives -= 1
        if self.lives < 0:
            raise Crash

    def put_in_place(self, name: str, target: Path) -> None:
        self._step()
        super().put_in_place(name, target)

    def commit(self, manifest: Manifest) -> None:
        self._step()
        super().commit(manifest)


def test_dying_between_any_two_steps_loses_and_doubles_nothing(spark: Any, world: World, tmp_path: Path):
    warehouse = tmp_path / "tables"
    for lives in range(STEPS):
        world.git("prod", 1)
        world.gossip("com.example.chat", 1)
        world.ledger("ea.core", 2)
        job = Ingest(spark, world.path, warehouse, now_ms=lambda: world.clock_ms, group="analytics")
        job.warehouse = Mortal(warehouse, lives)
        if lives == STEPS - 1:
            job.move_cursors = _die  # type: ignore[method-assign,assignment]
        with pytest.raises(Crash):
            job.once()
    done = Ingest(spark, world.path, warehouse, now_ms=lambda: world.clock_ms, group="analytics").once()
    assert done.batches <= 1
    assert keys_of(warehouse, "events") == keys_in_log(world)
    assert verify_tables(spark, Warehouse(warehouse)).ok


def test_drivers_killed_at_random_points_leave_tables_that_the_next_run_completes(
    spark: Any, world: World, tmp_path: Path
):
    """SIGKILL between any two instructions; the logs go on growing. After each, what is recorded is the logs' fold."""
    chance = random.Random(6)
    warehouse = tmp_path / "tables"
    jvm = launch._running["jvm"]

    def driver() -> Driver:
        grow(world, chance)
        return Driver(jvm.port, jvm.secret, world, warehouse, rows=8)

    Ingest(spark, world.path, warehouse, now_ms=lambda: world.clock_ms).once()
    whole_s = driver().finish()  # what one run takes here and now: a kill may come at any moment of it
    killed = recorded = 0
    while killed < DRIVERS_KILLED:
        killed += driver().kill(chance.uniform(0, whole_s))
        now = check_recorded(world, warehouse)
        assert now >= recorded
        recorded = now
    done = Ingest(spark, world.path, warehouse, now_ms=lambda: world.clock_ms, group="analytics").once()
    assert done.rows == len(keys_in_log(world)) - recorded
    assert keys_of(warehouse, "events") == keys_in_log(world)
    assert verify_tables(spark, Warehouse(warehouse)).ok


def test_workers_killed_while_they_read_cost_a_run_at_most(spark: Any, world: World, tmp_path: Path):
    """On one machine Spark gives a task one chance: the run may fail, but what it leaves is whole."""
    chance = random.Random(7)
    warehouse = tmp_path / "tables"
    root = launch._running["jvm"].process.pid
    killed, whole_s = 0, 0.0
    while killed < WORKERS_KILLED:
        grow(world, chance)
        ended = threading.Event()
        deaths: list[bool] = []

        def kill(after_s: float, ended: threading.Event = ended, deaths: list[bool] = deaths) -> None:
            deaths.append(kill_one(lambda: workers_of(root), chance, after_s, ended))

        killer = threading.Thread(target=kill, args=(chance.uniform(0, whole_s),))
        started = time.monotonic()
        killer.start()
        try:
            job = Ingest(spark, world.path, warehouse, now_ms=lambda: world.clock_ms, rows_per_batch=10)
            job.once()
            whole_s = time.monotonic() - started
        except Unavailable:
            pass  # Spark's own words for a worker that is gone
        finally:
            ended.set()
            killer.join()
        killed += deaths[0]
        check_recorded(world, warehouse)
    Ingest(spark, world.path, warehouse, now_ms=lambda: world.clock_ms).once()
    assert keys_of(warehouse, "events") == keys_in_log(world)
    assert verify_tables(spark, Warehouse(warehouse)).ok


def _die(_at: object) -> None:
    raise Crash
