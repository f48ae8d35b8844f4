"""Faults that gossip logs must survive: seeded worlds of synced and of live peers, and kills in batches and syncs."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ropewalk.gossip.core.verify import verify_log
from ropewalk.gossip.peer.topics import open_log
from ropewalk.gossip.sync.session import pull_from
from tests.fault.test_gossip_kills import KEY, TOPIC, run_and_kill
from tests.sim.gossip import run as run_world
from tests.sim.gossip_live import run as run_live_world

__all__ = ["kills", "run", "worlds"]


def worlds(count: int, run_one: Callable[..., int] = run_world) -> dict[str, Any]:
    """Run seeded worlds of five peers; the seeds that fail are the report."""
    failed = []
    messages = 0
    for seed in range(count):
        try:
            messages += run_one(seed, deep=seed % 50 == 0)
        except Exception as error:
            failed.append({"seed": seed, "error": f"{type(error).__name__}: {error}"})
    return {"ok": not failed, "worlds": count, "messages": messages, "failed": failed}


def kills(count: int) -> dict[str, Any]:
    """kill −9 of appending, inserting and pulling processes; after each, every promise and every index is checked."""
    chance = random.Random(5)
    problems: list[str] = []
    promises = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with open_log(TOPIC, folder / "source", signer=KEY) as source:
            for start in range(0, 2000, 100):
                source.append_many(range(start, start + 100))
        for number in range(count):
            mode = ("append", "insert", "sync")[number % 3]
            path = folder / f"{mode}-{number // 30}"
            promised = run_and_kill(mode, path, folder / "source", chance.randint(1, 12))
            promises += len(promised)
            with open_log(TOPIC, path) as log:
                lost = promised - {signed.id for signed in log.iterate()}
                report = verify_log(log)
                if lost or not report.ok:
                    problems.append(f"kill {number} ({mode}): lost {sorted(lost)[:3]}, {report.to_json()}")
                if mode != "append" and number % 30 > 26:
                    with open_log(TOPIC, folder / "source") as whole:
                        pull_from(log, whole)
                        if log.root() != whole.root():
                            problems.append(f"kill {number} ({mode}): another root after the last pull")
    return {"ok": not problems, "kills": count, "promises": promises, "problems": problems}


def run(quick: bool) -> dict[str, Any]:
    """All runs; `quick` does a small share of each."""
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "worlds": lambda: worlds(100 if quick else 10_000),
        "live worlds": lambda: worlds(20 if quick else 2_000, run_live_world),
        "kills": lambda: kills(6 if quick else 300),
    }
    report: dict[str, Any] = {name: part() for name, part in parts.items()}
    return {"ok": all(part["ok"] for part in report.values()), **report}
