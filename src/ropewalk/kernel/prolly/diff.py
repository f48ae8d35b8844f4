"""Find what one tree has and another lacks, asking as little as possible and believing nothing unchecked.

`compare` does no I/O: it yields what it wants to know and is sent the answers. `diff` runs it over a source at hand.

Every answer must hash to the node it was asked for, and that node was part of an earlier answer, up to the root;
so a source cannot change its mind half way. Only what leaf hashes cover is left to the caller, who must compare
the value it receives with the leaf's hash. Memory stays within one answer per level.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ropewalk.errors import BrokenLink, DigestMismatch, ProofRefused, TooLarge
from ropewalk.kernel.prolly.node import (
    ANCHOR,
    ANCHOR_HASH,
    HASH_BYTES,
    KEY_BYTES_MAX,
    Node,
    ProllySource,
    is_boundary,
    leaf_hash,
    node_hash,
)

LEVEL_MAX = 32  # far beyond any honest tree: every level holds 32 times the nodes of the one above
CHILDREN_MAX = 1 << 16  # the mean is 32, but an author who chooses entries can delay the next boundary


@dataclass(frozen=True, slots=True)
class RootQuery:
    """Wants the root of the source; answered by a node."""


@dataclass(frozen=True, slots=True)
class ChildrenQuery:
    """Wants the children of one node of the source; answered by nodes in key order."""

    level: int
    key: bytes


@dataclass(frozen=True, slots=True)
class MissingLeaves:
    """Leaves of the source that the target lacks, in key order; needs no answer."""

    leaves: tuple[Node, ...]


Step: TypeAlias = RootQuery | ChildrenQuery | MissingLeaves
Answer: TypeAlias = Node | Sequence[Node] | None


def compare(target: ProllySource, *, children_max: int = CHILDREN_MAX) -> Generator[Step, Answer, None]:
    """Walk through a source by questions, and report what `target` lacks of it.

    The target may grow meanwhile, so reported leaves can be inserted at once.

    >>> from ropewalk.kernel.prolly.tree import build
    >>> steps = compare(build([(b"a", b"1")]))
    >>> next(steps)
    RootQuery()
    >>> steps.send(build([(b"a", b"1"), (b"b", b"2")]).root)
    ChildrenQuery(level=1, key=b'')
    """
    root = yield RootQuery()
    if not isinstance(root, Node):
        raise ProofRefused("the source answered without a root", step="root")
    check_root(root)
    target_root = target.get_root()
    if root.level == 0 or (root.level, root.hash) == (target_root.level, target_root.hash):
        return
    # Nodes to look at, the leftmost last, each with the key its subtree must stay below.
    todo: list[tuple[Node, bytes | None]] = [(root, None)]
    while todo:
        node, stop = todo.pop()
        own = target.get_node(node.level, node.key)
        if own is not None and own.hash == node.hash:
            continue
        children = yield ChildrenQuery(node.level, node.key)
        if not isinstance(children, Sequence):
            raise ProofRefused("the source answered without children", step="children")
        check_children(node, stop, children, children_max)
        if node is root and len(children) == 1:
            raise ProofRefused("the root has a single child, which would be the root itself", step="root")
        if node.level == 1:
            if leaves := tuple(leaf for leaf in children if leaf.key and not _holds(target, leaf)):
                yield MissingLeaves(leaves)
            continue
        stops = [*(child.key for child in children[1:]), stop]
        todo.extend(zip(reversed(children), reversed(stops), strict=True))


def answer(source: ProllySource, step: Step) -> Answer:
    """Return what a source at hand answers to one step.

    >>> from ropewalk.kernel.prolly.tree import ProllyTree
    >>> answer(ProllyTree(), RootQuery()).level
    0
    """
    match step:
        case RootQuery():
            return source.get_root()
        case ChildrenQuery(level, key):
            return source.get_children(level, key)
        case MissingLeaves():
            return None


def diff(source: ProllySource, target: ProllySource, *, children_max: int = CHILDREN_MAX) -> Iterator[Node]:
    """Yield the leaves of `source` that `target` lacks, or holds with another hash, in key order.

    >>> from ropewalk.kernel.prolly.tree import build
    >>> [leaf.key for leaf in diff(build([(b"a", b"1"), (b"b", b"2")]), build([(b"a", b"1")]))]
    [b'b']
    """
    steps = compare(target, children_max=children_max)
    reply: Answer = None
    while True:
        try:
            step = steps.send(reply)
        except StopIteration:
            return
        if isinstance(step, MissingLeaves):
            yield from step.leaves
        reply = answer(source, step)


def _holds(target: ProllySource, leaf: Node) -> bool:
    own = target.get_node(0, leaf.key)
    return own is not None and own.hash == leaf.hash


def check_root(root: Node) -> None:
    """Refuse a root that no tree has.

    >>> check_root(Node(0, ANCHOR, ANCHOR_HASH))
    """
    if len(root.hash) != HASH_BYTES:
        raise ProofRefused(f"root with a hash of {len(root.hash)} bytes", step="root")
    if not 0 <= root.level <= LEVEL_MAX:
        raise TooLarge(
            f"a tree of {root.level} levels; at most {LEVEL_MAX}", size=root.level, limit=LEVEL_MAX
        )
    if root.key != ANCHOR:
        raise BrokenLink(f"root with the key {root.key[:32].hex()}; a root is an anchor", step="root")
    if root.level == 0 and root.hash != ANCHOR_HASH:
        raise DigestMismatch(
            "the root of an empty tree is the anchor leaf",
            expected=ANCHOR_HASH.hex(),
            got=root.hash.hex(),
            where="root",
        )


def check_children(
    node: Node, stop: bytes | None, children: Sequence[Node], children_max: int = CHILDREN_MAX
) -> None:
    """Refuse children that are not exactly those the node's hash and the shape of every tree call for.

    `stop` is the key that everything below the node must stay under, None at the right edge.

    >>> from ropewalk.kernel.prolly.tree import build
    >>> tree = build([(b"a", b"1")])
    >>> check_children(tree.root, None, tree.get_children(1, ANCHOR))
    """
    where = f"children of {node.key.hex() or 'the anchor'} on level {node.level}"
    if not children:
        raise BrokenLink(f"{where}: there are no children", step="count")
    if len(children) > children_max:
        raise TooLarge(
            f"{where}: {len(children)}; at most {children_max}", size=len(children), limit=children_max
        )
    below = node.key
    for at, child in enumerate(children):
        if child.level != node.level - 1:
            raise ProofRefused(f"{where}: one is on level {child.level}", step="level")
        if len(child.hash) != HASH_BYTES or len(child.key) > KEY_BYTES_MAX:
            raise ProofRefused(f"{where}: hash or key of another length", step="length")
        if at == 0:
            if child.key != node.key:
                raise BrokenLink(f"{where}: the first has another key", step="first")
            if child.key and not is_boundary(child.hash):
                raise ProofRefused(f"{where}: the first is no boundary", step="boundary")
        else:
            if child.key <= below:
                raise BrokenLink(f"{where}: keys are not in order", step="order")
            if is_boundary(child.hash):
                raise ProofRefused(
                    f"{where}: a boundary must be the first child, found another", step="boundary"
                )
        below = child.key
        if child.level == 0:
            _check_leaf(child, where)
        elif child.value is not None:
            raise ProofRefused(f"{where}: a node above the leaves carries a value", step="value")
    if stop is not None and below >= stop:
        raise BrokenLink(f"{where}: keys reach into the next node", step="order")
    got = node_hash(child.hash for child in children)
    if got != node.hash:
        raise DigestMismatch(
            f"{where}: they have another hash than the node",
            expected=node.hash.hex(),
            got=got.hex(),
            where=where,
        )


def _check_leaf(leaf: Node, where: str) -> None:
    if leaf.key == ANCHOR:
        expected = ANCHOR_HASH
        if leaf.value:
            raise ProofRefused(f"{where}: the anchor carries a value", step="value")
    elif leaf.value is None:
        return
    else:
        expected = leaf_hash(leaf.key, leaf.value)
    if leaf.hash != expected:
        raise DigestMismatch(
            f"{where}: a leaf's hash is not that of its entry",
            expected=expected.hex(),
            got=leaf.hash.hex(),
            where=where,
        )
