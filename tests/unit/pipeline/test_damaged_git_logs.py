"""A git log with a damaged entry and no index: as much of it is read as can be proven, the rest is marked."""

from __future__ import annotations

import json
import shutil
import subprocess
import zlib
from pathlib import Path

import pytest
from tests.pipeline.tampering import unpack
from tests.pipeline.world import World

from ropewalk.errors import HistoryRewritten, Unverified
from ropewalk.gitlog.core.layout import SHIPLOG
from ropewalk.gitlog.core.log import describe
from ropewalk.gitlog.core.objects import Oid, parse_commit
from ropewalk.pipeline import to_arrow
from ropewalk.pipeline.source.git_logs import GitLogs
from ropewalk.pipeline.source.logs import between
from ropewalk.pipeline.source.offsets import LogName, Point

EVENTS = 12
HEAD = "refs/gatos/shiplog/prod/head"


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World.make(tmp_path / "log.git")
    made.git("prod", EVENTS)
    unpack(made)
    return made


def ids(world: World) -> list[str]:
    return [str(each) for each in to_arrow(world.path, topics="prod")["entry_id"].to_pylist()]


def spoil(world: World, oid: str) -> None:
    """Other bytes under an object's name."""
    path = world.place.git_dir / "objects" / oid[:2] / oid[2:]
    path.chmod(0o644)
    path.write_bytes(zlib.compress(b"blob 2\x00{}"))


def forget(world: World, *, seen: bool = True) -> None:
    """As on a fresh clone: no index, and no memory of heads."""
    shutil.rmtree(world.place.home / "index")
    if seen:
        shutil.rmtree(world.place.home / "seen")


def verdicts(world: World, **options: str) -> list[tuple[int, str]]:
    table = to_arrow(
        world.path, topics="prod", verify="quarantine", columns="position,verdict,detail,entry_id", **options
    )
    rows = table.to_pylist()
    assert all(row["detail"] for row in rows if row["verdict"] == "failed")
    return sorted((row["position"], row["verdict"]) for row in rows)


def test_lost_commit_without_index_ends_log(world: World):
    """One row names the commit that is lost; nothing leads past it."""
    lost = ids(world)[4]
    spoil(world, lost)
    forget(world)
    assert verdicts(world) == [(-1, "failed")]
    (row,) = to_arrow(world.path, topics="prod", verify="quarantine").to_pylist()
    assert row["entry_id"] == lost
    with pytest.raises(Unverified, match="prod"):
        to_arrow(world.path, topics="prod")


def test_lost_commit_with_index_is_one_row(world: World):
    spoil(world, ids(world)[4])
    assert verdicts(world) == [(n, "failed" if n == 4 else "passed") for n in range(EVENTS)]


def test_lost_commit_above_index_keeps_rows_below(world: World):
    ids(world)
    lost = world.git("prod", 3)[1]
    unpack(world)
    shutil.rmtree(world.place.home / "index")
    logs = GitLogs(world.place)
    below = logs.store.resolve(_git_parent(world, lost, 1))
    logs.lines.index.catch_up(HEAD, below, lambda oid: describe(logs.store, SHIPLOG, "prod", Oid(oid)), None)
    logs.lines.close()
    spoil(world, lost)
    assert verdicts(world) == [(-1, "failed"), *((n, "passed") for n in range(EVENTS + 1))]


@pytest.mark.parametrize("part", ["3", "50000"])
def test_lost_tree_without_index_is_one_row(world: World, part: str):
    """The commits alone lead to every other event, also where the index cannot be built."""
    table = to_arrow(world.path, topics="prod", columns="entry").to_pylist()
    spoil(world, json.loads(table[5]["entry"])["tree"])
    forget(world)
    expected = [(n, "failed" if n == 5 else "passed") for n in range(EVENTS)]
    assert verdicts(world, rows_per_partition=part) == expected
    logs = GitLogs(world.place)
    name = LogName("gitlog", "prod")
    checked = [
        each
        for range_ in between(logs, name, Point(), logs.extent("prod", tolerant=True))
        for each in logs.check(range_, deep=True)
    ]
    assert [each.end - 1 for each in checked if each.detail] == [5]
    assert sum(each.entries for each in checked) == EVENTS


def test_lost_head_leaves_what_the_index_knows(world: World):
    known = ids(world)
    lost = world.git("prod", 1)[0]
    unpack(world)
    spoil(world, lost)
    found = verdicts(world)
    assert found[0] == (-1, "failed") or found[-1] == (EVENTS, "failed")
    assert [n for n, verdict in found if verdict == "passed"] == list(range(len(known)))


def test_damage_does_not_hide_rewritten_history(world: World):
    """A tree that cannot be read keeps the index from being built; the head seen last must be there all the same."""
    old = ids(world)
    head = _git_parent(world, HEAD, 6)
    subprocess.run(["git", "-C", str(world.place.git_dir), "update-ref", HEAD, head], check=True)
    (world.place.home / "seen" / HEAD).write_text(head + "\n")
    bad = world.git("prod", 8)[2]
    unpack(world)
    forget(world, seen=False)
    logs = GitLogs(world.place)
    logs.lines.seen.set(HEAD, old[-1])
    spoil(world, parse_commit(logs.store.get(bad)[1]).tree)
    with pytest.raises(HistoryRewritten):
        to_arrow(world.path, topics="prod", verify="quarantine")


def test_repaired_log_is_whole_again(world: World):
    lost = ids(world)[4]
    path = world.place.git_dir / "objects" / lost[:2] / lost[2:]
    good = path.read_bytes()
    spoil(world, lost)
    forget(world)
    logs = GitLogs(world.place)
    assert logs.extent("prod", tolerant=True).fault
    path.write_bytes(good)
    again = logs.extent("prod", tolerant=True)
    assert not again.fault and again.end.position == EVENTS


def test_vanished_log_is_refused(world: World):
    """A log whose head was seen here and is gone is missing, not absent."""
    ids(world)
    subprocess.run(["git", "-C", str(world.place.git_dir), "update-ref", "-d", HEAD], check=True)
    with pytest.raises(HistoryRewritten):
        to_arrow(world.path)


def _git_parent(world: World, oid: str, back: int) -> str:
    done = subprocess.run(
        ["git", "-C", str(world.place.git_dir), "rev-parse", f"{oid}~{back}"],
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()
