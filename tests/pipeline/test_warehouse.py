"""A warehouse whose writer dies between any two steps: every table can be read all the while."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from ropewalk.kernel.report import Step
from ropewalk.pipeline.tables.verify import check_files, verify_tables
from ropewalk.pipeline.tables.warehouse import Manifest, Warehouse
from tests.pipeline.killing import Crash, Mortal
from tests.pipeline.test_delta import write
from tests.tools import needs_that

TABLES = ("events", "deployments", "consumer_lag")


def rows_in(store: Warehouse) -> dict[str, list[int]]:
    """What the manifests name, read from its files."""
    return {
        table: [
            n
            for file in files
            for n in pq.read_table(store.path / file.name, partitioning=None)["n"].to_pylist()
        ]
        for table, files in store.current_files(store.manifests()).items()
    }


@pytest.mark.parametrize("lives", range(5))
def test_every_table_is_whole_whenever_its_writer_dies(tmp_path: Path, lives: int):
    store = Mortal(tmp_path / "tables", 99)
    with store.writing():
        write(store, 2, *TABLES)
        before = rows_in(store)
        store.lives = lives
        with pytest.raises(Crash):
            write(store, 3, *TABLES)
    left = Warehouse(store.path)
    committed = len(left.manifests()) == 2
    assert committed == (lives == 4)
    after = {"events": [0, 0, 1, 1, 1], "deployments": [1, 1, 1], "consumer_lag": [1, 1, 1]}
    assert rows_in(left) == (after if committed else before)
    assert [step.status for step in check_files(left, left.manifests())] == (
        ["passed", "not_checked"] if lives else ["passed"]
    )
    with left.writing():
        assert [step.status for step in check_files(left, left.manifests())] == ["passed"]
        if not committed:
            write(left, 3, *TABLES)
    assert rows_in(left) == after
    assert {path.name for path in (left.path / "deployments").iterdir()} == {"batch=2"}


@needs_that(Path("/proc/self/fd").exists(), "descriptors have no names here")
def test_batch_recorded_after_folders_are_synced(tmp_path: Path, monkeypatch):
    order: list[Path] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        order.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        real(descriptor)

    store = Warehouse(tmp_path / "tables")
    with store.writing():
        monkeypatch.setattr(os, "fsync", fsync)
        made = write(store, 1, *TABLES)
    manifest = order.index(store.home / "batches/.0000000001.json.tmp")
    for files in made.files.values():
        for file in files:
            path = store.path / file.name
            way = {path, *(folder for folder in path.parents if folder.is_relative_to(store.path))}
            assert way <= set(order[:manifest])


def test_looking_at_a_warehouse_changes_nothing_in_it(tmp_path: Path):
    store = Warehouse(tmp_path / "tables")
    with store.writing():
        write(store, 1, *TABLES)
    beside = store.batch_folder("events", 1) / ".part.parquet.crc"
    beside.write_bytes(b"somebody else's")
    assert [step.status for step in check_files(store, store.manifests())] == ["passed"]
    assert beside.exists()


def test_verify_retries_tables_replaced_meanwhile(tmp_path: Path, monkeypatch):
    store = Warehouse(tmp_path / "tables")
    with store.writing():
        write(store, 1, *TABLES)
        manifests = [len(store.manifests())]

        def check(looked_at: Warehouse, known: list[Manifest]) -> list[Step]:
            manifests.append(len(known))
            if len(known) == 1:
                write(store, 1, "deployments")  # the file that the first manifest names is gone now
            return check_files(looked_at, known)

        monkeypatch.setattr("ropewalk.pipeline.tables.verify.check_files", check)
        monkeypatch.setattr(
            "ropewalk.pipeline.tables.verify.hold_recorded", lambda *_: Step("recorded", "not_checked", "")
        )
        monkeypatch.setattr("ropewalk.pipeline.tables.verify.recorded_source", Path)
        report = verify_tables(None, store)  # type: ignore[arg-type]
    assert manifests == [1, 1, 2]
    assert [step.status for step in report.steps] == ["passed", "passed", "not_checked"]


def test_a_file_that_somebody_put_beside_the_others_is_told_of(tmp_path: Path):
    store = Warehouse(tmp_path / "tables")
    with store.writing():
        (made,) = write(store, 1, "deployments").files["deployments"]
    (store.path / "deployments" / "extra.parquet").write_bytes((store.path / made.name).read_bytes())
    (step,) = check_files(store, store.manifests())
    assert step.status == "failed" and "extra.parquet is in no manifest" in step.detail
