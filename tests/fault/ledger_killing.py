"""Kill a submitting process again and again, and look at what it leaves; shared by the tests and the torture run."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.unit.ledger.making import NODE, observed
from tests.waiting import ended

from ropewalk.ledger.channel.channel import open_channel, open_log, verify_blocks
from ropewalk.ledger.channel.settings import create_channel

ROOT = Path(__file__).resolve().parents[2]
STRIDE = 1_000_000


@dataclass
class Tally:
    """What was seen over all kills."""

    kills: int = 0
    receipts: int = 0
    lost: int = 0
    torn: int = 0
    unopened: int = 0
    wrong: list[str] = field(default_factory=list)


def kill_many(home: Path, kills: int, seed: int, watch: Callable[[Tally], object] | None = None) -> Tally:
    """Start, let it acknowledge a random number of envelopes, kill −9, reopen, look for every receipt.

    `watch` sees the tally after every kill, so that a long run that is stopped has still said what it found.
    """
    chance = random.Random(seed)
    tally = Tally()
    create_channel(home, "ea.core", "node", NODE.public)
    for number in range(kills):
        said = _run_and_kill(home, number * STRIDE, chance)
        tally.kills += 1
        tally.receipts += len(said)
        _look(home, said, tally)
        if watch is not None:
            watch(tally)
    report = verify_blocks(home, "ea.core", deep=True)
    if not report.ok:
        tally.wrong.append(str(report.first_failure))
    return tally


def _run_and_kill(home: Path, first: int, chance: random.Random) -> list[tuple[int, int, int]]:
    command = [sys.executable, "-m", "tests.fault.ledger_submitter", str(home), str(first), "4"]
    with ended(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)) as process:
        assert process.stdout is not None
        said: list[tuple[int, int, int]] = []
        assert process.stdout.readline() == "ready\n"
        after, delay_s = chance.randrange(0, 40), chance.random() * 0.01
        for line in process.stdout:
            said.append(_parsed(line))
            if len(said) > after:
                break
        # From another thread, so that the blow falls at any moment of its work and not only between two lines.
        timer = threading.Timer(delay_s, process.kill)
        timer.start()
        said += [_parsed(line) for line in process.stdout if line.endswith("\n")]
        timer.join()
        return said


def _parsed(line: str) -> tuple[int, int, int]:
    number, height, index = line.split()
    return int(number), int(height), int(index)


def _look(home: Path, said: list[tuple[int, int, int]], tally: Tally) -> None:
    try:
        with open_log(home, "ea.core", NODE) as ledger:
            tally.torn += ledger.torn is not None
    except Exception as error:
        tally.unopened += 1
        tally.wrong.append(repr(error))
        return
    with open_channel(home, "ea.core") as channel:
        for number, height, index in said:
            place = channel.index.position(observed(number).id)
            if place != (height, index):
                tally.lost += 1
                tally.wrong.append(f"{number}: said {height}/{index}, found {place}")
