"""Care of a stored channel: its index held against its log, or built again."""

from __future__ import annotations

from pathlib import Path

from ropewalk.kernel.report import Step
from ropewalk.ledger.marks import derive
from ropewalk.node.ledger import Channel
from ropewalk.stores.ledgerindex import LedgerIndex
from ropewalk.stores.ledgerindexcheck import check_index
from ropewalk.stores.segments import Segments, hold_lock

__all__ = ["index_step", "rebuild_index"]


def index_step(segments: Segments) -> Step:
    """The index compared with the log, as a step of a report. Nothing is written."""
    found = check_index(segments, derive)
    if found.ok and not found.blocks:
        return Step("index", "not_checked", "there is none; it is built from the log when it is needed")
    return Step("index", "passed" if found.ok else "failed", found.explain())


def rebuild_index(home: Path, channel: str) -> int:
    """Throw the index away and build it again; returns how many blocks it knows. Nobody may be writing."""
    reading = Channel(home, channel)
    with hold_lock(reading.folder):  # so that no writer has half an index in memory
        index = LedgerIndex(reading.segments, derive)
        try:
            index.rebuild()
            return index.state.height
        finally:
            index.close()
