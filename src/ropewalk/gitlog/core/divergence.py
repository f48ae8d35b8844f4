"""Find where two histories of one log diverge, and the entries that only one of them has.

After appends in two clones, a forced fetch or a ref that was reset, the history seen before and the present one share a
beginning and then diverge. Entries of the old one only are *displaced*: in the repository for a while, but not in the
log. An event that is recorded again names its original by content id under `refs.displaced`, so it is recorded once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, NamedTuple, TypeAlias

from ropewalk.errors import BrokenLink, RopewalkError, Unavailable
from ropewalk.gitlog.core.commit import parse_message
from ropewalk.gitlog.core.envelope import Draft, Event, read_envelope, refs_of
from ropewalk.gitlog.core.layout import MESSAGES, Layout
from ropewalk.gitlog.core.log import Repo, describe, get_object
from ropewalk.gitlog.core.objects import FOLDER, Commit, Oid, parse_commit, parse_tree
from ropewalk.gitlog.core.planning import EntryRecord
from ropewalk.gitlog.core.reading import attachments_of
from ropewalk.kernel.digest import ContentId
from ropewalk.kernel.ulid import Ulid

DISPLACED = "displaced"  # the name under `refs` of an event that is recorded again
# Not below refs/gatos/: what one clone keeps must not travel with the logs; it may have been erased on purpose.
DISPLACED_REFS = "refs/ropewalk/displaced/"
TREE_DEPTH_MAX = 16  # ours are four deep

Memory: TypeAlias = Callable[[Oid], EntryRecord | None]
"""What an index remembers of a commit that cannot be read any more; asked from the head downwards."""


class DivergedEntry(NamedTuple):
    """One entry that only one of two histories has; unknown fields are None."""

    commit: Oid
    ulid: Ulid | None = None
    content_id: ContentId | None = None
    problem: str | None = None  # why it cannot be read, or not whole
    again: Oid | None = None  # the entry of the other line that carries the same event


@dataclass(frozen=True, slots=True)
class LogDivergence:
    """Two lines of one log: the last entry both have, and what only one of them has, oldest first."""

    ref: str
    old: Oid | None
    new: Oid | None
    parted: Oid | None  # None: they share nothing, or it is unknown (see `cut`)
    displaced: tuple[DivergedEntry, ...]
    added: tuple[DivergedEntry, ...]  # empty where it is unknown
    cut: Oid | None = None  # a missing commit: what is below it is unknown

    @property
    def lost(self) -> list[DivergedEntry]:
        """The displaced entries whose events the new line does not carry."""
        return [each for each in self.displaced if each.again is None]

    @property
    def gone(self) -> list[DivergedEntry]:
        """The displaced entries that cannot be read, or not whole."""
        return [each for each in self.displaced if each.problem is not None]


def reappend_ref(layout: Layout, topic: str) -> str:
    """Return the ref that names our old head while a push re-appends its events."""
    return f"refs/ropewalk/reappend/{layout.name}/{layout.check(topic)}/head"


def displaced_ref(layout: Layout, topic: str, commit: str) -> str:
    """Return the ref that keeps a displaced line from being cleared away.

    >>> from ropewalk.gitlog.core.layout import SHIPLOG
    >>> displaced_ref(SHIPLOG, "prod", "0" * 40)
    'refs/ropewalk/displaced/shiplog/prod/0000000000000000000000000000000000000000'
    """
    return f"{DISPLACED_REFS}{layout.name}/{layout.check(topic)}/{commit}"


def find_divergence(
    repo: Repo, layout: Layout, topic: str, old: Oid | None, new: Oid | None, recall: Callable[[], Memory]
) -> LogDivergence:
    """Walk two lines down, a step of each in turn, until they meet.

    Costs as much as they differ, not as much as the log is long. A commit that is gone is passed over if the index
    has the entry below it.
    """
    walks = [_Walk(repo, old, recall()), _Walk(repo, new, recall())]
    met = None
    while met is None and any(walk.at is not None for walk in walks):
        for walk, other in (walks, walks[::-1]):
            if walk.at is not None and walk.at in other.entries_seen:
                met = walk.at
                break
            walk.step()
    below = [list(takewhile(lambda each: each.commit != met, walk.entries_seen.values())) for walk in walks]
    left, right = (tuple(reversed(side)) for side in below)
    again = _origins(repo, layout, topic, right) if left else {}
    displaced = tuple(_looked_at(repo, layout, topic, each, again) for each in left)
    cut = None if met is not None else walks[0].cut or walks[1].cut
    return LogDivergence(layout.head_ref(topic), old, new, met, displaced, () if cut else right, cut)


class _Walk:
    """A line from a head downwards, a commit at a time."""

    def __init__(self, repo: Repo, head: Oid | None, recall: Memory) -> None:
        self._repo = repo
        self._recall = recall
        self.at = head
        self.cut: Oid | None = None
        self.entries_seen: dict[Oid, DivergedEntry] = {}

    def step(self) -> None:
        at = self.at
        if at is None:
            return
        if at in self.entries_seen:  # only damage makes a line of hashes a circle
            self.at = None
            return
        try:
            commit = _commit(self._repo, at)
        except Unavailable:
            raise
        except RopewalkError as error:
            known = self._recall(at)
            if known is None:
                self.entries_seen[at] = DivergedEntry(at, problem=error.detail)
                self.cut, self.at = at, None
            else:
                self.entries_seen[at] = DivergedEntry(at, known.ulid, known.content_id, error.detail)
                self.at = known.parent
            return
        self.at = commit.parents[0] if commit.parents else None
        try:
            said = parse_message(commit.message)
            self.entries_seen[at] = DivergedEntry(at, said.ulid, said.content_id)
        except RopewalkError as error:
            self.entries_seen[at] = DivergedEntry(at, problem=error.detail)


def event_at(repo: Repo, layout: Layout, topic: str, commit: Oid) -> Event:
    """Return the event of one commit, checked against what the commit promises; its height is not known (-1)."""
    slot = describe(repo, layout, topic, commit)
    raw = get_object(repo, slot.blob, "blob")
    read_envelope(raw, slot.content_id)
    return Event(topic, slot.ulid, slot.content_id, commit, raw, -1)


def origin_of(event: Event) -> ContentId:
    """Return the content id of the first recording: that in `refs.displaced`, else that of the event."""
    said = refs_of(event.envelope).get(DISPLACED)
    return ContentId(said) if isinstance(said, str) else event.content_id


def draft_of(repo: Repo, layout: Layout, event: Event) -> Draft:
    """Return a displaced event to record again: everything but its ULID and its place, and the name of what it was."""
    commit = _commit(repo, event.commit)
    files = attachments_of(repo, commit) if layout is MESSAGES else {}
    document: dict[str, Any] = {name: value for name, value in event.envelope.items() if name != "ulid"}
    document["refs"] = {**refs_of(event.envelope), DISPLACED: origin_of(event)}
    return Draft(
        document,
        parse_message(commit.message).trailer if layout.has_trailer else None,
        author=commit.author,
        attachments={name: get_object(repo, oid, "blob") for name, oid in files.items()},
    )


def _origins(
    repo: Repo, layout: Layout, topic: str, entries: Iterable[DivergedEntry]
) -> dict[ContentId, Oid]:
    """Return which events these entries carry, also those they stand for."""
    found: dict[ContentId, Oid] = {}
    for each in entries:
        try:
            event = event_at(repo, layout, topic, each.commit)
            found[event.content_id] = found[origin_of(event)] = each.commit
        except Unavailable:
            raise
        except BrokenLink:  # what is missing, as in a partial clone, was still recorded; fetching brings it
            if each.content_id is not None:
                found[each.content_id] = each.commit
        except RopewalkError:
            continue  # readers of the new history report it; here it carries nothing
    return found


def _looked_at(
    repo: Repo, layout: Layout, topic: str, entry: DivergedEntry, again: Mapping[ContentId, Oid]
) -> DivergedEntry:
    """Return a displaced entry with its problem and the present commit of its event."""
    problem, origin = entry.problem, entry.content_id
    if problem is None:
        try:
            origin = origin_of(event_at(repo, layout, topic, entry.commit))
            _check_files(repo, _commit(repo, entry.commit).tree)
        except Unavailable:
            raise
        except RopewalkError as error:
            problem = error.detail
    return entry._replace(problem=problem, again=again.get(origin) if origin else None)


def _check_files(repo: Repo, tree: Oid, depth: int = 0) -> None:
    """Read every file below a tree; raise for one that is missing or damaged."""
    if depth > TREE_DEPTH_MAX:
        raise BrokenLink(f"tree {tree} is deeper than {TREE_DEPTH_MAX}", entry=tree)
    for entry in parse_tree(get_object(repo, tree, "tree")):
        if entry.mode == FOLDER:
            _check_files(repo, entry.oid, depth + 1)
        else:
            get_object(repo, entry.oid, "blob")


def _commit(repo: Repo, oid: Oid) -> Commit:
    return parse_commit(get_object(repo, oid, "commit"))
