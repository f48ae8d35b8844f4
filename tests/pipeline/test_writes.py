"""Streams of Spark that append rows to a git log: each row once, also after a death between append and commit."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import Row, StructType

import ropewalk
from ropewalk.errors import ContentDiffers, Invalid, RopewalkError
from ropewalk.gitlog.repository.opening import open_repository
from ropewalk.kernel import ulid
from ropewalk.pipeline import to_arrow
from ropewalk.pipeline.source.refusals import refusals_raised
from ropewalk.pipeline.source.source import LogWriter, RopewalkSource
from tests.pipeline.world import World

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]
TIMED = "id AS order_id, unix_millis(current_timestamp()) AS at, 'order.paid' AS type, to_json(struct(id)) AS payload"
GIVEN = "ulid, 'order.paid' AS type, to_json(struct(id)) AS payload"


def put(folder: Path, name: str, rows: Sequence[dict[str, Any]]) -> None:
    """Put a file where a stream finds it, whole."""
    folder.mkdir(exist_ok=True)
    hidden = folder / f".{name}"
    hidden.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    hidden.rename(folder / f"{name}.json")


def run(spark: Any, world: World, work: Path, columns: str, form: str = "ropewalk", **options: str) -> None:
    """Write all files that are there, each a micro-batch, going on from the checkpoint."""
    rows = (
        spark.readStream.schema("id long, ulid string").option("maxFilesPerTrigger", 1).json(str(work / "in"))
    )
    writer = rows.selectExpr(*columns.split(", ")).writeStream.format(form).queryName(form)
    writer = writer.options(repository=str(world.path), topic="orders", **options)
    query = writer.option("checkpointLocation", str(work / "checkpoint")).trigger(availableNow=True).start()
    with refusals_raised():
        query.awaitTermination(240)


def recorded(world: World) -> list[tuple[str, int]]:
    """The log's rows in its order: ULID and id."""
    with open_repository(world.path) as log:
        return [(event.ulid, event.payload["id"]) for event in log.events("orders")]


@pytest.mark.slow
def test_stream_killed_before_commit_writes_once(spark: Any, world: World, tmp_path: Path):
    """The process that appends dies by SIGKILL before Spark hears of it; the same batch comes again."""
    marker = tmp_path / "died"

    class Dying(RopewalkSource):
        @classmethod
        def name(cls) -> str:
            return "ropewalk_dying"

        def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
            class Writer(LogWriter):
                def commit(self, messages: Any, batchId: int | None = None) -> None:
                    super().commit(messages, batchId)
                    if batchId == 1:
                        marker.touch()
                        os.kill(os.getpid(), 9)

            options = {name: self.options[name] for name in ("repository", "topic", "time", "keys")}
            return Writer(options, schema, overwrite)

    spark.dataSource.register(Dying)
    for number in range(3):
        put(tmp_path / "in", str(number), [{"id": 10 * number + each} for each in range(10)])
    with pytest.raises(RopewalkError):
        run(spark, world, tmp_path, TIMED, "ropewalk_dying", time="at", keys="order_id")
    before = recorded(world)
    assert (
        marker.exists()
        and len(before) == 20
        and len(list((tmp_path / "checkpoint/commits").glob("[0-9]"))) == 1
    )
    run(spark, world, tmp_path, TIMED, time="at", keys="order_id")
    assert recorded(world)[:20] == before
    put(tmp_path / "in", "3", [{"id": 30}])
    run(spark, world, tmp_path, TIMED, time="at", keys="order_id")
    found = recorded(world)
    assert sorted(each for _, each in found) == list(range(31)) and found == sorted(found)
    assert ropewalk.verify(world.path).ok


def test_stream_refuses_ulid_with_other_content(spark: Any, world: World, tmp_path: Path):
    """The query fails in plain text and goes on once the file is corrected; no row is lost or doubled."""
    ulids = [ulid.make(1_700_000_000_000 + number, number) for number in range(4)]
    rows = [{"id": number, "ulid": each} for number, each in enumerate(ulids)]
    put(tmp_path / "in", "0", rows[:2])
    run(spark, world, tmp_path, GIVEN)
    put(tmp_path / "in", "1", [{"id": 7, "ulid": ulids[1]}, *rows[2:]])
    with pytest.raises(ContentDiffers, match=f"orders already holds ULID {ulids[1]}"):
        run(spark, world, tmp_path, GIVEN)
    assert recorded(world)[:2] == [(ulids[0], 0), (ulids[1], 1)]
    put(tmp_path / "in", "1", rows[1:])
    run(spark, world, tmp_path, GIVEN)
    assert recorded(world) == list(zip(ulids, range(4), strict=True))
    assert ropewalk.verify(world.path).ok


