"""Blocks on disk: append-only segment files of one channel, one writer, any number of readers.

    <channel>/segments/<first height, 20 digits>.seg      64-byte header, then records, each aligned to 64 bytes
    <channel>/segments/<first height>.seg.zst              a closed one, packed: the same bytes at the same offsets
    <channel>/segments/<first height>.seg.cold             a dropped one: its digest, and where its archives are
    <channel>/receipted                                    how many blocks were receipted: `receipted`
    <channel>/torn/…                                       bytes cut off after a crash
    <channel>/lock                                         held by the writer, with its process id inside

A record is a 64-byte header (magic, body length, height, BLAKE3 of the body, checksum of the header) and a body:
lines of text, the block record first, then one envelope per line, padded with newlines. Text holds no NUL byte, so a
run of zeros inside a record can only be a sector that a crash left unwritten. That, or a file that ends too early, is a
*torn tail* if it is above all receipted blocks: it was never acknowledged and is cut off. Any other mismatch
is *damage*: reading stops there with its location, and nothing is written or deleted.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, cast

from ropewalk.errors import Damaged, NotFound
from ropewalk.kernel.digest import blake3
from ropewalk.ledger.channel.losses import blocks_text, minimum_blocks
from ropewalk.ledger.channel.receipted import ReceiptMark, read_mark, repair_advice
from ropewalk.ledger.channel.segments.cold import COLD_SUFFIX, cold_path, open_cold, read_cold
from ropewalk.ledger.channel.segments.format import (
    ALIGN,
    BlockPlace,
    Record,
    TornTail,
    has_unwritten_sector,
    parse_head,
    segment_head,
)
from ropewalk.ledger.channel.segments.packed import SUFFIX, PackedSegment, packed_path


class Segments:
    """The records of one channel, for reading. Never blocks a writer and is never blocked by one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files_folder = folder / "segments"

    def starts(self) -> list[int]:
        """Return the first heights of the segments, ascending."""
        try:
            names = [path.name for path in self.files_folder.iterdir()]
        except FileNotFoundError:
            return []
        return sorted({int(name[:20]) for name in names if name[20:] in (".seg", SUFFIX, COLD_SUFFIX)})

    def tiers(self, height: int) -> dict[str, dict[str, Any]]:
        """Return blocks and local bytes of each tier of a log of that height; the cold tier is not contacted."""
        found: dict[str, dict[str, Any]] = {}
        for start, after in pairwise([*self.starts(), height]):
            path = self.path(start)
            kinds = {"hot": path, "warm": packed_path(path), "cold": cold_path(path)}
            tier = next((name for name, each in kinds.items() if each.exists()), "hot")
            row = found.setdefault(tier, {"blocks": 0, "bytes": 0})
            row["blocks"] += after - start
            row["bytes"] += kinds[tier].stat().st_size
            if tier == "cold":
                row["locations"] = sorted({*row.get("locations", ()), read_cold(path).location})
        return found

    def path(self, start: int) -> Path:
        """Return the file of the segment that begins at a height."""
        return self.files_folder / f"{start:020d}.seg"

    def open(self, start: int, buffering: int = -1) -> BinaryIO:
        """Open a segment for reading: plain, packed, or rebuilt from archives."""
        try:
            return self.path(start).open("rb", buffering=buffering)
        except FileNotFoundError:
            try:
                packed = PackedSegment(packed_path(self.path(start)), start)
            except FileNotFoundError:
                return cast(BinaryIO, io.BufferedReader(cast(io.RawIOBase, open_cold(self.path(start)))))
            return cast(BinaryIO, io.BufferedReader(packed))

    def peek(self, start: int, offset: int, size: int) -> bytes:
        """Return some bytes of a segment, unchecked."""
        try:
            descriptor = os.open(self.path(start), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            with self.open(start) as stream:
                stream.seek(offset)
                return stream.read(size)
        try:
            return os.pread(descriptor, size, offset)
        finally:
            os.close(descriptor)

    def scan(self, after: BlockPlace | None = None, height: int = 0) -> Iterator[Record]:
        """Yield every record after a place (from the beginning without one), `height` being the first expected.

        Ends at a torn tail; raises `Damaged` at any other mismatch, and if receipted blocks are missing at the end.
        """
        floor = minimum_blocks(self.folder)  # before the files are read: a writer may be appending
        starts = self.starts()
        if after is None and starts and starts[0] != 0:
            raise self._damage(starts[0], 0, 0, f"the first segment begins at height {starts[0]}, not 0")
        if after is not None:
            starts = [start for start in starts if start >= after.segment]
        for number, start in enumerate(starts):
            resumed = after is not None and start == after.segment
            if not resumed and start != height:
                raise self._damage(start, 0, height, f"segment {start} follows block {height - 1}")
            last = number == len(starts) - 1
            offset = after.end if resumed and after is not None else 0
            for record in self._scan_file(start, offset, height, last, floor):
                yield record
                height = record.height + 1
        if floor is not None and height < floor:
            raise self._missing(height, floor)

    def places(self, height: int = 0, at: BlockPlace | None = None) -> Iterator[tuple[int, BlockPlace]]:
        """Yield heights and places of the records from a height on, by their headers; bodies are not read.

        `at` is the place of the record of that height, if known. Ends at the last complete record, or at an invalid
        header; reading that place reports the damage.
        """
        starts = self.starts()
        begin = (
            at.segment if at is not None else max((start for start in starts if start <= height), default=0)
        )
        expected = begin
        for start in (start for start in starts if start >= begin):
            if start != expected:
                return
            first = ALIGN
            if at is not None and start == begin:
                first, expected = at.offset, height
            try:
                stream = self._plain(start)
            except FileNotFoundError:
                found = self._packed_places(start)
                yield from ((number, place) for number, place in found if number >= height)
                expected = start + len(found)
                continue
            with stream:
                size, offset = os.fstat(stream.fileno()).st_size, first
                while offset + ALIGN <= size:
                    head = parse_head(os.pread(stream.fileno(), ALIGN, offset))
                    if head is None or head[0] != expected or offset + ALIGN + head[1] > size:
                        break
                    if expected >= height:
                        yield expected, BlockPlace(start, offset, head[1])
                    offset, expected = offset + ALIGN + head[1], expected + 1

    def find(self, height: int) -> Record:
        """Return the record at a height, found by the headers of its segment."""
        floor = minimum_blocks(self.folder)
        starts = self.starts()
        candidates = [start for start in starts if start <= height]
        if candidates:
            with self.open(candidates[-1]) as stream:
                offset, expected = ALIGN, candidates[-1]
                while expected < height:
                    stream.seek(offset)
                    head = parse_head(stream.read(ALIGN))
                    if head is None or head[0] != expected:
                        break
                    offset, expected = offset + ALIGN + head[1], expected + 1
                if expected == height:
                    last = candidates[-1] == starts[-1]
                    for record in self._scan_file(candidates[-1], offset, height, last, floor):
                        return record
        if floor is not None and height < floor:
            raise self._missing(height, floor)
        raise NotFound(f"block {height} is not in {self.folder.name}", height=height)

    def read(self, place: BlockPlace, height: int) -> Record:
        """Return the record at a known place; raise `Damaged` if it is not the block of that height."""
        try:
            with self.open(place.segment) as stream:
                stream.seek(place.offset)
                start, body = stream.read(ALIGN), stream.read(place.length)
        except FileNotFoundError as error:
            raise self._damage(place.segment, 0, height, "segment file is missing") from error
        head = parse_head(start)
        if head is None or head[:2] != (height, place.length) or len(body) != place.length:
            raise self._damage(place.segment, place.offset, height, "no record of that block here")
        if blake3(body) != head[2]:
            raise self._damage(place.segment, place.offset, height, "body differs from its checksum")
        return Record(height, place, body)

    def tail(self, after: BlockPlace | None, height: int) -> tuple[list[Record], TornTail | None]:
        """Return all records after a place, and the torn tail behind them, if any."""
        records = list(self.scan(after, height))
        end = records[-1].place if records else after
        starts = self.starts()
        if not starts:
            return records, None
        last = starts[-1]
        try:
            size = self.path(last).stat().st_size
        except FileNotFoundError as error:  # only closed segments are packed: there was another after it
            raise self._damage(last, 0, height + len(records), "the last segment file is missing") from error
        whole = end.end if end is not None and end.segment == last else (ALIGN if size >= ALIGN else 0)
        if whole == ALIGN and self.peek(last, 0, ALIGN) != segment_head(last):
            whole = 0
        return records, TornTail(last, whole, size - whole) if size > whole else None

    def check_receipted(self) -> ReceiptMark | None:
        """Return the mark if the log holds its block, None without one; else raise `Damaged`."""
        mark = read_mark(self.folder)
        if mark is None or mark.place is None:
            return mark
        height = mark.blocks - 1
        head = parse_head(self._peek_record(mark.place))
        if head is None or head[2] != mark.digest:
            raise self._damage(mark.place.segment, mark.place.offset, height, "it is not the receipted block")
        self.read(mark.place, height)
        return mark

    def _peek_record(self, place: BlockPlace) -> bytes:
        """Return the header bytes at a place, unchecked; nothing if the file is missing."""
        try:
            return self.peek(place.segment, place.offset, ALIGN)
        except (FileNotFoundError, Damaged):
            return b""

    def _plain(self, start: int) -> BinaryIO:
        """Open a segment as a plain file; raise `FileNotFoundError` if it is packed."""
        try:
            return cast(BinaryIO, self.path(start).open("rb", buffering=0))
        except FileNotFoundError:
            if packed_path(self.path(start)).exists():
                raise
            return open_cold(self.path(start))

    def _packed_places(self, start: int) -> list[tuple[int, BlockPlace]]:
        try:
            with contextlib.closing(PackedSegment(packed_path(self.path(start)), start)) as packed:
                return list(packed.places())
        except (FileNotFoundError, Damaged):
            return []

    def _scan_file(
        self, start: int, offset: int, height: int, last: bool, floor: int | None
    ) -> Iterator[Record]:
        with self.open(start, buffering=1 << 18) as stream:
            if offset == 0:
                packed = getattr(stream, "raw", None)
                if isinstance(packed, PackedSegment):
                    packed.check()
                head = stream.read(ALIGN)
                if head != segment_head(start):
                    if last and _is_torn(head, stream.read, height, floor):
                        return
                    raise self._damage(start, 0, height, "invalid segment header")
                offset = ALIGN
            else:
                stream.seek(offset)
            while raw := stream.read(ALIGN):
                body = self._body(stream.read, raw, start, offset, height, last, floor)
                if body is None:
                    return
                yield Record(height, BlockPlace(start, offset, len(body)), body)
                offset, height = offset + ALIGN + len(body), height + 1

    def _body(
        self,
        read: Callable[[int], bytes],
        raw: bytes,
        start: int,
        offset: int,
        height: int,
        last: bool,
        floor: int | None,
    ) -> bytes | None:
        """Return the body after a record header; None at a torn tail, `Damaged` otherwise."""
        head = parse_head(raw)
        if head is None:
            what = "invalid record header"
        elif head[0] != height:
            raise self._damage(start, offset, height, f"record has height {head[0]}")
        else:
            body = read(head[1])
            if len(body) == head[1] and blake3(body) == head[2]:
                return body
            what = "segment ends inside a record" if len(body) < head[1] else "body differs from its checksum"
            raw = body if len(body) == head[1] else b""
        if last and _is_torn(raw, read, height, floor):
            return None
        raise self._damage(start, offset, height, what)

    def _missing(self, height: int, floor: int) -> Damaged:
        return Damaged(
            f"channel {self.folder.name}: {blocks_text(height, floor)} had been receipted, but the log ends before",
            height=height,
            receipted=floor,
            reason="receipted blocks are missing",
            advice=repair_advice(self.folder.name),
        )

    def _damage(self, start: int, offset: int, height: int, what: str) -> Damaged:
        return Damaged(
            f"channel {self.folder.name}, block {height}: {what} (segment {start}, offset {offset})",
            height=height,
            segment=start,
            offset=offset,
            reason=what,
            advice=repair_advice(self.folder.name),
        )


def _is_torn(raw: bytes, read: Callable[[int], bytes], height: int, floor: int | None) -> bool:
    """Return whether invalid bytes are what a crash leaves: they end too early, or a sector was never written.

    Above the receipted blocks anything may follow: concurrent writes reach the disk in any order. Without a mark, only
    the last record may be torn.
    """
    if len(raw) < ALIGN:
        return floor is None or height >= floor  # the file ends too early
    if floor is not None:
        return height >= floor and has_unwritten_sector(raw)
    rest = read(-1)
    return not any(raw + rest) or (not rest and has_unwritten_sector(raw))
