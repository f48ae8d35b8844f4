"""Entries into the gossip tree one by one, beside okra's own tree under Node; the roots must be equal.

Node measures its own loop, so that neither its start nor the making of entries counts.
"""

from __future__ import annotations

import gc
import hashlib
import json
import shutil
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

from bench.harness import Contestant, Result, compare, fixed
from ropewalk.kernel.prolly.node import Node
from ropewalk.kernel.prolly.tree import ProllyTree

__all__ = ["entries", "run"]

TARGET = 1.0
PEERS = Path(__file__).parent / "node"


def entries(count: int) -> list[tuple[bytes, bytes]]:
    """Keys of 20 bytes and values of 32, the same as `node/okra.mjs` makes."""
    return [
        (hashlib.sha256(b"key %d" % i).digest()[:20], hashlib.sha256(b"value %d" % i).digest())
        for i in range(count)
    ]


def one_by_one(made: list[tuple[bytes, bytes]]) -> tuple[float, Node]:
    tree = ProllyTree()
    gc.collect()
    started = time.perf_counter()
    for key, value in made:
        tree.insert(key, value)
    return time.perf_counter() - started, tree.get_root()


def under_node(count: int) -> dict[str, Any]:
    if not (PEERS / "node_modules").is_dir():
        subprocess.run(["npm", "ci", "--no-audit", "--no-fund", "--silent"], cwd=PEERS, check=True)
    done = subprocess.run(
        ["node", "okra.mjs", str(count)], cwd=PEERS, check=True, capture_output=True, text=True
    )
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


def run(quick: bool) -> list[Result]:
    """100,000 entries in three rounds, ours and theirs in turn; then what batches bring."""
    count, rounds = (5_000, 2) if quick else (100_000, 3)
    made = entries(count)
    results = []
    if shutil.which("node") and shutil.which("npm"):
        ours, theirs = [], []
        for _ in range(rounds):
            seconds, root = one_by_one(made)
            measured = under_node(count)
            if (root.level, root.hash.hex()) != (measured["level"], measured["hash"]):
                raise ValueError(f"roots differ: {root.hash.hex()} and {measured['hash']}")
            ours.append(count / seconds)
            theirs.append(count / measured["seconds"])
        results.append(
            fixed(
                f"prolly tree, {count:,} inserts one by one",
                "ropewalk",
                "okra-memory (Node)",
                statistics.median(ours),
                statistics.median(theirs),
                TARGET,
                unit="inserts",
                rounds=rounds,
            )
        )
    return results + batches(made, rounds)


def batches(made: list[tuple[bytes, bytes]], rounds: int) -> list[Result]:
    def by_thousand() -> int:
        tree = ProllyTree()
        for at in range(0, len(made), 1000):
            tree.insert_many(made[at : at + 1000])
        return len(made)

    def singly() -> int:
        one_by_one(made)
        return len(made)

    return compare(
        "prolly tree, inserts by the thousand",
        Contestant("insert_many", by_thousand),
        [Contestant("insert", singly)],
        target=None,
        rounds=rounds,
        unit="inserts",
    )
