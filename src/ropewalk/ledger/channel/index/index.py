"""A disposable index over the blocks of one channel: if it is deleted, the next reader rebuilds it.

It finds a block by height, an envelope by id, an earlier claim by class and correlation id, an earlier statement by
the signed bytes, and it keeps the edges of the two trees over the channel, so that opening costs the same at any size.
New entries are visible at once and written in batches, because losing them loses nothing.

A damaged index never answers. Everything in it is checked when it is read (`index_files`), absent entries as well as
present ones; what fails its check is rebuilt from the log before the query is answered. `check`
compares every row with the log.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from ropewalk.disk.index_files import CURRENT, IndexFiles, is_read_only
from ropewalk.disk.index_pages import IndexDamaged
from ropewalk.disk.temporary_folder import drop_private_folder, make_private_folder
from ropewalk.errors import Damaged, NotFound, RopewalkError, Unavailable
from ropewalk.kernel import merkle
from ropewalk.ledger.block.block import parse_record
from ropewalk.ledger.block.index_keys import BlockIndexKeys
from ropewalk.ledger.block.index_keys import derive as derive_keys
from ropewalk.ledger.channel.index.rows import (
    EMPTY,
    PLACE,
    BlockEntry,
    IndexState,
    entry_of,
    pack_entry,
    pack_state,
    rows_of,
    unpack_entry,
    unpack_state,
)
from ropewalk.ledger.channel.losses import LOST_MAX, KnownHead, note_known
from ropewalk.ledger.channel.segments.format import ALIGN, BlockPlace, Record
from ropewalk.ledger.channel.segments.reader import Segments

LOST_ENVELOPES_MAX = 100_000  # envelopes listed one by one

FLUSH_ENVELOPES = 16_384  # kept in memory at most before they are written
T = TypeVar("T")
Q = TypeVar("Q")
Derive = Callable[[Sequence[bytes]], BlockIndexKeys]


class LedgerIndex:
    """The index of one channel. `derive` returns the index keys of a stored block when the index must catch up."""

    def __init__(self, segments: Segments, derive: Derive = derive_keys) -> None:
        self.segments = segments
        self._derive = derive
        self.state: IndexState
        self.rebuilt_from: int | None = None
        self._unsound = False  # during a rebuild it does not answer
        self._private = False
        self._files = IndexFiles(segments.folder / "index")
        self._forget()
        self.state = self._load_state()
        if self._files.damage is not None or not self._matches_log():
            keep_claim(segments, self.state, self._block, derive)
            self._start_over()

    def catch_up(self, records: Sequence[Record] | None = None) -> None:
        """Index what the log holds beyond the index, checking each link."""
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
                    f"channel {self.segments.folder.name}, block {record.height}: does not follow the block below",
                    height=record.height,
                    segment=record.place.segment,
                    offset=record.place.offset,
                    reason="broken link",
                )
            self.add(record.place, [len(line) for line in record.lines], marks)

    def add(self, place: BlockPlace, lengths: Sequence[int], marks: BlockIndexKeys) -> None:
        """Index the next block; `lengths` are those of its lines."""
        last = self.state.place
        if last is not None and (place.segment, place.offset) <= (last.segment, last.offset):
            return  # indexed from the log, because the index was deleted
        height = self.state.height
        entry = entry_of(height, place, lengths, marks)
        self._blocks[height] = entry
        self._envelopes += len(marks.ids)
        for name, index in rows_of(marks):
            self._rows.setdefault(name, (height, index))
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
        if self._envelopes >= self._flush_at:
            try:
                self.flush()
            except Unavailable:  # the block is durable and found in memory; writing is tried again later
                self._flush_at += FLUSH_ENVELOPES

    def position(self, envelope_id: bytes) -> tuple[int, int] | None:
        return self._place(b"id\0" + envelope_id)

    def claim(self, key: bytes) -> tuple[int, int] | None:
        """Return the first position of a class with a correlation id."""
        return self._place(b"claim\0" + key)

    def intent(self, key: bytes) -> tuple[int, int] | None:
        """Return the first position of a statement."""
        return self._place(b"intent\0" + key)

    def leaves(self, root: bytes) -> int | None:
        """Return the number of envelopes of the first block with that root."""
        place = self._place(b"root\0" + root)
        return None if place is None else self.block(place[0]).count

    def block(self, height: int) -> BlockEntry:
        return self._ask(self._block, height)

    def line(self, entry: BlockEntry, number: int) -> bytes:
        """Return one line of a stored block without reading the others: 0 is the record, envelopes follow. Not
        verified.
        """
        start, end = entry.offsets[number], entry.offsets[number + 1] - 1
        return self.segments.peek(entry.place.segment, entry.place.offset + ALIGN + start, end - start)

    def lines_of(self, height: int, index: int | None) -> list[bytes]:
        """Return the record line of a block, and the line of one of its envelopes."""
        entry = self.block(height)
        return [self.line(entry, number) for number in ((0,) if index is None else (0, index + 1))]

    def block_hash(self, height: int) -> bytes:
        return self.block(height).block_hash

    def tree_leaves(self, start: int, end: int) -> Iterator[tuple[bytes, bytes]]:
        """Yield (block hash, header leaf) of the heights from `start` up to `end`, exclusive."""
        for height in range(start, end):
            entry = self.block(height)
            yield entry.block_hash, entry.header_leaf

    def flush(self) -> None:
        """Write new entries to disk. If another process was faster, there is less to do."""
        if not self._blocks:
            return
        try:
            written = self._write()
        except IndexDamaged as error:
            self._recover(error)
            return
        except OSError as error:
            if not is_read_only(error) or self._private:
                raise Unavailable(f"index of {self.segments.folder.name}: {error.strerror}") from error
            self._detach()
            self.flush()
            return
        self._forget()
        if not written:  # the stored index ends below our entries: it was replaced since we opened it
            self._files.load()
            self.state = self._load_state()
            self.catch_up()

    def rebuild(self) -> None:
        """Delete the index and rebuild it from the log."""
        self._start_over()
        self.catch_up()
        self.flush()

    def close(self) -> None:
        """Flush if possible, and close; what is not stored is indexed again from the log."""
        try:
            self._write()
        except (OSError, IndexDamaged):
            pass
        finally:
            self._files.close()
            if self._private:
                drop_private_folder(self._files.folder)

    def _write(self) -> bool:
        """Append to the stored index; return False if that ends below our entries."""
        if not self._blocks:
            return True
        with self._files.hold():
            base = self._files.stored()
            if min(self._blocks) > base.count:
                return False
            if base.count < self.state.height:
                entries = [
                    pack_entry(entry) for height, entry in self._blocks.items() if height >= base.count
                ]
                rows = (
                    (name, PLACE.pack(*place)) for name, place in self._rows.items() if place[0] >= base.count
                )
                self._files.write(base, entries, rows, pack_state(self.state))
            else:
                self._files.load()
        return True

    def _detach(self) -> None:
        """Continue with a copy in a private folder, because the index is not writable."""
        extent, source = self._files.extent, self._files.folder
        private = make_private_folder()
        try:
            if extent.count:
                for name in extent.names:
                    shutil.copyfile(source / name, private / name)
                (private / CURRENT).write_bytes(extent.to_bytes())
        except OSError as error:
            drop_private_folder(private)
            raise Unavailable(f"index of {self.segments.folder.name}: {error.strerror}") from error
        self._files.close()
        self._files, self._private = IndexFiles(private), True

    def _forget(self) -> None:
        self._flush_at = FLUSH_ENVELOPES
        self._envelopes = 0
        self._blocks: dict[int, BlockEntry] = {}
        self._rows: dict[bytes, tuple[int, int]] = {}

    def _load_state(self) -> IndexState:
        raw = self._files.extent.state
        state = unpack_state(raw) if raw else EMPTY
        assert state is not None  # `current` has a checksum, and only `pack_state` makes it
        self._range = merkle.Frontier.from_bytes(state.range_edge, merkle.RANGE)
        self._headers = merkle.Frontier.from_bytes(state.header_edge, merkle.SHA256)
        return state

    def _matches_log(self) -> bool:
        """Return whether its last block is in the log; if not, it is the index of another log."""
        if self.state.place is None:
            return True
        try:
            # The record has a checksum, and the mark of receipted blocks its digest: the envelopes need no parsing.
            record = self.segments.read(self.state.place, self.state.height - 1)
            return parse_record(record.lines[0]).hash == self.state.block_hash
        except Exception:
            return False

    def _start_over(self) -> None:
        self.rebuilt_from = self.state.height
        self._files.start_over()
        self._forget()
        self.state = self._load_state()

    def _place(self, name: bytes) -> tuple[int, int] | None:
        found = self._rows.get(name)
        if found is not None:
            return found
        value = self._ask(self._files_find, name)
        if value is None:
            return self._rows.get(name)  # it may have been rebuilt and not be written yet
        return PLACE.unpack(value)

    def _files_find(self, name: bytes) -> bytes | None:
        return self._files.find(name)  # a rebuild may have replaced the files

    def _block(self, height: int) -> BlockEntry:
        if height in self._blocks:
            return self._blocks[height]
        if height >= self._files.extent.count:
            raise NotFound(f"block {height} is not in {self.segments.folder.name}", height=height)
        return unpack_entry(height, self._files.entry(height))

    def _ask(self, question: Callable[[Q], T], about: Q) -> T:
        """Answer from the files; if they are damaged, rebuild the index first."""
        if self._unsound:
            raise self._damaged("it could not be built again")
        try:
            return question(about)
        except IndexDamaged as error:
            self._recover(error)
        try:
            return question(about)
        except IndexDamaged as error:
            self._unsound = True
            raise self._damaged(error) from error

    def _recover(self, error: IndexDamaged) -> None:
        """Rebuild a damaged index. If that fails, it must not answer: missing entries would seem new."""
        if self._unsound:
            raise self._damaged(error) from error
        height, self._unsound = self.state.height, True
        self._start_over()
        self.catch_up()
        if self.state.height < height:
            raise self._damaged(f"it knew {height} blocks, the log has {self.state.height}")
        with contextlib.suppress(Unavailable):  # it is in memory
            self.flush()
        self._unsound = False

    def _damaged(self, why: object) -> Damaged:
        return Damaged(
            f"channel {self.segments.folder.name}: the index is damaged: {why}",
            reason="index",
            advice="Build it again with `ropewalk ledger reindex`; the log itself is not touched.",
        )


def keep_claim(
    segments: Segments,
    state: IndexState,
    entry: Callable[[int], BlockEntry],
    derive: Derive,
) -> None:
    """Record which blocks an index has that its log lacks. An index of another log is ignored.

    Best effort: a damaged index may raise anything, and the folder may not be writable. The mark of receipted blocks
    is authoritative; this names the lost blocks and envelopes, and serves channels that have no mark yet.
    """
    if not state.height:
        return
    with contextlib.suppress(Exception):
        whole = 0
        with contextlib.suppress(RopewalkError):
            for height, place in segments.places():
                record = segments.read(place, height)
                if height == 0 and derive(record.lines).block_hash != entry(0).block_hash:
                    return
                whole = height + 1
        if state.height <= whole:
            return
        lost, listed = [], 0
        for height in range(whole, min(state.height, whole + LOST_MAX)):
            found = entry(height)
            names = [found.leaf(index).hex() for index in range(found.count)]
            if (listed := listed + len(names)) > LOST_ENVELOPES_MAX:
                break
            lost.append({"height": height, "block_hash": found.block_hash.hex(), "envelopes": names})
        note_known(segments.folder, KnownHead(state.height, state.block_hash.hex(), "index", lost))
