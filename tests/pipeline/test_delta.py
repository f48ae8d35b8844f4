"""Delta logs beside the tables: other readers see what the manifests say, whatever happened in between."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from ropewalk.errors import Damaged, Unavailable
from ropewalk.pipeline.jobs.compact import merge_files
from ropewalk.pipeline.jobs.ingest import Ingest
from ropewalk.pipeline.report.report import render
from ropewalk.pipeline.source.frames import to_arrow
from ropewalk.pipeline.source.offsets import Offset
from ropewalk.pipeline.tables.delta import check_delta, delta_versions, keep_delta
from ropewalk.pipeline.tables.iceberg import keep_iceberg
from ropewalk.pipeline.tables.table_files import OPEN_FILE
from ropewalk.pipeline.tables.verify import verify_tables
from ropewalk.pipeline.tables.warehouse import Manifest, Warehouse
from tests.pipeline.world import NOON_MS, World

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]
LOG: dict[str, Any] = {
    "engine": "gitlog",
    "topic": "prod",
    "start": 0,
    "end": 4,
    "rows": 4,
    "rejected": 0,
    "root": "",
}
SCHEMA = pa.schema([("n", pa.int64()), ("time", pa.timestamp("us", tz="UTC"))])


def write(
    store: Warehouse,
    count: int,
    *tables: str,
    replaces: tuple[str, ...] = (),
    logs: tuple[dict[str, Any], ...] = (),
) -> Manifest:
    """A batch as ingest writes one, without Spark."""
    known = store.manifests()
    files = {}
    for table in tables:
        staged = store.staging(table)
        staged.mkdir(parents=True)
        rows = {"n": [len(known)] * count, "time": [NOON_MS * 1000] * count}
        name = OPEN_FILE if table == "deployments" else f"part-{len(known)}.parquet"
        pq.write_table(pa.table(rows, schema=SCHEMA), staged / name)
        files[table] = store.put_in_place(table, len(known) + 1)
    before = known[-1].digest if known else None
    made = Manifest(
        len(known) + 1, before, "s", "strict", NOON_MS, Offset(), Offset(), logs, files, (), replaces
    )
    store.commit(made, known)
    return made


def write_columns(store: Warehouse, columns: dict[str, list[Any]], replaces: tuple[str, ...] = ()) -> None:
    """A batch of a table of an event type, with columns of its own."""
    known = store.manifests()
    staged = store.staging("events__sold")
    staged.mkdir(parents=True)
    pq.write_table(pa.table(columns), staged / "part-0.parquet")
    files = {"events__sold": store.put_in_place("events__sold", len(known) + 1)}
    before = known[-1].digest if known else None
    made = Manifest(
        len(known) + 1, before, "s", "strict", NOON_MS, Offset(), Offset(), (), files, (), replaces
    )
    store.commit(made, known)


def typed_batches(store: Warehouse) -> Iterator[list[dict[str, Any]]]:
    """Write a table that grows a column and is then made anew with another type; yield the rows it has each time."""
    with store.writing():
        write_columns(store, {"n": [1], "text": ["a"]})
        yield [{"n": 1, "text": "a"}]
        write_columns(store, {"n": [2], "text": ["b"], "late": [0.5]})
        yield [{"n": 1, "text": "a", "late": None}, {"n": 2, "text": "b", "late": 0.5}]
        old = tuple(file.name for file in store.current_files(store.manifests())["events__sold"])
        write_columns(store, {"n": ["x"], "late": [1.5]}, old)
        yield [{"n": "x", "late": 1.5}]


def rows_in(store: Warehouse, table: str) -> list[int]:
    return sorted(DeltaTable(str(store.path / table)).to_pyarrow_table()["n"].to_pylist())


@pytest.fixture
def store(tmp_path: Path) -> Warehouse:
    made = Warehouse(tmp_path / "tables")
    keep_delta(made)
    with made.writing():
        write(made, 2, "events", "deployments", "consumer_lag")
        write(made, 1, "events", "consumer_lag")
    return made


def test_delta_version_per_batch_with_newest_rows(store: Warehouse):
    assert delta_versions(store, store.manifests()) == {"events": 1, "deployments": 0, "consumer_lag": 1}
    assert rows_in(store, "events") == [0, 0, 1] and rows_in(store, "consumer_lag") == [1]
    with store.writing():
        write(store, 3, "events", "deployments")
    assert rows_in(store, "deployments") == [2, 2, 2]
    assert DeltaTable(str(store.path / "events")).transaction_version("ropewalk") == 3


def test_a_merge_replaces_files_and_changes_no_row(store: Warehouse):
    with store.writing():
        old = tuple(file.name for file in store.current_files(store.manifests())["events"])
        write(store, 3, "events", replaces=old)
    newest = DeltaTable(str(store.path / "events"))
    assert len(newest.file_uris()) == 1 and rows_in(store, "events") == [2, 2, 2]
    (told,) = newest.history(1)
    assert told["batch"] == "3"
    with store.writing():
        pass  # nothing new: no further version
    assert newest.version() == delta_versions(store, store.manifests())["events"]


@pytest.mark.parametrize("logs", [(), (LOG,)])
def test_delta_rows_from_a_retry_count_as_changed(store: Warehouse, logs: tuple[dict[str, Any], ...]):
    """A merge moves rows, which change feeds pass over; `quarantine retry` replaces files, too, but brings rows."""
    old = tuple(file.name for file in store.current_files(store.manifests())["events"])
    with store.writing():
        write(store, 3, "events", replaces=old, logs=logs)
    lines = (store.path / "events" / "_delta_log" / "00000000000000000002.json").read_text().splitlines()
    actions = [next(iter(each.values())) for each in map(json.loads, lines)]
    assert {each["dataChange"] for each in actions if "dataChange" in each} == {bool(logs)}


@pytest.mark.parametrize(
    ("old", "new", "odd"),
    [
        ('numRecords\\": 2', 'numRecords\\": 1', "num_records of batch=1/part-0.parquet"),
        (":00.001Z", ":00.000Z", "max.time of batch=1/part-0.parquet"),
        ('"minValues\\": {', '"minValues\\": {\\"n\\": 7, ', "min.n of batch=1/part-0.parquet"),
        (
            '\\"numRecords',
            '\\"nullCount\\": {\\"n\\": 2}, \\"numRecords',
            "null_count.n of batch=1/part-0.parquet",
        ),
        ('\\"n\\",\\"type\\":\\"long', '\\"n\\",\\"type\\":\\"string', "column n"),
        (
            '{"minReaderVersion":1,"minWriterVersion":2}',
            '{"minReaderVersion":3,"minWriterVersion":7,"readerFeatures":["deletionVectors"],'
            '"writerFeatures":["deletionVectors"]}',
            "deleted rows",
        ),
        (
            '\\"type\\":\\"long\\",\\"nullable\\":true',
            '\\"type\\":\\"long\\",\\"nullable\\":false',
            "column n",
        ),
        ('\\"name\\":\\"n\\"', '\\"name\\":\\"m\\"', "column m"),
    ],
)
def test_delta_check_compares_what_readers_skip_by(store: Warehouse, old: str, new: str, odd: str):
    assert check_delta(store, store.manifests()) is None
    path = store.path / "events" / "_delta_log" / "00000000000000000000.json"
    lines = path.read_text().splitlines()
    raw = "\n".join(line if "commitInfo" in line else line.replace(old, new) for line in lines)
    assert raw != path.read_text()
    path.write_text(raw)
    found = check_delta(store, store.manifests())
    assert found == f"the Delta log of events and its files differ about {odd}"


def test_delta_check_refuses_mapped_columns(store: Warehouse):
    path = store.path / "events" / "_delta_log" / "00000000000000000000.json"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for each in lines:
        if "protocol" in each:
            each["protocol"] = {"minReaderVersion": 2, "minWriterVersion": 5}
        if told := each.get("metaData"):
            told["configuration"] = {
                "delta.columnMapping.mode": "name",
                "delta.columnMapping.maxColumnId": "2",
            }
            schema = json.loads(told["schemaString"])
            for at, field in enumerate(schema["fields"]):
                physical = schema["fields"][1 - at]["name"]
                field["metadata"] = {
                    "delta.columnMapping.id": at + 1,
                    "delta.columnMapping.physicalName": physical,
                }
            told["schemaString"] = json.dumps(schema)
    path.write_text("\n".join(map(json.dumps, lines)))
    assert "about the names of columns" in str(check_delta(store, store.manifests()))


def test_delta_of_a_truncated_file_names_it(store: Warehouse):
    (part,) = (store.path / "events" / "batch=1").glob("*.parquet")
    part.write_bytes(part.read_bytes()[:100])
    assert f"{part} cannot be read" in str(check_delta(store, store.manifests()))
    shutil.rmtree(store.path / "events" / "_delta_log")
    with pytest.raises(Damaged, match=f"{part} cannot be read") as caught, store.writing():
        pass
    assert caught.value.exit_code == 5 and "verify --tables" in caught.value.advice_now


def test_a_writer_that_died_before_the_delta_log_is_caught_up_with(store: Warehouse):
    store.delta_mark.unlink()  # as if the process had ended right after its manifest
    with store.writing():
        write(store, 1, "events")
    assert "events" in str(check_delta(store, store.manifests()))
    store.delta_mark.touch()
    with store.writing():
        assert rows_in(store, "events") == [0, 0, 1, 2]
    assert check_delta(store, store.manifests()) is None


def test_delta_log_deleted_rebuilt_broken_named(store: Warehouse):
    log = store.path / "events" / "_delta_log"
    shutil.rmtree(log)
    with store.writing():
        assert rows_in(store, "events") == [0, 0, 1]
    (log / "00000000000000000000.json").write_text("{nonsense")
    with pytest.raises(Damaged, match="Delta log of events"), store.writing():
        pass


def test_without_the_library_one_line_says_what_to_install(tmp_path: Path, monkeypatch: Any):
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(Unavailable) as caught:
        keep_delta(Warehouse(tmp_path / "tables"))
    assert 'pip install ".[delta]"' in caught.value.advice_now


@pytest.mark.slow
def test_merged_files_hold_the_same_rows_and_other_readers_see_the_fold(
    spark: Any, world: World, tmp_path: Path
):
    store = Warehouse(tmp_path / "tables")

    def ingest() -> int:
        return Ingest(spark, world.path, store.path, now_ms=lambda: NOON_MS).once().rows

    def seen() -> dict[tuple[Any, ...], str]:
        columns = ["topic", "position", "leaf_index", "content_id", "payload"]
        rows = DeltaTable(str(store.path / "events")).to_pyarrow_table(columns=columns).to_pylist()
        found = {tuple(row[name] for name in columns[:4]): row["payload"] for row in rows}
        assert len(found) == len(rows)
        return found

    def fold() -> dict[tuple[Any, ...], str]:
        columns = "topic,position,leaf_index,content_id,payload"
        rows = to_arrow(world.path, columns=columns).to_pylist()
        return {tuple(row.values())[:4]: row["payload"] for row in rows}

    keep_delta(store)
    keep_iceberg(store)
    assert ingest() == 47
    world.git("prod", 1)
    assert ingest() == 1
    assert seen() == fold()
    assert merge_files(store, NOON_MS) is not None
    current = store.current_files(store.manifests())
    assert (len(current["events"]), len(current["deployments"])) == (1, 2)  # settled rows, and open ones
    assert seen() == fold()
    world.git("prod", 2)
    assert ingest() == 2
    assert seen() == fold() and len(fold()) == 50
    deployed = DeltaTable(str(store.path / "deployments")).to_pyarrow_table()
    assert deployed.num_rows == 20
    report = verify_tables(spark, store)
    assert report.ok and {"delta", "iceberg"} <= {step.name for step in report.steps}
    page = render(store, NOON_MS)
    assert page.count("<svg") >= 2 and "http:" not in page and "https:" not in page


def test_delta_log_of_a_typed_table_grows_columns(tmp_path: Path):
    store = Warehouse(tmp_path / "tables")
    keep_delta(store)
    for wanted in typed_batches(store):
        found = DeltaTable(str(store.path / "events__sold")).to_pyarrow_table().to_pylist()
        assert sorted(found, key=lambda row: str(row["n"])) == wanted
        assert check_delta(store, store.manifests()) is None
