"""The same event in another log: same bytes, same ULID, same content id; only the commit is another.

Nothing but the two logs decides what a copy's commit is: its author, committer and dates are those of the original,
and a trailer, where the layout has one, has the time of the ULID. Two clones that mirror alike get the same commits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ropewalk.errors import InvalidEnvelope, OutOfOrder, RopewalkError
from ropewalk.gitlog.compat.conversion import TIME_S_MAX, kept_signature
from ropewalk.gitlog.core.clock_limit import ClockLimit
from ropewalk.gitlog.core.envelope import Draft, EncodedEnvelope, Event, seal_foreign
from ropewalk.gitlog.core.layout import MESSAGES, Layout
from ropewalk.gitlog.core.log import Repo, get_object, grow
from ropewalk.gitlog.core.objects import parse_commit
from ropewalk.gitlog.core.planning import (
    AppendContext,
    IndexedEntry,
    Plan,
    Receipt,
    Tip,
    add_event,
    find_replayed,
)
from ropewalk.gitlog.core.reading import attachments_of
from ropewalk.kernel import ulid
from ropewalk.kernel.ulid import Ulid


@dataclass(frozen=True, slots=True)
class EventCopy:
    """An event on its way into another log: its exact bytes, what its commit takes over, and where it comes from."""

    sealed: EncodedEnvelope
    draft: Draft  # author, committer and attachments; the document is in the bytes already
    origin: str  # "ns:prod", as errors name it
    attachments_left: int = 0  # files the other layout has no place for
    withheld: bool = False  # it has a payload, and does not show it

    @property
    def ulid(self) -> Ulid:
        return self.sealed.ulid


@dataclass(frozen=True, slots=True)
class MirrorResult:
    """What a mirroring brought: copies made, events that were there before, and what had to stay behind."""

    mirrored: int = 0
    skipped: int = 0
    withheld: int = 0  # copies without the payload of their original
    attachments_left: int = 0
    waiting: int = 0  # events too young to be merged yet

    def __add__(self, other: MirrorResult) -> MirrorResult:
        return MirrorResult(
            self.mirrored + other.mirrored,
            self.skipped + other.skipped,
            self.withheld + other.withheld,
            self.attachments_left + other.attachments_left,
            self.waiting + other.waiting,
        )


def copy_of(repo: Repo, event: Event, origin: str, source: Layout, target: Layout, topic: str) -> EventCopy:
    """Return an event of one log as it may stand in another, or a refusal that names it.

    What was recorded is not judged again: no rule about secrets or private data could change it without changing its
    bytes. It must fit the other layout as it is, in canonical bytes, under the namespace it names.
    """
    with named(origin, event.ulid):
        sealed = seal_foreign(target, topic, event.envelope, event.ulid)
        if sealed.raw != event.raw:
            raise InvalidEnvelope(
                "its bytes are not canonical, and a copy with other bytes would be another event",
                where="",
                schema=target.envelope_schema,
                advice="Other software wrote it; append it again under a new ULID. Everything before it was "
                "mirrored.",
            )
        commit = parse_commit(get_object(repo, event.commit, "commit"))
        files = attachments_of(repo, commit) if source is MESSAGES else {}
        carried = (
            {name: get_object(repo, oid, "blob") for name, oid in files.items()} if target is MESSAGES else {}
        )
    draft = Draft(
        {},
        author=kept_signature(commit.author),
        committer=kept_signature(commit.committer),
        attachments=carried,
    )
    return EventCopy(sealed, draft, origin, len(files) - len(carried))


def append_copies(
    repo: Repo,
    layout: Layout,
    topic: str,
    copies: Sequence[EventCopy],
    *,
    tip_of: Callable[[str | None], Tip],
    find: Callable[[Layout, str, Ulid], IndexedEntry | None],
    limit: ClockLimit,
) -> Plan:
    """Put copies on top of a log: one pack, one move of the head. The first that is refused ends the outcomes.

    A copy that is there already, under its ULID and with its content, is an outcome like any other, and no new commit.
    """
    return grow(
        repo, layout.head_ref(topic), lambda head: _plan(layout, topic, tip_of(head), copies, find, limit)
    )


@contextmanager
def named(origin: str, event: Ulid) -> Iterator[None]:
    """Name the event in a refusal, with advice where the order is the reason."""
    try:
        yield
    except RopewalkError as error:
        advice = error.advice_now
        if isinstance(error, OutOfOrder) and "topic" in error.fields:
            advice = "Mirror it into a separate log, or all sources together, in one command, into a new log."
        elif error.fields.get("where") == "/ns":
            advice = (
                "A namespace takes only events that name it; mirror into the one they name, or into a topic."
            )
        raise type(error)(
            f"event {event} of {origin}: {error.detail}",
            advice=advice,
            instance=error.instance,
            **{**error.fields, "source": origin, "ulid": event},
        ) from error


def _plan(
    layout: Layout,
    topic: str,
    tip: Tip,
    copies: Sequence[EventCopy],
    find: Callable[[Layout, str, Ulid], IndexedEntry | None],
    limit: ClockLimit,
) -> Plan:
    made = Plan(tip, tip)
    fresh: dict[Ulid, Receipt] = {}
    for copy in copies:
        when = min(ulid.time_ms(copy.sealed.ulid), TIME_S_MAX * 1000)
        assert copy.draft.author is not None
        setting = AppendContext(when, bytes(10), copy.draft.author, find)
        try:
            with named(copy.origin, copy.sealed.ulid):
                receipt = find_replayed(layout, topic, copy.sealed, made.tip.ulid, fresh, copy.draft, setting)
                if receipt is None:
                    limit.check(layout.option(topic), copy.sealed.ulid, made.tip.ulid)
                    receipt = add_event(layout, topic, made, copy.draft, copy.sealed, setting, None)
                    fresh[receipt.ulid] = receipt
        except RopewalkError as error:
            made.outcomes.append(error)
            break
        made.outcomes.append(receipt)
    return made
