"""A writer that dies between any two steps: the next run completes the tables, with no row lost or doubled."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from ropewalk.errors import Unavailable
from ropewalk.pipeline.jobs.ingest import Ingest
from ropewalk.pipeline.launch import launch
from ropewalk.pipeline.tables.sql import ask
from ropewalk.pipeline.tables.verify import verify_tables
from ropewalk.pipeline.tables.warehouse import Warehouse
from tests.pipeline.killing import Crash, Driver, Mortal, check_recorded, grow, kill_one, workers_of
from tests.pipeline.test_ingest import keys_in_log, keys_of
from tests.pipeline.world import World

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore")]
DRIVERS_KILLED = 13  # with those of `tests/launched`, twenty kills
WORKERS_KILLED = 3
TABLES = 7  # that a batch puts in their places; then come the manifest, the files it replaces, the cursors


@pytest.mark.parametrize(
    "steps",
    [(TABLES,), pytest.param((TABLES - 1, TABLES, TABLES + 1, None), marks=pytest.mark.slow)],
    ids=["one", "all"],
)
def test_dying_between_any_two_steps_loses_and_doubles_nothing(
    spark: Any, world: World, tmp_path: Path, steps: tuple[int | None, ...]
):
    """After each death every table can be read, and is what it was; `test_warehouse` dies at the other steps."""
    warehouse = tmp_path / "tables"
    Ingest(spark, world.path, warehouse, now_ms=lambda: world.clock_ms).once()
    for lives in steps:
        stood = _deployments(warehouse)
        world.git("prod", 1)
        world.gossip("com.example.chat", 1)
        world.ledger("ea.core", 2)
        job = Ingest(spark, world.path, warehouse, now_ms=lambda: world.clock_ms, group="analytics")
        if lives is None:
            job.move_cursors = _die  # type: ignore[method-assign,assignment]
        else:
            job.warehouse = Mortal(warehouse, lives)
        with pytest.raises(Crash):
            job.once()
        now = _deployments(warehouse)
        assert now == stood if lives in (TABLES - 1, TABLES) else now > stood
        if lives == TABLES:  # everything is in its place but the manifest
            answer = ask(spark, Warehouse(warehouse), "SELECT count(*) FROM deployments", 1)
            assert answer.rows == ((stood,),)
            report = verify_tables(spark, Warehouse(warehouse))
            assert report.ok and "leftovers" in {step.name for step in report.steps}
    done = Ingest(spark, world.path, warehouse, now_ms=lambda: world.clock_ms, group="analytics").once()
    assert done.batches == (steps[-1] is not None)
    assert keys_of(warehouse, "events") == keys_in_log(world)
    assert verify_tables(spark, Warehouse(warehouse)).ok


def _deployments(warehouse: Path) -> int:
    """How many rows the files of the table have, each read whole."""
    store = Warehouse(warehouse)
    files = store.current_files(store.manifests())["deployments"]
    return sum(pq.read_table(store.path / file.name, partitioning=None).num_rows for file in files)


@pytest.mark.slow
def test_randomly_killed_drivers_lose_no_rows(spark: Any, world: World, tmp_path: Path):
    """SIGKILL between any two instructions; the logs go on growing. After each, what is recorded is the logs' fold."""
    chance = random.Random(6)
    warehouse = tmp_path / "tables"
    jvm = launch._running["jvm"]

    def driver() -> Driver:
        grow(world, chance)
        return Driver(jvm.port, jvm.secret, world, warehouse, rows=16)

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


@pytest.mark.slow
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
