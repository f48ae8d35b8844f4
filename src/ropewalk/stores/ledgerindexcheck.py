"""The index of a channel held against its log, row by row, with nothing written and one block in memory at a time.

Every block of the log says which rows it must have. If each of them is there with the right value, and every table has
just as many rows, then there is no row too many either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import lmdb

from ropewalk.kernel import merkle
from ropewalk.stores import ledgerindexfiles as files
from ropewalk.stores.ledgerindex import COUNTED, TABLES, VERSION, Derive
from ropewalk.stores.ledgerrows import PLACE, IndexState, Marked, entry_of, pack_entry, unpack_state
from ropewalk.stores.segments import Record, Segments

__all__ = ["IndexCheck", "check_index"]

Fault = Literal["missing", "wrong", "extra"]
Watch = Callable[[Iterator[Record]], Iterator[Record]]


@dataclass(slots=True)
class IndexCheck:
    """What came of it: blocks compared, blocks of the log the index does not reach yet, and rows that are wrong."""

    blocks: int = 0
    behind: int = 0
    problem: str = ""  # why there was nothing to compare
    faults: Counter[Fault] = field(default_factory=Counter)
    first: str = ""

    @property
    def ok(self) -> bool:
        """Whether every row is the one the log says."""
        return not self.faults and not self.problem

    def say(self, fault: Fault, what: str) -> None:
        """Count a wrong row; the first one is named."""
        self.first = self.first or f"{what} is {fault}"
        self.faults[fault] += 1

    def explain(self) -> str:
        """One line a person can read."""
        if self.problem:
            return self.problem
        if self.faults:
            counts = ", ".join(f"{count} {fault}" for fault, count in self.faults.items())
            return f"{self.first} (rows: {counts}); `ropewalk ledger reindex` builds it again from the log"
        rest = f"; {self.behind} blocks are taken in when it is next used" if self.behind else ""
        return f"{self.blocks} blocks, row by row{rest}"


def check_index(segments: Segments, derive: Derive, watch: Watch | None = None) -> IndexCheck:
    """Compare the stored index with the log. Raises `Damaged` where the log itself cannot be read."""
    check = IndexCheck()
    folder = segments.folder / "index"
    if not (folder / "data.mdb").exists():
        check.behind = sum(1 for _ in segments.places())
        return check
    try:
        with files.borrow_index(folder) as env, env.begin() as txn:
            _compare(check, segments, derive, _Rows(env, txn), watch)
    except lmdb.Error as error:
        check.problem = f"it cannot be read ({error}); it is built again when it is next used"
    return check


class _Rows:
    """One moment of the index."""

    def __init__(self, env: Any, txn: Any) -> None:
        self._txn = txn
        self._tables = {}
        for name in TABLES:
            try:
                self._tables[name] = env.open_db(name, txn=txn, create=False)
            except lmdb.NotFoundError:
                continue

    def get(self, table: bytes, key: bytes) -> bytes | None:
        found = self._txn.get(key, db=self._tables[table]) if table in self._tables else None
        return None if found is None else bytes(found)

    def count(self, table: bytes) -> int:
        return int(self._txn.stat(self._tables[table])["entries"]) if table in self._tables else 0

    def state(self) -> IndexState | None:
        raw = self.get(b"meta", b"state")
        return unpack_state(raw) if raw is not None and self.get(b"meta", b"version") == VERSION else None


def _compare(check: IndexCheck, segments: Segments, derive: Derive, rows: _Rows, watch: Watch | None) -> None:
    state = rows.state()
    if state is None:
        check.behind = sum(1 for _ in segments.places())
        if rows.count(b"block"):
            check.problem = "it does not say how far it reaches; it is built again when it is next used"
        return
    expected: Counter[bytes] = Counter()
    edges = merkle.Frontier(merkle.RANGE), merkle.Frontier(merkle.SHA256)
    records = segments.scan()
    for record in watch(records) if watch is not None else records:
        if record.height >= state.height:
            check.behind += 1
            continue
        marks = derive(record.lines)
        check.blocks += 1
        _compare_block(check, record, marks, rows, expected, segments, derive)
        edges[0].append(marks.block_hash)
        edges[1].append(marks.header_leaf)
        if record.height == state.height - 1:
            found = marks.block_hash, edges[0].to_bytes(), edges[1].to_bytes()
            if found != (state.block_hash, state.range_edge, state.header_edge):
                check.say("wrong", "the head")
    if check.blocks < state.height:
        gone = f"it knows {state.height} blocks, the log has {check.blocks}"
        check.problem = f"{gone}: blocks are gone; compare with a copy"
        return
    for table in COUNTED:
        surplus = rows.count(table) - expected[table]
        if surplus > 0:
            check.first = check.first or f"a row of {table.decode()} nobody wrote is extra"
            check.faults["extra"] += surplus


def _compare_block(
    check: IndexCheck,
    record: Record,
    marks: Marked,
    rows: _Rows,
    expected: Counter[bytes],
    segments: Segments,
    derive: Derive,
) -> None:
    height = record.height
    key = height.to_bytes(8, "big")
    want = pack_entry(entry_of(height, record.place, [len(line) for line in record.lines], marks))
    got = rows.get(b"block", key)
    expected[b"block"] += got is not None
    if got != want:
        check.say("missing" if got is None else "wrong", f"block {height}")
    first = rows.get(b"root", marks.root)
    expected[b"root"] += first == key
    if first is None or int.from_bytes(first, "big") > height:
        check.say("missing" if first is None else "wrong", f"the root of block {height}")
    tables: tuple[tuple[bytes, Sequence[bytes | None]], ...] = (
        (b"id", marks.ids),
        (b"intent", marks.intents),
        (b"claim", marks.claims),
    )
    for table, names in tables:
        for index, name in enumerate(names):
            if name is None:
                continue
            raw = rows.get(table, name)
            what = f"the {table.decode()} of block {height}, envelope {index}"
            if raw is None or len(raw) != PLACE.size:
                expected[table] += raw is not None
                check.say("missing" if raw is None else "wrong", what)
                continue
            place = PLACE.unpack(raw)
            expected[table] += place == (height, index)
            # An earlier place is right too, if what stands there says the same: the first one counts.
            if place != (height, index) and not (
                place < (height, index) and _says(segments, derive, table, place) == name
            ):
                expected[table] += 1
                check.say("wrong", what)


def _says(segments: Segments, derive: Derive, table: bytes, place: tuple[int, int]) -> bytes | None:
    """What the envelope at an earlier place would have as its key."""
    marks = derive(segments.find(place[0]).lines)
    names = {b"id": marks.ids, b"intent": marks.intents, b"claim": marks.claims}[table]
    return names[place[1]] if place[1] < len(names) else None
