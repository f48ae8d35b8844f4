"""Whatever write fails, first or thousandth: no receipt is lost, and the channel opens again."""

from __future__ import annotations

from pathlib import Path

from tests.unit.ledger.making import NODE, NOON_NS, observed

from ropewalk.disk.durable import Disk
from ropewalk.errors import RopewalkError
from ropewalk.ledger.channel.channel import open_channel, open_log, verify_blocks
from ropewalk.ledger.channel.settings import create_channel
from ropewalk.ledger.ingest.ports import IngestLimits
from ropewalk.ledger.ingest.ticket import LedgerReceipt


class NthFails(Disk):
    """Every call that changes the disk counts; from the n-th on, `length` of them fail."""

    def __init__(self, nth: int, length: int, short: bool) -> None:
        self.calls, self.nth, self.length, self.short = 0, nth, length, short

    def _count(self) -> bool:
        self.calls += 1
        return self.nth <= self.calls < self.nth + self.length

    def open(self, path, flags):
        if self._count():
            raise OSError(24, "Too many open files")
        return super().open(path, flags)

    def write_some(self, fd, raw):
        if self._count():
            if self.short and len(raw) > 1:
                return super().write_some(fd, raw[: len(raw) // 2])  # then the next call goes on, or fails
            raise OSError(28, "No space left on device")
        return super().write_some(fd, raw)

    def write_at(self, fd, raw, offset):
        if self._count():
            raise OSError(28, "No space left on device")
        super().write_at(fd, raw, offset)

    def fsync(self, fd):
        if self._count():
            raise OSError(5, "Input/output error")
        super().fsync(fd)

    def truncate(self, fd, size):
        if self._count():
            raise OSError(5, "Input/output error")
        super().truncate(fd, size)


def attempt(home: Path, disk: Disk) -> list[LedgerReceipt]:
    """Append until something fails; what was acknowledged."""
    receipts: list[LedgerReceipt] = []
    try:
        with open_log(
            home,
            "ea.core",
            NODE,
            disk=disk,
            now_ns=lambda: NOON_NS,
            limits=IngestLimits(block_envelopes=2),
            segment_bytes=1500,
        ) as ledger:
            for start in range(0, 12, 3):
                outcomes = ledger.log.submit_many(observed(start + i).raw for i in range(3))
                receipts += [each for each in outcomes if isinstance(each, LedgerReceipt)]
    except RopewalkError:
        pass
    return receipts


def test_the_nth_failure_loses_no_receipt_and_the_channel_goes_on(tmp_path):
    for length, short in ((1, False), (2, True), (1000, False)):
        nth = 1
        while True:
            home = tmp_path / f"{length}-{short}-{nth}"
            create_channel(home, "ea.core", "node", NODE.public)
            disk = NthFails(nth, length, short)
            receipts = attempt(home, disk)
            with open_channel(home, "ea.core") as channel:
                for receipt in receipts:
                    proof = channel.prove(receipt.envelope_id)
                    assert (proof.height, proof.index) == (receipt.height, receipt.index)
                    assert proof.block.hash == receipt.block_hash
            assert verify_blocks(home, "ea.core", deep=True).ok
            again = attempt(home, Disk())  # with a healthy disk everything gets in, once
            assert len(again) == 12
            with open_channel(home, "ea.core") as channel:
                assert channel.head().envelopes == 12
            if disk.calls < nth:
                break
            nth += 1
        assert nth > 20
