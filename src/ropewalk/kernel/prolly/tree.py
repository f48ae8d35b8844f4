"""A tree in an ordered store: one row per node, under its level byte and its key, as okra lays them out."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from blake3 import blake3

from ropewalk.errors import Damaged, Invalid, NotFound, RangeExceeded
from ropewalk.kernel.prolly.memory import MemoryStore
from ropewalk.kernel.prolly.node import (
    ANCHOR,
    ANCHOR_HASH,
    BOUNDARY_BELOW,
    HASH_BYTES,
    LEVELS_MAX,
    Node,
    check_key,
    is_boundary,
    leaf_hash,
)

BATCH_ROWS = 1 << 16  # entries of one `insert_many` that are placed together; bounds its memory
SPANS_KEPT = 4096  # nodes whose children a tree remembers; together they stand for some 130,000 entries

_METADATA_KEY = b"\xff"  # above every node


class Rows(Protocol):
    """Ordered rows to read, such as one table of a store at one moment."""

    def get(self, key: bytes, /) -> bytes | None:
        """Return the value under a key, or None."""

    def scan(
        self, start: bytes = b"", stop: bytes | None = None, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and values with `start <= key < stop`, in bytewise order of the keys."""


class Store(Rows, Protocol):
    """Ordered rows to write; it sees its own writes at once."""

    def put(self, key: bytes, value: bytes, /) -> None:
        """Set the value under a key."""

    def delete(self, key: bytes, /) -> None:
        """Remove a key; a missing key is no error."""


@dataclass(frozen=True, slots=True)
class Form:
    """How okra marks a store, and whether leaf rows hold values with their hashes."""

    metadata: bytes
    keeps_values: bool


STORE_V1 = Form(b"okra\x01\x10\0\0\0\x20", keeps_values=True)  # okra 0.2, as in v0.6 logs
STORE_V3 = Form(b"okra\x03\x10\0\0\0\x20\x01", keeps_values=True)
INDEX_V3 = Form(b"okra\x03\x10\0\0\0\x20\x00", keeps_values=False)  # as in v0.13 logs
FORMS = (STORE_V1, STORE_V3, INDEX_V3)


class ProllyReader:
    """A tree to read and to compare with others; rows without a tree are the empty tree.

    >>> ProllyReader(MemoryStore()).get_root().hash == ANCHOR_HASH
    True
    """

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self.form = _form_of(rows) or INDEX_V3

    def get_root(self) -> Node:
        """Return the one node of the highest level."""
        for row, value in self._rows.scan(stop=_METADATA_KEY, reverse=True):
            if not row:
                raise Damaged("the tree has a row without a key", reason="tree")
            return self._node(row[0], row[1:], value)
        return Node(0, ANCHOR, ANCHOR_HASH)

    def get_node(self, level: int, key: bytes) -> Node | None:
        """Return the node with that key on that level, or None."""
        if not 0 <= level < LEVELS_MAX:
            return None
        value = self._rows.get(bytes((level,)) + key)
        return None if value is None else self._node(level, key, value)

    def get_children(self, level: int, key: bytes) -> list[Node]:
        """Return the children of this node, in key order."""
        if not 0 < level < LEVELS_MAX:
            raise RangeExceeded(f"level {level} has no children; ask for 1 to {LEVELS_MAX - 1}", level=level)
        if self._rows.get(bytes((level,)) + key) is None:
            raise NotFound(f"no node {key.hex() or 'anchor'} on level {level}", level=level)
        return [self._node(level - 1, child, row) for child, row in self._children(level, key)]

    def _children(self, level: int, key: bytes) -> Iterator[tuple[bytes, bytes]]:
        first = bytes((level - 1,)) + key
        for row, value in self._rows.scan(first, bytes((level,))):
            if len(value) < HASH_BYTES:
                raise Damaged(f"row {row.hex()} of the tree has {len(value)} bytes", reason="tree")
            if is_boundary(value) and row != first:
                return
            yield row[1:], value

    def _node(self, level: int, key: bytes, row: bytes) -> Node:
        if level == 0 and key and self.form.keeps_values:
            return Node(level, key, row[:HASH_BYTES], row[HASH_BYTES:])
        return Node(level, key, row)


