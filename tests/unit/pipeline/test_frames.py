"""Logs as Arrow, pandas and Polars, without a JVM; and what a read refuses."""

from __future__ import annotations

import itertools
import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from tests.pipeline.world import World, usual

from ropewalk.errors import HistoryRewritten, Invalid, InvalidName, NotFound
from ropewalk.kernel.proofs import verify_inclusion
from ropewalk.pipeline import to_arrow, to_pandas, to_polars
from ropewalk.pipeline.source.offsets import Offset
from ropewalk.pipeline.source.query import make_query
from ropewalk.pipeline.source.schemas import LEDGER_COLUMNS, SHARED_COLUMNS


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return usual(tmp_path_factory.mktemp("frames") / "log.git")


def test_every_engine_gives_the_documented_columns(world: World):
    assert tuple(to_arrow(world.path, engine="gitlog").column_names) == SHARED_COLUMNS
    assert tuple(to_arrow(world.path, engine="ledger").column_names) == SHARED_COLUMNS + LEDGER_COLUMNS
    counted = to_pandas(world.path).groupby(["engine", "topic"]).size().to_dict()
    assert counted == {
        ("gitlog", "prod"): 12,
        ("gitlog", "staging"): 5,
        ("gitlog", "jobs/pending"): 3,
        ("ledger", "ea.core"): 20,
        ("gossip", "com.example.chat"): 7,
    }


def test_rows_of_a_git_log_name_what_they_stand_on(world: World):
    rows = to_arrow(world.path, engine="gitlog", topics="prod").to_pylist()
    assert [row["height"] for row in rows] == list(range(12))
    assert rows[0]["parents"] == [] and all(
        upper["parents"] == [lower["entry_id"]] for lower, upper in itertools.pairwise(rows)
    )
    assert {row["verdict"] for row in rows} == {"passed"}
    assert json.loads(rows[3]["payload"]) == {"n": 3, "ok": True}


def test_rows_of_a_ledger_carry_a_proof_that_holds(world: World):
    rows = to_arrow(
        world.path, engine="ledger", columns="content_id,leaf_index,proof,entry,block_height"
    ).to_pylist()
    roots = {row["block_height"]: json.loads(row["entry"]) for row in rows if row["entry"]}
    for row in rows:
        header = roots[row["block_height"]]
        verify_inclusion(
            bytes.fromhex(row["content_id"]),
            row["leaf_index"],
            header["envelope_count"],
            [bytes.fromhex(each) for each in row["proof"]],
            bytes.fromhex(header["merkle_root"]),
        )


@pytest.mark.parametrize(
    ("engine", "start", "end", "count"),
    [
        ("gitlog", "3", "7", 4),
        ("ledger", "1", "3", 8),
        ("gossip", "2", "5", 3),
        ("gossip", "arrival:2", None, 5),
    ],
)
def test_start_and_end_cut_the_log(world: World, engine: str, start: str, end: str | None, count: int):
    topics = {"gitlog": "prod", "ledger": "ea.core", "gossip": "com.example.chat"}[engine]
    options = {"engine": engine, "topics": topics, "start": start, **({"end": end} if end else {})}
    assert to_arrow(world.path, **options).num_rows == count


def test_a_cursor_means_what_comes_after_it(world: World):
    rows = to_arrow(world.path, engine="gitlog", topics="prod").to_pylist()
    left = to_arrow(world.path, engine="gitlog", topics="prod", start=rows[4]["entry_id"])
    assert left.num_rows == 7
    done = to_arrow(world.path, engine="gitlog", topics="prod", end=rows[4]["entry_id"])
    assert done.num_rows == 5


def test_a_time_bounds_git_logs_and_ledgers(world: World, tmp_path):
    log = World.make(tmp_path / "log.git")
    log.git("prod", 4)
    log.git("prod", 6)  # an hour later
    rows = to_arrow(log.path, engine="gitlog").to_pylist()
    later = rows[4]["time"].isoformat()
    assert to_arrow(log.path, engine="gitlog", start=later).num_rows == 6
    assert to_arrow(log.path, engine="gitlog", end=later).num_rows == 4
    sealed = to_arrow(world.path, engine="ledger").to_pylist()
    assert to_arrow(world.path, engine="ledger", end=sealed[0]["time"].isoformat()).num_rows == 0
    with pytest.raises(Invalid, match="no time"):
        to_arrow(world.path, engine="gossip", start=later)


def test_options_are_lists_numbers_and_times(world: World, tmp_path: Path):
    assert to_arrow(world.path, topics=["prod", "staging"], columns=["topic", "height"]).shape == (17, 2)
    assert to_arrow(world.path, topics=("prod",), since=3, until=7, rows_per_partition=2).num_rows == 4
    log = World.make(tmp_path / "log.git")
    log.git("prod", 4)
    log.git("prod", 6)  # an hour later
    later: datetime = to_arrow(log.path)["time"][4].as_py()
    for since in (later, later.replace(tzinfo=None), later.astimezone(timezone(timedelta(hours=9)))):
        assert to_arrow(log.path, engine="gitlog", since=since).num_rows == 6
    assert to_pandas(log.path, engine="gitlog", since=later.date(), until=None).shape[0] == 10


def test_polars_and_pandas_see_the_same_rows(world: World):
    assert to_polars(world.path, engine="gossip").height == len(to_pandas(world.path, engine="gossip")) == 7


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"topics": "nowhere"}, NotFound),
        ({"columns": "colour"}, InvalidName),
        ({"engine": "kafka"}, InvalidName),
        ({"verify": "sometimes"}, Invalid),
        ({"colour": "red"}, InvalidName),
        ({"rows_per_partition": "many"}, Invalid),
        ({"rows_per_partition": 0}, Invalid),
        ({"max_rows_per_batch": -1}, Invalid),
        ({"topics": []}, Invalid),
    ],
)
def test_what_makes_no_sense_is_refused(world: World, options: dict[str, Any], error: type[Exception]):
    with pytest.raises(error):
        to_arrow(world.path, **options)


def test_an_empty_repository_is_an_empty_table(tmp_path):
    World.make(tmp_path / "empty.git")
    assert to_arrow(tmp_path / "empty.git").num_rows == 0


@pytest.mark.parametrize(
    "logs",
    [
        {"gitlog": 5},
        {"gitlog": {"prod": 5}},
        {"gitlog": {"prod": {"head": "ab"}}},
        {"gitlog": {"prod": {"position": -1, "head": "ab"}}},
        {"gitlog": {"prod": {"position": True, "head": "ab"}}},
        {"gitlog": {"prod": {"position": "1", "head": "ab"}}},
        {"gitlog": {"prod": {"position": 1, "head": None}}},
        {"evil": {"prod": {"position": 1, "head": "ab"}}},
    ],
)
def test_damaged_checkpoint_is_refused(logs: Any):
    with pytest.raises(Invalid):
        Offset.from_json({"version": 1, "logs": logs})


@pytest.mark.parametrize("engine", ["gitlog", "gossip", "ledger"])
def test_checkpoint_that_names_a_log_outside_is_refused(world: World, engine: str):
    point = {"position": 1, "head": "ab"}
    at = Offset.from_json({"version": 1, "logs": {engine: {"../../outside": point}}})
    with pytest.raises((HistoryRewritten, InvalidName)):
        make_query({"repository": str(world.path)}).require(at)
