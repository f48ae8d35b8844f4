"""What can still be read of a git log with a damaged commit in it and no index that knows the way around it.

The head's id proves every commit down to the damage, and the first of them says in its trailer at which height it
stands. What lies below the damage is reachable only through an index from before, or from a head seen before.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ropewalk.errors import RopewalkError
from ropewalk.gitlog.commit import parse_message
from ropewalk.gitlog.layout import Layout
from ropewalk.gitlog.log import describe, get_object
from ropewalk.gitlog.objects import Oid, parse_commit
from ropewalk.gitlog.planning import Slot
from ropewalk.kernel import ulid
from ropewalk.kernel.digest import ContentId
from ropewalk.kernel.ulid import Ulid
from ropewalk.pipeline.offsets import Gap
from ropewalk.stores.git import GitStore
from ropewalk.stores.gitindex import Extent, GitIndex

__all__ = ["NO_CONTENT", "Salvaged", "salvage"]

NOTHING = Oid("0" * 40)
NO_CONTENT = ContentId("blake3:" + "0" * 64)


@dataclass(slots=True)
class _Descent:
    """A walk from the head down that passes over entries it cannot read, and ends where a commit itself is lost."""

    store: GitStore
    layout: Layout
    topic: str
    known: str | None  # where the covered part of the log ends
    child: Slot | None = None
    lost: str = ""
    reached: bool = False

    def describe(self, oid: str) -> Slot:
        try:
            slot = describe(self.store, self.layout, self.topic, Oid(oid))
        except RopewalkError:
            slot = Slot(self._ulid_below(), NO_CONTENT, Oid(oid), NOTHING, self._parent(oid))
        if slot.parent is not None and slot.parent == self.known:
            self.reached = True
            slot = Slot(slot.ulid, slot.content_id, slot.commit, slot.blob, None)
        self.child = slot
        return slot

    def _parent(self, oid: str) -> Oid | None:
        try:
            parents = parse_commit(get_object(self.store, Oid(oid), "commit")).parents
        except RopewalkError:
            self.lost = oid
            return None
        return parents[0] if parents else None

    def _ulid_below(self) -> Ulid:
        """A stand-in that keeps the order of the index."""
        if self.child is None:
            return ulid.make(ulid.TIME_MS_MAX, ulid.RANDOMNESS_MAX)
        number = int.from_bytes(ulid.to_bytes(self.child.ulid), "big")
        return ulid.from_bytes(max(0, number - 1).to_bytes(16, "big"))


@dataclass(frozen=True, slots=True)
class Salvaged:
    """How far a damaged log reaches, and the gap in it; `placed` if what lies above the gap says where it stands."""

    end: int
    gap: Gap
    placed: bool = True


def salvage(
    store: GitStore, index: GitIndex, layout: Layout, topic: str, head: str, seen: str | None, reason: str
) -> Salvaged | None:
    """What can be proven of a damaged log; None if it is nothing beyond the covered part."""
    ref = layout.head_ref(topic)
    known = _covered(store, index, layout, topic, seen)
    line = f"{ref} above {known.head or 'nothing'}"
    descent = _Descent(store, layout, topic, known.head)
    index.forget(line)
    found = index.catch_up(line, head, descent.describe, None)
    if seen not in (None, head, descent.lost) and not _holds(descent, index, (ref, line), str(seen)):
        return None  # it may be another history: nothing of it is placed
    base = known.count if descent.reached else 0
    if descent.lost:
        if found.count < 2:
            return None  # the head itself is lost
        height = _height_of_lost(store, index, line)
        if height is None or height < known.count:
            gap = Gap(known.count, known.count, reason, descent.lost, line, found.count)
            return Salvaged(known.count, gap, placed=False)
        base = height
    start = known.count if descent.lost else base
    return Salvaged(base + found.count, Gap(start, base, reason, descent.lost, line))


def _holds(descent: _Descent, index: GitIndex, lines: tuple[str, ...], seen: str) -> bool:
    """Whether the head seen last lies below the damage, or above it."""
    told = partial(describe, descent.store, descent.layout, descent.topic)
    try:
        return any(index.holds(line, seen, told) for line in lines)
    except RopewalkError:
        return False


def _covered(store: GitStore, index: GitIndex, layout: Layout, topic: str, seen: str | None) -> Extent:
    """What the index covers; where it covers nothing, what leads down from the head seen last."""
    ref = layout.head_ref(topic)
    known = index.extent(ref)
    if known.head is None and seen is not None:
        try:
            return index.catch_up(ref, seen, lambda oid: describe(store, layout, topic, Oid(oid)), None)
        except RopewalkError:
            return known
    return known


def _height_of_lost(store: GitStore, index: GitIndex, line: str) -> int | None:
    """The height of the commit that is lost, from what the one above it says of its own."""
    above = index.span(line, 1, 2)[0]
    try:
        trailer = parse_message(parse_commit(get_object(store, Oid(above.commit), "commit")).message).trailer
    except RopewalkError:
        return None
    seq = (trailer or {}).get("seq")
    return int(seq) - 1 if isinstance(seq, int) and seq > 0 else None
