"""Monotonic ULIDs: ours against python-ulid's monotonic generator, one at a time and by the batch.

Like for like: each side reads the system clock, draws its entropy from the system, keeps the last ULID, and ends with
the 26 characters. Both sides are also run with a clock that ticks at every call, where nothing can be counted up.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from itertools import count

from ulid import ULIDGenerator

from bench.harness import Contestant, Result, compare
from ropewalk.kernel.ulid import Ulid, next_ulid, next_ulids

Clock = Callable[[], int]


def run(quick: bool) -> list[Result]:
    size = 5_000 if quick else 50_000
    rounds = 3 if quick else 7
    real = _ours(size, _now_ms), _theirs(size, _now_ms)
    ticking = _ours(size, _ticking()), _theirs(size, _ticking())
    return [
        *compare("monotonic ULIDs, one at a time", real[0], [real[1]], target=2, rounds=rounds, unit="ULIDs"),
        *compare(
            "monotonic ULIDs, new ms each", ticking[0], [ticking[1]], target=2, rounds=rounds, unit="ULIDs"
        ),
        *compare(
            "monotonic ULIDs, batches of 100",
            _ours_by_batch(size),
            [real[1]],
            target=None,
            rounds=rounds,
            unit="ULIDs",
            note="python-ulid has no batch call and makes them one at a time",
        ),
    ]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _ticking() -> Clock:
    return count(1_700_000_000_000).__next__


def _ours(size: int, clock: Clock) -> Contestant:
    def act() -> int:
        last: Ulid | None = None
        for _ in range(size):
            last = next_ulid(last, clock(), os.urandom(10))
        return size

    return Contestant("ropewalk", act)


def _theirs(size: int, clock: Clock) -> Contestant:
    generator = ULIDGenerator(clock=clock)

    def act() -> int:
        for _ in range(size):
            str(generator.generate())
        return size

    return Contestant("python-ulid", act)


def _ours_by_batch(size: int) -> Contestant:
    def act() -> int:
        last: Ulid | None = None
        for _ in range(size // 100):
            last = next_ulids(last, _now_ms(), os.urandom(10), 100)[-1]
        return size

    return Contestant("ropewalk", act)
