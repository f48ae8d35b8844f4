"""The data source through real Spark: found by itself, batch and stream, filters, strict and quarantine."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType

import ropewalk.pipeline.source.source as ropewalk_source
from ropewalk.errors import HistoryRewritten, RopewalkError
from ropewalk.pipeline import to_arrow
from ropewalk.pipeline.source.query import make_query
from ropewalk.pipeline.source.refusals import find_refusal
from ropewalk.pipeline.source.source import LogReader, LogStreamReader, _freeze_imports
from tests.pipeline.tampering import TAMPERINGS, lose_commit, rewrite_history
from tests.pipeline.world import World, mostly_slow

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]


def read(spark: Any, world: World, **options: str) -> Any:
    reader = spark.read.format("ropewalk").option("repository", str(world.path))
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


def test_spark_finds_the_source_and_sees_the_rows_that_arrow_sees(spark: Any, world: World):
    frame = read(spark, world)
    counted = {
        (row.engine, row.topic): row["count"] for row in frame.groupBy("engine", "topic").count().collect()
    }
    assert sum(counted.values()) == to_arrow(world.path).num_rows == 47
    assert frame.where("verdict = 'passed'").count() == 47
    summed = frame.where("topic = 'prod'").selectExpr("sum(variant_get(payload, '$.n', 'int'))")
    assert summed.first()[0] == sum(range(12))


def test_workers_do_not_collect_their_modules(world: World):
    """Spark's workers collect garbage after every task: of all modules, that takes longer than a small task."""
    _freeze_imports.cache_clear()
    reader = LogReader(make_query({"repository": str(world.path)}))
    try:
        assert sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part)) == 47
        assert gc.get_freeze_count() > 10_000
    finally:
        gc.unfreeze()


def test_source_filter_then_count_all(spark: Any, world: World):
    """Spark keeps a reader for later plans of one frame: what a filter narrows must not narrow those (T4)."""
    frame = read(spark, world)
    assert frame.where("topic = 'prod'").count() == 12
    assert frame.count() == 47
    assert frame.where("height >= 2 and height < 4 and type = 'test.seen'").count() == 4
    assert frame.count() == 47


def test_source_union_of_two_filters(spark: Any, world: World):
    frame = read(spark, world)
    both = (
        frame.where("topic = 'prod'").select("topic").union(frame.where("topic = 'ea.core'").select("topic"))
    )
    assert both.count() == 12 + 20


def test_source_view_after_where(spark: Any, world: World):
    read(spark, world).createOrReplaceTempView("narrowed")
    assert spark.sql("select count(*) from narrowed where topic = 'staging'").first()[0] == 5
    assert spark.sql("select count(*) from narrowed").first()[0] == 47


def test_source_offers_no_filter_pushdown(spark: Any, world: World):
    """Also where a session turns push-down on, no plan sees the filters of another."""
    from ropewalk.pipeline.source.source import LogReader

    assert not hasattr(LogReader, "pushFilters") or "pushFilters" not in vars(LogReader)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = read(spark, world, engine="gitlog")
        assert frame.where("topic = 'prod' and height < 3").count() == 3
        assert frame.count() == 20
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")


def test_only_the_columns_asked_for_are_read(spark: Any, world: World):
    assert read(spark, world, columns="topic,height").columns == ["topic", "height"]


