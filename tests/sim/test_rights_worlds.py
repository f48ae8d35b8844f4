"""Worlds of grants and revocations. `python -m tests.sim.rights_world --seed N` tells one of them."""

from __future__ import annotations

import pytest

from ropewalk.server.auth import auth_file
from ropewalk.server.auth.rights import Identity
from tests.sim import rights_world
from tests.sim.rights_world import run, steps_of

START = [0, *(pytest.param(start, marks=pytest.mark.slow) for start in range(4, 44, 4))]


@pytest.mark.parametrize("start", START)
def test_rights_are_never_exceeded(start: int):
    assert sum(run(seed) for seed in range(start, start + 4)) > 0


def test_seed_replays_exactly():
    told: list[list[str]] = [[], []]
    for each in told:
        run(2, each.append)
    assert told[0] == told[1] and len(told[0]) >= rights_world.STEPS


def test_swarm_has_every_kind_of_step():
    seen = {step.kind for seed in range(20) for step in steps_of(seed)}
    assert seen == set(rights_world.KINDS)
    assert any({step.kind for step in steps_of(seed)} != seen for seed in range(20))


def test_rules_kept_after_a_change_are_found(monkeypatch):
    """A server that never reads its auth file again is found, in a few steps."""
    monkeypatch.setattr(auth_file, "file_mark", lambda _path: 0)
    with pytest.raises(AssertionError, match="may") as found:
        for seed in range(9):
            run(seed)
    assert str(found.value).count("('") <= 4


def test_right_for_another_action_is_found(monkeypatch):
    """A server that takes the right to read for the right to append is found, in a few steps."""
    may = Identity.may
    monkeypatch.setattr(Identity, "may", lambda self, _action, log: may(self, "read", log))
    with pytest.raises(AssertionError, match="may") as found:
        for seed in range(9):
            run(seed)
    assert str(found.value).count("('") <= 4
