"""The clock of a repository: a reading, and how far ahead of it events may be dated."""

from __future__ import annotations

from collections.abc import Iterator

from ropewalk.gitlog.core.clock_limit import ClockLimit
from ropewalk.gitlog.core.layout import MESSAGES, SHIPLOG
from ropewalk.gitlog.core.log import describe
from ropewalk.gitlog.core.objects import Oid
from ropewalk.gitlog.store.object_store import GitStore


def limit_of(store: GitStore, now_ms: int) -> ClockLimit:
    """Return the limit of a repository at a moment; git's setting is read only where an event is dated ahead."""
    return ClockLimit(now_ms, lambda: store.clock_skew_ms)


def heads_ahead(store: GitStore, now_ms: int) -> Iterator[str]:
    """Name every log whose head, which has its highest ULID, is dated ahead of the clock, and say what to do."""
    limit = limit_of(store, now_ms)
    for layout in (SHIPLOG, MESSAGES):
        for ref, head in store.heads(layout.prefix).items():
            topic = layout.topic_of(ref)
            if topic is None:
                continue
            ulid = describe(store, layout, topic, Oid(head)).ulid
            if limit.is_ahead(ulid):
                log = layout.option(topic)
                yield f"{log}: its head {ulid} is {limit.dated(ulid)}. {limit.advice(log, ulid)}"
