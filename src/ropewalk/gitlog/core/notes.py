"""Git notes: logs and attachments hung on a commit without changing it.

Written with one level of folders, as git itself does when notes are many; read at any depth.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ropewalk.errors import Conflict, DigestMismatch
from ropewalk.gitlog.core.envelope import refs_of
from ropewalk.gitlog.core.file_chain import add_commit
from ropewalk.gitlog.core.log import Repo, get_object
from ropewalk.gitlog.core.objects import (
    EMPTY_TREE,
    FILE,
    FOLDER,
    GitObject,
    GitSignature,
    Oid,
    TreeEntry,
    encode_tree,
    object_id,
    parse_commit,
    parse_tree,
)
from ropewalk.kernel.digest import content_id

LOG_REF = "log"  # the member of an envelope's `refs` that names the digest of the note on its commit

MESSAGE = "Notes added by ropewalk"
FAN_OUT_MAX = 19  # folders of two digits above a note; git itself stops far earlier


def read_note(repo: Repo, ref: str, target: Oid) -> bytes | None:
    """Return the note on a commit, None if it has none."""
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


def named_log(document: Mapping[str, Any]) -> str | None:
    """Return the digest of the note that an event names, None if it names none."""
    found = refs_of(document).get(LOG_REF)
    return found if isinstance(found, str) else None


def check_log(document: Mapping[str, Any], commit: str, raw: bytes) -> None:
    """Refuse a note that is not the one its event names; events that name none have nothing to hold it against."""
    wanted = named_log(document)
    if wanted is not None and content_id(raw) != wanted.lower():
        raise DigestMismatch(
            f"commit {commit}: its note has the digest {content_id(raw)}, its event names {wanted}",
            expected=wanted,
            got=content_id(raw),
            where=commit,
            advice="The note was replaced. Fetch refs/notes/gatos/shiplog/logs from another clone and compare.",
        )


def add_note(repo: Repo, ref: str, target: Oid, raw: bytes, author: GitSignature) -> Oid:
    """Hang a note on a commit that has none yet; returns the new head of the notes."""

    def make(head: str | None) -> list[GitObject]:
        if read_note(repo, ref, target) is not None:
            raise Conflict(f"{target} already has a note in {ref}", ref=ref, entry=target)
        return _with_notes(repo, head, {target: raw})

    made = add_commit(repo, ref, author, MESSAGE, make)
    assert made is not None
    return made


def list_notes(repo: Repo, ref: str) -> dict[Oid, Oid]:
    """Return every note of a ref: the object it hangs on, and its blob, at any depth of folders."""
    head = repo.head(ref)
    found: dict[Oid, Oid] = {}
    if head is None:
        return found
    trees = [("", parse_commit(get_object(repo, Oid(head), "commit")).tree)]
    while trees:
        above, tree = trees.pop()
        entries = parse_tree(get_object(repo, tree, "tree")) if tree != EMPTY_TREE else iter(())
        for entry in entries:
            name = above + entry.name
            if entry.mode == FOLDER and len(entry.name) == 2 and len(above) < 2 * FAN_OUT_MAX:
                trees.append((name, entry.oid))
            elif entry.mode != FOLDER and len(name) == 40:
                # The one `read_note` finds: the folder nearer to the top.
                found.setdefault(Oid(name), entry.oid)
    return found


def add_notes(repo: Repo, ref: str, notes: Mapping[Oid, bytes], author: GitSignature) -> Oid | None:
    """Hang many notes at once, in one commit; objects that have one already keep it. None if there is nothing new."""

    def make(head: str | None) -> list[GitObject]:
        there = list_notes(repo, ref)
        fresh = {target: raw for target, raw in notes.items() if target not in there}
        return _with_notes(repo, head, fresh) if fresh else []

    return add_commit(repo, ref, author, MESSAGE, make)


def _with_notes(repo: Repo, head: str | None, notes: Mapping[Oid, bytes]) -> list[GitObject]:
    """Return the objects of a tree with further notes, the tree itself last."""

    def entries(tree: Oid) -> dict[str, TreeEntry]:
        return {e.name: e for e in parse_tree(get_object(repo, tree, "tree"))} if tree != EMPTY_TREE else {}

    objects: list[GitObject] = [(object_id("blob", raw), "blob", raw) for raw in notes.values()]
    root = entries(parse_commit(get_object(repo, Oid(head), "commit")).tree) if head is not None else {}
    folders: dict[str, dict[str, TreeEntry]] = {}
    for target, raw in notes.items():
        name = target[:2]
        if name not in folders:
            folders[name] = entries(root[name].oid) if name in root and root[name].mode == FOLDER else {}
        folders[name][target[2:]] = TreeEntry(FILE, target[2:], object_id("blob", raw))
    for name, folder in folders.items():
        inner = encode_tree(folder.values())
        objects.append((object_id("tree", inner), "tree", inner))
        root[name] = TreeEntry(FOLDER, name, object_id("tree", inner))
    outer = encode_tree(root.values())
    return [*objects, (object_id("tree", outer), "tree", outer)]
