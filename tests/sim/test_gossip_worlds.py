"""Two hundred seeded worlds converge. `python -m tests.sim.gossip --seed N` tells one of them step by step."""

from __future__ import annotations

import pytest

from tests.sim.gossip import run
from tests.sim.gossip_live import run as run_live


def slow(starts: range) -> list[object]:
    return [pytest.param(start, marks=pytest.mark.slow) for start in starts]


@pytest.mark.parametrize("start", [0, 20, 40, *slow(range(60, 200, 20))])
def test_five_peers_converge_through_every_fault(start: int):
    for seed in range(start, start + 20):
        try:
            made = run(seed, deep=seed == start)
        except Exception as error:
            raise AssertionError(f"python -m tests.sim.gossip --seed {seed}") from error
        assert made > 0


@pytest.mark.parametrize("start", [0, *slow(range(4, 12, 4))])
def test_live_peers_converge_through_every_fault(start: int):
    """Connections break, slow down and part; peers restart, crash and lie. Each message crosses a connection once."""
    for seed in range(start, start + 4):
        try:
            made = run_live(seed, deep=seed == start)
        except Exception as error:
            raise AssertionError(f"python -m tests.sim.gossip_live --seed {seed}") from error
        assert made > 0
