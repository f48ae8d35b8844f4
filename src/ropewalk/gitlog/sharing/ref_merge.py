"""Merge the refs around logs with a remote's: notes, anchors, signed heads and cursors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ropewalk.errors import RopewalkError
from ropewalk.gitlog.consumers.cursor import read_cursor, split_ref
from ropewalk.gitlog.core.layout import Layout, anchors_ref, signed_heads_ref
from ropewalk.gitlog.core.log import get_object
from ropewalk.gitlog.core.notes import add_notes, list_notes
from ropewalk.gitlog.core.objects import (
    Commit,
    GitObject,
    Oid,
    encode_commit,
    object_id,
    parse_commit,
    parse_tree,
)
from ropewalk.gitlog.verify.event_check import list_chain
from ropewalk.kernel import jcs

if TYPE_CHECKING:
    from ropewalk.gitlog.repository.repository import GitRepository
    from ropewalk.gitlog.store.object_store import GitStore


def chain_refs(topics: Mapping[Layout, Sequence[str]]) -> dict[str, tuple[Layout, str]]:
    """Return the refs of anchors and signed heads of these logs."""
    return {
        make(layout, topic): (layout, topic)
        for layout, names in topics.items()
        for topic in names
        for make in (anchors_ref, signed_heads_ref)
    }


def merge_chain(log: GitRepository, ref: str, layout: Layout, topic: str, theirs: str | None) -> int:
    """Merge a chain of anchors or signed heads; return how many of ours were dropped.

    Ours that speak of displaced events are dropped; the others go on top of theirs.
    """
    store, ours = log.store, log.store.head(ref)
    if ours is None:
        if theirs is not None:
            store.move_head(ref, None, theirs)
        return 0
    known = set(list_chain(store, theirs, None)) if theirs is not None else set[Oid]()
    mine: list[Oid] = []
    for oid in list_chain(store, ours, None):
        if oid in known:
            break
        mine.append(oid)
    displaced = _displaced(log, layout, topic)
    valid = [oid for oid in reversed(mine) if not _speaks_of(store, oid, displaced)]
    above_theirs = theirs is None or not mine or _parent(store, mine[-1]) == theirs
    if len(valid) == len(mine) and above_theirs:
        if not mine and theirs is not None and theirs != ours:
            store.move_head(ref, ours, theirs)
        return 0
    objects: list[GitObject] = []
    head = theirs
    for oid in valid:
        commit = parse_commit(get_object(store, oid, "commit"))
        raw = encode_commit(replace(commit, parents=(Oid(head),) if head else ()))
        head = object_id("commit", raw)
        objects.append((head, "commit", raw))
    if head is None:
        store.drop_head(ref, ours)
    else:
        with store.put(objects):
            store.move_head(ref, ours, head)
    return len(mine) - len(valid)


def _parent(store: GitStore, oid: Oid) -> str | None:
    parents = parse_commit(get_object(store, oid, "commit")).parents
    return parents[0] if parents else None


def _displaced(log: GitRepository, layout: Layout, topic: str) -> set[str]:
    heads = log.lines.kept(layout, topic)
    return {each.commit for head in heads for each in log.lines.compare(layout, topic, head).displaced}


def _speaks_of(store: GitStore, oid: Oid, displaced: set[str]) -> bool:
    """Return whether an anchor names a displaced commit; a signed head may cover one, if there are any."""
    if not displaced:
        return False
    commit = parse_commit(get_object(store, oid, "commit"))
    for entry in parse_tree(get_object(store, commit.tree, "tree")):
        if entry.name == "anchor.json":
            document = jcs.parse(get_object(store, entry.oid, "blob"))
            return isinstance(document, dict) and document.get("head") in displaced
    return True


def merge_notes(log: GitRepository, ref: str, theirs: str | None) -> None:
    """Make our notes contain theirs. A merge commit joins both, so that each side fast-forwards to it."""
    store, ours = log.store, log.store.head(ref)
    if theirs is None or ours == theirs:
        return
    if ours is None:
        store.move_head(ref, None, theirs)
        return
    with store.turn(ref):
        ours = store.head(ref)
        assert ours is not None
        mine, their_notes = list_notes(store, ref), list_notes(_At(store, theirs), ref)
        if their_notes.items() <= mine.items() and _reaches(store, ours, theirs):
            return
        if mine.items() <= their_notes.items() and _reaches(store, theirs, ours):
            store.move_head(ref, ours, theirs)
            return
        missing = {at: get_object(store, blob, "blob") for at, blob in their_notes.items() if at not in mine}
        add_notes(store, ref, missing, log.author(log.now_ms()))
        top = store.head(ref)
        assert top is not None
        tree = parse_commit(get_object(store, Oid(top), "commit")).tree
        author = log.author(log.now_ms())
        raw = encode_commit(
            Commit(tree, (Oid(top), Oid(theirs)), author, author, b"Notes merged by ropewalk\n")
        )
        joined = object_id("commit", raw)
        with store.put([(joined, "commit", raw)]):
            store.move_head(ref, top, joined)


def _reaches(store: GitStore, head: str, wanted: str) -> bool:
    """Return whether `wanted` is an ancestor of `head`."""
    seen, waiting = set[str](), [head]
    while waiting:
        at = waiting.pop()
        if at == wanted:
            return True
        if at not in seen:
            seen.add(at)
            waiting += parse_commit(get_object(store, Oid(at), "commit")).parents
    return False


def merge_cursor(log: GitRepository, ref: str, base: str | None, theirs: str | None) -> None:
    """Take the cursor that moved since the last exchange; if both moved, the one that is further behind."""
    store, ours = log.store, log.store.head(ref)
    if theirs is None or theirs in (ours, base):
        return
    if ours is None or ours == base or _position(store, ref, theirs) < _position(store, ref, ours):
        store.move_head(ref, ours, theirs)


def _position(store: GitStore, ref: str, target: str) -> str:
    """Return the ULID of a cursor's target; one that cannot be read sorts last."""
    try:
        cursor = read_cursor(_At(store, target), *split_ref(ref))
    except RopewalkError:
        return "~"
    return cursor.ulid if cursor is not None else "~"


class _At:
    """A store in which every ref points to one object: reads a remote's value with the readers of refs."""

    def __init__(self, store: GitStore, target: str) -> None:
        self.get, self.put, self.turn, self.move_head = store.get, store.put, store.turn, store.move_head
        self.head: Callable[[str], str | None] = lambda _ref: target