def test_stream_refuses_row_below_head(spark: Any, world: World, tmp_path: Path):
    ulids = [ulid.make(1_700_000_000_000 + number, number) for number in range(2)]
    put(tmp_path / "in", "0", [{"id": 1, "ulid": ulids[1]}])
    run(spark, world, tmp_path, GIVEN)
    put(tmp_path / "in", "1", [{"id": 0, "ulid": ulids[0]}])
    with pytest.raises(RopewalkError, match="is not above the head of orders"):
        run(spark, world, tmp_path, GIVEN)
    assert recorded(world) == [(ulids[1], 1)]


def writer(world: World, columns: str, **options: str) -> LogWriter:
    given = {"repository": str(world.path), "topic": "orders", **options}
    schema = StructType()
    for column in columns.split(", "):
        name, kind = column.split(" ")
        schema.add(name, kind)
    return LogWriter(given, schema, False)


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"type": ""}, "type"),
        ({"ulid": "x"}, "ULID 'x'"),
        ({"ulid": None}, "ULID None"),
        ({"payload": '{"n":1,"n":2}'}, 'duplicate key "n"'),
        ({"payload": '{"n":123456789012345678901234567890}'}, "integer"),
        ({"payload": '{"key": "AKIA' + "QWERTYUIOPASDFGH" + '"}'}, "aws"),
    ],
    ids=["type", "ulid", "no ulid", "double name", "integer", "secret"],
)
def test_write_appends_no_row_of_a_refused_batch(world: World, change: dict[str, Any], wanted: str):
    """A row that cannot be an event must not leave the rows above it in the log: corrected, it would be too late."""
    rows = [
        Row(ulid=ulid.make(1_700_000_000_000 + number, number), type="order.paid", payload="{}")
        for number in range(3)
    ]
    made = writer(world, "ulid string, type string, payload string")
    rows[1] = Row(**{**rows[1].asDict(), **change})
    with pytest.raises(RuntimeError, match=wanted):
        made.commit([made.write(iter(rows))], 0)
    assert to_arrow(world.path).num_rows == 47


def test_write_merges_the_same_row_of_two_tasks(world: World):
    rows = [Row(ulid=ulid.make(1_700_000_000_000, number), type="t", payload="{}") for number in range(2)]
    made = writer(world, "ulid string, type string, payload string")
    made.commit([made.write(iter(rows)), None, made.write(iter(rows[1:]))], 0)
    assert to_arrow(world.path, topics="orders").num_rows == 2
    other = Row(ulid=rows[0].ulid, type="t", payload='{"n":1}')
    with pytest.raises(RuntimeError, match=f"two rows with the ULID {rows[0].ulid} differ"):
        made.commit([made.write(iter(rows)), made.write(iter([other]))], 1)


def test_row_ulid_is_made_from_time_and_keys(world: World):
    """The same row has the same ULID for ever: this one is written down."""
    made = writer(world, "at long, a string, b integer, type string, payload string", time="at", keys="a, b")
    rows = [Row(at=1469922850259, a="x", b=each, type="t", payload="{}") for each in (1, 1, 2)]
    first, second = made.write(iter(rows)).events
    assert (first, second[:10]) == ("01ARZ3NDEKQCERHSBXQBGW4A4R", "01ARZ3NDEK")
    with pytest.raises(RuntimeError, match="column a must not be null"):
        made.write(iter([Row(at=1, a=None, b=1, type="t", payload="{}")]))


def test_payload_column_must_be_json(world: World):
    with pytest.raises(Invalid, match="column payload must be JSON text or a VARIANT, got a binary"):
        writer(world, "ulid string, type string, payload binary")


@pytest.mark.parametrize(
    ("columns", "options", "wanted"),
    [
        ("at long", {"time": "at"}, "must be given together"),
        ("at long", {"keys": "at"}, "must be given together"),
        ("at long", {"time": "at", "keys": "id"}, "columns at, id, type and payload; missing: id"),
        ("at timestamp, id string", {"time": "at", "keys": "id"}, "got a timestamp"),
        ("at long, id double", {"time": "at", "keys": "id"}, "got a double"),
    ],
)
def test_row_ulid_needs_columns_of_known_types(
    world: World, columns: str, options: dict[str, str], wanted: str
):
    with pytest.raises(Invalid, match=wanted):
        writer(world, f"{columns}, type string, payload string", **options)
