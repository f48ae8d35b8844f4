"""Read a log: pages after a ULID, several logs interleaved, and the `messages.read` answer of S1.

The order is the parent chain. An index gives the positions; every byte that is returned was hashed again.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ropewalk.errors import DigestMismatch, NotFound, RangeExceeded
from ropewalk.gitlog.core.envelope import Event, read_envelope
from ropewalk.gitlog.core.layout import Layout
from ropewalk.gitlog.core.log import Repo, get_object
from ropewalk.gitlog.core.objects import FOLDER, Commit, Oid, parse_tree
from ropewalk.gitlog.core.planning import IndexedEntry
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import content_id
from ropewalk.kernel.ulid import Ulid, parse

LIMIT_DEFAULT = 128
LIMIT_MAX = 512  # S1 §5: servers clamp above this
CHUNK = 256  # events looked up at a time


class LogView(Protocol):
    """One log, indexed up to the head it had when the line was asked for."""

    @property
    def layout(self) -> Layout: ...
    @property
    def topic(self) -> str: ...
    @property
    def count(self) -> int: ...
    @property
    def head(self) -> str | None: ...
    def find(self, wanted: Ulid) -> IndexedEntry | None: ...
    def first_above(self, floor: Ulid) -> int: ...
    def span(self, start: int, stop: int) -> Sequence[IndexedEntry]: ...


@dataclass(frozen=True, slots=True)
class EventPage:
    """Some events in order. `restarted`: `since` was unknown and we began anew.

    `next_since` continues behind them; on an empty page it is the caller's own `since`, so that a poll loop stays where
    it is.
    """

    events: tuple[Event, ...]
    next_since: Ulid | None
    restarted: bool = False


def read(
    repo: Repo, line: LogView, since: Ulid | None, limit: int, bytes_max: int | None = None
) -> EventPage:
    """Return the events after `since`. An unknown `since` means: S0, the first greater ULID; S1, the beginning.

    With `bytes_max` the page ends with the event that reaches that size.
    """
    limit = _clamp(limit)
    start, restarted = height_after(line, since)
    found: list[Event] = []
    size = 0
    for event in events(repo, line, start, min(start + limit, line.count)):
        found.append(event)
        size += len(event.raw)
        if bytes_max is not None and size >= bytes_max:
            break
    return EventPage(tuple(found), found[-1].ulid if found else since, restarted)


def events(repo: Repo, line: LogView, start: int, stop: int) -> Iterator[Event]:
    """Yield the events from one height up to another, one at a time."""
    while start < stop:
        for place in line.span(start, min(start + CHUNK, stop)):
            yield _event(repo, line, place)
        start += CHUNK


def attachments_of(repo: Repo, commit: Commit) -> dict[str, Oid]:
    """Return the attachments of a message by name (S1 §2); other layouts have none."""
    at = commit.tree
    for name in ("message", "attachments"):
        entries = parse_tree(get_object(repo, at, "tree"))
        below = next((each.oid for each in entries if each.name == name and each.mode == FOLDER), None)
        if below is None:
            return {}
        at = below
    return {each.name: each.oid for each in parse_tree(get_object(repo, at, "tree")) if each.mode != FOLDER}


def interleave(pages: Mapping[str, Sequence[Event]]) -> Iterator[Event]:
    """Yield events of several topics, one of each in turn, topics in the order they were asked for.

    >>> list(interleave({}))
    []
    """
    queues = {topic: iter(page) for topic, page in pages.items()}
    while queues:
        for topic in list(queues):
            event = next(queues[topic], None)
            if event is None:
                del queues[topic]
            else:
                yield event


def messages_answer(page: EventPage, topic: str, group: str | None) -> dict[str, Any]:
    """Return the answer of `messages.read` as S1 §5 has it; `group` is the one whose checkpoint moves with it."""
    hint = {"group": group, "topic": topic} if group is not None else None
    return {
        "messages": [
            {
                "ulid": event.ulid,
                "commit": event.commit,
                "content_id": event.content_id,
                "envelope_path": "message/envelope.json",
                "canonical_json": b64encode(_named_bytes(event)).decode(),
                "checkpoint_hint": hint,
                **({"withheld": True} if event.withheld else {}),
            }
            for event in page.events
        ],
        "next_since": page.next_since,
        "restarted": page.restarted,
    }


def _named_bytes(event: Event) -> bytes:
    """Return the bytes the content id names: those stored or, where they are not canonical, their canonical form."""
    return event.raw if content_id(event.raw) == event.content_id else jcs.encode_foreign(event.envelope)


def _event(repo: Repo, line: LogView, place: IndexedEntry) -> Event:
    raw = get_object(repo, Oid(place.blob), "blob")
    name = content_id(raw)
    # Canonical bytes begin with the namespace and end with the ULID: nearly every event is judged without parsing it.
    begins = b'{"ns":"%s",' % line.topic.encode() if line.layout.topic_is_ns else b"{"
    ends = b',"ulid":"%s"}' % place.ulid.encode()
    if name != place.content_id or not raw.startswith(begins) or not raw.endswith(ends):
        # Rare: bytes that are not canonical but whose canonical form has the promised name (S0, compatibility).
        _check_envelope(line, place, raw)
        name = place.content_id
    return Event(line.topic, place.ulid, name, Oid(place.commit), raw, place.height)


def _check_envelope(line: LogView, place: IndexedEntry, raw: bytes) -> None:
    """Refuse an envelope that is not the one its commit promises, or (S0 §5) not of this log."""
    try:
        document, _ = read_envelope(raw, place.content_id)
    except DigestMismatch as error:
        raise DigestMismatch(
            f"commit {place.commit}: {error.detail}", **{**error.fields, "where": place.commit}
        ) from error
    wanted = {"ulid": place.ulid, **({"ns": line.topic} if line.layout.topic_is_ns else {})}
    for field, value in wanted.items():
        if document.get(field) != value:
            raise DigestMismatch(
                f"{field} in the envelope of commit {place.commit} must be {value}, got {document.get(field)!r}",
                expected=value,
                got=document.get(field),
                where=place.commit,
                advice="Other software wrote it. Run `ropewalk verify` to find other problems; fetch the log from a "
                "clone without that commit, then `ropewalk heads accept`.",
            )


def height_after(line: LogView, since: Ulid | None) -> tuple[int, bool]:
    """Return the height of the first event after a ULID, and whether the line begins anew because it does not know it.

    A known ULID means its place in the chain: in a log that other software wrote, ULIDs may not rise with it.
    """
    if since is None:
        return 0, False
    known = line.find(parse(since))
    if known is not None:
        return known.height + 1, False
    if line.layout.topic_is_ns:
        return line.first_above(since), False
    return 0, True


def _clamp(limit: int) -> int:
    if limit < 1:
        raise RangeExceeded(
            f"limit {limit} is below 1", limit=limit, advice=f"Ask for 1 to {LIMIT_MAX} events at a time."
        )
    return min(limit, LIMIT_MAX)


def missing_topic(layout: Layout, topic: str) -> NotFound:
    """Return the refusal for a topic without a head."""
    return NotFound(
        f"there is no log {topic!r} ({layout.head_ref(topic)})", topic=topic, ref=layout.head_ref(topic)
    )
