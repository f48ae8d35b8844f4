"""Compare the index of a channel with its log, row by row, read-only, with one block in memory at a time.

Every block of the log determines its rows. If each of them has the right value, and there are not
more rows than that, then there is no extra row.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from ropewalk.disk.index_files import CURRENT, IndexFiles
from ropewalk.disk.index_pages import IndexDamaged
from ropewalk.kernel import merkle
from ropewalk.ledger.block.index_keys import BlockIndexKeys, derive
from ropewalk.ledger.channel.index.rows import (
    PLACE,
    entry_of,
    pack_entry,
    rows_of,
    unpack_state,
)
from ropewalk.ledger.channel.segments.format import Record
from ropewalk.ledger.channel.segments.reader import Segments

Fault = Literal["missing", "wrong", "extra"]


@dataclass(slots=True)
class IndexCheck:
    """The result: blocks compared, blocks not yet indexed, and wrong rows."""

    blocks: int = 0
    behind: int = 0
    problem: str = ""  # why there was nothing to compare
    faults: Counter[Fault] = field(default_factory=Counter)
    first: str = ""

    @property
    def ok(self) -> bool:
        """Whether every row matches the log."""
        return not self.faults and not self.problem

    def say(self, fault: Fault, what: str) -> None:
        """Count a wrong row; the first one is named."""
        self.first = self.first or f"{what} is {fault}"
        self.faults[fault] += 1

    def explain(self) -> str:
        """Return a one-line explanation."""
        if self.problem:
            return self.problem
        if self.faults:
            counts = ", ".join(f"{count} {fault}" for fault, count in self.faults.items())
            return f"{self.first} (rows: {counts}); `ropewalk ledger reindex` builds it again from the log"
        rest = f"; {self.behind} blocks are taken in when it is next used" if self.behind else ""
        return f"{self.blocks} blocks, row by row{rest}"


def check_index(segments: Segments) -> IndexCheck:
    """Compare the stored index with the log. Raise `Damaged` if the log itself cannot be read."""
    check = IndexCheck()
    folder = segments.folder / "index"
    if not (folder / CURRENT).exists():
        check.behind = sum(1 for _ in segments.places())
        return check
    files = IndexFiles(folder)
    try:
        if files.damage is not None:
            raise IndexDamaged(files.damage)
        stored = files.check_pages()
        _compare(check, segments, files, stored)
    except IndexDamaged as error:
        check.problem = f"it is damaged: {error}; `ropewalk ledger reindex` builds it again from the log"
    finally:
        files.close()
    return check


def _compare(check: IndexCheck, segments: Segments, files: IndexFiles, stored: int) -> None:
    state = unpack_state(files.extent.state)
    if state is None or state.height != files.extent.count:
        raise IndexDamaged("its state row is missing or invalid")
    edges = merkle.Frontier(merkle.RANGE), merkle.Frontier(merkle.SHA256)
    rows = 0
    for record in segments.scan():
        if record.height >= state.height:
            check.behind += 1
            continue
        marks = derive(record.lines)
        check.blocks += 1
        rows += _compare_block(check, record, marks, files, segments)
        edges[0].append(marks.block_hash)
        edges[1].append(marks.header_leaf)
        if record.height == state.height - 1:
            found = marks.block_hash, edges[0].to_bytes(), edges[1].to_bytes()
            if found != (state.block_hash, state.range_edge, state.header_edge):
                check.say("wrong", "the head")
    if check.blocks < state.height:
        gone = f"it knows {state.height} blocks, the log has {check.blocks}"
        check.problem = f"{gone}: blocks are missing; compare with a copy"
    elif stored > rows:
        check.first = check.first or "it has rows that do not come from the log"
        check.faults["extra"] += stored - rows


def _compare_block(
    check: IndexCheck, record: Record, marks: BlockIndexKeys, files: IndexFiles, segments: Segments
) -> int:
    """Return how many rows the block may have."""
    height, rows = record.height, 0
    want = pack_entry(entry_of(height, record.place, [len(line) for line in record.lines], marks))
    if files.entry(height) != want:
        check.say("wrong", f"block {height}")
    for name, index in rows_of(marks):
        rows += 1
        raw = files.find(name)
        table = name.partition(b"\0")[0].decode()
        what = f"the {table} of block {height}, envelope {index}"
        if raw is None:
            check.say("missing", what)
            continue
        place = PLACE.unpack(raw)
        # An earlier position is right too, if the same name leads there: the first one is kept.
        if place != (height, index) and not (place < (height, index) and _leads(segments, name, place)):
            check.say("wrong", what)
    return rows


def _leads(segments: Segments, name: bytes, place: tuple[int, int]) -> bool:
    """Return whether a name leads to an earlier position."""
    return (name, place[1]) in rows_of(derive(segments.find(place[0]).lines))
