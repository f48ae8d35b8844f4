"""The tree over all messages, kept as a table: leaves hold hashes, the bytes stay in `messages`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ropewalk.gossip.core.table import Transaction, View
from ropewalk.kernel.prolly.node import Node
from ropewalk.kernel.prolly.tree import ProllyReader, ProllyTree


class _Rows:
    """The rows of the tree's table, as the kernel reads them."""

    __slots__ = ("_view",)

    def __init__(self, view: View) -> None:
        self._view = view

    def get(self, key: bytes) -> bytes | None:
        return self._view.get("tree", key)

    def scan(
        self, start: bytes = b"", stop: bytes | None = None, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        return self._view.scan("tree", start, stop, reverse)


class _Store(_Rows):
    """The same rows, to write in the open transaction."""

    __slots__ = ("_change",)

    def bind(self, change: Transaction) -> None:
        self._view = self._change = change

    def put(self, key: bytes, value: bytes) -> None:
        self._change.put("tree", key, value)

    def delete(self, key: bytes) -> None:
        self._change.delete("tree", key)


class TreeWriter:
    """Adds leaves, transaction after transaction, and remembers the nodes it saw.

    A root covers every row below it. So what was remembered is right exactly when the root is still the one we
    left: another writer, or a transaction that was taken back, shows as another root.
    """

    def __init__(self) -> None:
        self._store = _Store.__new__(_Store)
        self._tree: ProllyTree | None = None
        self._root: Node | None = None

    def add(self, change: Transaction, leaves: Sequence[tuple[bytes, bytes]]) -> Node:
        """Add messages, given as key and bytes, and return the new root."""
        self._store.bind(change)
        tree, self._tree = self._tree, None  # forgotten, unless all goes well
        if tree is None or not self._is_root_of(change):
            tree = ProllyTree(self._store)
        if len(leaves) == 1:
            tree.insert(*leaves[0])
        else:
            tree.insert_many(leaves)
        self._tree, self._root = tree, tree.get_root()
        return self._root

    def _is_root_of(self, view: View) -> bool:
        root = self._root
        assert root is not None
        above = view.get("tree", bytes((root.level + 1,)))
        return above is None and view.get("tree", bytes((root.level,))) == root.hash


def reader(view: View) -> ProllyReader:
    """Return the tree of one moment, to read; for a session that asks more than once."""
    return ProllyReader(_Rows(view))


def root_of(view: View) -> Node:
    """Return the root; the empty log has the anchor of level 0."""
    return reader(view).get_root()


def node_of(view: View, level: int, key: bytes) -> Node | None:
    """Return one node, or None."""
    return reader(view).get_node(level, key)


def children_of(view: View, level: int, key: bytes) -> list[Node]:
    """Return the nodes below a node; NotFound if there is no such node."""
    return reader(view).get_children(level, key)
