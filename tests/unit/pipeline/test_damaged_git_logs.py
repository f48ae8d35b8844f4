"""A git log with a damaged entry and no index: as much of it is read as can be proven, the rest is marked."""

from __future__ import annotations

import shutil
import subprocess
import zlib
from pathlib import Path

import pytest
from tests.pipeline.tampering import unpack
from tests.pipeline.world import World

from ropewalk.errors import Unverified
from ropewalk.pipeline import to_arrow
from ropewalk.pipeline.gitlogs import GitLogs
from ropewalk.pipeline.logs import between
from ropewalk.pipeline.offsets import LogName, Point

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


def test_a_lost_commit_puts_aside_only_itself_and_what_is_out_of_reach_behind_it(world: World):
    lost = ids(world)[4]
    spoil(world, lost)
    forget(world)
    expected = [(n, "failed" if n <= 4 else "passed") for n in range(EVENTS)]
    assert verdicts(world) == expected
    assert verdicts(world, rows_per_partition="3") == expected
    rows = to_arrow(world.path, topics="prod", verify="quarantine").to_pylist()
    assert [row["entry_id"] for row in rows][:6] == [None] * 4 + [lost, rows[5]["entry_id"]]
    assert f"out of reach behind commit {lost}" in rows[0]["detail"]
    with pytest.raises(Unverified, match="prod"):
        to_arrow(world.path, topics="prod")


def test_with_an_index_only_the_lost_commit_is_put_aside(world: World):
    spoil(world, ids(world)[4])
    assert verdicts(world) == [(n, "failed" if n == 4 else "passed") for n in range(EVENTS)]


def test_an_index_of_the_lower_part_brings_it_back(world: World):
    lost = world.git("prod", 3)[1]  # the index ends below these
    unpack(world)
    shutil.rmtree(world.place.home / "index")
    logs = GitLogs(world.place)
    head = logs.store.head(HEAD)
    assert head is not None
    from ropewalk.gitlog.layout import SHIPLOG
    from ropewalk.gitlog.log import describe

    below = logs.store.resolve(_git_parent(world, lost, 1))
    logs.index.catch_up(HEAD, below, lambda oid: describe(logs.store, SHIPLOG, "prod", oid), None)  # type: ignore[arg-type]
    logs.index.close()
    spoil(world, lost)
    assert verdicts(world) == [(n, "failed" if n == EVENTS + 1 else "passed") for n in range(EVENTS + 3)]


def test_a_head_seen_before_brings_the_lower_part_back(world: World):
    ids(world)
    seen = GitLogs(world.place).seen.get(HEAD)
    lost = world.git("prod", 4)[2]
    unpack(world)
    forget(world, seen=False)
    GitLogs(world.place).seen.set(HEAD, seen or "")
    spoil(world, lost)
    found = verdicts(world)
    assert [n for n, verdict in found if verdict == "failed"] == [EVENTS, EVENTS + 1, EVENTS + 2]
    assert len(found) == EVENTS + 4


def test_a_lost_tree_puts_aside_one_entry(world: World):
    table = to_arrow(world.path, topics="prod", columns="entry").to_pylist()
    import json

    spoil(world, json.loads(table[5]["entry"])["tree"])
    forget(world)
    # The envelope's place is proven by hashing, so even this one is whole for readers; it is not for `check`.
    assert {verdict for _, verdict in verdicts(world)} <= {"passed", "failed"}
    logs = GitLogs(world.place)
    name = LogName("gitlog", "prod")
    checked = [
        each
        for part in between(logs, name, Point(), logs.extent("prod", tolerant=True))
        for each in logs.check(part, deep=True)
    ]
    assert [each.end - 1 for each in checked if each.detail] == [5]
    assert sum(each.entries for each in checked) == EVENTS


def test_a_lost_head_leaves_what_the_index_knows(world: World):
    known = ids(world)
    lost = world.git("prod", 1)[0]
    unpack(world)
    spoil(world, lost)
    found = verdicts(world)
    assert found[0] == (-1, "failed") or found[-1] == (EVENTS, "failed")
    assert [n for n, verdict in found if verdict == "passed"] == list(range(len(known)))


def test_damage_does_not_hide_a_rewritten_history(world: World):
    """Nothing above a lost commit is believed if the head seen last is neither above nor below it."""
    old = ids(world)
    head = _git_parent(world, HEAD, 6)
    subprocess.run(["git", "-C", str(world.place.git_dir), "update-ref", HEAD, head], check=True)
    (world.place.home / "seen" / HEAD).write_text(head + "\n")
    lost = world.git("prod", 8)[2]
    unpack(world)
    forget(world, seen=False)
    GitLogs(world.place).seen.set(HEAD, old[-1])
    spoil(world, lost)
    rows = to_arrow(world.path, topics="prod", verify="quarantine").to_pylist()
    assert {row["entry_id"] for row in rows if row["verdict"] == "passed"} <= set(old)
    assert any(row["verdict"] == "failed" for row in rows)


def test_a_repaired_log_is_whole_again(world: World):
    lost = ids(world)[4]
    path = world.place.git_dir / "objects" / lost[:2] / lost[2:]
    good = path.read_bytes()
    spoil(world, lost)
    forget(world)
    logs = GitLogs(world.place)
    assert logs.extent("prod", tolerant=True).gap is not None
    path.write_bytes(good)
    again = GitLogs(world.place).extent("prod", tolerant=True)
    assert again.gap is None and again.end.position == EVENTS


def _git_parent(world: World, oid: str, back: int) -> str:
    done = subprocess.run(
        ["git", "-C", str(world.place.git_dir), "rev-parse", f"{oid}~{back}"],
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()
