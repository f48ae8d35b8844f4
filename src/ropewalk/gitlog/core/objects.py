"""The bytes of git objects: trees with one path, commits with at most one parent.

A commit is read exactly and written exactly, because its bytes are its name.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple, NewType, TypeAlias

from ropewalk.errors import BrokenLink

if TYPE_CHECKING:
    from hashlib import _Hash as Hash

Oid = NewType("Oid", str)
"""A git object id: 40 lower-case hex digits (SHA-1)."""

Kind: TypeAlias = Literal["blob", "tree", "commit", "tag"]
GitObject: TypeAlias = tuple[str, Kind, bytes]
"""An object on its way to a store: id, kind, bytes."""

EMPTY_TREE = Oid("4b825dc642cb6eb9a060e54bf8d69288fbee4904")
FILE, FOLDER = b"100644", b"40000"
HEAD = re.compile(
    rb"tree ([0-9a-f]{40})\n((?:parent [0-9a-f]{40}\n)*)author ([^\n]*)\ncommitter ([^\n]*)((?:\n[^\n]+)*)"
)
PERSON = re.compile(rb"(.*?) ?<([^<>]*)> (-?\d{1,18}) ([+-]\d{4})", re.DOTALL)


class TreeEntry(NamedTuple):
    """One name in a tree."""

    mode: bytes
    name: str
    oid: Oid


class GitSignature(NamedTuple):
    """Who and when, as git writes it.

    >>> GitSignature("Ada", "ada@example.test", 1700000000).encode()
    b'Ada <ada@example.test> 1700000000 +0000'
    """

    name: str
    mail: str
    time_s: int
    zone: str = "+0000"

    def encode(self) -> bytes:
        return _encoded(self)


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit as it was read; `message` is everything behind the blank line, `extra` other headers (gpgsig …)."""

    tree: Oid
    parents: tuple[Oid, ...]
    author: GitSignature
    committer: GitSignature
    message: bytes
    extra: tuple[tuple[str, bytes], ...] = ()


def object_id(kind: Kind, raw: bytes) -> Oid:
    """Return the name git gives to an object.

    >>> object_id("tree", b"") == EMPTY_TREE
    True
    """
    return Oid(_sha1(b"%s %d\x00%s" % (kind.encode(), len(raw), raw)).hex())


def encode_tree(entries: Iterable[TreeEntry]) -> bytes:
    """Return the bytes of a tree; names sort as git sorts them, folders as if they ended with `/`."""
    ordered = sorted(entries, key=lambda entry: entry.name.encode() + (b"/" if entry.mode == FOLDER else b""))
    return b"".join(b"%s %s\x00" % (e.mode, e.name.encode()) + bytes.fromhex(e.oid) for e in ordered)


def parse_tree(raw: bytes) -> Iterator[TreeEntry]:
    """Yield the entries of a tree, in the order they are written."""
    at = 0
    while at < len(raw):
        space = raw.find(b" ", at)
        end = raw.find(b"\x00", space)
        if space < 0 or end < 0 or end + 21 > len(raw):
            raise BrokenLink("a tree ends in the middle of an entry", where="tree")
        name = raw[space + 1 : end].decode("utf-8", "surrogateescape")
        yield TreeEntry(raw[at:space], name, Oid(raw[end + 1 : end + 21].hex()))
        at = end + 21


def build_path_trees(path: tuple[str, ...], raw: bytes) -> tuple[Oid, list[GitObject]]:
    """Return a tree that holds one file at `path`: the root tree's id, and the objects that make it up.

    >>> root, objects = build_path_trees(("message", "envelope.json"), b"{}")
    >>> [kind for _, kind, _ in objects]
    ['blob', 'tree', 'tree']
    """
    digest = _sha1(b"blob %d\x00%s" % (len(raw), raw))
    name = digest.hex()
    objects: list[GitObject] = [(name, "blob", raw)]
    tree = b"%s %s\x00%s" % (FILE, path[-1].encode(), digest)
    digest = _sha1(b"tree %d\x00%s" % (len(tree), tree))
    name = digest.hex()
    objects.append((name, "tree", tree))
    for beginning, begun in _folders(path[:-1]):
        tree = beginning + digest
        named = begun.copy()
        named.update(digest)
        digest = named.digest()
        name = digest.hex()
        objects.append((name, "tree", tree))
    return Oid(name), objects


