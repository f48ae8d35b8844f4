"""A repository for programs: append, read, tail, consume. Synchronous, safe to share between threads."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ropewalk.disk.closing import Closing
from ropewalk.errors import InvalidEnvelope, RopewalkError
from ropewalk.gitlog.consumers.consumers import consume
from ropewalk.gitlog.core.clock_limit import ClockLimit
from ropewalk.gitlog.core.envelope import Draft, Event
from ropewalk.gitlog.core.layout import SHIPLOG, Layout
from ropewalk.gitlog.core.objects import GitSignature
from ropewalk.gitlog.core.planning import AppendContext, IndexedEntry, Receipt
from ropewalk.gitlog.core.reading import LIMIT_DEFAULT, EventPage, events, height_after, interleave, read
from ropewalk.gitlog.privacy.apply import PrivacyRules
from ropewalk.gitlog.privacy.blob_store import PrivateStore
from ropewalk.gitlog.privacy.rules import PrivacyPolicy
from ropewalk.gitlog.privacy.screening import screen_drafts
from ropewalk.gitlog.repository.clock import limit_of
from ropewalk.gitlog.repository.group_commit import Writer
from ropewalk.gitlog.repository.tracked_logs import TrackedLogs
from ropewalk.gitlog.store.object_store import GitStore
from ropewalk.gitlog.store.rollup import PACKS_SMALL_MAX, pack_count, roll_up
from ropewalk.kernel.ulid import Ulid, next_ulid, parse

ROLL_UP_EVERY = 64  # packs written by this process
FOLLOW_PAUSE_S = 0.2


class GitRepository(Closing):
    """Events in a git repository. Topics are namespaces of S0 unless another layout is named."""

    def __init__(
        self, store: GitStore, *, now_ms: Callable[[], int], entropy: Callable[[int], bytes]
    ) -> None:
        self.store = store
        self.lines = TrackedLogs(store)
        self.now_ms = now_ms
        self._entropy = entropy
        self._writer = Writer(store, self.lines, self._setting)
        self.allow_secrets: bool | Collection[str] = False  # True: all that look like one; else these kinds
        self.private = PrivateStore(store.place.home / "private", store.disk)
        self.privacy = PrivacyRules(
            store.place, self.private, identity=lambda: store.identity, now_ms=lambda: self.now_ms()
        )
        self._packs = 0
        self._roller: threading.Thread | None = None

    def close(self) -> None:
        """Finish background work. Nothing that was acknowledged depends on it."""
        if self._roller is not None:
            self._roller.join()
        with contextlib.suppress(RopewalkError, OSError):
            self.lines.flush_large(64)
        if self._packs and self._roller is None:
            self._roll_up()
        self.lines.close()
        self.store.close()

    def append(
        self,
        topic: str,
        document: Mapping[str, Any],
        *,
        trailer: Mapping[str, Any] | None = None,
        attachments: Mapping[str, bytes] | None = None,
        layout: Layout = SHIPLOG,
    ) -> Receipt:
        """Record one event; when this returns, it is on disk. Concurrent callers share the wait for the disk."""
        (outcome,) = self.append_all(
            topic, [Draft(document, trailer, attachments=attachments or {})], layout=layout
        )
        if isinstance(outcome, RopewalkError):
            raise outcome
        return outcome

    def append_all(
        self, topic: str, drafts: Sequence[Draft], *, layout: Layout = SHIPLOG
    ) -> list[Receipt | RopewalkError]:
        """Record many events at once; one outcome each, and a refusal harms no other."""
        layout.head_ref(topic)
        policy = self.privacy.policy()
        vetted = [self._shaped(draft, policy) for draft in drafts]
        if self.allow_secrets is not True:
            vetted = screen_drafts(vetted, self.allow_secrets or ())
        fit = [draft for draft in vetted if isinstance(draft, Draft)]
        written = iter(self._writer.submit(layout, topic, fit) if fit else ())
        outcomes = [next(written) if isinstance(each, Draft) else each for each in vetted]
        self.note_pack()
        return outcomes

    def read(
        self,
        topic: str,
        since: str | None = None,
        limit: int = LIMIT_DEFAULT,
        *,
        layout: Layout = SHIPLOG,
        bytes_max: int | None = None,
    ) -> EventPage:
        """Return a page of events after a ULID, in order; `bytes_max` ends it with the event that reaches that size."""
        after = None if since is None else parse(since)
        return read(self.store, self.lines.line(layout, topic), after, limit, bytes_max)

    def events(self, topic: str, since: str | None = None, *, layout: Layout = SHIPLOG) -> Iterator[Event]:
        """Yield every event after a ULID, in order, one at a time: memory does not grow with the log."""
        line = self.lines.line(layout, topic)
        start, _ = height_after(line, None if since is None else parse(since))
        return events(self.store, line, start, line.count)

    def tail(
        self,
        topics: Iterable[str],
        since: Mapping[str, str] | None = None,
        limit_per_topic: int = LIMIT_DEFAULT,
        *,
        layout: Layout = SHIPLOG,
    ) -> list[Event]:
        """Return the newest events of topics, one of each in turn; with `since`, those after each topic's ULID."""
        pages: dict[str, Sequence[Event]] = {}
        for topic in topics:
            line = self.lines.line(layout, topic, must_exist=since is None)
            if since is not None and topic in since:
                start, _ = height_after(line, parse(since[topic]) if since[topic] else None)
                stop = min(start + limit_per_topic, line.count)
            else:
                start, stop = max(0, line.count - limit_per_topic), line.count
            pages[topic] = list(events(self.store, line, start, stop))
        return list(interleave(pages))

    def follow(
        self,
        topics: Sequence[str],
        since: Mapping[str, str] | None = None,
        *,
        layout: Layout = SHIPLOG,
        stop: threading.Event | None = None,
    ) -> Iterator[Event]:
        """Yield events as they come, for ever (or until `stop` is set), one of each topic in turn.

        Begins where the topics stand when this is called, not when the first event is asked for.
        """
        marks = dict(since or {})
        if since is None:
            for topic in topics:
                line = self.lines.line(layout, topic, must_exist=False)
                marks[topic] = line.span(line.count - 1, line.count)[0].ulid if line.count else ""
        return self._followed(topics, marks, layout, stop or threading.Event())

    def _followed(
        self, topics: Sequence[str], marks: dict[str, str], layout: Layout, stop: threading.Event
    ) -> Iterator[Event]:
        while not stop.is_set():
            batch = self.tail(topics, {topic: marks.get(topic, "") for topic in topics}, layout=layout)
            for event in batch:
                marks[event.topic] = event.ulid
                yield event
            if not batch:
                stop.wait(FOLLOW_PAUSE_S)

    def consume(
        self, group: str, topic: str, limit: int = LIMIT_DEFAULT, *, layout: Layout = SHIPLOG
    ) -> contextlib.AbstractContextManager[Iterator[Event]]:
        """Hand out the events a group has not handled yet; its position moves after the block returns.

        If the block raises, or the process dies, the position stays and the events come again: none is skipped.
        Only what was taken from the iterator counts as handled.
        """
        return consume(self, group, topic, limit, layout)

    def topics(self, layout: Layout = SHIPLOG) -> list[str]:
        """Return the topics that have a head."""
        found = (layout.topic_of(ref) for ref in self.store.head_names(layout.prefix))
        return [topic for topic in found if topic is not None]

    def note_pack(self) -> None:
        """Count a written pack; roll small packs up from time to time."""
        self._packs += 1
        if self._packs % ROLL_UP_EVERY == 0:
            self._roll_up_in_background()

    def _setting(self) -> AppendContext:
        now = self.now_ms()
        skew_ms = self.clock_limit().skew_ms
        return AppendContext(now, self._entropy(10), self.author(now), self._find, self._holds, skew_ms)

    def clock_limit(self) -> ClockLimit:
        """Return the clock now, and how far ahead of it events may be dated."""
        return limit_of(self.store, self.now_ms())

    def author(self, now_ms: int) -> GitSignature:
        """Return who writes here, at a moment."""
        name, _, mail = self.store.identity.rpartition(" <")
        return GitSignature(name, mail.rstrip(">"), now_ms // 1000)

    def new_ulid(self, last: Ulid | None = None) -> Ulid:
        """Return a ULID of now, above `last`."""
        return next_ulid(last, self.now_ms(), self._entropy(10))

    def _find(self, layout: Layout, topic: str, wanted: Ulid) -> IndexedEntry | None:
        return self.lines.line(layout, topic).find(wanted)

    def _holds(self, layout: Layout, topic: str, document: Mapping[str, object]) -> Ulid | None:
        body = {"ns": topic, **document, "ulid": ""}
        for event in self.events(topic, layout=layout):
            if {**event.envelope, "ulid": ""} == body:
                return event.ulid
        return None

    def _shaped(self, draft: Draft, policy: PrivacyPolicy | None) -> Draft | RopewalkError:
        """Return the draft as the privacy rules leave it, or why it may not be recorded."""
        try:
            document: object = draft.document
            if not isinstance(document, Mapping):
                kind = type(document).__name__
                raise InvalidEnvelope(f"an event is a mapping, as a dict is, not {kind}", where="")
            return self.privacy.apply(draft, policy)
        except RopewalkError as error:
            return error

    def _roll_up_in_background(self) -> None:
        if self._roller is None or not self._roller.is_alive():
            self._roller = threading.Thread(target=self._roll_up, name="ropewalk-roll-up", daemon=True)
            self._roller.start()

    def _roll_up(self) -> None:
        # Housekeeping: a failure is retried later and harms no event.
        with contextlib.suppress(RopewalkError, OSError):
            if pack_count(self.store.pack_folder) > PACKS_SMALL_MAX:
                roll_up(self.store.pack_folder, self.store.place.home / "locks", self.store.disk)
