"""Worlds of a channel with replicas and witnesses. `python -m tests.sim.ledger_world --seed N` tells one of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ropewalk.simulation import minimise
from tests.sim import ledger_world
from tests.sim.ledger_world import run, steps_of
from tests.sim.steps import Step

START = [0, *(pytest.param(start, marks=pytest.mark.slow) for start in range(4, 44, 4))]


@pytest.mark.parametrize("start", START)
def test_replicas_and_witnesses_keep_one_history(start: int):
    for seed in range(start, start + 4):
        assert run(seed) > 0


def test_seed_replays_exactly():
    told: list[list[str]] = [[], []]
    for each in told:
        run(2, each.append)
    assert told[0] == told[1] and len(told[0]) >= ledger_world.STEPS


def test_swarm_has_every_kind_of_step():
    seen = {step.kind for seed in range(20) for step in steps_of(seed)}
    assert seen == set(ledger_world.KINDS)
    assert any({step.kind for step in steps_of(seed)} != seen for seed in range(20))


def test_failing_world_is_minimised(monkeypatch):
    """A witness that believes any head is found, and two steps are enough to show it."""

    def believing(log, request, now_s, tree=None):
        return replace(log, note=request.note, time_s=now_s)

    monkeypatch.setattr(ledger_world, "accept_head", believing)
    with pytest.raises(AssertionError, match=r"signed a fork|went back|earlier time") as found:
        for seed in range(9):
            run(seed)
    assert str(found.value).count("('") <= 3


def test_minimise_leaves_out_what_is_not_needed():
    steps = [Step(kind, 0) for kind in "abcdefg"]
    left = minimise(steps, lambda some: {"b", "f"} <= {step.kind for step in some})
    assert [step.kind for step in left] == ["b", "f"]
