"""Logs as lines: each head vetted against the one seen before, and indexed up to it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from ropewalk.errors import BrokenLink, Damaged, HistoryRewritten, RopewalkError, Unavailable
from ropewalk.gitlog.core.divergence import (
    LogDivergence,
    Memory,
    displaced_ref,
    find_divergence,
    reappend_ref,
)
from ropewalk.gitlog.core.layout import Layout
from ropewalk.gitlog.core.log import describe
from ropewalk.gitlog.core.objects import Oid, parse_commit
from ropewalk.gitlog.core.planning import EntryColumns, EntryRecord, IndexedEntry, Tip
from ropewalk.gitlog.core.reading import missing_topic
from ropewalk.gitlog.store.index import GitIndex, LogExtent, commit_of, records_of
from ropewalk.gitlog.store.object_store import GitStore
from ropewalk.gitlog.store.seen_heads import SeenHeads
from ropewalk.kernel.ulid import Ulid

T = TypeVar("T")
SHORT_WALK_MAX = 256  # commits; beyond that the index is the faster way to find out where we stand
RECALL_CHUNK = 256  # records
OBJECT_ID = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class IndexedLog:
    """One log up to one head; implements the engine's `Line`."""

    layout: Layout
    topic: str
    ref: str
    head: str | None
    count: int
    index: GitIndex
    again: Callable[[], object]  # index it once more: its records were damaged, or dropped by another process

    def find(self, wanted: Ulid) -> IndexedEntry | None:
        slot = self._twice(lambda: self.index.find(self.ref, wanted))
        return slot if slot is not None and slot.height < self.count else None

    def first_above(self, floor: Ulid) -> int:
        return min(self._twice(lambda: self.index.first_above(self.ref, floor)), self.count)

    def span(self, start: int, stop: int) -> Sequence[IndexedEntry]:
        return self._twice(lambda: self.index.span(self.ref, start, stop))

    def records(self, start: int, stop: int) -> list[bytes]:
        return self._twice(lambda: self.index.records(self.ref, start, stop))

    def _twice(self, look: Callable[[], T]) -> T:
        try:
            return look()
        except BrokenLink:
            self.again()
            return look()


@dataclass(frozen=True, slots=True)
class AcceptedHead:
    """What accepting came to. Where there was nothing to accept, nothing parted and nothing was written down."""

    ref: str
    old: str | None
    head: str | None
    divergence: LogDivergence | None
    kept: str | None = None  # the ref that keeps the displaced entries
    anew: bool = False  # the head seen before could not be read


