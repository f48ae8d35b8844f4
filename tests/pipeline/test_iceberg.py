"""Iceberg tables over the same files: a foreign reader sees what the manifests say, and nothing leads outside."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from ropewalk.errors import Damaged
from ropewalk.pipeline.tables.iceberg import check_iceberg, keep_iceberg
from ropewalk.pipeline.tables.warehouse import Warehouse
from tests.pipeline.test_delta import typed_batches, write

pytestmark = [pytest.mark.filterwarnings("ignore")]


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


def test_file_dropped_behind_the_manifests_is_named(store: Warehouse):
    catalog = SqlCatalog("ropewalk", uri=f"sqlite:///{store.iceberg_mark}", warehouse=str(store.path))
    catalog.load_table(("ropewalk", "events")).delete("n = 1")
    assert "differ about" in (check_iceberg(store, store.manifests()) or "")


def test_iceberg_typed_table_grows_columns(tmp_path: Path):
    store = Warehouse(tmp_path / "tables")
    keep_iceberg(store)
    for wanted in typed_batches(store):
        catalog = SqlCatalog("ropewalk", uri=f"sqlite:///{store.iceberg_mark}", warehouse=str(store.path))
        found = catalog.load_table(("ropewalk", "events__sold")).scan().to_arrow().to_pylist()
        assert sorted(found, key=lambda row: str(row["n"])) == wanted
        assert check_iceberg(store, store.manifests()) is None
