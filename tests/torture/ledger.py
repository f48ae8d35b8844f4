"""Kill −9 while submitting to the ledger, a thousand times: no receipt lost, the channel always opens.

`python -m tests.torture.ledger [KILLS] [SEED]` runs it alone; build/torture-ledger.json is kept up to date meanwhile.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.fault.ledger_killing import Tally, kill_many

KILLS = 1000
KILLS_QUICK = 25


def run(quick: bool) -> dict[str, Any]:
    """The run `make torture` does."""
    return kill(KILLS_QUICK if quick else KILLS, time.time_ns() & 0xFFFFFFFF)


def kill(kills: int, seed: int) -> dict[str, Any]:
    """Kill, look, and keep the report on disk up to date: a run that is stopped has still said what it found."""
    print(f"ledger: seed {seed}", file=sys.stderr, flush=True)
    started = time.monotonic()
    target = Path("build") / "torture-ledger.json"
    target.parent.mkdir(exist_ok=True)

    def report(tally: Tally) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "ok": not (tally.lost or tally.unopened or tally.wrong),
            "what": "kill -9 while submitting",
            "seed": seed,
            "asked": kills,
            "seconds": round(time.monotonic() - started, 1),
            **asdict(tally),
        }
        target.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        return facts

    with tempfile.TemporaryDirectory() as folder:
        return report(kill_many(Path(folder), kills, seed, report))


if __name__ == "__main__":
    kills, seed = (
        (*map(int, sys.argv[1:]), KILLS, 20261115)[:2] if len(sys.argv) != 2 else (int(sys.argv[1]), 20261115)
    )
    answer = kill(kills, seed)
    print(json.dumps(answer, indent=2))
    sys.exit(0 if answer["ok"] else 1)
