"""A disposable index over the blocks of one channel: delete it, and the next reader builds it again.

It finds a block by height, an envelope by id, an earlier claim by class and correlation id, an earlier statement by
what was signed, and it keeps the edges of the two trees over the channel, so that opening costs the same at any size.
What was added is found at once; it reaches the disk in batches, because losing it loses nothing.

A wrong index must not become a wrong answer. State and block entries carry checksums, the number of rows of every table
is kept beside them and compared when the index is opened: one that does not add up is built again. What is found
through it is held against the log by whoever uses it; `ledgerindexcheck` compares every row.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import lmdb

from ropewalk.errors import Damaged, NotFound, Unavailable
from ropewalk.kernel import merkle
from ropewalk.stores import ledgerindexfiles as files
from ropewalk.stores.ledgerrows import (
    EMPTY,
    PLACE,
    BlockEntry,
    IndexState,
    Marked,
    entry_of,
    pack_entry,
    pack_state,
    unpack_entry,
    unpack_state,
)
from ropewalk.stores.segments import ALIGN, Place, Record, Segments

__all__ = ["BlockEntry", "Derive", "IndexState", "LedgerIndex", "Marked"]

FLUSH_ENVELOPES = 16_384  # kept in memory at most before they go to disk
TABLES = (b"block", b"id", b"claim", b"intent", b"root", b"meta")
COUNTED = (b"block", b"id", b"claim", b"intent", b"root")
VERSION = b"3"

_HEIGHT = struct.Struct(">Q")
_ROWS = struct.Struct(f">{len(COUNTED)}Q")


Derive = Callable[[Sequence[bytes]], Marked]


class LedgerIndex:
    """The index of one channel. `derive` gives the marks of a stored block when the index must catch up."""

    def __init__(self, segments: Segments, derive: Derive) -> None:
        self.segments = segments
        self._derive = derive
        self._folder = segments.folder / "index"
        self.state: IndexState
        self.rebuilt_from: int | None = None
        self._open()

    def catch_up(self, records: Sequence[Record] | None = None) -> None:
        """Take in what the log holds beyond the index, link by link."""
        if records is None:
            records_iter: Iterator[Record] = self.segments.scan(self.state.place, self.state.height)
        else:
            records_iter = iter(records)
        for record in records_iter:
            if record.height < self.state.height:
                continue
            try:
                marks = self._derive(record.lines)
            except Exception as error:
                raise Damaged(
                    f"channel {self.segments.folder.name}, block {record.height}: {error}",
                    height=record.height,
                ) from error
            if marks.prev_block_hash != self.state.block_hash:
                raise Damaged(
                    f"channel {self.segments.folder.name}, block {record.height}: does not stand on the block below",
                    height=record.height,
                    segment=record.place.segment,
                    offset=record.place.offset,
                    reason="broken link",
                )
            self.add(record.place, [len(line) for line in record.lines], marks)

    def add(self, place: Place, lengths: Sequence[int], marks: Marked) -> None:
        """Take in the next block; `lengths` are those of its lines."""
        last = self.state.place
        if last is not None and (place.segment, place.offset) <= (last.segment, last.offset):
            return  # taken in from the log, because somebody threw the index away
        height = self.state.height
        entry = entry_of(height, place, lengths, marks)
        self._blocks[height] = entry
        self._roots.setdefault(marks.root, height)
        for index, (name, claim, intent) in enumerate(
            zip(marks.ids, marks.claims, marks.intents, strict=True)
        ):
            where = (height, index)
            self._ids.setdefault(name, where)
            self._intents.setdefault(intent, where)
            if claim is not None:
                self._claims.setdefault(claim, where)
        self._range.append(marks.block_hash)
        self._headers.append(marks.header_leaf)
        self.state = IndexState(
            height + 1,
            self.state.envelopes + len(marks.ids),
            place,
            marks.timestamp_ns,
            marks.block_hash,
            self._range.to_bytes(),
            self._headers.to_bytes(),
        )
        if len(self._ids) >= self._flush_at:
            try:
                self.flush()
            except Unavailable:  # the block stands all the same, and is found here; it is tried again later
                self._flush_at += FLUSH_ENVELOPES

    def position(self, envelope_id: bytes) -> tuple[int, int] | None:
        """Where an envelope stands."""
        return self._ids.get(envelope_id) or self._place(b"id", envelope_id)

    def claim(self, key: bytes) -> tuple[int, int] | None:
        """Where a class with a correlation id was first seen."""
        return self._claims.get(key) or self._place(b"claim", key)

    def intent(self, key: bytes) -> tuple[int, int] | None:
        """Where a statement was first seen."""
        return self._intents.get(key) or self._place(b"intent", key)

    def leaves(self, root: bytes) -> int | None:
        """How many envelopes the first block with that root has."""
        if root in self._roots:
            return self.block(self._roots[root]).count
        raw = self._get(b"root", root)
        return None if raw is None else self.block(int(_HEIGHT.unpack(raw)[0])).count

    def block(self, height: int) -> BlockEntry:
        """The entry of a block."""
        if height in self._blocks:
            return self._blocks[height]
        raw = self._get(b"block", _HEIGHT.pack(height))
        if raw is None:
            raise NotFound(f"block {height} is not in {self.segments.folder.name}", height=height)
        return unpack_entry(height, bytes(raw), self.segments.folder.name)

    def line(self, entry: BlockEntry, number: int) -> bytes:
        """One line of a stored block without reading the others: 0 is the record, envelopes follow. Not verified."""
        start, end = entry.offsets[number], entry.offsets[number + 1] - 1
        return self.segments.peek(entry.place.segment, entry.place.offset + ALIGN + start, end - start)

    def lines_of(self, height: int, index: int | None) -> list[bytes]:
        """The record line of a block, and the line of one of its envelopes."""
        entry = self.block(height)
        return [self.line(entry, number) for number in ((0,) if index is None else (0, index + 1))]

    def block_hash(self, height: int) -> bytes:
        """The hash of a block."""
        return self.block(height).block_hash

    def tree_leaves(self, start: int, end: int) -> Iterator[tuple[bytes, bytes]]:
        """(block hash, header leaf) of the heights from `start` up to, not with, `end`."""
        for height in range(start, end):
            entry = self.block(height)
            yield entry.block_hash, entry.header_leaf

    def flush(self) -> None:
        """Put what was added on disk. Another process may have been faster: then there is less to do."""
        if not self._blocks or self._environment.inherited:  # what a child inherits, its parent writes
            return
        while True:
            try:
                written = self._write()
                break
            except lmdb.MapFullError:
                self._end_reading()
                self._env.set_mapsize(self._env.info()["map_size"] * 2)
            except lmdb.Error as error:
                raise Unavailable(f"index of {self.segments.folder.name}: {error}") from error
        self._end_reading()
        self._forget()
        if not written:  # somebody has thrown the index away since we opened it
            self.state = self._load_state()
            self.catch_up()

    def rebuild(self) -> None:
        """Throw it away and build it again from the log. Only where nobody writes to the channel."""
        self._start_over()
        self.catch_up()
        self.flush()

    def close(self) -> None:
        """Flush and let go."""
        try:
            self.flush()
        finally:
            self._end_reading()
            self._environment.close()

    @property
    def _env(self) -> Any:
        """The environment; a child of the process that opened it has its own, which may lack what it knew before."""
        if self._environment.inherited:
            self._open()
            self.catch_up()
            self.flush()  # whoever asked has looked into memory already
        return self._environment.env

    def _open(self) -> None:
        self._environment = files.open_index(self._folder)
        self._reader: Any = None
        try:
            # In a transaction of ours: beginning one lets other threads go on while it waits for its turn, whereas
            # opening a table without one waits with the interpreter held, for a thread that may need it to end its own.
            with self._environment.env.begin(write=True) as txn:
                self._tables = {name: self._environment.env.open_db(name, txn=txn) for name in TABLES}
            self._forget()
            self.state = self._load_state()
            if not self._stands_on_the_log():
                self._start_over()
        except BaseException:
            self._end_reading()
            self._environment.close()
            raise

    def _write(self) -> bool:
        """One transaction; False if what lies on disk ends before what we would add to it."""
        with self._env.begin(write=True) as txn:
            tables = self._tables
            meta = txn.get(b"state", db=tables[b"meta"])
            known = unpack_state(bytes(meta)) if meta else None
            done = known.height if known is not None else 0
            if min(self._blocks) > done:
                return False
            if done < self.state.height:
                for height, entry in self._blocks.items():
                    if height >= done:
                        txn.put(_HEIGHT.pack(height), pack_entry(entry), db=tables[b"block"])
                for table, places in (
                    (b"id", self._ids),
                    (b"claim", self._claims),
                    (b"intent", self._intents),
                ):
                    # In order of keys, so that neighbours share a page that is touched once.
                    for key in sorted(places):
                        txn.put(key, PLACE.pack(*places[key]), db=tables[table], overwrite=False)
                for root, height in self._roots.items():
                    txn.put(root, _HEIGHT.pack(height), db=tables[b"root"], overwrite=False)
                rows = _ROWS.pack(*(txn.stat(tables[table])["entries"] for table in COUNTED))
                txn.put(b"state", pack_state(self.state), db=tables[b"meta"])
                txn.put(b"rows", rows, db=tables[b"meta"])
                txn.put(b"version", VERSION, db=tables[b"meta"])
        return True

    def _forget(self) -> None:
        self._flush_at = FLUSH_ENVELOPES
        self._blocks: dict[int, BlockEntry] = {}
        self._ids: dict[bytes, tuple[int, int]] = {}
        self._claims: dict[bytes, tuple[int, int]] = {}
        self._intents: dict[bytes, tuple[int, int]] = {}
        self._roots: dict[bytes, int] = {}

    def _load_state(self) -> IndexState:
        raw = self._get(b"meta", b"state")
        state = unpack_state(bytes(raw)) if raw is not None else EMPTY
        if raw is not None and (state is None or self._get(b"meta", b"version") != VERSION):
            state = EMPTY
        assert state is not None
        self._range = merkle.Frontier.from_bytes(state.range_edge, merkle.RANGE)
        self._headers = merkle.Frontier.from_bytes(state.header_edge, merkle.SHA256)
        return state

    def _stands_on_the_log(self) -> bool:
        """Whether it has all its rows, and the last block it knows is where it says; if not, it is of another log."""
        rows = self._get(b"meta", b"rows")
        seen = self._reader  # the moment the state is of: another process may write at any other
        if self.state.place is None:
            return bool(seen.stat(self._tables[b"meta"])["entries"] == 0)
        if rows != _ROWS.pack(*(seen.stat(self._tables[table])["entries"] for table in COUNTED)):
            return False
        try:
            record = self.segments.read(self.state.place, self.state.height - 1)
            return self._derive(record.lines).block_hash == self.state.block_hash
        except Exception:
            return False

    def _start_over(self) -> None:
        self.rebuilt_from = self.state.height
        self._end_reading()
        with self._env.begin(write=True) as txn:
            for table in self._tables.values():
                txn.drop(table, delete=False)
        self._forget()
        self.state = self._load_state()

    def _get(self, table: bytes, key: bytes) -> Any:
        env = self._env
        if self._reader is None:
            try:
                self._reader = env.begin()
            except lmdb.MapResizedError:  # another process needed more room than we have mapped
                env.set_mapsize(0)
                self._reader = env.begin()
        return self._reader.get(key, db=self._tables[table])

    def _place(self, table: bytes, key: bytes) -> tuple[int, int] | None:
        raw = self._get(table, key)
        return None if raw is None else PLACE.unpack(raw)

    def _end_reading(self) -> None:
        if self._reader is not None and not self._environment.inherited:
            self._reader.abort()  # in a forked child this would end the parent's
        self._reader = None
