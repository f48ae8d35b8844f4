"""Many threads, refusals, twins and a moody disk at once: everybody gets an answer, and the answers are true."""

from __future__ import annotations

import random
import threading
from functools import partial

import pytest
from tests.unit.ledger.making import command, observed, opened
from tests.waiting import together

from ropewalk.disk.durable import Disk
from ropewalk.errors import RopewalkError
from ropewalk.ledger.channel.channel import open_channel, verify_blocks
from ropewalk.ledger.ingest.ports import IngestLimits
from ropewalk.ledger.ingest.ticket import LedgerReceipt


class Moody(Disk):
    """Now and then the disk is full for one write; it never loses what it has taken."""

    def __init__(self, seed: int, share: float) -> None:
        self.chance, self.share = random.Random(seed), share

    def write_some(self, fd, raw):
        if self.chance.random() < self.share:
            raise OSError(28, "No space left on device")
        return super().write_some(fd, raw)


@pytest.mark.parametrize(("seed", "share", "linger_s"), [(1, 0.0, 0.0), (2, 0.3, 0.0), (3, 0.1, 0.002)])
def test_everybody_gets_a_true_answer(tmp_path, seed, share, linger_s):
    answers: list[tuple[bytes, LedgerReceipt | RopewalkError]] = []
    lock = threading.Lock()
    limits = IngestLimits(block_envelopes=7, linger_s=linger_s)
    with opened(tmp_path) as first:
        first.log.submit(observed(999_999).raw)
    with opened(tmp_path, disk=Moody(seed, share), limits=limits) as ledger:

        def work(number: int) -> None:
            chance = random.Random(seed * 1000 + number)
            for _ in range(25):
                pick = chance.randrange(6)
                if pick == 0:
                    raw = command(f"c-{chance.randrange(20)}", payload=chance.randrange(3)).raw
                elif pick == 1:
                    raw = b"{" if chance.random() < 0.5 else observed(1).raw.replace(b"ea.core", b"ea.cure")
                else:
                    raw = observed(chance.randrange(400)).raw
                if pick == 2:
                    outcomes = ledger.log.submit_many([raw, observed(chance.randrange(400)).raw])
                    with lock:
                        answers.append((raw, outcomes[0]))
                    continue
                try:
                    outcome: LedgerReceipt | RopewalkError = ledger.log.submit(raw)
                except RopewalkError as error:
                    outcome = error
                with lock:
                    answers.append((raw, outcome))

        together(*(partial(work, number) for number in range(24)))
    assert len(answers) == 24 * 25
    with open_channel(tmp_path, "ea.core") as channel:
        stored = {(h, i): raw for h, lines in channel.lines() for i, raw in enumerate(lines[1:])}
        for raw, outcome in answers:
            if isinstance(outcome, LedgerReceipt):
                assert stored[outcome.height, outcome.index] == raw
        assert len(set(stored.values())) == len(stored)
    assert verify_blocks(tmp_path, "ea.core", deep=True).ok
