"""Find the damage of a channel: which blocks are intact, which are missing, and what is known of those."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropewalk.errors import Damaged, RopewalkError, Unavailable
from ropewalk.ledger.block.block import parse_record
from ropewalk.ledger.channel.index.index import LedgerIndex
from ropewalk.ledger.channel.losses import KnownHead, blocks_text, open_loss, read_known, read_repairs
from ropewalk.ledger.channel.receipted import MARK, ReceiptMark, read_mark
from ropewalk.ledger.channel.segments.reader import Segments
from ropewalk.ledger.channel.settings import FOLDER, read_settings


@dataclass(frozen=True, slots=True)
class ChannelDamage:
    """Damage of a channel: the number of intact blocks from the first on, and other known ones.

    `receipted` is the number of blocks known to be receipted; `sure` is False if the mark is lost.
    """

    channel: str
    whole: int
    receipted: int
    sure: bool
    problems: tuple[str, ...]
    lost: tuple[dict[str, Any], ...]
    unreachable: Unavailable | None = None  # the cold tier, where blocks may be intact
    foreign: bool = False  # the log has blocks of another channel

    def to_json(self) -> dict[str, Any]:
        """Return it as `ledger repair` prints it."""
        return {
            "channel": self.channel,
            "whole_blocks": self.whole,
            "receipted_blocks": self.receipted,
            "receipted_known": self.sure,
            "problems": list(self.problems),
            "lost": list(self.lost),
        }


def find_damage(home: Path, channel: str) -> ChannelDamage:
    """Find the damage of a channel, and which blocks and envelopes are missing. No block is verified or changed."""
    read_settings(home, channel)
    return DamagedFolder(home / FOLDER / channel).describe()


class DamagedFolder:
    """A channel folder, read without trusting any of it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.segments = folder, Segments(folder)
        self.problems: list[str] = []
        self._unreachable: Unavailable | None = None

    def describe(self) -> ChannelDamage:
        whole, end, owner = 0, 0, self.folder.name
        try:
            for record in self.segments.scan():
                end = record.height + 1
                if owner == self.folder.name:
                    with contextlib.suppress(RopewalkError):  # no block is verified here
                        owner = parse_record(record.lines[0]).header.channel
                    whole = end if owner == self.folder.name else whole
        except RopewalkError as error:
            self.problems.append(error.detail)
            self._unreachable = error if isinstance(error, Unavailable) else None
        if owner != self.folder.name:
            self.problems.append(
                f'its blocks are of channel "{owner}", from block {whole} on; a repair keeps them in damaged/'
            )
        entries: dict[int, dict[str, Any]] = {}
        with contextlib.suppress(RopewalkError):
            # Opened before `known.json` is read: an index that has more than the log records it there.
            index = LedgerIndex(self.segments)
            try:
                entries = {height: _entry(index, height) for height in range(end, index.state.height)}
            finally:
                index.close()
        sound = not self.problems
        mark: ReceiptMark | None = self._try(lambda: own_mark(self.segments))
        known: KnownHead | None = self._try(lambda: own_known(self.segments))
        loss = open_loss(self._try(lambda: read_repairs(self.folder)) or [])
        if loss is not None:
            self.problems.append(f"a repair on {loss.at} gave up {blocks_text(loss.blocks, loss.receipted)}")
        elif mark is not None and sound:
            self._try(self.segments.check_receipted)
        receipted = max(
            mark.blocks if mark is not None else 0,
            known.blocks if known is not None else 0,
            loss.receipted if loss is not None else 0,
            max(entries, default=-1) + 1,
        )
        if mark is None and not (self.folder / MARK).exists():
            self.problems.append("the mark of receipted blocks is missing")
        elif mark is None and owner != self.folder.name:
            self.problems.append("the mark of receipted blocks is damaged or of another channel")
        for each in (*(known.lost if known is not None else ()), *(loss.lost if loss is not None else ())):
            entries.setdefault(each["height"], each)
        if mark is not None and mark.blocks and any(mark.block_hash):
            last = {"height": mark.blocks - 1, "block_hash": mark.block_hash.hex(), "envelopes": None}
            entries.setdefault(mark.blocks - 1, last)
        lost = tuple(
            entries.get(height, {"height": height, "block_hash": None, "envelopes": None})
            for height in range(whole, receipted)
        )
        problems = tuple(dict.fromkeys(self.problems))
        sure, foreign = mark is not None, owner != self.folder.name
        return ChannelDamage(
            self.folder.name, whole, receipted, sure, problems, lost, self._unreachable, foreign
        )

    def _try(self, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except Damaged as error:
            self.problems.append(error.detail)
            return None


def own_mark(segments: Segments) -> ReceiptMark | None:
    """Return the mark unless the log shows that it is of another channel."""
    mark = read_mark(segments.folder)
    return None if mark is None or _is_foreign(segments, mark.blocks, mark.block_hash.hex()) else mark


def own_known(segments: Segments) -> KnownHead | None:
    """Return the largest published head unless the log shows that it is of another channel."""
    known = read_known(segments.folder)
    return None if known is None or _is_foreign(segments, known.blocks, known.block_hash) else known


def _is_foreign(segments: Segments, blocks: int, block_hash: str) -> bool:
    """Return whether the log has this head, in a block that names another channel."""
    with contextlib.suppress(RopewalkError):
        record = parse_record(segments.find(blocks - 1).lines[0])
        return record.hash.hex() == block_hash and record.header.channel != segments.folder.name
    return False


def _entry(index: LedgerIndex, height: int) -> dict[str, Any]:
    found = index.block(height)
    names = [found.leaf(number).hex() for number in range(found.count)]
    return {"height": height, "block_hash": found.block_hash.hex(), "envelopes": names}
