"""Read the logs of a repository from the newest end, and find single events."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ropewalk.errors import Invalid, NotFound
from ropewalk.gitlog.consumers.consumers import find_position
from ropewalk.gitlog.core.commit import Headers, parse_message, rfc3339
from ropewalk.gitlog.core.envelope import Event
from ropewalk.gitlog.core.layout import LOG_NOTES, MESSAGES, SHIPLOG, Layout
from ropewalk.gitlog.core.log import get_object
from ropewalk.gitlog.core.notes import check_log, read_note
from ropewalk.gitlog.core.objects import Commit, Oid, parse_commit
from ropewalk.gitlog.core.planning import IndexedEntry
from ropewalk.gitlog.core.reading import events
from ropewalk.kernel.terminal_text import printable
from ropewalk.kernel.ulid import Ulid, is_ulid

if TYPE_CHECKING:
    from ropewalk.gitlog.repository.repository import GitRepository

CHUNK = 64
NAME_SHOWN_MAX = 100  # characters


@dataclass(frozen=True, slots=True)
class EventDetails:
    """One event with everything the repository knows about it."""

    event: Event
    trailer: dict[str, Any] | None
    author: str
    time: str
    note: str | None


def newest_first(log: GitRepository, topic: str) -> Iterator[tuple[Event, Headers]]:
    """Yield the events of a topic from the newest to the oldest, with what their commits say."""
    for event, commit in history(log, topic):
        yield event, parse_message(commit.message)


def history(
    log: GitRepository, topic: str, layout: Layout = SHIPLOG, before: Ulid | None = None
) -> Iterator[tuple[Event, Commit]]:
    """Yield the events below a ULID from the newest to the oldest, with their commits."""
    line = log.lines.line(layout, topic)
    stop = line.count if before is None else line.first_above(before)
    if before is not None and stop and line.span(stop - 1, stop)[0].ulid == before:
        stop -= 1
    while stop > 0:
        start = max(0, stop - CHUNK)
        for event in reversed(list(events(log.store, line, start, stop))):
            yield event, _commit(log, event.commit)
        stop = start


def find_event(log: GitRepository, name: str) -> EventDetails:
    """Return an event by ULID, commit (or the beginning of one), namespace or ref."""
    layout, topic, place = _locate(log, name)
    line = log.lines.line(layout, topic)
    (event,) = events(log.store, line, place.height, place.height + 1)
    commit = _commit(log, event.commit)
    note = read_note(log.store, LOG_NOTES, event.commit)
    if note is not None:
        check_log(event.envelope, event.commit, note)
    return EventDetails(
        event,
        parse_message(commit.message).trailer,
        f"{commit.author.name} <{commit.author.mail}>",
        rfc3339(commit.author.time_s * 1_000),
        note.decode("utf-8", "replace") if note is not None else None,
    )


def _locate(log: GitRepository, name: str) -> tuple[Layout, str, IndexedEntry]:
    known = [(layout, topic) for layout in (SHIPLOG, MESSAGES) for topic in log.topics(layout)]
    for layout, topic in known:
        if name in (topic, layout.head_ref(topic)):
            line = log.lines.line(layout, topic)
            return layout, topic, line.span(line.count - 1, line.count)[0]
    to = name
    if not is_ulid(name):
        with contextlib.suppress(Invalid):
            to = log.store.resolve(name.lower())
    for layout, topic in known:
        with contextlib.suppress(NotFound, Invalid):
            return layout, topic, find_position(log, log.lines.line(layout, topic), to)
    shown = printable(name, NAME_SHOWN_MAX)
    raise NotFound(f"{shown} names no event, namespace or ref of this repository", name=shown, ns=shown)


def _commit(log: GitRepository, oid: Oid) -> Commit:
    return parse_commit(get_object(log.store, oid, "commit"))
