"""Worlds of a git log with consumers and bridges. `python -m tests.sim.git_world --seed N` tells one of them."""

from __future__ import annotations

import pytest

from ropewalk.bridge.brokers import loops
from tests.sim import git_world
from tests.sim.git_world import run, steps_of

START = [0, *(pytest.param(start, marks=pytest.mark.slow) for start in range(6, 66, 6))]


@pytest.mark.parametrize("start", START)
def test_log_and_copies_hold_every_event_once(start: int):
    for seed in range(start, start + 6):
        assert run(seed) > 0


def test_seed_replays_exactly():
    told: list[list[str]] = [[], []]
    for each in told:
        run(2, each.append)
    assert told[0] == told[1] and len(told[0]) >= git_world.STEPS


def test_swarm_has_every_kind_of_step():
    seen = {step.kind for seed in range(20) for step in steps_of(seed)}
    assert seen == set(git_world.KINDS)
    assert any({step.kind for step in steps_of(seed)} != seen for seed in range(20))


def test_publisher_that_forgets_is_found(monkeypatch):
    """A bridge that does not ask the stream what it published is found, in a few steps."""

    async def from_the_start(self) -> None:
        self._ulid, self._position = None, await self._broker.last()

    monkeypatch.setattr(loops.Publisher, "_resume", from_the_start)
    with pytest.raises(AssertionError, match="the stream does not hold every event once") as found:
        for seed in range(9):
            run(seed)
    assert str(found.value).count("('") <= 4
