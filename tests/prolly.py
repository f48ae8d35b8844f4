"""Trees in memory, and what one lacks of another by the checks that peers apply to each other's answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ropewalk.kernel.prolly.checks import check_children, check_root
from ropewalk.kernel.prolly.memory import MemoryStore
from ropewalk.kernel.prolly.node import ANCHOR, Node
from ropewalk.kernel.prolly.tree import INDEX_V3, Form, ProllyTree


class Tree(ProllyTree):
    """A tree that also gives its root and its entries."""

    @property
    def root(self) -> Node:
        return self.get_root()

    def entries(self) -> list[Node]:
        return [self._node(0, row[1:], value) for row, value in self._store.scan(b"\0\0", b"\x01")]


def build(
    entries: Iterable[tuple[bytes, bytes]], store: MemoryStore | None = None, form: Form = INDEX_V3
) -> Tree:
    """Return a tree of these entries, in any order."""
    tree = Tree(store, form)
    tree.insert_many(entries)
    return tree


def missing(source: Any, target: ProllyTree) -> Iterator[Node]:
    """Yield the leaves of a source that a tree lacks, in key order; refuse what no honest source answers."""
    root = source.get_root()
    check_root(root)
    todo: list[tuple[Node, bytes | None]] = [(root, None)] if root.level else []
    while todo:
        node, stop = todo.pop()
        if target.get_node(node.level, node.key) == Node(node.level, node.key, node.hash):
            continue
        children = source.get_children(node.level, node.key)
        check_children(node, stop, children)
        if node.level == 1:
            known = [(leaf, target.get_node(0, leaf.key)) for leaf in children if leaf.key != ANCHOR]
            yield from (leaf for leaf, own in known if own is None or own.hash != leaf.hash)
            continue
        stops = [*(child.key for child in children[1:]), stop]
        todo.extend(zip(reversed(children), reversed(stops), strict=True))