def test_a_stream_reads_on_where_it_ended(spark: Any, world: World, tmp_path: Path):
    def run() -> None:
        stream = (
            spark.readStream.format("ropewalk")
            .option("repository", str(world.path))
            .option("columns", "topic,entry_id,content_id")
            .option("max_rows_per_batch", "20")
            .load()
        )
        query = (
            stream.writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(240)

    def rows() -> tuple[int, int]:
        found = spark.read.parquet(str(tmp_path / "out"))
        return found.count(), found.distinct().count()

    run()
    assert rows() == (47, 47)
    world.git("prod", 3)
    world.gossip("com.example.chat", 2)
    world.git("new-topic", 1)
    run()
    assert rows() == (53, 53)


def drained(world: World, rows: int, **options: str) -> list[dict[str, Any]]:
    """What a stream hands out until it stands still, driven as Spark drives it, offsets as texts and all."""
    query = make_query({"repository": str(world.path), "max_rows_per_batch": str(rows), **options})
    reader = LogStreamReader(query)
    at: dict[str, Any] = reader.initialOffset()
    found: list[dict[str, Any]] = []
    while (end := reader.latestOffset(at, reader.getDefaultReadLimit())) != at:
        at, end = json.loads(json.dumps(at)), json.loads(json.dumps(end))
        again = LogStreamReader(query)  # a restart in between changes nothing
        for part in again.partitions(at, end):
            for batch in again.read(part):
                found += batch.to_pylist()
        at = end
    return found


@pytest.mark.parametrize("name", sorted(TAMPERINGS))
def test_stream_tampering_strict_and_quarantine(world: World, name: str):
    rows = 3  # so that batches end before, in and behind what is damaged
    tampering = TAMPERINGS[name]
    tampering.act(world)
    with pytest.raises(RuntimeError) as caught:
        drained(world, rows, engine=tampering.engine)
    refusal = find_refusal(str(caught.value))
    assert refusal is not None and refusal.exit_code == 5, caught.value
    if tampering.refused_always:
        with pytest.raises(RuntimeError, match="ropewalk-refusal"):
            drained(world, rows, engine=tampering.engine, verify="quarantine")
        return
    found = drained(world, rows, engine=tampering.engine, verify="quarantine")
    bad = [row for row in found if row["verdict"] == "failed"]
    assert bad and all(row["detail"] for row in bad)
    assert sum(row["verdict"] == "passed" for row in found) == tampering.left
    places = [(row["topic"], row["entry_id"], row["height"], row["content_id"]) for row in found]
    whole = to_arrow(world.path, engine=tampering.engine, verify="quarantine")
    assert len(places) == whole.num_rows, "a stream sees what a batch sees, once"


def test_lost_message_ends_its_topic_in_quarantine(world: World):
    """Without an index nothing leads past a lost commit: one row says so, and every other log is read."""
    restore = lose_commit(world, "refs/gatos/messages/jobs/pending/head~1")
    found = drained(world, 3, topics="jobs/pending", verify="quarantine", columns="entry_id,verdict,height")
    assert [(row["verdict"], row["height"]) for row in found] == [("failed", None)]
    assert drained(world, 3, topics="prod") and len(drained(world, 3, verify="quarantine")) == 17 + 20 + 7 + 1
    restore()
    assert [row["height"] for row in drained(world, 3, topics="jobs/pending")] == [0, 1, 2]


@pytest.mark.parametrize(
    "name", mostly_slow("changed payload", "lost commit", "corrupted segment", "doubled arrival", fast=0)
)
def test_tampered_data_through_a_stream_of_spark(spark: Any, world: World, tmp_path: Path, name: str):
    tampering = TAMPERINGS[name]
    tampering.act(world)

    def run(mode: str) -> list[Any]:
        stream = (
            spark.readStream.format("ropewalk")
            .option("repository", str(world.path))
            .option("engine", tampering.engine)
            .option("verify", mode)
            .load()
            .select("entry_id", "verdict", "detail")
        )
        query = (
            stream.writeStream.format("memory")
            .queryName(f"told_{mode}")
            .option("checkpointLocation", str(tmp_path / mode))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(240)
        found: list[Any] = spark.table(f"told_{mode}").collect()
        return found

    with pytest.raises(Exception) as caught:
        run("strict")
    refusal = find_refusal(str(caught.value))
    assert refusal is not None and refusal.exit_code == 5, caught.value
    found = run("quarantine")
    assert sum(row.verdict == "passed" for row in found) == tampering.left
    assert [row for row in found if row.verdict == "failed" and row.detail]


@pytest.mark.parametrize("mode", ["strict", "quarantine"])
def test_a_history_rewritten_behind_a_stream_is_refused(world: World, mode: str):
    query = make_query({"repository": str(world.path), "engine": "gitlog", "verify": mode})
    reader = LogStreamReader(query)
    at = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    rewrite_history(world)
    again = LogStreamReader(make_query({"repository": str(world.path), "engine": "gitlog", "verify": mode}))
    with pytest.raises(RuntimeError) as caught:
        again.latestOffset(at, again.getDefaultReadLimit())
    assert isinstance(find_refusal(str(caught.value)), HistoryRewritten)


@pytest.mark.parametrize(
    "name",
    mostly_slow(
        "changed payload", "changed blob", "dropped message", "forged envelope", "torn settings", fast=3
    ),
)
def test_batch_tampering_strict_and_quarantine(spark: Any, world: World, name: str):
    tampering = TAMPERINGS[name]
    tampering.act(world)
    with pytest.raises(Exception) as caught:
        read(spark, world, engine=tampering.engine).count()
    refusal = find_refusal(str(caught.value))
    assert isinstance(refusal, RopewalkError) and refusal.exit_code == 5, caught.value
    if tampering.refused_always:
        with pytest.raises(Exception, match="ropewalk-refusal"):
            read(spark, world, engine=tampering.engine, verify="quarantine").count()
        return
    found = (
        read(spark, world, engine=tampering.engine, verify="quarantine").select("verdict", "detail").collect()
    )
    bad = [row for row in found if row.verdict == "failed"]
    assert bad and all(row.detail for row in bad)
    assert sum(row.verdict == "passed" for row in found) == tampering.left


def test_streams_are_refused_before_pyspark_4_2(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ropewalk_source, "HAS_STREAMS", False)
    source = ropewalk_source.RopewalkSource({"repository": str(world.path)})
    with pytest.raises(RuntimeError, match="streams of logs need PySpark"):
        source.streamReader(StructType())
