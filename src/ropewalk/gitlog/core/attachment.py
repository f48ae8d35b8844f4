"""Attachments of messages: files next to the envelope, named by digest in its `refs` (S1 §2)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ropewalk.errors import InvalidEnvelope
from ropewalk.gitlog.core.envelope import EncodedEnvelope, refs_of
from ropewalk.gitlog.core.layout import Layout
from ropewalk.gitlog.core.objects import (
    FILE,
    FOLDER,
    GitObject,
    Oid,
    TreeEntry,
    build_path_trees,
    encode_tree,
    object_id,
)
from ropewalk.kernel.digest import content_id


def attach(
    layout: Layout, sealed: EncodedEnvelope, envelope: GitObject, attachments: Mapping[str, bytes]
) -> tuple[Oid, list[GitObject]]:
    """S1 §2: attachments lie under `message/attachments/` and are named, by digest, in the envelope's refs."""
    if layout.name != "messages":
        raise InvalidEnvelope("only messages carry attachments", where="/refs", schema=layout.envelope_schema)
    objects: list[GitObject] = [envelope]
    files = []
    named = named_digests(json.loads(sealed.raw))
    for name, raw in sorted(attachments.items()):
        # Names that begin with .git mean something to git itself, in any case; `git fsck` refuses them.
        gits_own = name.lower().startswith((".git", "git~1"))
        if name in ("", ".", "..") or gits_own or "/" in name or not name.isprintable():
            raise InvalidEnvelope(
                f"attachment {name!r} is no file name", where="/refs", schema=layout.envelope_schema
            )
        if content_id(raw) not in named:
            raise InvalidEnvelope(
                f"attachment {name!r} is not named in refs by its digest {content_id(raw)}",
                where="/refs",
                schema=layout.envelope_schema,
            )
        oid = object_id("blob", raw)
        objects.append((oid, "blob", raw))
        files.append(TreeEntry(FILE, name, oid))

    assert layout.path is not None
    trees = _trees(layout.path("", sealed.ulid), Oid(envelope[0]), files)
    return Oid(trees[-1][0]), objects + trees


def tree_with(path: tuple[str, ...], raw: bytes, attachments: Sequence[TreeEntry]) -> Oid:
    """Return the tree that holds an envelope at its path and its attachments, and nothing else."""
    if not attachments:
        return build_path_trees(path, raw)[0]
    return Oid(_trees(path, object_id("blob", raw), attachments)[-1][0])


def _trees(path: tuple[str, ...], envelope: Oid, attachments: Sequence[TreeEntry]) -> list[GitObject]:
    """Return the trees of an envelope and its attachments, the outermost last."""
    raw = encode_tree(attachments)
    made: list[GitObject] = [(object_id("tree", raw), "tree", raw)]
    inner = [TreeEntry(FOLDER, "attachments", Oid(made[0][0])), TreeEntry(FILE, path[-1], envelope)]
    for name in (*reversed(path[:-1]), None):
        raw = encode_tree(inner)
        made.append((object_id("tree", raw), "tree", raw))
        inner = [TreeEntry(FOLDER, name or "", Oid(made[-1][0]))]
    return made


def named_digests(document: Mapping[str, Any]) -> set[str]:
    """Return the digests an envelope refers to, as we write them."""
    return {str(value).lower() for value in refs_of(document).values()}
