"""Check the nodes of a tree that a peer sends: each must hash to the node it was asked for.

That node was part of an earlier answer, up to the root, so a peer cannot change its mind half way. Only what leaf
hashes cover is left to the caller, who must compare the value it receives with the leaf's hash.
"""

from __future__ import annotations

from collections.abc import Sequence

from ropewalk.errors import BrokenLink, DigestMismatch, ProofRefused, TooLarge
from ropewalk.kernel.prolly.node import (
    ANCHOR,
    ANCHOR_HASH,
    HASH_BYTES,
    KEY_BYTES_MAX,
    Node,
    is_boundary,
    leaf_hash,
    node_hash,
)

LEVEL_MAX = 32  # far beyond any honest tree: every level holds 32 times the nodes of the one above
CHILDREN_MAX = 1 << 16  # the mean is 32, but an author who chooses entries can delay the next boundary


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


def check_children(node: Node, stop: bytes | None, children: Sequence[Node]) -> None:
    """Refuse children that are not exactly those the node's hash and the shape of every tree call for.

    `stop` is the key that everything below the node must stay under, None at the right edge.

    >>> from ropewalk.kernel.prolly.tree import ProllyTree
    >>> tree = ProllyTree()
    >>> tree.insert(b"a", b"1")
    True
    >>> check_children(tree.get_root(), None, tree.get_children(1, ANCHOR))
    """
    where = f"children of {node.key.hex() or 'the anchor'} on level {node.level}"
    if not children:
        raise BrokenLink(f"{where}: there are no children", step="count")
    if len(children) > CHILDREN_MAX:
        raise TooLarge(
            f"{where}: {len(children)}; at most {CHILDREN_MAX}", size=len(children), limit=CHILDREN_MAX
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
