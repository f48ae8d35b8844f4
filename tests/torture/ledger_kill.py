"""A thousand kills while submitting; `python -m tests.torture.ledger_kill [KILLS] [SEED]`, report in build/."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from tests.fault.ledger_killing import ROOT, kill_many


def main(kills: int = 1000, seed: int = 0) -> int:
    """Kill, look, write the report; the exit code is 1 if anything was lost."""
    seed = seed or time.time_ns() & 0xFFFFFFFF
    print(f"seed {seed}")
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        tally = kill_many(Path(folder), kills, seed)
    report = {
        "what": "kill -9 while submitting",
        "seed": seed,
        "seconds": round(time.monotonic() - started, 1),
    }
    target = ROOT / "build" / "ledger-kill.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps({**report, **asdict(tally)}, indent=1) + "\n", encoding="utf-8")
    print(target.read_text(encoding="utf-8"))
    return 1 if tally.lost or tally.unopened or tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
