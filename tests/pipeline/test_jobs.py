"""Export, compact, health and report over real Spark: idempotent, checked against the originals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ropewalk.errors import DigestMismatch, Unverified
from ropewalk.ledger.envelope import parse_stored
from ropewalk.node.bundle import export_blocks, verify_bundle
from ropewalk.node.ledger import read_settings
from ropewalk.pipeline.compact import merge_files, summarise
from ropewalk.pipeline.export import export_channels
from ropewalk.pipeline.health import measure_channels, observation
from ropewalk.pipeline.ingest import Ingest
from ropewalk.pipeline.report import render
from ropewalk.pipeline.verify import verify_tables
from ropewalk.pipeline.warehouse import Warehouse
from ropewalk.stores import keyfiles
from tests.pipeline.tampering import change_payload
from tests.pipeline.world import NODE, NOON_MS, World

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]


def export(spark: Any, world: World, folder: Path) -> Any:
    if not (world.place.keys / "node.json").exists():
        keyfiles.make(world.place.keys, "node", "ed25519", b"node" + bytes(28))
    return export_channels(
        spark,
        world.path,
        folder,
        export_blocks,
        key_folder=world.place.keys,
        key_name="node",
        blocks_per_bundle=2,
    )


def test_bundles_are_named_by_range_and_root_and_made_once(spark: Any, world: World, tmp_path: Path):
    done = export(spark, world, tmp_path / "bundles")
    assert [(each.start, each.end, each.kept) for each in done] == [
        (0, 1, False),
        (2, 3, False),
        (4, 4, False),
    ]
    trust = read_settings(world.place.home, "ea.core").trust()
    for each in done:
        assert each.root[:32] in each.path
        assert verify_bundle(Path(each.path), trust).report.ok
    Path(done[1].path).unlink()  # as if a run had been killed before it
    assert [each.kept for each in export(spark, world, tmp_path / "bundles")] == [True, False, True]


def test_an_export_refuses_blocks_that_do_not_verify(spark: Any, world: World, tmp_path: Path):
    change_payload(world)
    with pytest.raises(Unverified, match="block 2"):
        export(spark, world, tmp_path / "bundles")
    assert not list((tmp_path / "bundles").glob("*-0000000002-*.tar.zst"))


def test_summaries_are_signed_and_held_against_their_blocks(spark: Any, world: World, tmp_path: Path):
    store = Warehouse(tmp_path / "tables").make()
    made = summarise(spark, world.path, store, NODE, blocks_per_summary=2)
    assert [(each.start, each.end, each.kept) for each in made] == [(0, 1, False), (2, 3, False)]
    assert parse_stored(Path(made[0].path).read_bytes()).event_type == "ledger.summary"
    assert all(each.kept for each in summarise(spark, world.path, store, NODE, blocks_per_summary=2))
    Path(made[1].path).write_bytes(Path(made[0].path).read_bytes())
    with pytest.raises(DigestMismatch, match="its blocks give"):
        summarise(spark, world.path, store, NODE, blocks_per_summary=2)


def test_merged_files_hold_the_same_rows_and_ingest_goes_on(spark: Any, world: World, tmp_path: Path):
    def ingest() -> Any:
        return Ingest(
            spark, world.path, tmp_path / "tables", now_ms=lambda: NOON_MS, rows_per_batch=20
        ).once()

    ingest()
    store = Warehouse(tmp_path / "tables")
    before = sum(file.rows for file in store.current_files(store.manifests())["events"])
    merged = merge_files(spark, store, NOON_MS)
    assert merged is not None
    assert len(store.current_files(store.manifests())["events"]) == 1
    assert sum(file.rows for file in store.current_files(store.manifests())["events"]) == before == 47
    world.git("prod", 2)
    assert ingest().rows == 2
    assert verify_tables(spark, store).ok
    page = render(store, NOON_MS)
    assert page.count("<svg") >= 2 and "http" not in page.replace("http-equiv", "")


def test_health_is_measured_by_channel_and_told_as_an_observation(spark: Any, world: World):
    (health,) = measure_channels(spark, world.path, NOON_MS * 10**6)
    assert (health.channel, health.domain, health.envelopes, health.attested) == ("ea.core", "ea.core", 20, 0)
    assert health.attestation_age_seconds is None and not health.stale
    told = observation(health, NODE, NOON_MS * 10**6)
    assert (told.event_class, told.payload["channel"]) == ("Observation", "ea.core")  # type: ignore[index,call-overload]