@dataclass(slots=True)
class _Span:
    """The children of one node: their keys, and their hashes end to end, which is what the node's hash covers."""

    keys: list[bytes]
    hashes: bytearray

    def hash(self) -> bytes:
        return blake3(self.hashes).digest(HASH_BYTES)

    def hash_at(self, at: int) -> bytes:
        return bytes(self.hashes[at * HASH_BYTES : (at + 1) * HASH_BYTES])

    def keeps_shape(self, key: bytes, row: bytes | None) -> bool:
        """Return whether this change (None removes) leaves the span's borders where they are."""
        if key == ANCHOR:
            return bool(self.keys)
        at = bisect_left(self.keys, key)
        was = at < len(self.keys) and self.keys[at] == key and self.hashes[at * HASH_BYTES] < BOUNDARY_BELOW
        return was == (row is not None and row[0] < BOUNDARY_BELOW)

    def place(self, key: bytes, row: bytes | None) -> None:
        """Make a change that keeps the shape."""
        at = bisect_left(self.keys, key)
        here = at * HASH_BYTES
        known = at < len(self.keys) and self.keys[at] == key
        if row is None:
            if known:
                del self.keys[at], self.hashes[here : here + HASH_BYTES]
            return
        if not known:
            self.keys.insert(at, key)
        self.hashes[here : here + (HASH_BYTES if known else 0)] = row[:HASH_BYTES]


class ProllyTree(ProllyReader):
    """A tree that grows in a store. It must be the only writer of its rows; when the store fails, make a new one.

    >>> tree = ProllyTree()
    >>> tree.insert(b"key", b"value"), tree.insert(b"key", b"value")
    (True, False)
    >>> tree.get_root().level
    1
    """

    def __init__(self, store: Store | None = None, form: Form = INDEX_V3) -> None:
        self._store: Store = MemoryStore() if store is None else store
        found = _form_of(self._store)
        if found is None:
            self._store.put(_METADATA_KEY, form.metadata)
            self._store.put(b"\0", ANCHOR_HASH)
        elif found != form:
            raise Invalid(
                f"the store holds a tree of the form {found.metadata.hex()}", got=found.metadata.hex()
            )
        super().__init__(self._store)
        self._height = self.get_root().level
        # By level, then by the key of the node that they are the children of.
        self._spans: defaultdict[int, dict[bytes, _Span]] = defaultdict(dict)

    def insert(self, key: bytes, value: bytes) -> bool:
        """Put one entry; whether that changed the tree. An entry with the same key is replaced."""
        check_key(key)
        hash = leaf_hash(key, value)
        row = hash + value if self.form.keeps_values else hash
        path: list[_Span] = []
        node = ANCHOR
        for level in range(self._height, 0, -1):
            span = self._span(level, node)
            path.append(span)
            if not span.keys:
                raise _childless(level, node)
            at = bisect_right(span.keys, key) - 1
            node = span.keys[at]
        if node == key and span.hash_at(at) == hash:
            return False
        self._climb(path, key, row)
        return True

    def insert_many(self, entries: Iterable[tuple[bytes, bytes]]) -> int:
        """Put many entries, hashing each touched node once; how many of them changed the tree.

        >>> ProllyTree().insert_many([(b"b", b"2"), (b"a", b"1"), (b"b", b"2")])
        2
        """
        changed = 0
        entries = iter(entries)
        while batch := dict(islice(entries, BATCH_ROWS)):
            rows: dict[bytes, bytes | None] = {}
            for key, value in batch.items():
                check_key(key)
                hash = leaf_hash(key, value)
                known = self._store.get(b"\0" + key)
                if known is None or not known.startswith(hash):
                    rows[key] = hash + value if self.form.keeps_values else hash
            if rows:
                self._apply(0, rows)
            changed += len(rows)
        return changed

    def _climb(self, path: list[_Span], key: bytes, row: bytes) -> None:
        """Put one row, then rehash the nodes above it; `path` holds the spans from the root down to it."""
        for level, span in enumerate(reversed(path)):
            if not span.keeps_shape(key, row):
                break
            span.place(key, row)
            self._store.put(bytes((level,)) + key, row)
            key, row = span.keys[0], span.hash()
        else:
            level = len(path)
        self._apply(level, {key: row})

    def _apply(self, level: int, changes: dict[bytes, bytes | None]) -> None:
        """Change rows of one level (None removes) and everything above; right for any change."""
        while level < self._height or changes.keys() != {ANCHOR}:
            parents = self._place(level + 1, changes)
            self._write(level, changes)
            if (level >= self._height or None in changes.values()) and self._is_lone(level):
                break
            level, changes = level + 1, parents
        else:
            self._write(level, changes)
        if level < self._height:
            for row, _ in list(self._store.scan(bytes((level + 1,)), _METADATA_KEY)):
                self._store.delete(row)
            for above in [known for known in self._spans if known > level]:
                del self._spans[above]
        self._height = level

    def _place(self, level: int, changes: dict[bytes, bytes | None]) -> dict[bytes, bytes | None]:
        """Put changes into the spans under nodes of `level`, and return how those nodes change.

        Spans are read from rows as they were before the changes, so the caller writes rows afterwards.
        """
        held: dict[bytes, _Span] = {}  # also keeps spans alive that the tree forgets meanwhile
        broken: dict[bytes, list[bytes]] = {}  # spans to cut anew, with the keys that change in them
        parents: dict[bytes, bytes | None] = {}
        for first, keys in self._grouped(level, changes):
            span = held[first] = self._span(level, first)
            if all(span.keeps_shape(key, changes[key]) for key in keys):
                for key in keys:
                    span.place(key, changes[key])
                parents[first] = span.hash()
            else:
                broken[first] = keys
        # A span that loses its boundary joins the one before it, which may have lost its own.
        for first in list(broken):
            while first != ANCHOR and first in changes and not _starts(changes[first]):
                first = self._before(level, first)
                if first in broken:
                    break
                broken[first] = []
                if first not in held:
                    held[first] = self._span(level, first)
        for first in broken:
            parents[first] = None
            self._spans[level].pop(first, None)
        for span in _cut(_merged(held, broken, changes)):
            parents[span.keys[0]] = span.hash()
            self._keep(level, span.keys[0], span)
        return parents

    def _grouped(self, level: int, changes: dict[bytes, bytes | None]) -> Iterator[tuple[bytes, list[bytes]]]:
        """Yield the changed keys by the node of `level` that they belong under."""
        first = ANCHOR
        stop: bytes | None = ANCHOR
        keys: list[bytes] = []
        for key in sorted(changes):
            if stop is not None and key >= stop:
                if keys:
                    yield first, keys
                first, stop = self._locate(level, key)
                keys = []
            keys.append(key)
        yield first, keys

    def _write(self, level: int, changes: dict[bytes, bytes | None]) -> None:
        prefix = bytes((level,))
        for key, row in sorted(changes.items()):
            if row is None:
                self._store.delete(prefix + key)
            else:
                self._store.put(prefix + key, row)

    def _is_lone(self, level: int) -> bool:
        """Return whether the anchor is the only node of a level."""
        return next(self._store.scan(bytes((level, 0)), bytes((level + 1,))), None) is None

    def _locate(self, level: int, key: bytes) -> tuple[bytes, bytes | None]:
        """Return the node of `level` whose span would hold `key`, and where its span stops."""
        node, stop = ANCHOR, None
        for above in range(self._height, level, -1):
            if not (keys := self._span(above, node).keys):
                raise _childless(above, node)
            at = bisect_right(keys, key)
            stop = keys[at] if at < len(keys) else stop
            node = keys[at - 1]
        return node, stop

    def _before(self, level: int, key: bytes) -> bytes:
        """Return the node of `level` that comes before `key`."""
        node = ANCHOR
        for above in range(self._height, level, -1):
            if not (keys := self._span(above, node).keys):
                raise _childless(above, node)
            node = keys[bisect_left(keys, key) - 1]
        return node

    def _span(self, level: int, node: bytes) -> _Span:
        span = self._spans[level].get(node)
        if span is None:
            span = _Span([], bytearray())
            for key, row in self._children(level, node):
                span.keys.append(key)
                span.hashes += row[:HASH_BYTES]
            self._keep(level, node, span)
        return span

    def _keep(self, level: int, node: bytes, span: _Span) -> None:
        spans = self._spans[level]
        if len(spans) >= SPANS_KEPT:
            del spans[next(iter(spans))]
        spans[node] = span


