"""Append and read: one event, one commit, one place in a line.

`gitlog.planning` decides everything about a batch without touching anything; `append` carries it out through the port.
Refs move last: a crash before that leaves garbage, not a lie.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from ropewalk.errors import BrokenLink, HeadMoved, NotFound, RopewalkError
from ropewalk.gitlog.core.commit import Headers, parse_message
from ropewalk.gitlog.core.envelope import Draft
from ropewalk.gitlog.core.layout import Layout, anchors_ref
from ropewalk.gitlog.core.objects import Commit, GitObject, Kind, Oid, TreeEntry, parse_commit, parse_tree
from ropewalk.gitlog.core.planning import AppendContext, EntryRecord, Plan, Receipt, Tip, plan

ATTEMPTS_MAX = 6  # a moved head is another writer's success; six in a row mean another problem


class Repo(Protocol):
    """What the engine needs of a repository. Compare-and-swap has no unconditional form."""

    def get(self, oid: str) -> tuple[Kind, bytes]: ...
    def put(self, objects: Sequence[GitObject]) -> AbstractContextManager[None]: ...
    def head(self, ref: str) -> str | None: ...
    def move_head(self, ref: str, expected: str | None, new: str) -> None: ...
    def turn(self, ref: str) -> AbstractContextManager[None]: ...


def append(
    repo: Repo,
    layout: Layout,
    topic: str,
    drafts: Sequence[Draft],
    setting: AppendContext,
    *,
    tip_of: Callable[[str | None], Tip],
    pause: Callable[[int], None],
) -> Plan:
    """Record drafts: one pack, one move of the head. Every outcome that is a receipt is durable when this returns.

    `tip_of` reads (and vets) the head; `pause` waits, with jitter, before another attempt.
    """
    made = Plan(Tip(), Tip())

    def make(head: str | None) -> Plan:
        nonlocal made
        made = plan(layout, topic, tip_of(head), drafts, setting, repo.head(anchors_ref(layout, topic)))
        return made

    # A ULID the caller chose is a promise about order; only ours may be chosen again.
    attempts = 1 if any("ulid" in draft.document for draft in drafts) else ATTEMPTS_MAX
    try:
        return grow(repo, layout.head_ref(topic), make, pause=pause, attempts=attempts)
    except HeadMoved as moved:
        refused = [moved if isinstance(o, Receipt) and not o.replayed else o for o in made.outcomes]
        return Plan(made.start, made.start, outcomes=refused)


def grow(
    repo: Repo,
    ref: str,
    make: Callable[[str | None], Plan],
    *,
    pause: Callable[[int], None] = lambda _attempt: None,
    attempts: int = ATTEMPTS_MAX,
) -> Plan:
    """Carry out the plan made for the current head; if another writer moves it meanwhile, make another."""
    with repo.turn(ref):
        for attempt in range(attempts):
            made = make(repo.head(ref))
            if not made.objects:
                return made
            try:
                with repo.put(made.objects):
                    repo.move_head(ref, made.start.commit, made.tip.commit or "")
                return made
            except HeadMoved:
                if attempt + 1 == attempts:
                    raise
                pause(attempt)
    raise AssertionError("unreachable")


def describe(repo: Repo, layout: Layout, topic: str, oid: Oid) -> EntryRecord:
    """Return what an index keeps of a commit, read from the commit and its tree."""
    commit = _commit(repo, oid)
    if len(commit.parents) > 1:
        raise BrokenLink(f"commit {oid} has {len(commit.parents)} parents; a line has one", entry=oid)
    headers = _headers(layout, topic, oid, commit)
    blob, _ = open_trees(repo, layout, topic, headers, commit.tree, oid)
    return EntryRecord(
        headers.ulid, headers.content_id, oid, blob, commit.parents[0] if commit.parents else None
    )


def open_trees(
    repo: Repo, layout: Layout, topic: str, headers: Headers, tree: Oid, commit: Oid
) -> tuple[Oid, list[list[TreeEntry]]]:
    """Return the envelope's blob at the exact path of the layout, and all that each tree on the way to it holds."""
    if layout.path is None:
        raise NotFound(f"entries of the {layout.name} layout carry no envelope", entry=commit)
    at, trees = tree, list[list[TreeEntry]]()
    path = layout.path(topic, headers.ulid)
    for name in path:
        trees.append(list(parse_tree(get_object(repo, at, "tree"))))
        entry = next((each for each in trees[-1] if each.name == name), None)
        if entry is None:
            raise BrokenLink(f"commit {commit} has no {'/'.join(path)}", entry=commit, where="tree")
        at = entry.oid
    return at, trees


def _headers(layout: Layout, topic: str, oid: Oid, commit: Commit) -> Headers:
    """Return what a commit promises; one that is no entry of this log is named and refused (S0 §5: header = ref)."""
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
            advice="Other software wrote it. Run `ropewalk verify` to find other problems; fetch the log from a clone "
            "without that commit, then `ropewalk heads accept`.",
        )
    return headers


def _commit(repo: Repo, oid: Oid) -> Commit:
    return parse_commit(get_object(repo, oid, "commit"))


def get_object(repo: Repo, oid: Oid, wanted: Kind) -> bytes:
    """Return an object the log names; one that is missing or of another kind is a broken link."""
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
