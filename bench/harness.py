"""Run contestants interleaved, several rounds, and print medians and ratios.

Machines are noisy: absolute rates are context, the ratio of two medians taken in one run is the result.
A benchmark is a module `bench/bench_<name>.py` with `run(quick: bool) -> list[Result]`.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Contestant", "Result", "compare", "fixed"]


@dataclass(frozen=True, slots=True)
class Contestant:
    """One way to do the job: `act()` does it once and returns how many operations that was."""

    name: str
    act: Callable[[], int]


@dataclass(frozen=True, slots=True)
class Result:
    """Ours against a peer at one job. `target` is the ratio the job's issue asks for, None where there is none."""

    job: str
    ours: str
    peer: str
    ours_per_s: float
    peer_per_s: float
    ratio: float
    target: float | None
    unit: str = "ops"
    rounds: int = 0
    note: str = ""
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def met(self) -> bool | None:
        """Whether the target was reached in this run; None without a target."""
        return None if self.target is None else self.ratio >= self.target

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "met": self.met}


def compare(
    job: str,
    ours: Contestant,
    peers: Sequence[Contestant],
    *,
    target: float | None,
    rounds: int = 5,
    unit: str = "ops",
    note: str = "",
) -> list[Result]:
    """Time every contestant once per round, in turn, and compare medians of CPU-and-wall seconds per operation."""
    everybody = [ours, *peers]
    seconds: dict[str, list[float]] = {c.name: [] for c in everybody}
    for contestant in everybody:
        contestant.act()  # warm caches, imports and allocators before anything counts
    for _ in range(rounds):
        for contestant in everybody:
            gc.collect()
            started = time.perf_counter()
            count = contestant.act()
            seconds[contestant.name].append((time.perf_counter() - started) / count)
    rate = {name: 1 / statistics.median(times) for name, times in seconds.items()}
    return [
        fixed(job, ours.name, peer.name, rate[ours.name], rate[peer.name], target, unit, note, rounds)
        for peer in peers
    ]


def fixed(
    job: str,
    ours: str,
    peer: str,
    ours_per_s: float,
    peer_per_s: float,
    target: float | None,
    unit: str = "ops",
    note: str = "",
    rounds: int = 1,
) -> Result:
    """A result whose rates were measured elsewhere in the same run (another process, another language)."""
    return Result(
        job, ours, peer, ours_per_s, peer_per_s, ours_per_s / peer_per_s, target, unit, rounds, note
    )
