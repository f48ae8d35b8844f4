"""Ledger channels as rows: positions are block heights, cut by the segments' offsets, checked block by block."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ropewalk.disk.repository_paths import RepositoryPaths as Repository
from ropewalk.errors import BrokenLink, Damaged, Invalid, NotFound, RopewalkError
from ropewalk.kernel.entry import join
from ropewalk.ledger.block.block import Block, Header, check_channel_name, check_link, parse_record
from ropewalk.ledger.block.leaves import StoredLines
from ropewalk.ledger.channel.channel import open_channel
from ropewalk.ledger.channel.key_heights import read_heights
from ropewalk.ledger.channel.segments.format import BlockPlace
from ropewalk.ledger.channel.segments.reader import Segments
from ropewalk.ledger.channel.settings import FOLDER, channels
from ropewalk.ledger.envelope.envelope import parse_stored
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.evidence.recheck import EvidenceTally
from ropewalk.ledger.evidence.settings import stored_trust
from ropewalk.ledger.keys.history import KeyProof
from ropewalk.ledger.proof.trust import Trust
from ropewalk.ledger.proof.verify import BlockSpan, Fault, check_block, judge_each
from ropewalk.ledger.rules.policy import Policy
from ropewalk.ledger.versions.statements import CHANGED_TYPE
from ropewalk.pipeline.source.ledger_rows import BlockColumns
from ropewalk.pipeline.source.logs import ROWS_PER_READ, CheckedRange, Want
from ropewalk.pipeline.source.notes import Marks, RowNotes
from ropewalk.pipeline.source.offsets import Extent, Point, Range
from ropewalk.pipeline.source.rows import Columns, broken_row, columns_of

RUN_BLOCKS = 256  # blocks in one verdict
CHANGED = CHANGED_TYPE.encode()
EVIDENCE = b'"attestation_evidence":'  # canonical JSON has no other spelling of the member


@dataclass(frozen=True, slots=True)
class ChannelReader:
    """A channel and its settings: trusted signers, policy, and accepted evidence."""

    name: str
    segments: Segments
    trust: Trust
    policy: Policy | None
    key_proofs: tuple[KeyProof, ...]
    evidence: EvidenceTally

    def blocks(self, start: int = 0, end: int | None = None) -> Iterator[Block]:
        """Yield its blocks from `start` up to and with `end`, each once it passed; envelopes are not judged."""
        whole = BlockSpan()
        for height, place in self.segments.places(start):
            if end is not None and height > end:
                return
            lines = self.segments.read(place, height).lines
            whole = join(whole, check_block(lines, height, trust=self.trust, policy=self.policy, deep=False))
            block = Block.from_lines(lines)
            if whole.fault is not None:
                raise _refusal(whole.fault, self.name, block)
            if height == 0:
                check_link(None, block.header)
            yield block


class Ledgers:
    """The ledger channels of a repository."""

    def __init__(self, place: Repository) -> None:
        self.home = place.home
        self._channels: dict[str, tuple[object, ChannelReader]] = {}
        self._ends: dict[str, tuple[int, BlockPlace | None]] = {}

    def topics(self) -> list[str]:
        """Return the names of its channels."""
        return channels(self.home)

    def channel(self, topic: str) -> ChannelReader:
        """Return A channel with its trust; read again when more was said about its keys."""
        mark = read_heights(self.home / FOLDER / check_channel_name(topic))
        if topic not in self._channels or self._channels[topic][0] != mark:
            trust = stored_trust(self.home, topic)
            proofs: list[KeyProof] = []
            with open_channel(self.home, topic) as reading, contextlib.suppress(RopewalkError):
                proofs.extend(reading.each_key_proof())
            policy = reading.settings.policy
            found = ChannelReader(topic, reading.segments, trust, policy, tuple(proofs), EvidenceTally(trust))
            self._channels[topic] = mark, found
        return self._channels[topic][1]

    def extent(self, topic: str, *, tolerant: bool = False) -> Extent:
        """Return how many whole blocks there are. Record headers are walked on from where the last call ended."""
        try:
            segments = self.channel(topic).segments
        except RopewalkError as error:
            if not tolerant or isinstance(error, NotFound):
                raise
            return Extent(Point(), fault=error.detail, fault_entry="settings")
        size, last = self._ends.get(topic, (0, None))
        for height, place in segments.places(max(0, size - 1), last):
            size, last = height + 1, place
        self._ends[topic] = (size, last)
        fault = self._beyond(segments, size, last)
        if fault and not tolerant:
            raise Damaged(f"channel {topic}, block {size}: {fault}", height=size, topic=topic)
        if last is None:
            return Extent(Point(), fault=fault, fault_entry=f"block {size}" if fault else "")
        rows = 1.0
        head = ""
        try:
            lines = segments.read(last, size - 1).lines
            rows, head = max(1.0, len(lines) - 1), parse_record(lines[0]).hash.hex()
        except RopewalkError:
            if not tolerant:
                raise
        return Extent(Point(size, head), rows, fault, f"block {size}" if fault else "")

    def id_at(self, topic: str, position: int) -> str:
        """Return the hash of the block at a height; empty where it cannot be read."""
        segments = self.channel(topic).segments
        for height, place in segments.places(position):
            try:
                return parse_record(segments.read(place, height).lines[0]).hash.hex()
            except RopewalkError:
                return ""
        return ""

    def find(self, topic: str, bound: str, end: Point) -> int | None:
        """Find a block height, or a block hash as a cursor: the place behind that block."""
        if bound.isdigit() and len(bound) < 19:
            return min(int(bound), end.position)
        segments = self.channel(topic).segments
        for height, place in segments.places():
            if parse_record(segments.read(place, height).lines[0]).hash.hex().startswith(bound):
                return height + 1
        raise Invalid(f"{bound!r} is no height, time or block of {topic}", topic=topic, bound=bound)

    def since(self, topic: str, time_us: int, end: Point) -> int:  # noqa: ARG002 - the protocol's
        """Return 0: times of envelopes need not rise with the height, so every block is read."""
        return 0

    def read(self, part: Range, want: Want) -> Iterator[Columns]:
        """Yield the rows of a range of blocks; in strict mode, raise at the first block that does not verify."""
        if part.fault:
            topic = part.log.topic
            if want.mode == "strict":
                raise Damaged(f"channel {topic}, {part.fault_entry}: {part.fault}", topic=topic)
            yield columns_of([broken_row("ledger", topic, -1, part.fault, entry_id=part.fault_entry)])
            return
        channel = self.channel(part.log.topic)
        rows = BlockColumns(channel.name, want)
        below = BlockSpan(blocks=1, above=bytes.fromhex(part.below), channel=channel.name)
        below = replace(below, last=part.start - 1) if part.start else BlockSpan()
        if want.mode == "quarantine" and not part.below:
            below = BlockSpan()  # the block before is damaged; its own range reports that
        reached = part.start
        for height, place in channel.segments.places(part.start):
            if height >= part.end:
                break
            reached = height + 1
            try:
                record = channel.segments.read(place, height)
                block = Block.from_lines(record.lines)
            except RopewalkError as error:
                if want.mode == "strict":
                    raise _named(error, channel.name, height) from error
                rows.add_rows([broken_row("ledger", channel.name, height, error.detail, height=height)])
                below = BlockSpan() if height + 1 < part.end else below
                continue
            below = _add_block(channel, block, record.body, below, rows)
            if rows.count >= ROWS_PER_READ:
                yield rows.take()
        if rows.count:
            yield rows.take()
        if reached != part.end:
            raise Damaged(
                f"channel {channel.name}, block {reached}: cannot be found any more", height=reached
            )

    def check(self, part: Range, *, deep: bool) -> Iterator[CheckedRange]:
        """Check blocks in runs; one verdict a run, and a run ends where something is wrong."""
        if part.fault:
            yield CheckedRange(part.log, part.start, part.start, 0, "", part.fault_entry, part.fault)
            return
        channel = self.channel(part.log.topic)
        whole, marks = BlockSpan(), Marks()
        acts: list[int] = []
        start = part.start
        for height, place in channel.segments.places(part.start):
            if height >= part.end:
                break
            try:
                record = channel.segments.read(place, height)
                lines = record.lines if deep else StoredLines(record.body)
                span = check_block(
                    lines,
                    height,
                    trust=channel.trust,
                    policy=channel.policy,
                    deep=deep,
                    on_envelopes=marks.take if deep else None,
                )
            except RopewalkError as error:
                span = replace(
                    BlockSpan(),
                    first=height,
                    last=height,
                    blocks=1,
                    fault=Fault(height, "block_form", error.detail),
                )
            else:
                if deep and span.fault is None:
                    held = lines if EVIDENCE in record.body else lines[:1]
                    if failed := channel.evidence.failures(held):
                        span = replace(span, fault=_first(height, failed))
                if CHANGED in record.body:
                    acts.append(height)
            whole = join(whole, span)
            if whole.fault is not None or height + 1 - start >= RUN_BLOCKS or height + 1 == part.end:
                fault = whole.fault
                yield CheckedRange(
                    part.log,
                    start,
                    height + 1,
                    whole.envelopes,
                    span_to_json(whole, acts),
                    None if fault is None else _fault_name(fault),
                    None if fault is None else fault.detail,
                    marks.made,
                    marks.asked,
                )
                whole, marks, start, acts = BlockSpan(), Marks(), height + 1, []

    @staticmethod
    def _beyond(segments: Segments, size: int, last: BlockPlace | None) -> str:
        """Return what keeps the records from being walked further: damage, or nothing if the log simply ends here."""
        if any(start > size for start in segments.starts()):
            return "records behind it stand where no way leads"
        try:
            for _ in segments.scan(last, size):
                break  # a writer has appended since: no damage
        except Damaged as error:
            return str(error.fields.get("reason", error.detail))
        return ""


def join_spans(spans: list[BlockSpan]) -> BlockSpan:
    """Join spans in order of height; the first fault survives."""
    whole = BlockSpan()
    for span in spans:
        whole = join(whole, span)
    return whole


def span_to_json(span: BlockSpan, acts: Sequence[int] = ()) -> str:
    """Return a span as a text that can travel in a row, with the heights at which versions were changed."""
    value = asdict(span) | ({"acts": list(acts)} if acts else {})
    value["below"], value["above"] = span.below.hex(), span.above.hex()
    return json.dumps(value)


def span_from_json(text: str) -> BlockSpan:
    """Read what `span_to_json` wrote."""
    value = json.loads(text)
    value.pop("acts", None)
    value["below"], value["above"] = bytes.fromhex(value["below"]), bytes.fromhex(value["above"])
    value["fault"] = None if value["fault"] is None else Fault(**value["fault"])
    return BlockSpan(**value)


def acts_from_json(text: str) -> list[int]:
    """Return the heights at which versions or evidence settings were changed, from what `span_to_json` wrote."""
    return [int(height) for height in json.loads(text).get("acts", ())]


def _fault_name(fault: Fault) -> str:
    return f"block {fault.height}" + ("" if fault.index is None else f", envelope {fault.index}")


def _add_block(
    channel: ChannelReader, block: Block, body: bytes, below: BlockSpan, rows: BlockColumns
) -> BlockSpan:
    """Check a block on top of the span below it and add its rows; return the span that the next block continues."""
    want = rows.want
    if want.mode == "off":
        rows.add_judged(block, {}, None, "not_checked")
        return below
    notes = RowNotes() if "notes" in want.columns else None
    parts: list[Sequence[Envelope]] = []

    def noted(header: Header, first: int, found: Sequence[Envelope]) -> None:
        parts.append(found)
        if notes is not None:
            notes.take(header, first, found)

    lines = block.lines()
    span = check_block(lines, block.height, trust=channel.trust, policy=channel.policy, on_envelopes=noted)
    joined = join(below, span) if below.blocks else span
    faults = _faults(channel, block, joined.fault, held=EVIDENCE in body)
    if not faults:
        rows.add_checked(block, parts, None if notes is None else notes.made)
    elif want.mode == "strict":
        raise _refusal(joined.fault or _first(block.height, faults), channel.name, block)
    else:
        rows.add_judged(block, faults, None if notes is None else _noted(block, notes, faults), "passed")
    return replace(span, fault=None)


def _noted(block: Block, notes: RowNotes, faults: dict[int | None, str]) -> list[bytes | None]:
    """Return the notes of every envelope that is good in itself; the others stand for nothing."""
    if not faults:
        return list(notes.made)
    found: list[bytes | None] = []
    for index, raw in enumerate(block.envelopes):
        alone = RowNotes()
        if None not in faults and index not in faults:
            alone.take(block.header, index, [parse_stored(raw)])
        found.append(alone.made[0] if alone.made else None)
    return found


def _faults(
    channel: ChannelReader, block: Block, fault: Fault | None, *, held: bool
) -> dict[int | None, str]:
    """Return what is wrong by index of envelope; None means all of them, because the block itself is bad.

    `held` says whether the block may hold evidence.
    """
    if fault is not None and fault.step != "envelopes":
        return {None: fault.detail}
    found = channel.evidence.failures(block.lines() if held else [block.record.raw])
    if fault is not None:
        found |= judge_each(block, channel.trust, channel.policy)
    return {**found} or ({} if fault is None else {None: fault.detail})  # type: ignore[dict-item]


def _first(height: int, faults: Mapping[Any, str]) -> Fault:
    index, detail = min((index, detail) for index, detail in faults.items() if index is not None)
    return Fault(height, "evidence", detail, index)


def _refusal(fault: Fault, channel: str, block: Block) -> RopewalkError:
    where = f"channel {channel}, {_fault_name(fault)} ({block.hash.hex()[:16]}…)"
    return BrokenLink(
        f"{where}: {fault.step}: {fault.detail}",
        topic=channel,
        entry=block.hash.hex(),
        height=fault.height,
        step=fault.step,
    )


def _named(error: RopewalkError, channel: str, height: int) -> RopewalkError:
    return Damaged(f"channel {channel}, block {height}: {error.detail}", height=height, topic=channel)
