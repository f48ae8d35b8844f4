"""Worlds as lists of steps: drawn from a seed, and made small if they fail.

Each step has its own source of chance, so that a world with some steps left out is a world.
"""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ropewalk.simulation import minimise

Tell = Callable[[str], None]


class Step(NamedTuple):
    """What happens, and where its chance comes from."""

    kind: str
    seed: int


def draw(seed: int, kinds: Sequence[str], always: Sequence[str], count: int) -> list[Step]:
    """Return the steps of a seed: its own mix of what may happen; `always` are in every mix."""
    chance = random.Random(seed)
    mix = [kind for kind in kinds if kind in always or chance.random() < 0.6]
    return [Step(chance.choice(mix), chance.randrange(1 << 30)) for _ in range(count)]


def run_or_minimise(
    seed: int, steps: Sequence[Step], play: Callable[[Sequence[Step], Tell], int], tell: Tell
) -> int:
    """Play a world; if it fails, say which of its steps are enough. Problems that differ in numbers alone are one."""
    try:
        return play(steps, tell)
    except Exception as error:
        kind, text = type(error), str(error)
        problem = _problem(text)

        def fails(shorter: Sequence[Step]) -> bool:
            try:
                play(shorter, lambda _text: None)
            except Exception as other:
                return type(other) is kind and _problem(str(other)) == problem
            return False

        enough = [tuple(step) for step in minimise(steps, fails)]
        raise AssertionError(f"seed {seed}: {kind.__name__}: {text}; enough: {enough}") from error


def _problem(text: str) -> str:
    return re.sub(r"[0-9]+", "0", text)


def run_worlds(description: str, run: Callable[..., int]) -> int:
    """Run the worlds that the command line asks for; return 1 if any fails."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--worlds", type=int, default=100)
    asked = parser.parse_args()
    seeds = range(asked.worlds) if asked.seed is None else [asked.seed]
    failed = 0
    for seed in seeds:
        try:
            run(seed, print if asked.seed is not None else lambda _text: None, deep=seed == asked.seed)
        except AssertionError as error:
            failed += 1
            print(error)
    print(f"{len(seeds)} worlds, {failed} failed")
    return 1 if failed else 0
