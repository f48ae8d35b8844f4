"""Git notes: logs and attachments hung on a commit without changing it.

Written with one level of folders, as git itself does when notes are many; read at any depth.
"""

from __future__ import annotations

from ropewalk.errors import Conflict, HeadMoved
from ropewalk.gitlog.log import Repo, get_object
from ropewalk.gitlog.objects import (
    EMPTY_TREE,
    FILE,
    FOLDER,
    Commit,
    GitObject,
    Oid,
    Signature,
    TreeEntry,
    encode_commit,
    encode_tree,
    object_id,
    parse_commit,
    parse_tree,
)

__all__ = ["add_note", "read_note"]

ATTEMPTS_MAX = 8


def read_note(repo: Repo, ref: str, target: Oid) -> bytes | None:
    """The note on a commit, None if it has none."""
    head = repo.head(ref)
    if head is None:
        return None
    at, rest = parse_commit(get_object(repo, Oid(head), "commit")).tree, str(target)
    while True:
        entries = {e.name: e for e in parse_tree(get_object(repo, at, "tree"))} if at != EMPTY_TREE else {}
        if rest in entries:
            return get_object(repo, entries[rest].oid, "blob")
        folder = entries.get(rest[:2])
        if folder is None or folder.mode != FOLDER:
            return None
        at, rest = folder.oid, rest[2:]


def add_note(repo: Repo, ref: str, target: Oid, raw: bytes, author: Signature) -> Oid:
    """Hang a note on a commit that has none yet; returns the new head of the notes."""
    with repo.turn(ref):
        for attempt in range(ATTEMPTS_MAX):
            head = repo.head(ref)
            if read_note(repo, ref, target) is not None:
                raise Conflict(f"{target} already has a note in {ref}", ref=ref, entry=target)
            objects: list[GitObject] = [(object_id("blob", raw), "blob", raw)]
            tree = _with_note(repo, head, target, objects)
            parents = (Oid(head),) if head else ()
            commit = encode_commit(Commit(tree, parents, author, author, b"Notes added by ropewalk\n"))
            oid = object_id("commit", commit)
            objects.append((oid, "commit", commit))
            try:
                with repo.put(objects):
                    repo.move_head(ref, head, oid)
                return oid
            except HeadMoved:
                if attempt + 1 == ATTEMPTS_MAX:
                    raise
    raise AssertionError("unreachable")


def _with_note(repo: Repo, head: str | None, target: Oid, objects: list[GitObject]) -> Oid:
    blob = Oid(objects[0][0])
    root: dict[str, TreeEntry] = {}
    if head is not None:
        tree = parse_commit(get_object(repo, Oid(head), "commit")).tree
        root = {e.name: e for e in parse_tree(get_object(repo, tree, "tree"))} if tree != EMPTY_TREE else {}
    folder: dict[str, TreeEntry] = {}
    if target[:2] in root:
        folder = {e.name: e for e in parse_tree(get_object(repo, root[target[:2]].oid, "tree"))}
    folder[target[2:]] = TreeEntry(FILE, target[2:], blob)
    inner = encode_tree(folder.values())
    root[target[:2]] = TreeEntry(FOLDER, target[:2], object_id("tree", inner))
    outer = encode_tree(root.values())
    objects += [(object_id("tree", inner), "tree", inner), (object_id("tree", outer), "tree", outer)]
    return object_id("tree", outer)
