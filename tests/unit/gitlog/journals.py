"""Journals as `git shiplog` writes them, made from bytes, so that a test can put anything into one."""

from __future__ import annotations

import json
from typing import Any

from ropewalk.gitlog.core.objects import (
    EMPTY_TREE,
    FILE,
    Commit,
    GitSignature,
    Oid,
    TreeEntry,
    encode_commit,
    encode_tree,
    object_id,
)
from ropewalk.gitlog.store.object_store import GitStore

ADA = GitSignature("Ada Ops", "ada@example.test", 1_700_000_000, "+0100")
HEAD = "Deploy: web → prod\nReason: because \nStatus: SUCCESS (0s) @ x\nSeq: 0\nAuthor: a\nRepo: b\n\n"
SEPARATOR = "---  # structured trailer for machines\n"


def trailer(**changes: Any) -> dict[str, Any]:
    """A trailer with every field the tool writes."""
    when = {"start_ts": "2023-11-14T22:13:20Z", "end_ts": "2023-11-14T22:13:20Z", "dur_s": 0}
    return {
        "version": 1,
        "env": "prod",
        "ts": "2023-11-14T22:13:20Z",
        "who": {"name": "Ada Ops", "email": "ada@example.test"},
        "what": {"service": "web", "artifact": None, "repo_head": "0" * 40},
        "where": {"env": "prod", "region": None, "cluster": None, "namespace": "prod"},
        "why": {"reason": "because", "ticket": None},
        "how": {"pipeline": None, "run_url": None},
        "status": "success",
        "when": when,
        "repo_head": "0" * 40,
        **changes,
    }


def message(body: dict[str, Any] | str, head: str = HEAD, separator: str = SEPARATOR) -> bytes:
    """The message of an entry."""
    text = body if isinstance(body, str) else json.dumps(body, indent=2, ensure_ascii=False)
    return (head + separator + text).encode("utf-8", "surrogatepass")


class Journal:
    """One journal of a repository, growing."""

    def __init__(self, store: GitStore, env: str = "prod", root: str = "refs/_shiplog/") -> None:
        self.store, self.env, self.ref = store, env, f"{root}journal/{env}"
        self.time_s = 1_700_000_000

    @property
    def head(self) -> str | None:
        return self.store.head(self.ref)

    def add(
        self,
        body: dict[str, Any] | str | bytes | None = None,
        *,
        seconds: int = 1,
        parents: tuple[str, ...] | None = None,
        extra: tuple[tuple[str, bytes], ...] = (),
        author: GitSignature | None = None,
        raw: bytes | None = None,
        move: bool = True,
    ) -> Oid:
        """Put an entry on top: a trailer, the text behind the separator, or a whole message in bytes."""
        self.time_s += seconds
        if body is None:
            body = trailer(env=self.env)
        text = body if isinstance(body, bytes) else message(body)
        author = author or GitSignature(ADA.name, ADA.mail, self.time_s, ADA.zone)
        head = self.head
        above = tuple(Oid(each) for each in (parents if parents is not None else (head,) if head else ()))
        made = (
            raw if raw is not None else encode_commit(Commit(EMPTY_TREE, above, author, author, text, extra))
        )
        oid = object_id("commit", made)
        with self.store.put([(EMPTY_TREE, "tree", b""), (oid, "commit", made)]):
            if move:
                self.store.move_head(self.ref, head, oid)
        return oid


def notes(store: GitStore, ref: str, hung: dict[str, bytes], depth: int = 0) -> None:
    """A notes ref with as many levels of folders as asked."""
    objects: list[Any] = []

    def tree(entries: dict[str, bytes], depth: int) -> Oid:
        rows = []
        if depth == 0:
            for name, raw in entries.items():
                blob = object_id("blob", raw)
                objects.append((blob, "blob", raw))
                rows.append(TreeEntry(FILE, name, blob))
        else:
            for start in sorted({name[:2] for name in entries}):
                inner = {name[2:]: raw for name, raw in entries.items() if name[:2] == start}
                rows.append(TreeEntry(b"40000", start, tree(inner, depth - 1)))
        raw = encode_tree(rows)
        objects.append((object_id("tree", raw), "tree", raw))
        return object_id("tree", raw)

    root = tree(hung, depth)
    commit = encode_commit(Commit(root, (), ADA, ADA, b"Notes added by 'git notes add'\n"))
    with store.put([*objects, (object_id("commit", commit), "commit", commit)]):
        store.move_head(ref, None, object_id("commit", commit))
