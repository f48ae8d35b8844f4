"""Mirrors of gossip topics: from another repository, with progress, lag and errors in the same records."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.cli.conftest import living_in

import ropewalk
from ropewalk.bridge.event_copy import MirrorResult
from ropewalk.bridge.mirror import keep_mirroring, mirror, open_mirror
from ropewalk.bridge.progress import list_progress
from ropewalk.errors import Conflict, NotFound, RopewalkError, Unavailable, Usage
from ropewalk.gossip.peer.topics import open_topic, topics
from ropewalk.kernel.keys import SigningKey

TOPIC = "com.example.chat"
KEY = SigningKey.generate("ed25519", bytes([3] * 32))


@pytest.fixture
def other(tmp_path: Path) -> Path:
    ropewalk.init(tmp_path / "other.git").close()
    say(tmp_path / "other.git", 3)
    return tmp_path / "other.git"


def say(repository: Path, count: int, profile=None) -> None:
    with open_topic(repository / "ropewalk", TOPIC, create=True, signer=KEY, profile=profile) as topic:
        topic.append_many({"n": n, "at": repository.name} for n in range(count))


def root(repository: Path) -> str:
    with open_topic(repository / "ropewalk", TOPIC, create=False) as topic:
        return topic.root().hash.hex()


def test_gossip_mirror_lists_position_and_lag(log, place, other):
    copying = open_mirror(log, str(other), f"gossip:{TOPIC}")
    assert (copying.catch_up().mirrored, copying.catch_up().mirrored) == (3, 0)
    assert copying.head() == (f"gossip/{TOPIC}", root(other))
    say(other, 2)
    (row,) = list_progress(log)
    assert (row["kind"], row["source"], row["target"]) == ("mirror", f"file://{other}", f"gossip/{TOPIC}")
    assert (row["moved"], row["lag"], row["error"]) == (3, 2, None)
    say(place.git_dir, 1)  # the source does not get it
    done = mirror(log, [str(other)], f"gossip:{TOPIC}")
    assert (done.mirrored, done.skipped) == (2, 4)
    (row,) = list_progress(log)
    assert (row["moved"], row["lag"], row["position"]) == (5, 0, root(place.git_dir))
    with open_topic(other / "ropewalk", TOPIC, create=False) as topic:
        assert len(topic) == 5


def test_gossip_mirror_refuses_wrong_names(log, place, other, tmp_path):
    ropewalk.init(tmp_path / "empty.git").close()
    cases: list[tuple[str, str, type[RopewalkError]]] = [
        (str(place.git_dir), f"gossip:{TOPIC}", Conflict),
        (str(tmp_path / "empty.git"), f"gossip:{TOPIC}", NotFound),
        (str(tmp_path / "none.git"), f"gossip:{TOPIC}", NotFound),
        (f"gossip:{TOPIC}", "topic:t", Usage),
        ("http://127.0.0.1:1", f"gossip:{TOPIC}", Usage),
        ("ws://u:secret@127.0.0.1:1", f"gossip:{TOPIC}", Unavailable),
    ]
    for source, to, error in cases:
        with pytest.raises(error):
            mirror(log, source, to)
    assert topics(place.home) == []
    (row,) = list_progress(log)  # only a peer that is away leaves a record
    assert row["source"] == f"ws://127.0.0.1:1/{TOPIC}" and row["error"] is not None


def test_gossip_mirror_reports_another_profile(log, place, other):
    say(place.git_dir, 1, "v0.6")
    with pytest.raises(RopewalkError, match=r"v0\.6"):
        mirror(log, str(other), f"gossip:{TOPIC}")


def test_gossip_mirror_passes_a_peer_that_is_away(log, place, other):
    away = "ws://127.0.0.1:1"
    copying = open_mirror(log, [away, str(other), f"{away}/2"], f"gossip:{TOPIC}")
    with pytest.raises(Unavailable):
        copying.catch_up()
    assert root(place.git_dir) == root(other) and copying.done.mirrored == 3
    errors = {row["source"]: row["error"] for row in list_progress(log)}
    assert errors.pop(f"file://{other}") is None and len(errors) == 2 and all(errors.values())
    say(other, 2)
    assert next(keep_mirroring(copying)).mirrored == 2
    with pytest.raises(Unavailable):
        copying.catch_up()
    assert copying.done == MirrorResult()


def test_command_mirrors_a_gossip_topic(log, place, other, tmp_path):
    command = living_in(tmp_path)
    done = command("--repo", str(place.git_dir), "mirror", "--from", str(other), "--to", f"gossip:{TOPIC}")
    assert done.text.startswith(f"ok  3 mirrored, 0 there already\n    gossip/{TOPIC} -> ")
    remove = ("--repo", str(place.git_dir), "bridge", "rm", f"file://{other}", f"gossip/{TOPIC}")
    assert command(*remove).code == 0 and list(list_progress(log)) == []
