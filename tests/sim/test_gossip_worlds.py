"""Two hundred seeded worlds converge. `python -m tests.sim.gossip --seed N` tells one of them step by step."""

from __future__ import annotations

import pytest

from tests.sim.gossip import run


@pytest.mark.parametrize("start", range(0, 200, 20))
def test_five_peers_converge_through_every_fault(start: int):
    for seed in range(start, start + 20):
        try:
            made = run(seed, deep=seed == start)
        except Exception as error:
            raise AssertionError(f"python -m tests.sim.gossip --seed {seed}") from error
        assert made > 0
