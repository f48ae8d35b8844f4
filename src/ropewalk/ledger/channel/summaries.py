"""Summary blocks (S4 §13): `ledger.summary` envelopes in a channel, held against the blocks they summarise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ropewalk.errors import RopewalkError
from ropewalk.kernel import merkle
from ropewalk.kernel.report import Step
from ropewalk.ledger.block.block import BlockRecord, parse_record
from ropewalk.ledger.envelope.envelope import parse_stored

SUMMARY_TYPE: Final = "ledger.summary"
_HINT: Final = b'"event_type":"ledger.summary"'
_MEMBERS: Final = {"channel", "start_height", "end_height", "summary_root"}


class SummaryCheck:
    """Takes the blocks of a channel from its first, and compares every summary with the blocks below it.

    >>> SummaryCheck("ops").step() is None
    True
    """

    def __init__(self, channel: str) -> None:
        self._channel, self._hashes = channel, list[bytes]()
        self._count, self._fault = 0, ""

    def take(self, lines: Sequence[bytes]) -> None:
        """Look at the next block; what cannot be read is left to those who verify the block itself."""
        try:
            record = parse_record(lines[0])
            for index, raw in enumerate(lines[1:]):
                if _HINT in raw:
                    self._judge(raw, record, index)
            self._hashes.append(record.hash)
        except RopewalkError:
            return

    def step(self) -> Step | None:
        """Return the step of a report; None if the channel has no summaries."""
        if self._fault:
            return Step("summaries", "failed", self._fault)
        return Step("summaries", "passed", f"{self._count} match their blocks") if self._count else None

    def _judge(self, raw: bytes, record: BlockRecord, index: int) -> None:
        envelope = parse_stored(raw)
        said = envelope.payload
        if envelope.public_key != record.signer:
            return  # any author may write an envelope of that type; only the channel's own key summarises it
        if envelope.event_type != SUMMARY_TYPE or not isinstance(said, dict) or not said.keys() >= _MEMBERS:
            return
        self._count += 1
        start, end = said["start_height"], said["end_height"]
        if type(start) is not int or type(end) is not int or not 0 <= start <= end < len(self._hashes):
            what = "it must summarise earlier blocks"
        elif said["channel"] != self._channel:
            what = "it is of another channel"
        elif merkle.root(self._hashes[start : end + 1], merkle.RANGE).hex() != said["summary_root"]:
            what = f"blocks {start} to {end} have another root"
        else:
            return
        self._fault = self._fault or f"block {record.height}, envelope {index}: {what}"
