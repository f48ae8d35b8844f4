"""Deciding a batch: each draft becomes a commit on top of the one before, or a refusal that harms no other.

Nothing is touched here. What is decided is carried out by `gitlog.log`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ropewalk.errors import ContentDiffers, InvalidEnvelope, OutOfOrder, RopewalkError
from ropewalk.gitlog.attachment import attach
from ropewalk.gitlog.commit import check_trailer, default_trailer, event_commit, make_trailer
from ropewalk.gitlog.envelope import Draft, Sealed, seal
from ropewalk.gitlog.layout import Layout
from ropewalk.gitlog.objects import GitObject, Oid, Signature, object_id, plant
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import ContentId
from ropewalk.kernel.ulid import Ulid, next_ulid, parse

__all__ = ["Found", "Plan", "Receipt", "Setting", "Slot", "Tip", "grow", "plan", "settled"]


class Tip(NamedTuple):
    """The last entry of a line: what the next one must stand on and stay above."""

    commit: Oid | None = None
    ulid: Ulid | None = None
    height: int = -1


class Slot(NamedTuple):
    """One place in a line, as an index keeps it."""

    ulid: Ulid
    content_id: ContentId  # as the commit promises it
    commit: Oid
    blob: Oid
    parent: Oid | None


@dataclass(frozen=True, slots=True)
class Found:
    """An event that already stands in the log under a ULID."""

    commit: Oid
    content_id: ContentId


class Receipt(NamedTuple):
    """What the writer gets back; `replayed` if the very same event stood there already."""

    topic: str
    ulid: Ulid
    content_id: ContentId
    commit: Oid
    replayed: bool = False


@dataclass(slots=True)
class Plan:
    """A batch, decided: objects to write, the tip it ends in, and one outcome for each draft."""

    start: Tip
    tip: Tip
    objects: list[GitObject] = field(default_factory=list)
    outcomes: list[Receipt | RopewalkError] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)  # the new places, for an index


@dataclass(frozen=True, slots=True)
class Setting:
    """What an append needs besides the drafts: a clock reading, chance, a name to sign commits with."""

    now_ms: int
    entropy: bytes
    author: Signature
    find: Callable[[Layout, str, Ulid], Found | None]  # an event by ULID, if it stands in the log
    # The same body under another ULID, if it stands in the log.
    holds: Callable[[Layout, str, Mapping[str, object]], Ulid | None] | None = None


def plan(
    layout: Layout, topic: str, tip: Tip, drafts: Sequence[Draft], setting: Setting, anchor: str | None
) -> Plan:
    """Decide a batch: each draft becomes a commit on top of the one before, or a refusal that harms no other."""
    made = Plan(tip, tip)
    fresh: dict[Ulid, Receipt] = {}
    for draft in drafts:
        try:
            given = "ulid" in draft.document
            ulid = (
                _given_ulid(layout, draft)
                if given
                else next_ulid(made.tip.ulid, setting.now_ms, setting.entropy)
            )
            sealed = seal(layout, topic, draft.document, ulid)
            old = (
                settled(layout, topic, sealed, made.tip, fresh, draft, setting)
                if given or draft.replay
                else None
            )
            if old is None:
                old = grow(layout, topic, made, draft, sealed, setting, anchor)
                fresh[ulid] = old
            made.outcomes.append(old)
        except RopewalkError as error:
            made.outcomes.append(error)
    return made


def _given_ulid(layout: Layout, draft: Draft) -> Ulid:
    given = draft.document["ulid"]
    if not isinstance(given, str):
        raise InvalidEnvelope("ulid is no string", where="/ulid", schema=layout.envelope_schema)
    return parse(given)


def settled(
    layout: Layout,
    topic: str,
    sealed: Sealed,
    tip: Tip,
    fresh: Mapping[Ulid, Receipt],
    draft: Draft,
    setting: Setting,
) -> Receipt | None:
    """What a ULID chosen by the caller means: an old receipt, a refusal, or None for a new place above the head."""
    if draft.replay and setting.holds is not None:
        other = setting.holds(layout, topic, draft.document)
        if other is not None and other != sealed.ulid:
            raise ContentDiffers(
                f"this event stands in {topic} as {other}; a replay keeps its ULID", topic=topic, ulid=other
            )
    if tip.ulid is None or sealed.ulid > tip.ulid:
        return None
    made = fresh.get(sealed.ulid)
    old = Found(made.commit, made.content_id) if made else setting.find(layout, topic, sealed.ulid)
    if old is None:
        raise OutOfOrder(
            f"ULID {sealed.ulid} is not above the head of {topic}, {tip.ulid}",
            topic=topic,
            ulid=sealed.ulid,
            head=tip.ulid,
        )
    if old.content_id != sealed.content_id:
        raise ContentDiffers(
            f"ULID {sealed.ulid} stands in {topic} with {old.content_id}, not {sealed.content_id}",
            topic=topic,
            ulid=sealed.ulid,
            expected=old.content_id,
            got=sealed.content_id,
            instance=f"urn:commit:{old.commit}",
        )
    return Receipt(topic, sealed.ulid, sealed.content_id, old.commit, replayed=True)


def grow(
    layout: Layout, topic: str, made: Plan, draft: Draft, sealed: Sealed, setting: Setting, anchor: str | None
) -> Receipt:
    """Put one sealed event on top of a plan; what it must satisfy besides its trailer was decided before."""
    assert layout.path is not None
    tip = made.tip
    height = tip.height + 1
    trailer = _trailer(topic, tip, draft, setting, anchor) if layout.has_trailer else None
    tree, objects = plant(layout.path(topic, sealed.ulid), sealed.raw)
    if draft.attachments:
        tree, objects = attach(layout, sealed, objects[0], draft.attachments)
    author = draft.author or setting.author
    commit = event_commit(topic, sealed, tree, tip.commit, author, draft.committer or author, trailer)
    oid = object_id("commit", commit)
    made.objects += objects
    made.objects.append((oid, "commit", commit))
    made.slots.append(Slot(sealed.ulid, sealed.content_id, oid, Oid(objects[0][0]), tip.commit))
    made.tip = Tip(oid, sealed.ulid, height)
    return Receipt(topic, sealed.ulid, sealed.content_id, oid)


def _trailer(topic: str, tip: Tip, draft: Draft, setting: Setting, anchor: str | None) -> bytes:
    seq = tip.height + 1
    if draft.trailer is None and tip.commit is not None:
        return default_trailer(topic, setting.now_ms, seq, tip.commit, anchor)
    trailer = make_trailer(
        draft.trailer,
        topic=topic,
        now_ms=setting.now_ms,
        seq=seq,
        parent=tip.commit,
        previous_anchor=anchor,
    )
    check_trailer(trailer)
    return jcs.encode(trailer)
