"""Consumers of a repository: events handed out, positions moved only behind what was handled."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ropewalk.errors import Conflict, Invalid, NotFound, RopewalkError, Unverified
from ropewalk.gitlog.consumers.cursor import (
    Cursor,
    check_kind,
    find_cursor,
    height_of,
    move_cursor,
    read_cursor,
    split_ref,
)
from ropewalk.gitlog.core.commit import parse_message
from ropewalk.gitlog.core.envelope import Event
from ropewalk.gitlog.core.layout import CONSUMERS, MESSAGES, SHIPLOG, Layout, consumer_ref
from ropewalk.gitlog.core.objects import parse_commit
from ropewalk.gitlog.core.planning import IndexedEntry
from ropewalk.gitlog.core.reading import LogView, events
from ropewalk.kernel.ulid import Ulid, is_ulid, parse

if TYPE_CHECKING:
    from ropewalk.gitlog.repository.repository import GitRepository


@contextlib.contextmanager
def consume(
    log: GitRepository, group: str, topic: str, limit: int, layout: Layout
) -> Iterator[Iterator[Event]]:
    """See `GitRepository.consume`."""
    line = log.lines.line(layout, topic)
    old = open_cursor(log, group, topic, layout)
    start = height_of(line, old) + 1
    handled = -1

    def hand_out() -> Iterator[Event]:
        nonlocal handled
        for event in events(log.store, line, start, min(start + limit, line.count)):
            handled = event.height
            yield event

    yield hand_out()
    if handled >= 0:
        (place,) = line.span(handled, handled + 1)
        move_cursor(log.store, layout, group, topic, place, old)


def open_cursor(log: GitRepository, group: str, topic: str, layout: Layout) -> Cursor | None:
    """Return the cursor of a group, None if it has not begun. Raise if a cursor of this topic could not be stored."""
    cursor = read_cursor(log.store, group, topic)
    check_kind(layout, cursor)
    others = [] if cursor is not None else log.store.head_names(f"{CONSUMERS}{group}/")
    for _, other in map(split_ref, others):
        if other.startswith(f"{topic}/") or topic.startswith(f"{other}/"):
            raise Conflict(
                f"group {group} reads {other} already; git cannot also keep a checkpoint of {topic}",
                ref=consumer_ref(group, topic),
                other=consumer_ref(group, other),
                advice="Use a separate group for each topic.",
            )
    return cursor


def cursors(log: GitRepository) -> list[Cursor]:
    """Return every cursor of the repository; one that cannot be read has no ULID."""
    found = (find_cursor(log.store, *split_ref(ref)) for ref in log.store.head_names(CONSUMERS))
    return [cursor for cursor in found if cursor is not None]


def set_cursor(
    log: GitRepository,
    group: str,
    topic: str,
    to: str,
    *,
    layout: Layout = SHIPLOG,
    reset: bool = False,
    other_kind: bool | None = None,
) -> Cursor:
    """Put a group on an event named by ULID or by commit; going back needs `reset`.

    `other_kind` allows replacing a cursor of the other specification; default: as `reset`.
    """
    place = find_position(log, log.lines.line(layout, topic), to)
    old = read_cursor(log.store, group, topic)
    replace = reset if other_kind is None else other_kind
    return move_cursor(log.store, layout, group, topic, place, old, backwards=reset, other_kind=replace)


def reset_cursor(
    log: GitRepository, group: str, topic: str, to: str, *, dry_run: bool = False
) -> dict[str, Any]:
    """Move a group to an event, to `beginning` or to `now`; return what changes."""
    old = find_cursor(log.store, group, topic)
    layout = _layout_of(log, topic, old)
    line = log.lines.line(layout, topic)
    place: IndexedEntry | None
    if to == "beginning":
        place = None
    elif to == "now":
        place = line.span(line.count - 1, line.count)[0] if line.count else None
    else:
        place = find_position(log, line, to)
    if not dry_run and place is not None:
        move_cursor(log.store, layout, group, topic, place, old, backwards=True, other_kind=True)
    if not dry_run and place is None and old is not None:
        log.store.drop_head(old.ref, old.target)
    return {
        "ref": consumer_ref(group, topic),
        "group": group,
        "ns": topic,
        "old": (old.ulid or None) if old else None,
        "ulid": place.ulid if place else None,
        "commit": place.commit if place else None,
        "behind": line.count - 1 - (place.height if place else -1),
    }


def cursor_status(log: GitRepository, cursor: Cursor) -> dict[str, Any]:
    """Return the position of a cursor and the head of its topic."""
    row: dict[str, Any] = {"group": cursor.group, "ns": cursor.topic, "ulid": cursor.ulid or None}
    head: Ulid | None = None
    behind: int | None = None
    with contextlib.suppress(NotFound, Invalid, Unverified):  # one log that cannot be read hides no other
        line = log.lines.line(_layout_of(log, cursor.topic, cursor), cursor.topic)
        head = line.span(line.count - 1, line.count)[0].ulid if line.count else None
        behind = line.count - 1 - height_of(line, cursor) if cursor.ulid else None
    return {**row, "head_ulid": head, "behind": behind}


def find_position(log: GitRepository, line: LogView, to: str) -> IndexedEntry:
    """Return an event of a line by ULID or by full commit id."""
    slot: IndexedEntry | None
    if is_ulid(to) or len(to) == 26:
        slot = line.find(parse(to))
    else:
        kind, raw = log.store.get(to)
        slot = None
        if kind == "commit":
            with contextlib.suppress(RopewalkError):
                slot = line.find(parse_message(parse_commit(raw).message).ulid)
        slot = slot if slot is not None and slot.commit == to else None
    if slot is None:
        raise NotFound(f"{to} is not an event of {line.topic}", topic=line.topic, event=to)
    return slot


def _layout_of(log: GitRepository, topic: str, cursor: Cursor | None) -> Layout:
    """Return which layout a consumer's topic lives in: by what its cursor is, else by which log exists."""
    order = (MESSAGES, SHIPLOG) if cursor is not None and cursor.by == "blob" else (SHIPLOG, MESSAGES)
    for layout in order:
        with contextlib.suppress(RopewalkError):
            if log.store.head(layout.head_ref(topic)) is not None:
                return layout
    return order[0]
