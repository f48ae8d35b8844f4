"""A warehouse that was tampered with reaches nothing outside itself: not by names in manifests, not by links."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pyarrow.parquet as pq
import pytest

from ropewalk.errors import Conflict, Damaged, Unverified
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import blake3
from ropewalk.pipeline.jobs.compact import merge_files
from ropewalk.pipeline.jobs.ingest import Ingest
from ropewalk.pipeline.jobs.replay import Replays
from ropewalk.pipeline.report.report import render
from ropewalk.pipeline.tables.delta import check_delta, keep_delta
from ropewalk.pipeline.tables.duck import ask_duckdb
from ropewalk.pipeline.tables.sql import ask
from ropewalk.pipeline.tables.table_files import safe_path
from ropewalk.pipeline.tables.verify import verify_tables
from ropewalk.pipeline.tables.warehouse import Warehouse
from tests.pipeline.test_delta import write
from tests.pipeline.world import World

NAMES = (
    "{victim}",
    "../victim/part-0.parquet",
    "events/../../victim/part-0.parquet",
    "events/batch=1/../../../victim/part-0.parquet",
    "events/batch=1//part-0.parquet",
    "events/batch=1/*.parquet",
    "events/batch=1/{{a,b}}.parquet",
    "deployments/batch-1.parquet",
    "events/batch=7/part-0.parquet",
    "_ropewalk/batches/0000000001.json",
)
LINKS = (
    "events",
    "events/batch=2",
    "events/batch=1/part-0.parquet",
    "deployments",
    "deployments/batch=2/open.parquet",
    "events/batch=9",
    "events/_delta_log",
    "_ropewalk",
    "_ropewalk/batches",
    "_ropewalk/staging",
    "_ropewalk/lock",
    "_ropewalk/batches/.0000000003.json.tmp",
)


@pytest.fixture
def store(tmp_path: Path) -> Warehouse:
    made = Warehouse(tmp_path / "tables")
    with made.writing():
        write(made, 2, "events", "deployments")
        write(made, 1, "events", "deployments")
    (made.home / "lock").unlink()
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "part-0.parquet").write_bytes(next((made.path / "events").rglob("*.parquet")).read_bytes())
    return made


def poison(store: Warehouse, change: Callable[[dict[str, Any]], None], number: int = 1) -> None:
    """Change a manifest and mend the chain, as an attacker who can write would."""
    above, value = None, {}
    for path in sorted((store.home / "batches").glob("*.json")):
        value = cast(dict[str, Any], jcs.parse_canonical(path.read_bytes()))
        if value["number"] == number:
            change(value)
        value["previous"] = above
        path.write_bytes(jcs.encode(value))
        above = blake3(path.read_bytes()).hex()
    (store.home / "head.json").write_bytes(jcs.encode({"number": value["number"], "digest": above}))


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "lock"
    }


def check_refused(store: Warehouse) -> None:
    """No writer, reader or verifier touches anything."""
    before = tree(store.path.parent)
    nothing: Any = None  # no Spark: every one of them has to refuse before it asks Spark for anything
    for act in (
        lambda: store.writing().__enter__(),
        lambda: merge_files(store, 0),
        lambda: ask(nothing, store, "SELECT 1", 1),
        lambda: render(store, 0),
    ):
        with pytest.raises(Unverified) as caught:
            act()
        assert caught.value.exit_code == 5
    assert not verify_tables(nothing, store).ok
    assert tree(store.path.parent) == before


@pytest.mark.parametrize("name", NAMES)
def test_manifest_name_outside_its_table_refused(store: Warehouse, name: str):
    victim = store.path.parent / "victim" / "part-0.parquet"

    def change(value: dict[str, Any]) -> None:
        value["files"]["events"][0]["name"] = name.format(victim=victim)

    poison(store, change)
    with pytest.raises(Damaged, match="must lie in its folder"):
        store.manifests()
    check_refused(store)


def test_manifest_table_name_must_be_plain(store: Warehouse):
    poison(store, lambda value: value["files"].update({"../victim": value["files"].pop("events")}))
    check_refused(store)


def test_manifest_replaces_only_known_files(store: Warehouse):
    poison(store, lambda value: value.update(replaces=["../victim/part-0.parquet"]))
    check_refused(store)


def _begin_at(position: int) -> Callable[[dict[str, Any]], None]:
    def change(value: dict[str, Any]) -> None:
        value["start"]["logs"]["gitlog"]["a"]["position"] = position

    return change


def _make_anew_without_a(value: dict[str, Any]) -> None:
    value["replaces"] = ["blocks/batch=1/part-empty.parquet"]
    for side in ("start", "end"):
        value[side]["logs"]["gitlog"] = {"b": {"position": 0 if side == "start" else 1, "head": ""}}


@pytest.mark.parametrize(
    ("change", "step", "wanted"),
    [
        (_begin_at(3), "manifests", "batch 2 must continue gitlog log a at 2"),
        (_begin_at(1), "manifests", "batch 2 must continue gitlog log a at 2"),
        (_make_anew_without_a, "manifests", "batch 2 must continue gitlog log a at 0, up to 2 or further"),
        (
            lambda value: value["files"]["events"][0].update(rows=0),
            "files",
            "has 2 rows, its manifest says 0",
        ),
    ],
    ids=["gap", "overlap", "left out", "rows"],
)
def test_verify_compares_ranges_and_rows_of_manifests(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], step: str, wanted: str
):
    """Entries between two batches, or in both, were compared with no log; Delta and Iceberg counted rows as told."""
    world, nothing = World.make(tmp_path / "log.git"), cast(Any, None)
    store = Warehouse(tmp_path / "tables")
    for _ in range(2):
        world.messages("a", 2)
        Ingest(lambda: nothing, world.path, store.path, now_ms=world.now_ms).once()
    poison(store, change, 2)
    failed = [each for each in verify_tables(nothing, store).steps if each.status == "failed"]
    assert failed[0].name == step and wanted in failed[0].detail


@pytest.mark.parametrize("name", [name for name in LINKS if not name.startswith("_")])
def test_link_in_a_table_refused_by_writers(store: Warehouse, name: str):
    replace_by_link(store, name)
    before = tree(store.path.parent)
    with pytest.raises(Damaged, match="symbolic link"), store.writing():
        pass
    assert tree(store.path.parent) == before


@pytest.mark.parametrize("name", [name for name in LINKS if name.startswith("_")])
def test_link_in_the_home_folder_refused(store: Warehouse, name: str):
    replace_by_link(store, name)
    before = tree(store.path.parent)
    with pytest.raises(Damaged, match="symbolic link"), store.writing():
        pass
    assert tree(store.path.parent) == before


@pytest.mark.parametrize("name", ["events", "events/batch=1", "events/batch=1/part-0.parquet"])
def test_link_in_a_table_refused_by_readers(store: Warehouse, name: str):
    replace_by_link(store, name)
    check_refused(store)


def test_link_of_a_delta_log_refused(store: Warehouse):
    keep_delta(store)
    with store.writing():
        pass
    replace_by_link(store, "deployments/_delta_log")
    for act in (lambda: check_delta(store, store.manifests()), lambda: store.writing().__enter__()):
        with pytest.raises(Damaged, match="symbolic link"):
            act()
    (store.path / "deployments" / "_delta_log").unlink()
    entry = next((store.path / "events" / "_delta_log").glob("*.json"))
    entry.rename(store.path.parent / "victim" / "log.json")
    entry.symlink_to(store.path.parent / "victim" / "log.json")
    (store.path.parent / "victim" / "deployments-_delta_log").rename(
        store.path / "deployments" / "_delta_log"
    )
    with pytest.raises(Damaged, match="symbolic link"):
        check_delta(store, store.manifests())


@pytest.mark.parametrize("table", ["verdicts", "replays", "health"])
def test_link_in_a_noted_table_refused(store: Warehouse, table: str):
    rows = pq.read_table(store.path.parent / "victim" / "part-0.parquet")
    store.note(table, "one", rows)
    assert [path.name for path in store.noted(table)] == ["one.parquet"]
    replace_by_link(store, f"{table}/one.parquet")
    with pytest.raises(Damaged, match="symbolic link"):
        store.noted(table)
    with pytest.raises(Damaged, match="symbolic link"):
        store.note(table, "one", rows)
    (store.path / table / "one.parquet").unlink()
    replace_by_link(store, table)
    for act in (lambda: store.noted(table), lambda: store.note(table, "two", rows)):
        with pytest.raises(Damaged, match="symbolic link"):
            act()
    if table == "replays":
        with pytest.raises(Damaged, match="symbolic link"):
            Replays(store).last("counts")


def test_bundles_and_summaries_pass_no_link(store: Warehouse):
    replace_by_link(store, "bundles")
    with pytest.raises(Damaged):
        store.inside("bundles")
    with pytest.raises(Damaged):
        safe_path(store.path, "..")
    replace_by_link(store, "summaries")
    with pytest.raises(Damaged):
        store.inside("summaries", "ea.core", "x.json")


def test_writers_refuse_damaged_manifests(store: Warehouse):
    (store.home / "batches" / "0000000001.json").write_bytes(b"{}")
    left = store.batch_folder("events", 3)
    left.mkdir()
    check_refused(store)
    assert left.is_dir()


def test_foreign_folder_beside_batches_is_kept(store: Warehouse):
    other = store.path / "events" / "batch=old"
    other.mkdir()
    with store.writing():
        pass
    assert other.is_dir()


def replace_by_link(store: Warehouse, name: str) -> None:
    """Move something of the warehouse out of it, and leave a link."""
    inside, outside = store.path / name, store.path.parent / "victim" / name.replace("/", "-")
    if inside.exists():
        inside.rename(outside)
    else:
        outside.mkdir()
        (outside / "part-0.parquet").write_bytes(b"not ours to delete")
    inside.parent.mkdir(exist_ok=True)
    inside.symlink_to(outside)


def test_git_repository_is_no_place_for_a_warehouse(tmp_path: Path):
    for name in ("objects", "refs"):
        (tmp_path / "log.git" / name).mkdir(parents=True)
    (tmp_path / "log.git" / "HEAD").touch()
    with pytest.raises(Conflict, match="a warehouse must be another folder"):
        Warehouse(tmp_path / "log.git").make()
    assert not (tmp_path / "log.git" / "_ropewalk").exists()
    Warehouse(tmp_path / "log.git" / "tables").make()


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "name",
    [
        "_ropewalk/batches/0000000003.json",
        "_ropewalk/head.json",
        "_ropewalk/runs/1-ingest.json",
        "_ropewalk/noted/health.a.json",
        "verdicts/a.parquet",
        "events/batch=1/part-0.parquet",
    ],
)
def test_pipe_in_a_warehouse_is_not_opened(store: Warehouse, name: str):
    """A reader would wait for ever, and the server's threads with it."""
    (store.home / "noted").mkdir()
    path = store.path / name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    with pytest.raises(Damaged, match=f"{path.name} is neither a file nor a folder"):
        ask_duckdb(store, "SELECT count(*) FROM events", 1)
        store.runs()
        store.records()


def test_link_of_the_records_folder_refused(store: Warehouse):
    rows = pq.read_table(store.path.parent / "victim" / "part-0.parquet")
    store.note("health", "one", rows)
    replace_by_link(store, "_ropewalk/noted")
    before = tree(store.path.parent)
    for act in (store.records, lambda: store.note("health", "two", rows)):
        with pytest.raises(Damaged, match="symbolic link"):
            act()
    assert tree(store.path.parent) == before
