"""What it costs to verify a channel deeply: memory must not grow with the channel.

`python -m tests.torture.ledger_memory` makes channels of 100,000 and of a million envelopes, verifies each in a process
of its own, and reports the most memory of its own that process held: anonymous pages, not files it has mapped.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

SIZES = (100_000, 1_000_000)
SIZES_QUICK = (5_000, 50_000)
BATCH = 5_000
GROWTH_MIB_MAX = 32
CHANNEL = "ea.core"


def run(quick: bool) -> dict[str, Any]:
    """The run `make torture` does."""
    runs = []
    for size in SIZES_QUICK if quick else SIZES:
        with tempfile.TemporaryDirectory() as folder:
            make(Path(folder), size)
            command = [sys.executable, "-m", "tests.torture.ledger_memory", folder]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            runs.append(json.loads(done.stdout))
    growth = runs[-1]["anonymous_mib"] - runs[0]["anonymous_mib"]
    return {
        "ok": all(each["verified"] for each in runs) and growth <= GROWTH_MIB_MAX,
        "what": "memory of `ledger verify --deep`, most at once, beside the size of the channel",
        "growth_mib": growth,
        "growth_mib_max": GROWTH_MIB_MAX,
        "runs": runs,
    }


def make(home: Path, count: int) -> None:
    """A channel of that many envelopes."""
    from ropewalk.ledger.channel.channel import open_log
    from ropewalk.ledger.channel.settings import create_channel
    from tests.unit.ledger.making import NODE, NOON_NS, observed

    create_channel(home, CHANNEL, "node", NODE.public)
    with open_log(home, CHANNEL, NODE, now_ns=lambda: NOON_NS) as opened:
        for start in range(0, count, BATCH):
            opened.log.submit_many([observed(n).raw for n in range(start, min(start + BATCH, count))])


def measure(home: Path) -> dict[str, Any]:
    """Verify it here, watching how much memory this process holds."""
    from ropewalk.ledger.channel.maintenance import verify_stored

    most, done = {"RssAnon": 0, "RssFile": 0}, threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            for line in Path("/proc/self/status").read_text().splitlines():
                name, _, value = line.partition(":")
                if name in most:
                    most[name] = max(most[name], int(value.split()[0]) // 1024)

    watcher = threading.Thread(target=watch)
    watcher.start()
    started, spent = time.monotonic(), time.process_time()
    report = verify_stored(home, CHANNEL, deep=True)
    seconds, spent = time.monotonic() - started, time.process_time() - spent
    done.set()
    watcher.join()
    return {
        "verified": report.ok,
        "envelopes": report.counts["entries"],
        "anonymous_mib": most["RssAnon"],
        "mapped_mib": most["RssFile"],
        "seconds": round(seconds, 1),
        "cpu_seconds": round(spent, 1),
    }


if __name__ == "__main__":
    if len(sys.argv) == 2:
        print(json.dumps(measure(Path(sys.argv[1]))))
    else:
        answer = run(quick=False)
        print(json.dumps(answer, indent=2))
        sys.exit(0 if answer["ok"] else 1)