class TrackedLogs:
    """All logs of one repository."""

    def __init__(self, store: GitStore) -> None:
        self._store = store
        self.seen = SeenHeads(store.place.home / "seen", store.disk)
        self._index: GitIndex | None = None
        self._tips: dict[str, Tip] = {}
        self._pending: dict[str, tuple[LogExtent, list[bytes]]] = {}

    @property
    def index(self) -> GitIndex:
        """The index, opened on first use: an append alone does not need it."""
        if self._index is None:
            self._index = GitIndex(self._store.place.home / "index")
        return self._index

    def close(self) -> None:
        """Close the index; the next use opens it again."""
        index, self._index = self._index, None
        if index is not None:
            index.close()

    def names(self, layout: Layout, *, tolerant: bool = False) -> list[str]:
        """List the logs with a head, and those whose head was seen here before: these are missing, not absent.

        A tolerant caller gets those alone where the refs cannot be listed.
        """
        refs = set(self.seen.refs(layout.prefix))
        try:
            refs.update(self._store.head_names(layout.prefix))
        except RopewalkError:
            if not tolerant:
                raise
        return sorted(topic for ref in refs if (topic := layout.topic_of(ref)) is not None)

    def covered(self, layout: Layout, topic: str) -> IndexedLog:
        """Return as much of a log as the index covers, without its head: for readers of a damaged log."""
        ref = layout.head_ref(topic)
        known = self.index.extent(ref)
        again = partial(
            self.index.catch_up, ref, known.head, partial(describe, self._store, layout, topic), None
        )
        return IndexedLog(layout, topic, ref, known.head, known.count, self.index, again)

    def line(self, layout: Layout, topic: str, *, must_exist: bool = True) -> IndexedLog:
        """Return the present log. Refuse a head that no longer contains the one seen before."""
        try:
            return self._line(layout, topic, must_exist)
        except HistoryRewritten as error:
            if not self._resume_push(layout, topic, error):
                raise
        return self._line(layout, topic, must_exist)

    def _line(self, layout: Layout, topic: str, must_exist: bool) -> IndexedLog:
        ref = layout.head_ref(topic)
        self.flush(ref)
        # What was seen is read first: an append in between moves both, and must not look like a rewritten history.
        seen = self.seen.get(ref)
        head = self._store.head(ref)
        if head is None and seen is None and must_exist:
            raise missing_topic(layout, topic)
        shown = partial(describe, self._store, layout, topic)
        try:
            extent = self.index.catch_up(ref, head, shown, seen)
        except Unavailable:
            # A full disk or a read-only index: reading continues.
            self.close()
            self._index = GitIndex.private()
            extent = self._index.catch_up(ref, head, shown, seen)
        if head is not None and head != seen:
            self.seen.set(ref, head)
        again = partial(self.index.catch_up, ref, head, shown, None)
        return IndexedLog(layout, topic, ref, head, extent.count, self.index, again)

    def tip(self, layout: Layout, topic: str, head: str | None) -> Tip:
        """Return the vetted tip under a head, without the index where a few commits tell.

        A head that was overtaken since the caller read it is no rewritten history: the newer one counts.
        """
        while True:
            try:
                return self._tip(layout, topic, head)
            except HistoryRewritten as error:
                now = self._store.head(layout.head_ref(topic))
                if now == head and not self._resume_push(layout, topic, error):
                    raise
                head = now

    def _tip(self, layout: Layout, topic: str, head: str | None) -> Tip:
        ref = layout.head_ref(topic)
        seen = self.seen.get(ref)
        if head is None:
            if seen is not None:
                raise HistoryRewritten(
                    f"{ref} is gone; it was at {seen[:7]}", ref=ref, expected=seen, got=None
                )
            return Tip()
        known = self._tips.get(ref)
        if known is not None and known.commit == head == seen:
            return known
        slot = describe(self._store, layout, topic, Oid(head))
        height = self._short_walk(slot, known, seen)
        if height is None:
            height = self.line(layout, topic).count - 1
        return Tip(Oid(head), slot.ulid, height)

    def grown(self, layout: Layout, topic: str, start: Tip, tip: Tip, places: EntryColumns) -> None:
        """Remember an append that succeeded: the tip for the next one, the places for the index."""
        ref = layout.head_ref(topic)
        assert tip.commit is not None
        self._tips[ref] = tip
        self.seen.set(ref, tip.commit)
        base, waiting = self._pending.get(ref, (LogExtent(start.commit, start.height + 1), []))
        if waiting and commit_of(waiting[-1]) != start.commit:
            base, waiting = LogExtent(start.commit, start.height + 1), []
        waiting.extend(records_of(*places))
        self._pending[ref] = (base, waiting)
        if len(waiting) >= 2_000:
            self.flush(ref)

    def flush(self, ref: str) -> None:
        """Add to the index what this process appended; an index at another head catches up by itself."""
        base, waiting = self._pending.pop(ref, (None, []))
        if base is not None and waiting:
            # The events are durable without the index.
            with contextlib.suppress(Unavailable, OSError):
                self.index.add(ref, base, waiting)

    def flush_large(self, at_least: int) -> None:
        """Give the index what would be slow to find again by walking."""
        for ref, (_, waiting) in list(self._pending.items()):
            if len(waiting) >= at_least:
                self.flush(ref)

    def compare(self, layout: Layout, topic: str, old: str | None = None) -> LogDivergence:
        """Return where the line seen before, or the one below `old`, and the line now there part."""
        ref = layout.head_ref(topic)
        seen, head = old or self.seen.get(ref), self._store.head(ref)
        if seen is None and head is None:
            raise missing_topic(layout, topic)
        recall = partial(self._recall, ref)
        return find_divergence(self._store, layout, topic, _oid(seen), _oid(head), recall)

    def accept(self, layout: Layout, topic: str, who: str, *, keep: bool = True) -> AcceptedHead:
        """Take the history a ref has now as the truth, on the record; where it is what was seen, nothing is done.

        `keep` holds the displaced entries by a ref, so that git does not clear them away.
        """
        ref = layout.head_ref(topic)
        try:
            self.seen.get(ref)
        except Damaged:
            return self._accept_anew(layout, topic, who)
        # Comparing costs as much as was displaced, where reading would first walk the whole log in vain.
        found = self.compare(layout, topic) if self.seen.get(ref) is not None else None
        if found is None or not found.displaced:
            head = self.line(layout, topic).head
            return AcceptedHead(ref, self.seen.get(ref), head, None)
        # A ref over a history with holes would make git itself stumble.
        whole = not found.gone and found.cut is None
        kept = self._keep(layout, topic, found.displaced[-1].commit) if keep and whole else None
        if found.new is not None:
            self._walk_again(layout, topic, found.new)
        self.seen.accept(ref, found.new, who)
        self._tips.pop(ref, None)
        self._pending.pop(ref, None)
        return AcceptedHead(ref, found.old, found.new, found, kept)

    def _resume_push(self, layout: Layout, topic: str, error: HistoryRewritten) -> bool:
        """Accept a head that a push of ours moved before it was killed; return whether there was one.

        The displaced events are kept, and the next push or pull re-appends them.
        """
        ref = layout.head_ref(topic)
        with contextlib.suppress(Unavailable), self._store.turn(ref):
            if (seen := self.seen.get(ref)) != error.fields.get("expected"):
                return True  # the push has gone on meanwhile
            if seen is not None and self._store.head(reappend_ref(layout, topic)) == seen:
                self.accept(layout, topic, "interrupted push")
                return True
        return False

    def _accept_anew(self, layout: Layout, topic: str, who: str) -> AcceptedHead:
        """Take the head a log has now as seen, where the one seen before cannot be read any more."""
        ref = layout.head_ref(topic)
        head = self._store.head(ref)
        if head is not None:
            self._walk_again(layout, topic, head)
        self.seen.accept(ref, head, who)
        return AcceptedHead(ref, None, head, None, anew=True)

    def _walk_again(self, layout: Layout, topic: str, head: str) -> None:
        """Index a log from nothing: a history that is accepted must at least be readable down to its root."""
        ref = layout.head_ref(topic)
        self._tips.pop(ref, None)
        self._pending.pop(ref, None)
        self.index.forget(ref)
        self.index.catch_up(ref, head, partial(describe, self._store, layout, topic), None)

    def kept(self, layout: Layout, topic: str) -> list[str]:
        """Return the heads of the displaced lines of a topic that are kept here."""
        prefix = displaced_ref(layout, topic, "")
        names = (ref.removeprefix(prefix) for ref in self._store.head_names(prefix))
        return [name for name in names if OBJECT_ID.fullmatch(name)]

    def _keep(self, layout: Layout, topic: str, commit: str) -> str:
        ref = displaced_ref(layout, topic, commit)
        if self._store.head(ref) is None:
            self._store.move_head(ref, None, commit)
        return ref

    def _recall(self, ref: str) -> Memory:
        """Yield what the index remembers of the line it covers, asked from the top down: it is read through once."""

        def remembered() -> Iterator[EntryRecord]:
            above: IndexedEntry | None = None
            stop = self.index.extent(ref).count
            while stop > 0:
                start = max(0, stop - RECALL_CHUNK)
                for place in reversed(self.index.span(ref, start, stop)):
                    if above is not None:
                        yield _slot(above, place.commit)
                    above = place
                stop = start
            if above is not None:
                yield _slot(above, None)

        places = remembered()

        def recall(commit: Oid) -> EntryRecord | None:
            with contextlib.suppress(BrokenLink, Unavailable):  # a damaged index remembers nothing
                return next((slot for slot in places if slot.commit == commit), None)
            return None

        return recall

    def _short_walk(self, slot: EntryRecord, known: Tip | None, seen: str | None) -> int | None:
        """Return the height of a commit, if the head seen last and a commit of known height are a short way down."""
        if known is None or known.commit is None:
            if slot.parent is None and seen in (None, slot.commit):
                return 0
            return None
        met = seen is None
        at: str | None = slot.commit
        for steps in range(SHORT_WALK_MAX):
            met = met or at == seen
            if at == known.commit:
                return known.height + steps if met else None
            if at is None:
                return None
            kind, raw = self._store.get(at)
            if kind != "commit":
                raise BrokenLink(f"{at} is a {kind}, not a commit", entry=at)
            parents: tuple[Any, ...] = parse_commit(raw).parents
            at = parents[0] if parents else None
        return None


def _oid(name: str | None) -> Oid | None:
    return None if name is None else Oid(name)


def _slot(place: IndexedEntry, parent: str | None) -> EntryRecord:
    return EntryRecord(place.ulid, place.content_id, Oid(place.commit), Oid(place.blob), _oid(parent))
