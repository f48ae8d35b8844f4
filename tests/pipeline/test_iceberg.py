"""Iceberg tables over the same files: a foreign reader sees what the manifests say, and nothing leads outside."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFile, DataFileContent, write_manifest_list

from ropewalk.errors import Damaged
from ropewalk.pipeline.tables.iceberg import check_iceberg, keep_iceberg
from ropewalk.pipeline.tables.warehouse import Warehouse
from tests.pipeline.test_delta import typed_batches, write

pytestmark = [pytest.mark.filterwarnings("ignore")]
STATISTICS = ("value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")


@pytest.fixture
def store(tmp_path: Path) -> Warehouse:
    made = Warehouse(tmp_path / "tables")
    keep_iceberg(made)
    with made.writing():
        write(made, 2, "events", "deployments")
        write(made, 1, "events")
    return made


def rows_in(store: Warehouse, table: str) -> list[int]:
    """What a reader with pyiceberg alone sees."""
    catalog = SqlCatalog("ropewalk", uri=f"sqlite:///{store.iceberg_mark}", warehouse=str(store.path))
    return sorted(catalog.load_table(("ropewalk", table)).scan().to_arrow()["n"].to_pylist())


def test_iceberg_tables_follow_batches_and_merges(store: Warehouse):
    assert rows_in(store, "events") == [0, 0, 1] and rows_in(store, "deployments") == [0, 0]
    old = [file.name for file in store.current_files(store.manifests())["events"]]
    with store.writing():
        write(store, 3, "events", replaces=tuple(old))
    assert rows_in(store, "events") == [2, 2, 2]
    assert check_iceberg(store, store.manifests()) is None


def test_iceberg_tables_asked_for_later_hold_everything(tmp_path: Path):
    made = Warehouse(tmp_path / "tables")
    with made.writing():
        write(made, 2, "events")
    keep_iceberg(made)
    assert check_iceberg(made, made.manifests()) == "events has no Iceberg table"
    with made.writing():
        pass
    assert rows_in(made, "events") == [0, 0]


def test_empty_tables_are_kept_and_agree(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    made = Warehouse(tmp_path / "tables")
    keep_iceberg(made)
    with made.writing():
        write(made, 0, "events", "deployments")
    assert rows_in(made, "events") == [] and check_iceberg(made, made.manifests()) is None
    with made.writing():
        write(made, 2, "events")
    assert rows_in(made, "events") == [1, 1] and check_iceberg(made, made.manifests()) is None
    assert "statistics missing" not in capfd.readouterr().err


def test_redirected_catalogue_is_refused(store: Warehouse, tmp_path: Path):
    with sqlite3.connect(store.iceberg_mark) as raw:
        raw.execute("UPDATE iceberg_tables SET metadata_location = ?", (str(tmp_path / "evil.json"),))
    with pytest.raises(Damaged, match="must lie in"):
        check_iceberg(store, store.manifests())


def test_manifest_outside_the_warehouse_is_not_read(store: Warehouse, tmp_path: Path):
    """A manifest list is data, too: it may name any path, or an address."""
    opened = SqlCatalog("ropewalk", uri=f"sqlite:///{store.iceberg_mark}").load_table(("ropewalk", "events"))
    snapshot = opened.current_snapshot()
    assert snapshot is not None and snapshot.sequence_number is not None
    named = snapshot.manifests(opened.io)
    outside = tmp_path / "evil.avro"
    outside.write_bytes(Path(named[0].manifest_path).read_bytes())
    named[0][0] = str(outside)  # its manifest_path
    place = opened.io.new_output(snapshot.manifest_list)
    Path(snapshot.manifest_list).unlink()
    with write_manifest_list(
        2, place, snapshot.snapshot_id, snapshot.parent_snapshot_id, snapshot.sequence_number, "deflate"
    ) as writer:
        writer.add_manifests(named)
    with pytest.raises(Damaged, match=f"{outside}.*must lie in"):
        check_iceberg(store, store.manifests())


@pytest.mark.parametrize(
    ("name", "kept"),
    [(name, kept) for name in ("*.json", "snap*", "*m0.avro") for kept in (300, 0, None)]
    + [("../../*.db", 300)],
)
def test_damaged_metadata_is_named_and_remade(store: Warehouse, name: str, kept: int | None):
    for path in (store.iceberg_mark.parent / "events/metadata").glob(name):
        path.unlink() if kept is None else path.write_bytes(path.read_bytes()[:kept])
    for use in (lambda: check_iceberg(store, store.manifests()), lambda: write_row(store)):
        with pytest.raises(Damaged, match=r"the Iceberg (table \w+|catalogue) cannot be read: \S") as caught:
            use()
        assert "tables --format iceberg" in caught.value.advice_now
    shutil.rmtree(store.iceberg_mark.parent)
    keep_iceberg(store)
    with store.writing():
        pass
    assert check_iceberg(store, store.manifests()) is None


def write_row(store: Warehouse) -> None:
    with store.writing():
        write(store, 1, "events")


def test_file_dropped_behind_the_manifests_is_named(store: Warehouse):
    catalog = SqlCatalog("ropewalk", uri=f"sqlite:///{store.iceberg_mark}", warehouse=str(store.path))
    catalog.load_table(("ropewalk", "events")).delete("n = 1")
    assert "differ about" in (check_iceberg(store, store.manifests()) or "")


@pytest.mark.parametrize(
    ("name", "value", "odd"),
    [
        ("record_count", 1, "record_count of part-0.parquet"),
        ("null_value_counts", {1: 2, 2: 0}, "null_value_counts of part-0.parquet"),
        ("lower_bounds", {1: (7).to_bytes(8, "little")}, "lower_bounds of part-0.parquet"),
        ("split_offsets", [99], "split_offsets of part-0.parquet"),
        ("upper_bounds", {1: (-1).to_bytes(8, "little", signed=True)}, "upper_bounds of part-0.parquet"),
    ],
)
def test_iceberg_check_compares_statistics(store: Warehouse, name: str, value: Any, odd: str):
    catalog = SqlCatalog("ropewalk", uri=f"sqlite:///{store.iceberg_mark}", warehouse=str(store.path))
    table = catalog.load_table(("ropewalk", "events"))
    files = [task.file for task in table.scan().plan_files()]
    (first,) = (each for each in files if each.file_path.endswith("batch=1/part-0.parquet"))
    with table.transaction() as change:
        with change.update_snapshot().overwrite() as overwrite:
            overwrite.delete_data_file(first)
        told = {each: getattr(first, each) for each in (*STATISTICS, "file_size_in_bytes", "record_count")}
        altered = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=first.file_path,
            file_format=first.file_format,
            partition=first.partition,
            spec_id=first.spec_id,
            **{**told, name: value},
        )
        with change.update_snapshot().fast_append() as append:
            append.append_data_file(altered)
    found = check_iceberg(store, store.manifests())
    assert found == f"the Iceberg table events and its files differ about {odd}"


def test_iceberg_check_compares_columns(store: Warehouse):
    catalog = SqlCatalog("ropewalk", uri=f"sqlite:///{store.iceberg_mark}", warehouse=str(store.path))
    table = catalog.load_table(("ropewalk", "events"))
    swapped = '[{"names":["n"],"field-id":2},{"names":["time"],"field-id":1}]'
    with table.transaction() as change:
        change.set_properties({"schema.name-mapping.default": swapped})
    assert "the names of columns" in str(check_iceberg(store, store.manifests()))
    with table.transaction() as change:
        change.remove_properties("schema.name-mapping.default")
    assert "the names of columns" in str(check_iceberg(store, store.manifests()))
    with table.update_schema() as update:
        update.rename_column("n", "m")
    assert "about column m" in str(check_iceberg(store, store.manifests()))


def test_iceberg_of_a_truncated_file_names_it(store: Warehouse):
    (part,) = (store.path / "events" / "batch=1").glob("*.parquet")
    part.write_bytes(part.read_bytes()[:100])
    with pytest.raises(Damaged, match=f"{part} cannot be read"):
        check_iceberg(store, store.manifests())
    shutil.rmtree(store.iceberg_mark.parent)
    keep_iceberg(store)
    with pytest.raises(Damaged, match=f"{part} cannot be read"), store.writing():
        pass


def test_iceberg_typed_table_grows_columns(tmp_path: Path):
    store = Warehouse(tmp_path / "tables")
    keep_iceberg(store)
    for wanted in typed_batches(store):
        catalog = SqlCatalog("ropewalk", uri=f"sqlite:///{store.iceberg_mark}", warehouse=str(store.path))
        found = catalog.load_table(("ropewalk", "events__sold")).scan().to_arrow().to_pylist()
        assert sorted(found, key=lambda row: str(row["n"])) == wanted
        assert check_iceberg(store, store.manifests()) is None
