"""Which repository a pipeline command reads: the one that was named, else the one the warehouse was filled from."""

from __future__ import annotations

import shutil
from pathlib import Path

import click
import pytest
from tests.pipeline.world import NOON_MS, World
from tests.unit.cli.conftest import Ropewalk

from ropewalk.cli.common.command import Session
from ropewalk.cli.pipeline.running import source_of
from ropewalk.errors import Damaged, NotFound
from ropewalk.pipeline.source.offsets import LogName, Offset, Point
from ropewalk.pipeline.tables.recorded import recorded_source
from ropewalk.pipeline.tables.verify import verify_tables
from ropewalk.pipeline.tables.warehouse import Manifest, Warehouse


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World.make(tmp_path / "source.git")
    made.git("prod", 3)
    return made


@pytest.fixture
def other(tmp_path: Path) -> World:
    made = World.make(tmp_path / "other.git")
    made.git("prod", 1)
    return made


@pytest.fixture
def store(tmp_path: Path, world: World) -> Warehouse:
    """A warehouse with two of the three events, by its manifest."""
    commits = world.git("staging", 2)
    made = Warehouse(tmp_path / "tables")
    end = Offset({LogName("gitlog", "staging"): Point(2, commits[-1])})
    source = str(world.place.git_dir)
    with made.writing():
        made.commit(Manifest(1, None, source, "strict", NOON_MS, Offset(), end, ()), [])
    return made


def chosen(store: Warehouse, source: Path | None = None, repo: Path | None = None) -> Path:
    with click.Context(click.Command("pipeline"), obj=Session(repo=repo)):
        return source_of(store, source)


def test_source_is_the_recorded_one(
    store: Warehouse, world: World, other: World, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(other.path)
    monkeypatch.setenv("ROPEWALK_REPO", str(other.path))
    assert chosen(store) == world.place.git_dir
    assert chosen(store, source=other.path) == other.path
    assert chosen(store, repo=other.path) == other.path
    empty = Warehouse(store.path.parent / "empty")
    assert chosen(empty) == other.place.git_dir


def test_source_that_is_gone_is_named(store: Warehouse, world: World, other: World, monkeypatch):
    monkeypatch.chdir(other.path)
    shutil.rmtree(world.path)
    with pytest.raises(NotFound, match="was filled from") as caught:
        chosen(store)
    assert "--source" in str(caught.value.advice_now)
    (other.path / "inner").mkdir()  # a repository around the recorded place is another one
    with pytest.raises(NotFound, match="was filled from"):
        recorded_source(str(other.path / "inner"))


def test_source_of_damaged_manifests_refused(store: Warehouse):
    next(store.batches.glob("*.json")).write_bytes(b"{}")
    with pytest.raises(Damaged):
        chosen(store)


def test_tables_are_held_against_the_named_source(store: Warehouse, other: World):
    report = verify_tables(None, store, other.path)  # type: ignore[arg-type]
    assert [step.name for step in report.steps if step.status == "failed"] == ["recorded_heads"]


def test_status_shows_the_recorded_source(ropewalk: Ropewalk, store: Warehouse, world: World, other: World):
    answer = ropewalk("pipeline", "status", "--warehouse", str(store.path), "--json", cwd=other.path)
    assert answer.code == 0 and answer.json["source"] == str(world.place.git_dir)
    assert answer.json["logs"] == [
        {"engine": "gitlog", "topic": "prod", "recorded": 0, "entries": 3},
        {"engine": "gitlog", "topic": "staging", "recorded": 2, "entries": 2},
    ]
    named = ("pipeline", "status", "--warehouse", str(store.path), "--source", str(other.path))
    answer = ropewalk(*named, "--json", cwd=other.path)
    assert answer.json["source"] == str(other.path)
    assert [log["entries"] for log in answer.json["logs"]] == [1]
    shutil.rmtree(world.path)
    answer = ropewalk("pipeline", "status", "--warehouse", str(store.path), cwd=other.path)
    assert answer.code == 0 and f"source {world.place.git_dir}" in answer.text
    assert "Name the repository with --source." in answer.err


def test_verify_of_tables_takes_no_options_of_logs(ropewalk: Ropewalk, world: World, tmp_path: Path):
    for words in (("--topics", "prod"), ("--engine", "gitlog"), ("--blocks-only",), ("--trust", "t.json")):
        answer = ropewalk("pipeline", "verify", "--warehouse", "tables", "--tables", *words)
        assert answer.code == 2
        assert "--tables compares all tables" in answer.err
