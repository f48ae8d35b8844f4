"""Append and read: one event, one commit, one place in a line.

`plan` decides everything about a batch without touching anything; `append` carries a plan out through the port.
Refs move last: a crash before that leaves garbage, not a lie.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from ropewalk.errors import (
    BrokenLink,
    ContentDiffers,
    HeadMoved,
    InvalidEnvelope,
    NotFound,
    OutOfOrder,
    RopewalkError,
)
from ropewalk.gitlog.attachment import attach
from ropewalk.gitlog.commit import (
    Headers,
    check_trailer,
    default_trailer,
    event_commit,
    make_trailer,
    parse_message,
)
from ropewalk.gitlog.envelope import Draft, Sealed, seal
from ropewalk.gitlog.layout import Layout, anchors_ref
from ropewalk.gitlog.objects import (
    Commit,
    GitObject,
    Kind,
    Oid,
    Signature,
    object_id,
    parse_commit,
    parse_tree,
    plant,
)
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import ContentId
from ropewalk.kernel.ulid import Ulid, next_ulid, parse

__all__ = [
    "Found",
    "Plan",
    "Receipt",
    "Repo",
    "Setting",
    "Slot",
    "Tip",
    "append",
    "describe",
    "find_blob",
    "get_object",
    "grow",
    "plan",
    "settled",
]

ATTEMPTS_MAX = 6  # a moved head is somebody else's success; six in a row means something else is wrong


class Repo(Protocol):
    """What the engine needs of a repository. Compare-and-swap has no unconditional form."""

    def get(self, oid: str) -> tuple[Kind, bytes]: ...
    def put(self, objects: Sequence[GitObject]) -> AbstractContextManager[None]: ...
    def head(self, ref: str) -> str | None: ...
    def move_head(self, ref: str, expected: str | None, new: str) -> None: ...
    def turn(self, ref: str) -> AbstractContextManager[None]: ...


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


def append(
    repo: Repo,
    layout: Layout,
    topic: str,
    drafts: Sequence[Draft],
    setting: Setting,
    *,
    tip_of: Callable[[str | None], Tip],
    pause: Callable[[int], None],
) -> Plan:
    """Record drafts: one pack, one move of the head. Every outcome that is a receipt is durable when this returns.

    `tip_of` reads (and vets) the head; `pause` waits, with jitter, before another attempt.
    """
    ref = layout.head_ref(topic)
    with repo.turn(ref):
        for attempt in range(ATTEMPTS_MAX):
            tip = tip_of(repo.head(ref))
            made = plan(layout, topic, tip, drafts, setting, repo.head(anchors_ref(layout, topic)))
            if not made.objects:
                return made
            try:
                with repo.put(made.objects):
                    repo.move_head(ref, tip.commit, made.tip.commit or "")
                return made
            except HeadMoved as moved:
                # A ULID the caller chose is a promise about order; only ours may be chosen again.
                if attempt + 1 == ATTEMPTS_MAX or any("ulid" in draft.document for draft in drafts):
                    refused = [
                        moved if isinstance(o, Receipt) and not o.replayed else o for o in made.outcomes
                    ]
                    return Plan(tip, tip, outcomes=refused)
                pause(attempt)
    raise AssertionError("unreachable")


def describe(repo: Repo, layout: Layout, topic: str, oid: Oid) -> Slot:
    """What an index keeps of a commit, read from the commit and its tree."""
    commit = _commit(repo, oid)
    if len(commit.parents) > 1:
        raise BrokenLink(f"commit {oid} has {len(commit.parents)} parents; a line has one", entry=oid)
    headers = _headers(layout, topic, oid, commit)
    blob = find_blob(repo, layout, topic, headers, commit.tree, oid)
    return Slot(headers.ulid, headers.content_id, oid, blob, commit.parents[0] if commit.parents else None)


def find_blob(repo: Repo, layout: Layout, topic: str, headers: Headers, tree: Oid, commit: Oid) -> Oid:
    """The envelope's blob: the exact path of the layout; other names beside it are passed over."""
    if layout.path is None:
        raise NotFound(f"entries of the {layout.name} layout carry no envelope", entry=commit)
    at = tree
    path = layout.path(topic, headers.ulid)
    for name in path:
        entry = next((e for e in parse_tree(get_object(repo, at, "tree")) if e.name == name), None)
        if entry is None:
            raise BrokenLink(f"commit {commit} has no {'/'.join(path)}", entry=commit, where="tree")
        at = entry.oid
    return at


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


def _headers(layout: Layout, topic: str, oid: Oid, commit: Commit) -> Headers:
    """What a commit promises; one that is no entry of this log is named and refused (S0 §5: header = ref)."""
    try:
        headers = parse_message(commit.message)
    except RopewalkError as error:
        raise BrokenLink(f"commit {oid}: {error.detail}", entry=oid, where="message") from error
    if layout.topic_is_ns and headers.namespace != topic:
        said = (
            f"Namespace is {headers.namespace!r}" if headers.namespace is not None else "it has no Namespace"
        )
        raise BrokenLink(
            f"commit {oid}: {said}, the log is {topic!r}",
            entry=oid,
            where="message",
            advice="Other software put it there. `ropewalk verify` says what else is wrong; fetch the log from a clone "
            "without that commit, then `ropewalk heads accept`.",
        )
    return headers


def _commit(repo: Repo, oid: Oid) -> Commit:
    return parse_commit(get_object(repo, oid, "commit"))


def get_object(repo: Repo, oid: Oid, wanted: Kind) -> bytes:
    """An object the log names; one that is missing or of another kind is a broken link."""
    try:
        kind, raw = repo.get(oid)
    except NotFound as error:
        raise BrokenLink(
            f"{wanted} {oid} is named by the log but is not in the repository",
            entry=oid,
            advice="Fetch it from another clone; `git fsck` lists what else is missing.",
        ) from error
    if kind != wanted:
        raise BrokenLink(f"{oid} is a {kind}, not a {wanted}", entry=oid)
    return raw