def _merged(
    held: dict[bytes, _Span], broken: dict[bytes, list[bytes]], changes: dict[bytes, bytes | None]
) -> dict[bytes, bytes]:
    """Return the hashes in broken spans by key, with the changes made."""
    hashes: dict[bytes, bytes] = {}
    for first, keys in broken.items():
        span = held[first]
        for at, key in enumerate(span.keys):
            hashes[key] = span.hash_at(at)
        for key in keys:
            row = changes[key]
            if row is None:
                hashes.pop(key, None)
            else:
                hashes[key] = row[:HASH_BYTES]
    return hashes


def _cut(hashes: dict[bytes, bytes]) -> list[_Span]:
    """Return spans that begin at anchors and boundaries."""
    spans: list[_Span] = []
    for key in sorted(hashes):
        hash = hashes[key]
        if key == ANCHOR or is_boundary(hash):
            spans.append(_Span([], bytearray()))
        spans[-1].keys.append(key)
        spans[-1].hashes += hash
    return spans


def _starts(row: bytes | None) -> bool:
    return row is not None and is_boundary(row)


def _childless(level: int, node: bytes) -> Damaged:
    return Damaged(f"node {node.hex() or 'anchor'} of level {level} has no children", reason="tree")


def _form_of(rows: Rows) -> Form | None:
    metadata = rows.get(_METADATA_KEY)
    if metadata is None:
        return None
    for form in FORMS:
        if form.metadata == metadata:
            return form
    raise Invalid(f"{metadata[:16].hex()} is not the metadata of a tree we know", got=metadata[:16].hex())
