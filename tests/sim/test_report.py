"""What `python -m tests.sim` runs and reports of worlds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ropewalk.gossip.core.log import GossipLog
from tests.sim import __main__ as simulation
from tests.sim import gossip, gossip_live, stream_world

SWARMS = pytest.mark.parametrize(
    ("world", "kinds"),
    [
        (gossip, gossip.KINDS),
        (gossip_live, gossip_live.KINDS),
        (stream_world, (*stream_world.LINE, *stream_world.PROXY)),
    ],
    ids=lambda each: getattr(each, "__name__", "kinds"),
)


@SWARMS
def test_swarm_has_every_kind_of_step(world, kinds):
    mixes = [frozenset(step.kind for step in world.steps_of(seed)) for seed in range(20)]
    assert frozenset().union(*mixes) == set(kinds)
    assert len(set(mixes)) > 5


@SWARMS
def test_seed_replays_exactly(world, kinds):
    told: list[list[str]] = [[], []]
    for each in told:
        assert world.run(3, each.append) > 0
    assert told[0] == told[1]


def test_failing_gossip_world_is_minimised(monkeypatch):
    """A reader that passes the first message over is found, and one append is enough to show it."""
    arrivals = GossipLog.arrivals

    def forgetful(self, cursor=None):
        found = list(arrivals(self, cursor))
        return iter(found[1:] if cursor is None else found)

    monkeypatch.setattr(GossipLog, "arrivals", forgetful)
    with pytest.raises(AssertionError, match="missed or doubled something") as found:
        gossip.run(2)
    assert str(found.value).count("('") <= 2


def test_disks_of_an_engine_add_up():
    counts = simulation.shares(["gitlog", "gitlog_rollup", "push", "witness"], 9000)
    assert counts == {"gitlog": 4000, "gitlog_rollup": 4000, "push": 1000, "witness": 9000}


def test_worlds_report_the_kinds_that_were_played():
    report = simulation.worlds("stream_worlds", 4, 0, 60)
    assert report["ok"] and report["worlds"] == 4
    assert sum(report["faults"].values()) == 4 * stream_world.STEPS
    assert report["faults"]["cut_link"] > 0


def test_report_names_the_commit_of_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A commit during a run relabelled what older code had done."""
    commits = iter(["first", "second", "third"])
    monkeypatch.setattr(simulation, "_commit", lambda: next(commits))
    monkeypatch.setattr(simulation, "REPORT", tmp_path / "simulate.json")
    words = ["python -m tests.sim", "stream_worlds", "--worlds", "2", "--seed", "1", "--jobs", "1"]
    monkeypatch.setattr("sys.argv", words)
    assert simulation.main() == 0
    report = json.loads((tmp_path / "simulate.json").read_text())
    assert report["commit"] == "first" and report["faults"]["wait"] > 0
