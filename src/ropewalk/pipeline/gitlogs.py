"""Git logs as rows: positions are heights, cut by the index, checked commit by commit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

from ropewalk.errors import BrokenLink, DigestMismatch, HistoryRewritten, Invalid, NotFound, RopewalkError
from ropewalk.gitlog.commit import Headers, check_trailer, parse_message
from ropewalk.gitlog.envelope import read_envelope
from ropewalk.gitlog.layout import LAYOUTS, MESSAGES, SHIPLOG, Layout
from ropewalk.gitlog.log import describe, find_blob, get_object
from ropewalk.gitlog.objects import Commit, Oid, parse_commit
from ropewalk.kernel import schema, ulid
from ropewalk.kernel.jcs import parse_foreign
from ropewalk.pipeline.logs import CheckedRange, Want
from ropewalk.pipeline.offsets import Extent, Point, Range
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
        head, seen = self.store.head(ref), self.seen.get(ref)
        told = partial(describe, self.store, layout, name)
        try:
            found = self.index.catch_up(ref, head, told, seen)
        except HistoryRewritten:
            raise
        except RopewalkError as error:
            if not tolerant:
                raise self._named(error, topic) from error
            known = self.index.extent(ref)
            where = str(error.fields.get("entry") or error.fields.get("expected") or head or "")
            return Extent(Point(known.count, known.head or ""), fault=error.detail, fault_entry=where)
        if head is not None and head != seen:
            self.seen.set(ref, head)
        return Extent(Point(found.count, found.head or ""))

    def id_at(self, topic: str, position: int) -> str:
        """The commit at a height."""
        return self.index.span(self._ref(topic), position, position + 1)[0].commit

    def find(self, topic: str, bound: str, end: Point) -> int | None:
        """A height, a ULID or a commit; a cursor means the place behind it."""
        if bound.isdigit() and len(bound) < 19:
            return min(int(bound), end.position)
        ref = self._ref(topic)
        if ulid.is_ulid(bound):
            return min(self.index.first_above(ref, ulid.parse(bound)), end.position)
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
        return min(self.index.first_above(self._ref(topic), floor), end.position)

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
        rows: list[Row] = []
        if part.fault:
            if want.mode == "strict":
                raise DigestMismatch(
                    f"topic {topic}, commit {part.fault_entry}: {part.fault}",
                    topic=topic,
                    entry=part.fault_entry,
                )
            yield [broken_row("gitlog", topic, -1, part.fault, entry_id=part.fault_entry or None)]
            return
        below = part.below
        for slot in self._slots(part):
            try:
                row = self._row(layout, topic, slot, below, want)
            except RopewalkError as error:
                if want.mode == "strict":
                    raise self._named(error, topic, slot.commit) from error
                row = broken_row(
                    "gitlog",
                    topic,
                    slot.height,
                    error.detail,
                    entry_id=slot.commit,
                    content_id=slot.content_id,
                    height=slot.height,
                )
            below = slot.commit
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

    def check(self, part: Range, *, deep: bool) -> Iterator[CheckedRange]:  # noqa: ARG002 - the protocol's
        """Commits in runs; a run ends where one is wrong, and the next hangs on what that one claimed to be."""
        layout, topic = self.locate(part.log.topic)
        if part.fault:
            yield CheckedRange(part.log, part.start, part.start, 0, "", part.fault_entry or "?", part.fault)
            return
        first, below, start = part.below, part.below, part.start
        for slot in self._slots(part):
            fault = None
            try:
                self._checked(layout, topic, slot, below)
            except RopewalkError as error:
                fault = error.detail
            below = slot.commit
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

    def _row(self, layout: Layout, topic: str, slot: IndexedSlot, below: str, want: Want) -> Row:
        if want.mode != "off":
            commit, headers, document = self._checked(layout, topic, slot, below)
            parents: tuple[str, ...] = commit.parents
            return gitlog_row(
                topic,
                slot.height,
                slot.commit,
                slot.content_id,
                parents,
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

    def _checked(
        self, layout: Layout, topic: str, slot: IndexedSlot, below: str
    ) -> tuple[Commit, Headers, dict[str, Any]]:
        """Everything a commit promises about its event and its place, held against the bytes."""
        commit = parse_commit(get_object(self.store, Oid(slot.commit), "commit"))
        parents = (below,) if slot.height else ()
        if commit.parents != parents:
            raise BrokenLink(
                f"stands on {', '.join(commit.parents) or 'nothing'}, not on {below or 'nothing'}",
                entry=slot.commit,
            )
        headers = parse_message(commit.message)
        if layout.topic_is_ns and headers.namespace != topic:
            raise DigestMismatch(
                f"Namespace is {headers.namespace!r}, the log is {topic!r}", where=slot.commit
            )
        if (headers.ulid, headers.content_id) != (slot.ulid, slot.content_id):
            raise DigestMismatch("the index names another event for this commit", where=slot.commit)
        raw = get_object(
            self.store, find_blob(self.store, layout, topic, headers, commit.tree, Oid(slot.commit)), "blob"
        )
        document, canonical = read_envelope(raw, headers.content_id)
        if document["ulid"] != headers.ulid:
            raise DigestMismatch(
                f"the envelope says {document['ulid']}, the commit {headers.ulid}", where=slot.commit
            )
        if layout.topic_is_ns and document.get("ns") != topic:
            raise DigestMismatch(f"the envelope says ns {document.get('ns')!r}", where=slot.commit)
        if not canonical:
            raise DigestMismatch("the envelope's bytes are not canonical", where=slot.commit)
        schema.validate(layout.envelope_schema, document)
        if layout.has_trailer:
            _check_trailer(headers, parents, slot.height)
        return commit, headers, document

    def _slots(self, part: Range) -> Iterator[IndexedSlot]:
        ref = self._ref(part.log.topic)
        last = None
        for start in range(part.start, part.end, CHUNK):
            for slot in self.index.span(ref, start, min(start + CHUNK, part.end)):
                if last is not None and slot.ulid <= last:
                    raise BrokenLink(
                        f"topic {part.log.topic}, commit {slot.commit}: ULID {slot.ulid} is not above {last}",
                        entry=slot.commit,
                    )
                last = slot.ulid
                yield slot

    def _present(self, layout: Layout) -> set[str]:
        return {
            topic for ref in self.store.heads(layout.prefix) if (topic := layout.topic_of(ref)) is not None
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


def _check_trailer(headers: Headers, parents: tuple[str, ...], height: int) -> None:
    if headers.trailer is None:
        raise DigestMismatch("there is no trailer", where="trailer")
    check_trailer(headers.trailer)
    named = headers.trailer.get("journal_parent")
    if named is not None and (named,) != parents:
        raise BrokenLink(f"journal_parent is {named}, the parent is {', '.join(parents) or 'nothing'}")
    seq = headers.trailer.get("seq")
    if seq is not None and int(seq) != height:
        raise BrokenLink(f"seq is {seq} at height {height}")
