"""A thousand kills while submitting; `python -m tests.torture.ledger_kill [KILLS] [SEED]`, report in build/."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from tests.fault.ledger_killing import ROOT, Tally, kill_many


def main(kills: int = 1000, seed: int = 0) -> int:
    """Kill, look, write the report; the exit code is 1 if anything was lost."""
    seed = seed or time.time_ns() & 0xFFFFFFFF
    print(f"seed {seed}")
    started = time.monotonic()
    target = ROOT / "build" / "ledger-kill.json"
    target.parent.mkdir(exist_ok=True)

    def report(tally: Tally) -> None:
        facts = {"what": "kill -9 while submitting", "seed": seed, "asked": kills}
        text = json.dumps(
            {**facts, "seconds": round(time.monotonic() - started, 1), **asdict(tally)}, indent=1
        )
        target.write_text(text + "\n", encoding="utf-8")

    with tempfile.TemporaryDirectory() as folder:
        tally = kill_many(Path(folder), kills, seed, report)
    report(tally)
    print(target.read_text(encoding="utf-8"))
    return 1 if tally.lost or tally.unopened or tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
