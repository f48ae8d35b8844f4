"""Entries in quarantine: listed, verified again after a repair, and moved back with every proof intact."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from ropewalk.cli.common.command import Session
from ropewalk.cli.pipeline.quarantine import quarantine
from ropewalk.pipeline.source.offsets import Offset
from ropewalk.pipeline.tables.derive import events_schema
from ropewalk.pipeline.tables.duck import ask_duckdb
from ropewalk.pipeline.tables.verify import verify_tables
from ropewalk.pipeline.tables.warehouse import Manifest, Warehouse
from tests.pipeline.tampering import TAMPERINGS
from tests.pipeline.test_ingest import ingest, keys_in_log, keys_of
from tests.pipeline.world import World

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]


def test_quarantine_lists_entries_with_reasons(tmp_path: Path):
    store = Warehouse(tmp_path / "tables")
    row = {"engine": "gitlog", "topic": "prod", "position": 3, "entry_id": "ab", "detail": "lost"}
    with store.writing():
        staged = store.staging("events_rejected")
        staged.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist([row], events_schema()), staged / "part-0.parquet")
        files = {"events_rejected": store.put_in_place("events_rejected", 1)}
        store.commit(Manifest(1, None, "s", "quarantine", 0, Offset(), Offset(), (), files), [])
    done = CliRunner().invoke(quarantine, ["ls", "--warehouse", str(store.path)], obj=Session())
    assert done.exit_code == 0, done.output
    assert "prod" in done.output and "lost" in done.output


@pytest.mark.slow
def test_retry_moves_repaired_entries_back(spark: Any, world: World, tmp_path: Path):
    kept = tmp_path / "kept.git"
    shutil.copytree(world.path, kept, symlinks=True)
    TAMPERINGS["changed payload"].act(world)
    warehouse = tmp_path / "tables"
    first = ingest(spark, world, warehouse, mode="quarantine").once()
    store = Warehouse(warehouse)
    assert first.rejected and verify_tables(spark, store).ok
    assert ingest(spark, world, warehouse, mode="quarantine").retry() == (first.rejected, first.rejected)
    assert len(store.manifests()) == 1  # nothing holds that did not: nothing is written

    segment = world.segment.relative_to(world.path)
    shutil.copy(kept / segment, world.path / segment)
    assert not verify_tables(spark, store).ok  # the log has rows that the tables lack
    assert ingest(spark, world, warehouse, mode="quarantine").retry() == (first.rejected, 0)
    assert keys_of(warehouse, "events") == keys_in_log(world)
    assert ask_duckdb(store, "SELECT count(*) FROM events_rejected", 1).rows == ((0,),)
    report = verify_tables(spark, store)
    assert report.ok, report.to_json()
    world.git("prod", 2)  # and it goes on from there
    assert ingest(spark, world, warehouse, mode="quarantine").once().rows == 2
    assert verify_tables(spark, store).ok
