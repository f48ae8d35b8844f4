"""Streams in seeded worlds: a server and a client, or an origin, a proxy and three clients, over lines that break.

The worlds are those of `tests/unit/stream`, which Hypothesis draws too; here a seed draws them, as many as there is
time for, and a failing one is minimised.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from ropewalk.simulation import minimise
from tests.unit.stream import test_proxy_worlds as proxies
from tests.unit.stream import test_simulation as lines

STEPS = 70
WAITS = (1, 1_000, 9_000, 31_000)
Action = tuple[Any, ...]


def run(seed: int, tell: Callable[[str], None] = lambda _text: None, *, deep: bool = False) -> int:
    """Run one world; if it fails, say which of its actions are enough."""
    chance = random.Random(f"stream {seed}")
    play, draw = ((lines.lived, _line), (_proxied, _proxy))[seed % 2]
    actions = [draw(chance) for _ in range(STEPS)]
    try:
        play(actions)
    except Exception as error:
        kind = type(error)

        def fails(some: Sequence[Action]) -> bool:
            try:
                play(list(some))
            except Exception as other:
                return type(other) is kind
            return False

        raise AssertionError(f"seed {seed}: {error}; enough: {minimise(actions, fails)}") from error
    return len(actions)


def _proxied(actions: list[Action]) -> object:
    return proxies.lived((), actions)


def _line(chance: random.Random) -> Action:
    topic = chance.choice(("jobs/a", "jobs/b", "other"))
    return chance.choice(
        (
            ("publish", topic, chance.choice((0, 900)), chance.randint(1, 14)),
            ("serve", chance.randint(1, 10)),
            ("deliver", chance.randint(1, 10)),
            ("cut",),
            ("restart",),
            ("wait", chance.choice(WAITS)),
        )
    )


def _proxy(chance: random.Random) -> Action:
    publish, at = ("publish", chance.choice(proxies.TOPICS)), chance.randint(0, 2)
    return chance.choice(
        (
            publish,
            publish,
            ("up", chance.randint(1, 12)),
            ("down", at, chance.randint(1, 12)),
            ("fetch", chance.randint(1, 6)),
            ("cut_link",),
            ("cut_client", at),
            ("cut_fetches",),
            ("restart_origin",),
            ("restart_proxy",),
            ("wait", chance.choice(WAITS)),
        )
    )
