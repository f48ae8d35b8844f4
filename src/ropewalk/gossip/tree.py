"""The tree over all messages, kept as one table beside them: leaves hold hashes, the bytes stay in `messages`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ropewalk.gossip.table import Transaction, View
from ropewalk.kernel.prolly import Node, Reader, Tree

__all__ = ["add_leaves", "children_of", "node_of", "reader", "root_of"]


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
    """The same rows, to write."""

    __slots__ = ("_change",)

    def __init__(self, change: Transaction) -> None:
        super().__init__(change)
        self._change = change

    def put(self, key: bytes, value: bytes) -> None:
        self._change.put("tree", key, value)

    def delete(self, key: bytes) -> None:
        self._change.delete("tree", key)


def add_leaves(change: Transaction, leaves: Iterable[tuple[bytes, bytes]]) -> Node:
    """Add messages, given as key and bytes, and return the new root."""
    tree = Tree(_Store(change))
    entries = list(leaves)
    if len(entries) == 1:
        tree.insert(*entries[0])
    else:
        tree.insert_many(entries)
    return tree.get_root()


def reader(view: View) -> Reader:
    """The tree of one moment, to read; for a session that asks more than once."""
    return Reader(_Rows(view))


def root_of(view: View) -> Node:
    """The root; the empty log has the anchor of level 0."""
    return reader(view).get_root()


def node_of(view: View, level: int, key: bytes) -> Node | None:
    """One node, or None."""
    return reader(view).get_node(level, key)


def children_of(view: View, level: int, key: bytes) -> list[Node]:
    """The nodes below a node; NotFound if there is no such node."""
    return reader(view).get_children(level, key)
