"""A ref whose commits each hold a few files: where anchors and signed heads stand, outside the log they speak of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ropewalk.errors import HeadMoved
from ropewalk.gitlog.core.log import Repo, get_object
from ropewalk.gitlog.core.objects import (
    FILE,
    Commit,
    GitObject,
    GitSignature,
    Oid,
    TreeEntry,
    encode_commit,
    encode_tree,
    object_id,
    parse_commit,
    parse_tree,
)

ATTEMPTS_MAX = 8


@dataclass(frozen=True, slots=True)
class FilesCommit:
    """One commit of such a ref: its id and its files."""

    commit: Oid
    files: Mapping[str, bytes]


def add_files(repo: Repo, ref: str, files: Mapping[str, bytes], message: str, author: GitSignature) -> Oid:
    """Put files on top of a ref, by compare-and-swap; files of other writers are kept."""
    objects: list[GitObject] = [(object_id("blob", raw), "blob", raw) for raw in files.values()]
    tree = encode_tree(TreeEntry(FILE, name, object_id("blob", raw)) for name, raw in files.items())
    objects.append((object_id("tree", tree), "tree", tree))
    made = add_commit(repo, ref, author, message, lambda _head: objects)
    assert made is not None
    return made


def add_commit(
    repo: Repo, ref: str, author: GitSignature, message: str, make: Callable[[str | None], list[GitObject]]
) -> Oid | None:
    """Commit the objects made for the current head, the last of them the tree; None if there are none.

    If another writer moves the head meanwhile, they are made again for the new one.
    """
    with repo.turn(ref):
        for attempt in range(ATTEMPTS_MAX):
            head = repo.head(ref)
            objects = make(head)
            if not objects:
                return None
            parents = (Oid(head),) if head else ()
            raw = encode_commit(
                Commit(Oid(objects[-1][0]), parents, author, author, message.encode() + b"\n")
            )
            oid = object_id("commit", raw)
            try:
                with repo.put([*objects, (oid, "commit", raw)]):
                    repo.move_head(ref, head, oid)
                return oid
            except HeadMoved:
                if attempt + 1 == ATTEMPTS_MAX:
                    raise
    raise AssertionError("unreachable")


def list_files(repo: Repo, ref: str) -> Iterator[FilesCommit]:
    """Yield the commits of a ref, newest first."""
    at = repo.head(ref)
    while at is not None:
        commit = parse_commit(get_object(repo, Oid(at), "commit"))
        entries = parse_tree(get_object(repo, commit.tree, "tree"))
        files = {e.name: get_object(repo, e.oid, "blob") for e in entries if e.mode == FILE}
        yield FilesCommit(Oid(at), files)
        at = commit.parents[0] if commit.parents else None
