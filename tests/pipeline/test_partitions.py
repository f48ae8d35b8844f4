"""How rows lie in files: row groups of one log after every merge; folders by day and log where they are asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from ropewalk.gitlog.core.envelope import Draft
from ropewalk.gitlog.core.layout import SHIPLOG
from ropewalk.gitlog.repository.opening import open_repository
from ropewalk.pipeline.jobs.compact import merge_files
from ropewalk.pipeline.jobs.ingest import Ingest
from ropewalk.pipeline.tables.delta import keep_delta
from ropewalk.pipeline.tables.iceberg import keep_iceberg
from ropewalk.pipeline.tables.row_groups import (
    GROUP_ROWS,
    NO_VALUE,
    column_range,
    holds_one_log,
    is_partitioned,
    write_grouped,
)
from ropewalk.pipeline.tables.table_files import check_file_name
from ropewalk.pipeline.tables.verify import verify_tables
from ropewalk.pipeline.tables.warehouse import Warehouse
from tests.pipeline.world import NOON_MS, World

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]
DAY_MS = 86_400_000


def rows(*topics: str, days: int = 1) -> pa.Table:
    """A row for each topic and day, day by day."""
    found = [(topic, (NOON_MS + day * DAY_MS) * 1000) for day in range(days) for topic in topics]
    names, times = zip(*found, strict=True)
    return pa.table(
        {"topic": list(names), "time": pa.array(times, pa.timestamp("us", "UTC")), "n": range(len(found))}
    )


def grouped(tmp_path: Path, given: pa.Table, **options: Any) -> list[Path]:
    pq.write_table(given, tmp_path / "given.parquet")
    write_grouped([tmp_path / "given.parquet"], tmp_path / "out", given.schema, **options)
    return sorted((tmp_path / "out").rglob("*.parquet"))


def test_row_groups_of_a_merge_hold_one_log(tmp_path: Path):
    given = rows("a", "b/c", days=GROUP_ROWS)
    (path,) = grouped(tmp_path, given)
    assert not holds_one_log(tmp_path / "given.parquet") and holds_one_log(path)
    with pq.ParquetFile(path) as file:
        assert [file.metadata.row_group(at).num_rows for at in range(file.num_row_groups)] == [GROUP_ROWS] * 2
    assert pq.read_table(path).sort_by("n") == given


def test_partitioned_files_hold_one_day_and_log(tmp_path: Path):
    given = rows("a", "b/c", days=3)
    found = grouped(tmp_path, given, partitioned=True)
    places = [path.parent.relative_to(tmp_path / "out").as_posix() for path in found]
    assert places[:2] == ["date=2024-11-01/log=a", "date=2024-11-01/log=b%2Fc"] and len(places) == 6
    for path in found:
        (day, log) = (part.partition("=")[2] for part in path.parts[-3:-1])
        low, high = column_range(path, "time") or (None, None)
        assert f"{low:%Y-%m-%d}" == f"{high:%Y-%m-%d}" == day
        assert column_range(path, "topic") == (log.replace("%2F", "/"),) * 2
    together = pa.concat_tables(pq.ParquetFile(path).read() for path in found)
    assert together.sort_by("n") == given


def test_long_names_of_logs_have_folders(tmp_path: Path):
    """A topic may have 200 characters, of which each `/` takes three in the name of a folder."""
    given = rows("a/" * 99 + "a", "a/" * 99 + "b")
    found = grouped(tmp_path, given, partitioned=True)
    assert len(found) == 2 and all(map(holds_one_log, found))
    for path in found:
        name = f"events/batch=1/{path.relative_to(tmp_path / 'out').as_posix()}"
        assert check_file_name("events", 1, name) == name and is_partitioned(name)


def test_empty_and_timeless_rows_have_a_folder(tmp_path: Path):
    (path,) = grouped(tmp_path, rows("a").slice(1), partitioned=True)
    assert path.parts[-3:-1] == (f"date={NO_VALUE}", f"log={NO_VALUE}")
    timeless = rows("a").set_column(1, "time", pa.nulls(1, pa.timestamp("us", "UTC")))
    (*_, path) = grouped(tmp_path, timeless, partitioned=True)
    assert path.parts[-3:-1] == (f"date={NO_VALUE}", "log=a")


def test_more_partitions_than_open_files(tmp_path: Path):
    given = rows(*(f"log{number}" for number in range(10)), days=30)
    found = grouped(tmp_path, given, partitioned=True)
    assert sum(pq.read_metadata(path).num_rows for path in found) == 300
    assert len({path.parent for path in found}) == 300


def ingest(spark: Any, world: World, store: Warehouse) -> None:
    Ingest(spark, world.path, store.path, now_ms=lambda: NOON_MS, typed=True).once()


def files_of(store: Warehouse, table: str) -> list[str]:
    return [file.name for file in store.current_files(store.manifests())[table]]


@pytest.mark.slow
def test_tables_are_partitioned_from_a_merge_on(spark: Any, world: World, tmp_path: Path):
    store = Warehouse(tmp_path / "tables")
    keep_delta(store)
    keep_iceberg(store)
    ingest(spark, world, store)
    assert merge_files(store, NOON_MS, partitioned=True) is not None
    world.clock_ms += DAY_MS
    world.git("prod", 2)
    ingest(spark, world, store)
    for table in ("events", "events_rejected", "blocks", "commits"):
        assert all(map(is_partitioned, files_of(store, table))), table
    assert not any(is_partitioned(name) for name in files_of(store, "gossip_dag"))
    assert "batch=3/date=2024-11-02/log=prod/part-00000.parquet" in files_of(store, "events")[-1]
    assert readers(spark, store) == {"prod": 14, "staging": 5, "jobs/pending": 3, "ea.core": 20, None: 7}
    assert len(DeltaTable(str(store.path / "events")).to_pyarrow_table()) == 49
    report = verify_tables(spark, store)
    assert report.ok, [step for step in report.steps if step.status == "failed"]
    world.git("prod", 1)
    ingest(spark, world, store)
    assert merge_files(store, NOON_MS) is not None  # two files of one day and log
    assert all(map(is_partitioned, files_of(store, "events")))
    assert merge_files(store, NOON_MS) is None
    assert merge_files(store, NOON_MS, partitioned=False) is not None
    assert len(files_of(store, "events")) == 1
    assert not list(store.path.rglob("date=*"))
    assert verify_tables(spark, store).ok


def readers(spark: Any, store: Warehouse) -> dict[str | None, int]:
    """Count rows by log as each reader of the bare files does, by the names of folders; the answers are the same.

    Gossip messages have no time, so their folder has no date.
    """
    folder = f"{store.path}/events"
    bare = duckdb.connect()
    counted = "SELECT log, count(*) FROM {} WHERE date IS NOT NULL GROUP BY 1"
    found = dict(
        bare.sql(
            counted.format(f"read_parquet('{folder}/**/*.parquet', hive_partitioning = true)")
        ).fetchall()
    )
    dated = pl.scan_parquet(f"{folder}/**/*.parquet", hive_partitioning=True).filter(
        pl.col("date").is_not_null()
    )
    assert dict(dated.group_by("log").len().collect().iter_rows()) == found
    spark.read.parquet(folder).createOrReplaceTempView("bare")
    assert {row[0]: row[1] for row in spark.sql(counted.format("bare")).collect()} == found
    whole = spark.read.parquet(folder)
    assert whole.where("log = topic").count() == whole.count()
    return {**found, None: whole.where("date IS NULL").count()}


def test_delta_log_says_logs_and_times_of_files(spark: Any, world: World, tmp_path: Path):
    store = Warehouse(tmp_path / "tables")
    keep_delta(store)
    ingest(spark, world, store)
    merge_files(store, NOON_MS, partitioned=True)
    opened = DeltaTable(str(store.path / "commits"))
    told = pa.table(opened.get_add_actions(flatten=True)).to_pylist()
    assert {(each["min.topic"], each["max.topic"]) for each in told} == {
        (topic, topic) for topic in ("prod", "staging", "jobs/pending")
    }
    times = opened.to_pyarrow_table(columns=["topic", "time"]).to_pylist()
    for each in told:
        mine = [row["time"] for row in times if row["topic"] == each["min.topic"]]
        assert each["min.time"] <= min(mine) and max(mine) <= each["max.time"]


@pytest.mark.slow
def test_typed_tables_are_merged_with_grown_columns(spark: Any, world: World, tmp_path: Path):
    store = Warehouse(tmp_path / "tables")
    ingest(spark, world, store)
    event = Draft({"type": "deploy.finished", "payload": {"n": 1, "late": 0.5}}, None)
    with open_repository(world.path, now_ms=world.now_ms, entropy=world.entropy) as log:
        log.append_all("prod", [event], layout=SHIPLOG)
    ingest(spark, world, store)
    assert len(files_of(store, "events__deploy_finished")) == 2
    merge_files(store, NOON_MS)
    (name,) = files_of(store, "events__deploy_finished")
    assert "late" in pq.read_schema(store.path / name).names and holds_one_log(store.path / name)
    assert verify_tables(spark, store).ok
