"""A warehouse whose writer dies between any two steps: every table can be read all the while."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from ropewalk.pipeline.verifytables import check_files
from ropewalk.pipeline.warehouse import Warehouse
from tests.pipeline.killing import Crash, Mortal
from tests.pipeline.test_delta import write

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
    assert {path.name for path in (left.path / "deployments").iterdir()} == {"batch-2.parquet"}


def test_a_file_that_somebody_put_beside_the_others_is_told_of(tmp_path: Path):
    store = Warehouse(tmp_path / "tables")
    with store.writing():
        (made,) = write(store, 1, "deployments").files["deployments"]
    (store.path / "deployments" / "extra.parquet").write_bytes((store.path / made.name).read_bytes())
    (step,) = check_files(store, store.manifests())
    assert step.status == "failed" and "extra.parquet is in no manifest" in step.detail
