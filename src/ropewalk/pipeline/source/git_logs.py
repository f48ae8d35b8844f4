"""Git logs as rows: positions are heights, found by the index; the engine judges every event (`gitlog.eventcheck`)."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ropewalk.disk.repository_paths import RepositoryPaths
from ropewalk.errors import BrokenLink, DigestMismatch, HistoryRewritten, Invalid, NotFound, RopewalkError
from ropewalk.gitlog.core.commit import Headers, parse_message
from ropewalk.gitlog.core.layout import LAYOUTS, MESSAGES, SHIPLOG, Layout
from ropewalk.gitlog.core.log import describe, get_object
from ropewalk.gitlog.core.objects import Oid, parse_commit
from ropewalk.gitlog.core.planning import IndexedEntry
from ropewalk.gitlog.core.reading import missing_topic
from ropewalk.gitlog.repository.tracked_logs import IndexedLog, TrackedLogs
from ropewalk.gitlog.store.object_store import GitStore
from ropewalk.gitlog.verify.event_check import CheckedEvent, check_next, list_chain
from ropewalk.gitlog.verify.usual_events import Found, UsualEvent, prove_usual
from ropewalk.kernel import ulid
from ropewalk.kernel.jcs import parse_foreign
from ropewalk.pipeline.source.logs import ROWS_PER_READ, CheckedRange, Want
from ropewalk.pipeline.source.offsets import Extent, Point, Range
from ropewalk.pipeline.source.rows import Columns, Row, broken_row, columns_of, gitlog_row, usual_row

CHUNK = 2_000  # index slots read at a time
RUN = 5_000  # commits in one verdict
TREES = 4  # of a usual event: gatos/shiplog/NS/ULID.json
_TREE = re.compile(rb"tree ([0-9a-f]{40})\n")


@dataclass(frozen=True, slots=True)
class _Walked:
    """The commits above what the index covers, lowest first, of a log that the index cannot take."""

    head: str
    base: int
    commits: tuple[Oid, ...]


class GitLogs:
    """The git logs of a repository, S0's and S1's. A topic that both have is `messages:NAME` for S1's."""

    def __init__(self, place: RepositoryPaths) -> None:
        self.store = GitStore(place)
        self.lines = TrackedLogs(self.store)
        self._walked: dict[str, _Walked] = {}

    def topics(self) -> list[str]:
        """Return the names of its logs."""
        shiplog = self.lines.names(SHIPLOG)
        return shiplog + [
            f"messages:{name}" if name in shiplog else name for name in self.lines.names(MESSAGES)
        ]

    def locate(self, topic: str) -> tuple[Layout, str]:
        """Return the layout and the name inside it."""
        prefix, colon, rest = topic.partition(":")
        if colon and prefix in LAYOUTS:
            return LAYOUTS[prefix], rest
        for layout in (SHIPLOG, MESSAGES):
            if topic in self.lines.names(layout):
                return layout, topic
        raise NotFound(f"there is no git log {topic!r}", topic=topic)

    def line(self, topic: str) -> IndexedLog:
        """Return a log up to its head, or as far as the index covers it where its head cannot be followed."""
        layout, name = self.locate(topic)
        try:
            return self.lines.line(layout, name)
        except (HistoryRewritten, NotFound):
            raise
        except RopewalkError:
            return self.lines.covered(layout, name)

    def extent(self, topic: str, *, tolerant: bool = False) -> Extent:
        """Return how far a log reaches; a history without the head seen last is refused either way.

        A damaged log ends, for a tolerant reader, below the commit that cannot be read.
        """
        layout, name = self.locate(topic)
        self._walked.pop(topic, None)
        try:
            line = self.lines.line(layout, name)
        except HistoryRewritten:
            raise
        except RopewalkError as error:
            if not tolerant:
                raise _named(error, topic) from error
            return self._damaged(layout, name, topic, error)
        return Extent(Point(line.count, line.head or ""))

    def _damaged(self, layout: Layout, name: str, topic: str, error: RopewalkError) -> Extent:
        """Return the log as its commits tell, or as far as the index covers it, and what keeps it from going on."""
        ref, known = layout.head_ref(name), self.lines.covered(layout, name)
        try:
            head, seen = self.store.head(ref), self.lines.seen.get(ref)
            if head is None:
                raise missing_topic(layout, name)
            down = list(list_chain(self.store, head, known.head))
            reached = parse_commit(get_object(self.store, down[-1], "commit")).parents == (known.head,)
            base = known.count if reached else 0
            if seen is not None and seen not in down and not (base and self._holds(known, seen)):
                raise HistoryRewritten(
                    f"{ref} does not contain {seen}, seen before", ref=ref, expected=seen, got=head
                )
        except HistoryRewritten:
            raise
        except RopewalkError as lost:
            where = str(lost.fields.get("entry") or lost.fields.get("expected") or ref)
            return Extent(Point(known.count, known.head or ""), fault=error.detail, fault_entry=where)
        self._walked[topic] = _Walked(head, base, tuple(reversed(down)))
        return Extent(Point(base + len(down), head))

    def _holds(self, known: IndexedLog, commit: str) -> bool:
        shown = describe(self.store, known.layout, known.topic, Oid(commit))
        slot = known.find(shown.ulid)
        return slot is not None and slot.commit == commit

    def id_at(self, topic: str, position: int) -> str:
        """Return the commit at a height; empty where none is known."""
        walked = self._walked.get(topic)
        if walked is not None and position >= walked.base:
            return next(iter(walked.commits[position - walked.base :]), "")
        slot = self.slot_at(topic, position)
        return "" if slot is None else slot.commit

    def slot_at(self, topic: str, position: int) -> IndexedEntry | None:
        """Return what the index keeps of the event at a height, None where it does not reach."""
        line = self.line(topic)
        return line.span(position, position + 1)[0] if 0 <= position < line.count else None

    def find(self, topic: str, bound: str, end: Point) -> int | None:
        """Return a height, a ULID or a commit; a cursor means the place behind it."""
        if bound.isdigit() and len(bound) < 19:
            return min(int(bound), end.position)
        line = self.line(topic)
        if ulid.is_ulid(bound):
            return min(line.first_above(ulid.parse(bound)), end.position)
        try:
            kind, raw = self.store.get(self.store.resolve(bound))
            slot = line.find(parse_message(parse_commit(raw).message).ulid) if kind == "commit" else None
        except RopewalkError as error:
            raise Invalid(
                f"{bound!r} is no height, time, ULID or commit of {topic}", topic=topic, bound=bound
            ) from error
        if slot is None or not slot.commit.startswith(bound):
            raise NotFound(f"{bound} is not an event of {topic}", topic=topic, event=bound)
        return slot.height + 1

    def since(self, topic: str, time_us: int, end: Point) -> int:
        """Find the place by the time in the ULIDs."""
        floor = ulid.make(max(0, time_us // 1_000 - 1), (1 << 80) - 1)
        return min(self.line(topic).first_above(floor), end.position)

    def read(self, part: Range, want: Want) -> Iterator[Columns]:
        """Yield the rows of a range; in strict mode, raise at the first event that does not verify."""
        layout, topic = self.locate(part.log.topic)
        if part.fault:
            if want.mode == "strict":
                raise DigestMismatch(
                    f"topic {topic}, commit {part.fault_entry}: {part.fault}",
                    topic=topic,
                    entry=part.fault_entry,
                )
            yield columns_of([broken_row("gitlog", topic, -1, part.fault, entry_id=part.fault_entry or None)])
            return
        rows = (
            self._unchecked_rows(topic, part, want)
            if want.mode == "off"
            else self._rows(layout, topic, part, strict=want.mode == "strict")
        )
        if not want.bounds.open:
            admits = want.bounds.admits
            rows = (row for row in rows if admits(row.height, row.time_us, row.verdict))
        while chunk := list(islice(rows, ROWS_PER_READ)):
            yield columns_of(chunk)

    def _rows(self, layout: Layout, topic: str, part: Range, *, strict: bool) -> Iterator[Row]:
        height, below = part.start, part.below
        for oid, event, fault in self._events(layout, topic, part, every_object=False):
            if fault is not None and strict:
                raise _named(fault, topic, oid)
            if isinstance(event, UsualEvent):
                yield usual_row(topic, height, oid, below, event)
            elif event is None or event.document is None or fault is not None:
                headers = None if event is None else event.headers
                yield broken_row(
                    "gitlog",
                    topic,
                    height,
                    fault.detail if fault is not None else "it has no envelope",
                    entry_id=oid,
                    content_id=None if headers is None else headers.content_id,
                    height=height,
                )
            else:
                assert event.headers is not None
                yield gitlog_row(
                    topic,
                    height,
                    oid,
                    event.headers.content_id,
                    event.commit.parents,
                    event.document,
                    event.commit,
                    event.headers.trailer,
                    "passed",
                )
            height, below = height + 1, oid

    def _events(
        self, layout: Layout, topic: str, part: Range, *, every_object: bool
    ) -> Iterator[tuple[str, CheckedEvent | UsualEvent | None, RopewalkError | None]]:
        """Yield every event of a range with the first thing that is wrong with it; the last must be the one expected.

        Rows take the place of an envelope from the index, where hashing proves it; a check reads every tree.
        What is usual is read and proven in bulk (decision 0073).
        """
        below = part.below
        last: Headers | UsualEvent | None = self._said(part.below)
        for oid, blob, envelope, commit in self._commits(layout, part, trees=every_object):
            usual = blob and prove_usual(layout, topic, blob, envelope, commit, below, last)
            if usual:
                yield oid, usual, None
                below, last = oid, usual
                continue
            event: CheckedEvent | None = None
            fault: RopewalkError | None = None
            try:
                said = self._said(below) if isinstance(last, UsualEvent) else last
                event = check_next(
                    self.store, layout, topic, oid, below, said, None if every_object else blob
                )
                if event.fault is not None:
                    fault = DigestMismatch(event.fault, where=oid)
            except RopewalkError as error:
                fault = error
            yield oid, event, fault
            below, last = oid, None if event is None else event.headers
        if below != part.above:
            raise BrokenLink(
                f"topic {topic}: entry {part.end - 1} is {below[:12]}, not {part.above[:12]}; the log moved under us",
                topic=topic,
                entry=below,
            )

    def _unchecked_rows(self, topic: str, part: Range, want: Want) -> Iterator[Row]:
        """Yield rows without a verdict, from the index."""
        line, below = self.line(part.log.topic), part.below
        for start in range(part.start, part.end, CHUNK):
            for slot in line.span(start, min(start + CHUNK, part.end)):
                _, raw = self.store.get(slot.blob)
                document: Any = parse_foreign(raw)
                commit = trailer = None
                if want.columns & {"author", "entry"}:
                    commit = parse_commit(get_object(self.store, Oid(slot.commit), "commit"))
                    trailer = parse_message(commit.message).trailer
                parents = (below,) if slot.height else ()
                place = slot.height, slot.commit, slot.content_id, parents
                yield gitlog_row(topic, *place, document, commit, trailer, "not_checked")
                below = slot.commit

    def check(self, part: Range, *, deep: bool) -> Iterator[CheckedRange]:  # noqa: ARG002 - the protocol's
        """Check commits in runs; a run ends where one is wrong, and the next hangs on what that one claimed to be."""
        layout, topic = self.locate(part.log.topic)
        if part.fault:
            yield CheckedRange(part.log, part.start, part.start, 0, "", part.fault_entry or "?", part.fault)
            return
        first, start, height = part.below, part.start, part.start
        for oid, _, fault in self._events(layout, topic, part, every_object=True):
            height += 1
            if fault is not None or height - start >= RUN or height == part.end:
                yield CheckedRange(
                    part.log,
                    start,
                    height,
                    height - start,
                    json.dumps({"below": first, "above": oid}),
                    oid if fault is not None else None,
                    None if fault is None else fault.detail,
                )
                first, start = oid, height

    def _commits(
        self, layout: Layout, part: Range, *, trees: bool
    ) -> Iterator[tuple[Oid, Oid | None, Found, Found]]:
        """Yield the commits of a range, where their envelopes may lie, and both as far as they are read in bulk.

        With `trees`, only where every tree is there too. Where the index ends, from the commits alone.
        """
        line = self.line(part.log.topic)
        if line.count < part.end:
            down = list(list_chain(self.store, part.above, part.below or None, part.end - part.start))
            yield from ((oid, None, None, None) for oid in reversed(down))
            return
        for start in range(part.start, part.end, CHUNK):
            ids = b"".join(
                [each[36:56] + each[16:36] for each in line.records(start, min(start + CHUNK, part.end))]
            )
            found = self.store.get_many(ids) if layout is SHIPLOG else [None] * (len(ids) // 20)
            whole = self._with_trees(found[1::2]) if trees else None
            names = ids.hex()
            for n, (envelope, commit) in enumerate(zip(found[::2], found[1::2], strict=True)):
                oids = Oid(names[80 * n + 40 : 80 * n + 80]), Oid(names[80 * n : 80 * n + 40])
                yield *oids, None if whole is not None and n not in whole else envelope, commit

    def _with_trees(self, commits: Sequence[Found]) -> set[int]:
        """Return which commits have all trees of a usual event in the store, each hashed again."""
        begun = ((n, found and _TREE.match(found[1])) for n, found in enumerate(commits))
        trees = {n: bytes.fromhex(match[1].decode()) for n, match in begun if match}
        for _ in range(TREES):
            found = self.store.get_many(b"".join(trees.values()))
            # A usual tree has one entry, so its last 20 bytes name the next.
            trees = {
                n: tree[1][-20:] for n, tree in zip(trees, found, strict=True) if tree and tree[0] == "tree"
            }
        return set(trees)

    def _said(self, commit: str) -> Headers | None:
        """Return the headers of the commit before a range; None at a beginning, and where it cannot be read."""
        with contextlib.suppress(RopewalkError):
            if commit:
                return parse_message(parse_commit(get_object(self.store, Oid(commit), "commit")).message)
        return None


def _named(error: RopewalkError, topic: str, commit: str | None = None) -> RopewalkError:
    """Return the same refusal, naming topic and commit."""
    where = f"topic {topic}, commit {commit}" if commit else f"topic {topic}"
    kind = type(error) if error.exit_code == 5 else DigestMismatch
    fields = {**error.fields, "topic": topic, **({"entry": commit} if commit else {})}
    return kind(f"{where}: {error.detail}", advice=None, instance=None, **fields)