def path_tree_id(path: tuple[str, ...], blob: Oid) -> Oid:
    """Return the id of the tree that holds one blob at `path`, and nothing else.

    >>> root, objects = build_path_trees(("message", "envelope.json"), b"{}")
    >>> path_tree_id(("message", "envelope.json"), objects[0][0]) == root
    True
    """
    tree = b"%s %s\x00%s" % (FILE, path[-1].encode(), bytes.fromhex(blob))
    digest = _sha1(b"tree %d\x00%s" % (len(tree), tree))
    for _, begun in _folders(path[:-1]):
        named = begun.copy()
        named.update(digest)
        digest = named.digest()
    return Oid(digest.hex())


def encode_commit(commit: Commit) -> bytes:
    """Return the bytes of a commit."""
    return b"tree %s\n%sauthor %s\ncommitter %s\n%s\n%s" % (
        commit.tree.encode(),
        b"".join([b"parent %s\n" % parent.encode() for parent in commit.parents]),
        commit.author.encode(),
        commit.committer.encode(),
        b"".join(
            [b"%s %s\n" % (name.encode(), value.replace(b"\n", b"\n ")) for name, value in commit.extra]
        ),
        commit.message,
    )


def parse_commit(raw: bytes) -> Commit:
    """Return a commit from its bytes, read as git reads it: each header once, in git's order.

    Anything looser would let one commit show one history to git and another to us.
    """
    head, blank, message = raw.partition(b"\n\n")
    match = HEAD.fullmatch(head) if blank else None
    if match is None:
        raise BrokenLink("a commit's headers are not as git writes them", where="commit")
    tree, parents, author, committer, more = match.groups()
    extra: list[tuple[str, bytes]] = []
    for line in more.split(b"\n")[1:]:
        if line.startswith(b" ") and extra:
            extra[-1] = (extra[-1][0], extra[-1][1] + b"\n" + line[1:])
            continue
        name, _, value = line.partition(b" ")
        if name in (b"tree", b"parent", b"author", b"committer"):
            raise BrokenLink(f"a commit holds {name.decode()} where git does not look for it", where="commit")
        extra.append((name.decode("ascii", "replace"), value))
    return Commit(
        tree=Oid(tree.decode()),
        parents=tuple(Oid(line[7:].decode()) for line in parents.splitlines()),
        author=parse_person(author),
        committer=parse_person(committer),
        message=message,
        extra=tuple(extra),
    )


@lru_cache(maxsize=256)  # commits of one batch name one person at one moment
def parse_person(raw: bytes) -> GitSignature:
    """Return who wrote or committed something, and when; raise `BrokenLink` for what git would not write."""
    match = PERSON.fullmatch(raw)
    if match is None:
        raise BrokenLink(f"a commit names a person git would not write: {raw[:60]!r}", where="commit")
    name, mail, time_s, zone = match.groups()
    return GitSignature(
        name.decode("utf-8", "surrogateescape"),
        mail.decode("utf-8", "surrogateescape"),
        int(time_s),
        zone.decode(),
    )


_EMPTY = hashlib.sha1(usedforsecurity=False)  # copying one is cheaper than asking OpenSSL for another


def _sha1(raw: bytes) -> bytes:
    named = _EMPTY.copy()
    named.update(raw)
    return named.digest()


@lru_cache(maxsize=256)  # the folders above an event are those of the event before
def _folders(path: tuple[str, ...]) -> list[tuple[bytes, Hash]]:
    """Return trees of one folder each, the innermost first, up to that folder's id: their bytes, their names begun."""
    trees = []
    for name in reversed(path):
        beginning = b"%s %s\x00" % (FOLDER, name.encode())
        begun = _EMPTY.copy()
        begun.update(b"tree %d\x00%s" % (len(beginning) + 20, beginning))
        trees.append((beginning, begun))
    return trees


@lru_cache(maxsize=64)  # a batch is signed by one person at one moment
def _encoded(person: GitSignature) -> bytes:
    text = f"{_clean(person.name)} <{_clean(person.mail)}> {person.time_s} {person.zone}"
    return text.encode("utf-8", "surrogateescape")


def _clean(text: str) -> str:
    return "".join(letter for letter in text if letter not in "<>\n\x00").strip()
