"""Git logs as rows: positions are heights, cut by the index, checked commit by commit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from ropewalk.errors import BrokenLink, DigestMismatch, HistoryRewritten, Invalid, NotFound, RopewalkError
from ropewalk.gitlog.commit import parse_message
from ropewalk.gitlog.layout import LAYOUTS, MESSAGES, SHIPLOG, Layout
from ropewalk.gitlog.log import describe, get_object
from ropewalk.gitlog.objects import Commit, Oid, parse_commit
from ropewalk.kernel import ulid
from ropewalk.kernel.jcs import parse_foreign
from ropewalk.pipeline.gitevents import check_event
from ropewalk.pipeline.gitsalvage import NO_CONTENT, salvage
from ropewalk.pipeline.logs import CheckedRange, Want
from ropewalk.pipeline.offsets import Extent, Gap, Point, Range
from ropewalk.pipeline.rows import Row, broken_row, gitlog_row
from ropewalk.stores.git import GitStore
from ropewalk.stores.gitindex import GitIndex, IndexedSlot
from ropewalk.stores.gitseen import SeenHeads
from ropewalk.stores.place import Place

__all__ = ["GitLogs"]

CHUNK = 2_000  # events handed out at a time
RUN = 5_000  # commits in one verdict


class GitLogs:
    """The git logs of a repository, S0's and S1's. A topic that both have is `messages:NAME` for S1's."""

    def __init__(self, place: Place) -> None:
        self.store = GitStore(place)
        self.seen = SeenHeads(place.home / "seen", self.store.disk)
        self.index = GitIndex(place.home / "index")
        self._gaps: dict[str, tuple[str, Extent]] = {}  # of damaged logs: the head they were found under

    def topics(self) -> list[str]:
        """The names of its logs."""
        shiplog = sorted(self._present(SHIPLOG))
        return shiplog + [
            f"messages:{name}" if name in shiplog else name for name in sorted(self._present(MESSAGES))
        ]

    def extent(self, topic: str, *, tolerant: bool = False) -> Extent:
        """How far a log reaches; a history without the head seen last is refused either way."""
        layout, name = self.locate(topic)
        ref = layout.head_ref(name)
        seen = self.seen.get(ref)
        try:
            head = self.store.head(ref)
        except RopewalkError as error:
            if not tolerant:
                raise self._named(error, topic, ref) from error
            return self._covered(ref, error.detail, ref)
        if tolerant and topic in self._gaps and self._gaps[topic][0] == head:
            return self._gaps[topic][1]
        told = partial(describe, self.store, layout, name)
        try:
            found = self.index.catch_up(ref, head, told, seen)
        except HistoryRewritten:
            raise
        except RopewalkError as error:
            if not tolerant:
                raise self._named(error, topic) from error
            return self._damaged(topic, head or "", seen, error)
        self._gaps.pop(topic, None)
        if head is not None and head != seen:
            self.seen.set(ref, head)
        return Extent(Point(found.count, found.head or ""))

    def _damaged(self, topic: str, head: str, seen: str | None, error: RopewalkError) -> Extent:
        """As much of a log as can be proven around what is damaged."""
        layout, name = self.locate(topic)
        found = salvage(self.store, self.index, layout, name, head, seen, error.detail)
        if found is None:
            where = str(error.fields.get("entry") or error.fields.get("expected") or head)
            return self._covered(layout.head_ref(name), error.detail, where)
        extent = Extent(Point(found.end, head), gap=found.gap)
        if not found.placed:  # whatever lies above the gap is told of together with the damage
            extent = replace(self._covered(layout.head_ref(name), error.detail, head), gap=found.gap)
        self._gaps[topic] = (head, extent)
        return extent

    def _covered(self, ref: str, fault: str, where: str) -> Extent:
        """As much of a log as the index knows, and what keeps it from being read further."""
        known = self.index.extent(ref)
        return Extent(Point(known.count, known.head or ""), fault=fault, fault_entry=where)

    def id_at(self, topic: str, position: int) -> str:
        """The commit at a height; empty where no way leads to it."""
        slot = self.slot_at(topic, position)
        return "" if slot is None else slot.commit

    def slot_at(self, topic: str, position: int) -> IndexedSlot | None:
        """What the index keeps of the event at a height, None where no way leads to it."""
        known = self._gaps.get(topic)
        gap = None if known is None else known[1].gap
        if gap is not None and gap.start <= position < gap.end:
            return None
        within = gap if gap is not None and position >= gap.end else None
        return self._span(topic, position, position + 1, within)[0]

    def find(self, topic: str, bound: str, end: Point) -> int | None:
        """A height, a ULID or a commit; a cursor means the place behind it."""
        if bound.isdigit() and len(bound) < 19:
            return min(int(bound), end.position)
        ref = self._ref(topic)
        if ulid.is_ulid(bound):
            return min(self._first_above(topic, ulid.parse(bound)), end.position)
        try:
            kind, raw = self.store.get(self.store.resolve(bound))
            slot = (
                self.index.find(ref, parse_message(parse_commit(raw).message).ulid)
                if kind == "commit"
                else None
            )
        except RopewalkError as error:
            raise Invalid(
                f"{bound!r} is no height, time, ULID or commit of {topic}", topic=topic, bound=bound
            ) from error
        if slot is None or not slot.commit.startswith(bound):
            raise NotFound(f"{bound} is not an event of {topic}", topic=topic, event=bound)
        return slot.height + 1

    def since(self, topic: str, time_us: int, end: Point) -> int:
        """By the time in the ULIDs."""
        floor = ulid.make(max(0, time_us // 1_000 - 1), (1 << 80) - 1)
        return min(self._first_above(topic, floor), end.position)

    def _first_above(self, topic: str, floor: ulid.Ulid) -> int:
        known = self._gaps.get(topic)
        gap = None if known is None else known[1].gap
        found = self.index.first_above(self._ref(topic), floor)
        if gap is None or found < gap.start:
            return found
        behind = self.index.first_above(gap.line, floor)
        return gap.end + behind if behind else gap.start

    def locate(self, topic: str) -> tuple[Layout, str]:
        """The layout and the name inside it."""
        prefix, colon, rest = topic.partition(":")
        if colon and prefix in LAYOUTS:
            return LAYOUTS[prefix], rest
        for layout in (SHIPLOG, MESSAGES):
            if topic in self._present(layout):
                return layout, topic
        for layout in (SHIPLOG, MESSAGES):
            try:
                if self.seen.get(layout.head_ref(topic)) is not None:
                    return layout, topic  # it was here: missing, not absent
            except RopewalkError:
                continue
        raise NotFound(f"there is no git log {topic!r}", topic=topic)

    def read(self, part: Range, want: Want) -> Iterator[list[Row]]:
        """The rows of a range; what a strict reader cannot verify stops it."""
        layout, topic = self.locate(part.log.topic)
        if part.fault:
            if want.mode == "strict":
                raise DigestMismatch(
                    f"topic {topic}, commit {part.fault_entry}: {part.fault}",
                    topic=topic,
                    entry=part.fault_entry,
                )
            lost = part.gap.entry if part.gap is not None else part.fault_entry
            yield [broken_row("gitlog", topic, -1, part.fault, entry_id=lost or None)]
            yield from self._unplaced(layout, topic, part, want)
            return
        if part.gap is not None and part.end <= part.gap.end:
            yield from _out_of_reach(topic, part, part.gap)
            return
        rows: list[Row] = []
        below, last = part.below, self._ulid_before(part)
        for slot in self._slots(part):
            try:
                row = self._row(layout, topic, slot, below, last, want)
            except RopewalkError as error:
                if want.mode == "strict":
                    raise self._named(error, topic, slot.commit) from error
                row = broken_row(
                    "gitlog",
                    topic,
                    slot.height,
                    error.detail,
                    entry_id=slot.commit,
                    content_id=None if slot.content_id == NO_CONTENT else slot.content_id,
                    height=slot.height,
                )
            below, last = slot.commit, slot.ulid
            if want.bounds.admits(row):
                rows.append(row)
            if len(rows) >= CHUNK:
                yield rows
                rows = []
        if rows:
            yield rows
        if want.mode != "off" and below != part.above:
            raise BrokenLink(
                f"topic {topic}: entry {part.end - 1} is {below[:12]}, not {part.above[:12]}; the log moved under us",
                topic=topic,
                entry=below,
            )

    def _unplaced(self, layout: Layout, topic: str, part: Range, want: Want) -> Iterator[list[Row]]:
        """Entries above a lost one that does not say its height: proven, but nobody knows which numbers are theirs."""
        if part.gap is None:
            return
        below, last = part.gap.entry, None
        detail = f"its height is unknown: commit {part.gap.entry} below it is lost"
        for start in range(1, part.gap.size, CHUNK):
            rows = []
            for slot in self.index.span(part.gap.line, start, min(start + CHUNK, part.gap.size)):
                try:
                    row = self._row(layout, topic, slot, below, last, want)
                except RopewalkError as error:
                    row = broken_row("gitlog", topic, -1, error.detail, entry_id=slot.commit)
                rows.append(
                    row._replace(position=-1, height=None, verdict="failed", detail=row.detail or detail)
                )
                below, last = slot.commit, slot.ulid
            yield rows

    def check(self, part: Range, *, deep: bool) -> Iterator[CheckedRange]:  # noqa: ARG002 - the protocol's
        """Commits in runs; a run ends where one is wrong, and the next hangs on what that one claimed to be."""
        layout, topic = self.locate(part.log.topic)
        if part.fault:
            lost = part.gap.entry if part.gap is not None else part.fault_entry
            yield CheckedRange(part.log, part.start, part.start, 0, "", lost or "?", part.fault)
            return
        if part.gap is not None and part.end <= part.gap.end:
            yield CheckedRange(part.log, part.start, part.end, 0, "", part.gap.entry, part.gap.reason)
            return
        first, below, start = part.below, part.below, part.start
        last = self._ulid_before(part)
        for slot in self._slots(part):
            fault = None
            try:
                check_event(self.store, layout, topic, slot, below, last, every_object=True)
            except RopewalkError as error:
                fault = error.detail
            below, last = slot.commit, slot.ulid
            if fault is not None or slot.height + 1 - start >= RUN or slot.height + 1 == part.end:
                yield CheckedRange(
                    part.log,
                    start,
                    slot.height + 1,
                    slot.height + 1 - start,
                    json.dumps({"below": first, "above": below}),
                    slot.commit if fault is not None else None,
                    fault,
                )
                first, start = below, slot.height + 1

    def _row(
        self, layout: Layout, topic: str, slot: IndexedSlot, below: str, last: ulid.Ulid | None, want: Want
    ) -> Row:
        if want.mode != "off":
            commit, headers, document = check_event(
                self.store, layout, topic, slot, below, last, every_object=False
            )
            return gitlog_row(
                topic,
                slot.height,
                slot.commit,
                slot.content_id,
                commit.parents,
                document,
                commit,
                headers.trailer,
                "passed",
            )
        _, raw = self.store.get(slot.blob)
        unread: Any = parse_foreign(raw)
        told: Commit | None = None
        trailer = None
        if want.columns & {"author", "entry"}:
            told = parse_commit(get_object(self.store, Oid(slot.commit), "commit"))
            trailer = parse_message(told.message).trailer
        stands_on = (below,) if slot.height else ()
        return gitlog_row(
            topic, slot.height, slot.commit, slot.content_id, stands_on, unread, told, trailer, "not_checked"
        )

    def _slots(self, part: Range) -> Iterator[IndexedSlot]:
        for start in range(part.start, part.end, CHUNK):
            yield from self._span(part.log.topic, start, min(start + CHUNK, part.end), part.gap)

    def _span(self, topic: str, start: int, stop: int, gap: Gap | None) -> list[IndexedSlot]:
        """Places from the topic's own line, or from the one that begins behind a gap."""
        if gap is None:
            return self.index.span(self._ref(topic), start, stop)
        found = self.index.span(gap.line, start - gap.end, stop - gap.end)
        return [replace(slot, height=slot.height + gap.end) for slot in found]

    def _ulid_before(self, part: Range) -> ulid.Ulid | None:
        """The ULID that the first of a range must be above; None at a beginning, or behind a gap."""
        if part.start == (part.gap.end if part.gap is not None else 0):
            return None
        return self._span(part.log.topic, part.start - 1, part.start, part.gap)[0].ulid

    def _present(self, layout: Layout) -> set[str]:
        return {
            topic
            for ref in self.store.head_names(layout.prefix)  # also of one that is torn
            if (topic := layout.topic_of(ref)) is not None
        }

    def _ref(self, topic: str) -> str:
        layout, name = self.locate(topic)
        return layout.head_ref(name)

    @staticmethod
    def _named(error: RopewalkError, topic: str, commit: str | None = None) -> RopewalkError:
        """The same refusal, naming topic and commit."""
        where = f"topic {topic}, commit {commit}" if commit else f"topic {topic}"
        kind = type(error) if error.exit_code == 5 else DigestMismatch
        fields = {**error.fields, "topic": topic, **({"entry": commit} if commit else {})}
        return kind(f"{where}: {error.detail}", advice=None, instance=None, **fields)


def _out_of_reach(topic: str, part: Range, gap: Gap) -> Iterator[list[Row]]:
    """A row for every entry behind the one that is lost: they may be whole, but nothing leads to them."""
    detail = f"out of reach behind commit {gap.entry}: {gap.reason}"
    for start in range(part.start, part.end, CHUNK):
        yield [
            broken_row("gitlog", topic, height, detail, height=height)
            for height in range(start, min(start + CHUNK, part.end))
        ]
