"""Deciding a batch: each draft becomes a commit on top of the one before, or a refusal that harms no other.

Nothing is written here; `core.log` carries out the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, repeat
from typing import TYPE_CHECKING, NamedTuple, cast

from ropewalk.errors import ContentDiffers, InvalidEnvelope, OutOfOrder, RopewalkError
from ropewalk.gitlog.core.attachment import attach
from ropewalk.gitlog.core.clock_limit import SKEW_MS_DEFAULT, ClockLimit
from ropewalk.gitlog.core.commit import check_trailer, default_trailer, event_commit, make_trailer
from ropewalk.gitlog.core.envelope import Draft, EncodedEnvelope, seal
from ropewalk.gitlog.core.layout import Layout
from ropewalk.gitlog.core.objects import GitObject, GitSignature, Oid, build_path_trees, object_id
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import ContentId
from ropewalk.kernel.ulid import Ulid, next_ulid, next_ulids, parse
from ropewalk.native import is_here

if TYPE_CHECKING:
    from ropewalk.native.object_batch import CompiledTemplate, ObjectBatch

ULIDS_AHEAD = 64
TEMPLATE_EVENTS_MIN = 16  # events; fewer are made sooner than a template is cut
PLAIN = Draft({})


class Tip(NamedTuple):
    """The last entry of a log: the parent of the next one, and its lower bound."""

    commit: Oid | None = None
    ulid: Ulid | None = None
    height: int = -1


class EntryRecord(NamedTuple):
    """One entry of a log, as an index keeps it."""

    ulid: Ulid
    content_id: ContentId  # as the commit promises it
    commit: Oid
    blob: Oid
    parent: Oid | None


@dataclass(frozen=True, slots=True)
class IndexedEntry:
    """One entry of a log, as an index finds it."""

    height: int
    ulid: Ulid
    content_id: ContentId
    commit: str
    blob: str


class EntryColumns(NamedTuple):
    """Successive entries of a log by column: a batch has thousands."""

    ulids: list[Ulid]
    content_ids: list[ContentId]
    commits: list[Oid]
    blobs: list[Oid]

    def __bool__(self) -> bool:
        return bool(self.ulids)

    def add(
        self,
        ulids: Iterable[Ulid],
        content_ids: Iterable[ContentId],
        commits: Iterable[Oid],
        blobs: Iterable[Oid],
    ) -> None:
        """Add entries on top."""
        self.ulids.extend(ulids)
        self.content_ids.extend(content_ids)
        self.commits.extend(commits)
        self.blobs.extend(blobs)


class Receipt(NamedTuple):
    """The receipt of an append; `replayed` if the log already held the same event."""

    topic: str
    ulid: Ulid
    content_id: ContentId
    commit: Oid
    replayed: bool = False

    def _repr_html_(self) -> str:
        from ropewalk.pages import html_table

        title = f"{self.topic}: {'already recorded' if self.replayed else 'recorded'}"
        return html_table(title, self._fields, [self])


@dataclass(slots=True)
class Plan:
    """A batch, decided: objects to write, the tip it ends in, and one outcome for each draft."""

    start: Tip
    tip: Tip
    objects: list[GitObject] | ObjectBatch = field(default_factory=list)
    outcomes: list[Receipt | RopewalkError] = field(default_factory=list)
    # The new ones, for an index.
    places: EntryColumns = field(default_factory=lambda: EntryColumns([], [], [], []))


@dataclass(frozen=True, slots=True)
class AppendContext:
    """What an append needs besides the drafts: a clock reading, entropy, a commit author."""

    now_ms: int
    entropy: bytes
    author: GitSignature
    find: Callable[[Layout, str, Ulid], IndexedEntry | None]  # an event by ULID, if the log has it
    # The same body under another ULID, if the log has it.
    holds: Callable[[Layout, str, Mapping[str, object]], Ulid | None] | None = None
    skew_ms: Callable[[], int] = lambda: SKEW_MS_DEFAULT  # how far ahead of the clock a new ULID may be


def plan(
    layout: Layout, topic: str, tip: Tip, drafts: Sequence[Draft], setting: AppendContext, anchor: str | None
) -> Plan:
    """Decide a batch: each draft becomes a commit on top of the one before, or a refusal that harms no other."""
    planning = _Planning(layout, topic, Plan(tip, tip), setting, anchor)
    for draft in drafts:
        try:
            planning.add(draft)
        except RopewalkError as error:
            planning.waiting.append(error)
    planning.settle()
    return planning.made


class _Planning:
    """A plan being built. Plain events wait for one another, because a large group costs least."""

    def __init__(
        self, layout: Layout, topic: str, made: Plan, setting: AppendContext, anchor: str | None
    ) -> None:
        self.layout, self.topic, self.setting, self.anchor = layout, topic, setting, anchor
        self.made = made
        # Outcomes in order; those that are only sealed have no place yet.
        self.waiting: list[EncodedEnvelope | Receipt | RopewalkError] = []
        self._limit = ClockLimit(setting.now_ms, setting.skew_ms)
        self._last = made.tip.ulid
        self._coming: list[Ulid] = []  # the next ULIDs, the first one last
        self._fresh: dict[Ulid, Receipt] = {}
        self._told = 0  # outcomes that `_fresh` knows

    def add(self, draft: Draft) -> None:
        """Decide one draft."""
        layout, topic, setting = self.layout, self.topic, self.setting
        given = "ulid" in draft.document
        ulid = _given_ulid(layout, draft) if given else self._next_ulid()
        sealed = seal(layout, topic, draft.document, ulid)
        if given or draft.replay:
            if self._last is not None and ulid <= self._last:
                self.settle()  # it may be one of those that wait
            old = find_replayed(layout, topic, sealed, self._last, self._receipts(), draft, setting)
            if old is not None:
                self.waiting.append(old)
                return
        self._limit.check(layout.option(topic), ulid, self._last)
        if self.made.tip.commit is None or not _is_plain(draft):
            self.settle()
            self.made.outcomes.append(
                add_event(layout, topic, self.made, draft, sealed, setting, self.anchor)
            )
        else:
            self.waiting.append(sealed)
        self._last = ulid
        if given:
            self._coming.clear()
        elif self._coming:  # else those that waited were refused, and all ULIDs given back
            self._coming.pop()

    def settle(self) -> None:
        """Decide the outcomes of all waiting events."""
        waiting, self.waiting = self.waiting, []
        plain = [each for each in waiting if isinstance(each, EncodedEnvelope)]
        try:
            places = iter(_grow_plain(self.layout, self.topic, self.made, plain, self.setting, self.anchor))
        except RopewalkError as error:  # their common trailer is refused
            self.made.outcomes += [error if isinstance(each, EncodedEnvelope) else each for each in waiting]
            self._last = self.made.tip.ulid
            self._coming.clear()
            return
        self.made.outcomes += [
            next(places) if isinstance(each, EncodedEnvelope) else each for each in waiting
        ]

    def _next_ulid(self) -> Ulid:
        """Return the ULID above the last; the next event that is not refused takes it."""
        if not self._coming:
            last, setting = self._last, self.setting
            try:
                many = next_ulids(last, setting.now_ms, setting.entropy, ULIDS_AHEAD)
            except OutOfOrder:  # so many are not left in their millisecond; one may be
                many = [next_ulid(last, setting.now_ms, setting.entropy)]
            self._coming = many[::-1]
        return self._coming[-1]

    def _receipts(self) -> Mapping[Ulid, Receipt]:
        """Return the receipts of this plan so far."""
        outcomes = self.made.outcomes
        if len(outcomes) > self._told:
            new = (each for each in outcomes[self._told :] if isinstance(each, Receipt))
            self._fresh.update({each.ulid: each for each in new})
            self._told = len(outcomes)
        return self._fresh


def all_objects(plans: Iterable[Plan]) -> Sequence[GitObject]:
    """Return the objects of several plans, to be written as one pack."""
    parts = [made.objects for made in plans]
    if not is_here():
        return list(chain.from_iterable(parts))
    from ropewalk.native.object_batch import ObjectBatch

    gathered = ObjectBatch()
    for part in parts:
        gathered.extend(part)
    return gathered


def _given_ulid(layout: Layout, draft: Draft) -> Ulid:
    given = draft.document["ulid"]
    if not isinstance(given, str):
        raise InvalidEnvelope("ulid must be a string", where="/ulid", schema=layout.envelope_schema)
    return parse(given)


def find_replayed(
    layout: Layout,
    topic: str,
    sealed: EncodedEnvelope,
    last: Ulid | None,
    fresh: Mapping[Ulid, Receipt],
    draft: Draft,
    setting: AppendContext,
) -> Receipt | None:
    """Return the receipt of an event that is already in the log, None for a new one; raise if they conflict."""
    if draft.replay and setting.holds is not None:
        other = setting.holds(layout, topic, draft.document)
        if other is not None and other != sealed.ulid:
            raise ContentDiffers(
                f"{topic} already holds this event as {other}; a replay must keep its ULID",
                topic=topic,
                ulid=other,
            )
    if last is None or sealed.ulid > last:
        return None
    old = fresh.get(sealed.ulid) or setting.find(layout, topic, sealed.ulid)
    if old is None:
        raise OutOfOrder(
            f"ULID {sealed.ulid} is not above the head of {topic}, {last}",
            topic=topic,
            ulid=sealed.ulid,
            head=last,
        )
    if old.content_id != sealed.content_id:
        raise ContentDiffers(
            f"{topic} already holds ULID {sealed.ulid} with {old.content_id}, got {sealed.content_id}",
            topic=topic,
            ulid=sealed.ulid,
            expected=old.content_id,
            got=sealed.content_id,
            instance=f"urn:commit:{old.commit}",
        )
    return Receipt(topic, sealed.ulid, sealed.content_id, Oid(old.commit), replayed=True)


def add_event(
    layout: Layout,
    topic: str,
    made: Plan,
    draft: Draft,
    sealed: EncodedEnvelope,
    setting: AppendContext,
    anchor: str | None,
) -> Receipt:
    """Add one sealed event to a plan; only its trailer is still unchecked."""
    assert layout.path is not None
    tip = made.tip
    height = tip.height + 1
    trailer = _trailer(topic, tip, draft, setting, anchor) if layout.has_trailer else None
    tree, objects = build_path_trees(layout.path(topic, sealed.ulid), sealed.raw)
    if draft.attachments:
        tree, objects = attach(layout, sealed, objects[0], draft.attachments)
    author = draft.author or setting.author
    commit = event_commit(topic, sealed, tree, tip.commit, author, draft.committer or author, trailer)
    oid = object_id("commit", commit)
    made.objects.extend(objects)
    made.objects.append((oid, "commit", commit))
    made.places.add([sealed.ulid], [sealed.content_id], [oid], [Oid(objects[0][0])])
    made.tip = Tip(oid, sealed.ulid, height)
    return Receipt(topic, sealed.ulid, sealed.content_id, oid)


def _grow_plain(
    layout: Layout,
    topic: str,
    made: Plan,
    events: Sequence[EncodedEnvelope],
    setting: AppendContext,
    anchor: str | None,
) -> list[Receipt]:
    """Add events that have nothing but their documents to a plan."""
    template = None
    if len(events) >= TEMPLATE_EVENTS_MIN and is_here():
        template = _template(layout, topic, setting.author, setting.now_ms // 1000, anchor)
    if template is None:
        return [add_event(layout, topic, made, PLAIN, sealed, setting, anchor) for sealed in events]
    from ropewalk.gitlog.core.commit_template import columns_of
    from ropewalk.native.object_batch import ObjectBatch

    tip = made.tip
    assert tip.commit is not None
    made.objects = objects = (
        made.objects if isinstance(made.objects, ObjectBatch) else ObjectBatch(made.objects)
    )
    firsts, lasts = objects.weave(template, columns_of(events), tip.height + 1, tip.commit)
    blobs, commits = cast(list[Oid], firsts), cast(list[Oid], lasts)
    ulids, _, content_ids = zip(*events, strict=True)
    made.places.add(ulids, content_ids, commits, blobs)
    made.tip = Tip(commits[-1], ulids[-1], tip.height + len(events))
    return list(
        map(Receipt._make, zip(repeat(topic), ulids, content_ids, commits, repeat(False), strict=False))
    )


@lru_cache(maxsize=64)  # for a second, a log and an author
def _template(
    layout: Layout, topic: str, author: GitSignature, now_s: int, anchor: str | None
) -> CompiledTemplate | None:
    from ropewalk.gitlog.core.commit_template import cut_template

    setting = AppendContext(now_s * 1000, b"", author, lambda _layout, _topic, _ulid: None)

    def make(sealed: EncodedEnvelope, parent: Oid, number: int) -> Sequence[GitObject]:
        made = Plan(Tip(), Tip(parent, None, number - 1))
        add_event(layout, topic, made, PLAIN, sealed, setting, anchor)
        return made.objects

    return cut_template(make)


def _is_plain(draft: Draft) -> bool:
    return (
        draft.trailer is None and not draft.attachments and draft.author is None and draft.committer is None
    )


def _trailer(topic: str, tip: Tip, draft: Draft, setting: AppendContext, anchor: str | None) -> bytes:
    seq = tip.height + 1
    if draft.trailer is None and tip.commit is not None:
        return default_trailer(topic, setting.now_ms, seq, tip.commit, anchor)
    trailer = make_trailer(
        draft.trailer, topic=topic, now_ms=setting.now_ms, seq=seq, parent=tip.commit, previous_anchor=anchor
    )
    check_trailer(trailer)
    return jcs.encode(trailer)
