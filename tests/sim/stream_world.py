"""Streams in seeded worlds: a server and a client, or an origin, a proxy and three clients, over lines that break.

The worlds are those of `tests/unit/stream`, which Hypothesis draws too. Here a seed draws its own mix of actions, as
many seeds as there is time for, and a failing one is minimised.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from tests.sim.steps import Step, Tell, draw, run_or_minimise
from tests.unit.stream import test_proxy_worlds as proxies
from tests.unit.stream import test_simulation as lines

STEPS = 70
WAITS = (1, 1_000, 9_000, 31_000)
LINE = ("publish", "serve", "deliver", "cut", "restart", "wait")
PROXY = (
    "publish", "publish", "up", "down", "fetch", "cut_link", "cut_client", "cut_fetches", "restart_origin",
    "restart_proxy", "wait",
)  # fmt: skip
TRUE = ("publish", "serve", "deliver", "up", "down", "fetch")  # these happen in every world


def steps_of(seed: int) -> list[Step]:
    """Return the steps of a seed; those of odd seeds are for a world with a proxy."""
    return draw(seed, PROXY if seed % 2 else LINE, TRUE, STEPS)


def run(seed: int, tell: Tell = lambda _text: None, *, deep: bool = False) -> int:
    """Run one world; if it fails, say which of its steps are enough."""
    return run_or_minimise(seed, steps_of(seed), _play_proxy if seed % 2 else _play_line, tell)


def _play_line(steps: Sequence[Step], tell: Tell) -> int:
    lines.lived([(step.kind, *_line(step.kind, random.Random(step.seed))) for step in steps])
    return len(steps)


def _play_proxy(steps: Sequence[Step], tell: Tell) -> int:
    proxies.lived((), [(step.kind, *_proxy(step.kind, random.Random(step.seed))) for step in steps])
    return len(steps)


def _line(kind: str, chance: random.Random) -> tuple[Any, ...]:
    match kind:
        case "publish":
            return (
                chance.choice(("jobs/a", "jobs/b", "other")),
                chance.choice((0, 900)),
                chance.randint(1, 14),
            )
        case "serve" | "deliver":
            return (chance.randint(1, 10),)
        case "wait":
            return (chance.choice(WAITS),)
        case _:
            return ()


def _proxy(kind: str, chance: random.Random) -> tuple[Any, ...]:
    match kind:
        case "publish":
            return (chance.choice(proxies.TOPICS),)
        case "up" | "fetch":
            return (chance.randint(1, 12),)
        case "down":
            return chance.randint(0, 2), chance.randint(1, 12)
        case "cut_client":
            return (chance.randint(0, 2),)
        case "wait":
            return (chance.choice(WAITS),)
        case _:
            return ()
