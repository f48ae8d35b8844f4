"""Verify Merkle proofs without the tree: how it hashes, and three verifiers.

Trees have the shape of RFC 6962: a tree of n leaves splits at the largest power of two below n, so an odd node
rises unchanged and no leaf is ever doubled. Every function takes *leaf hashes*, 32 bytes each; `Hasher.leaf` makes
one from data. Verifiers consume index and size bit by bit as RFC 9162 §2.1.3.2 and §2.1.4.2 do, so a path that
reaches the root from another place, or with a step too many, is not a proof.

A verifier returns nothing: it either passes, or raises `InvalidProof` (this cannot be a proof of that claim) or
`ProofRefused` (it is one, but it gives another root; field `step` names the comparison that failed).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from struct import iter_unpack
from typing import Any

from blake3 import blake3

from ropewalk.errors import InvalidDigest, InvalidProof, ProofRefused
from ropewalk.kernel.digest import Tag

HASH_BYTES = 32
SIZE_MAX = 2**63 - 1  # what every language can count; C2SP sizes and our heights stay below it


@dataclass(frozen=True, slots=True)
class Hasher:
    """How one kind of tree hashes, as a value: a prefix for leaves, another for nodes, and the empty tree.

    >>> SHA256.leaf(b"").hex()[:16], SHA256.empty.hex()[:16]
    ('6e340b9cffb37a98', 'e3b0c44298fc1c14')
    """

    name: str
    new: Callable[[bytes], Any]
    leaf_prefix: bytes
    node_prefix: bytes
    empty: bytes

    def leaf(self, data: bytes) -> bytes:
        """Return the leaf hash of some data."""
        digest: bytes = self.new(self.leaf_prefix + data).digest()
        return digest

    def node(self, left: bytes, right: bytes) -> bytes:
        """Return the hash of an inner node."""
        digest: bytes = self.new(self.node_prefix + left + right).digest()
        return digest

    def level(self, packed: bytes | bytearray) -> bytes:
        """Return all parents of an even run of packed hashes, in one tight loop: building a tree spends its time here.

        >>> a, b = LEDGER.leaf(b"a"), LEDGER.leaf(b"b")
        >>> LEDGER.level(a + b + b + a) == LEDGER.node(a, b) + LEDGER.node(b, a)
        True
        """
        new, prefix = self.new, self.node_prefix
        return b"".join([new(prefix + pair).digest() for (pair,) in iter_unpack("64s", packed)])


# Leaves of a ledger block are envelope hashes, leaves of the range tree are block hashes (S4 §2, §12).
LEDGER = Hasher("ledger", blake3, bytes(Tag.ENVELOPE), bytes(Tag.NODE), blake3(Tag.EMPTY).digest())
RANGE = Hasher("range", blake3, bytes(Tag.BLOCK), bytes(Tag.RANGE_NODE), blake3(Tag.EMPTY).digest())
# RFC 6962 §2.1 as C2SP heads need it.
SHA256 = Hasher("sha256", hashlib.sha256, b"\x00", b"\x01", hashlib.sha256(b"").digest())


@dataclass(frozen=True, slots=True)
class RangeProof:
    """What surrounds a run of leaves, bottom up: everything before it, everything after it."""

    left: tuple[bytes, ...]
    right: tuple[bytes, ...]


def pack_leaves(leaves: Iterable[bytes]) -> bytes:
    """Join leaf hashes end to end; refuse what is not 32 bytes, for it would shift all that follow.

    >>> len(pack_leaves([bytes(32), bytes(32)]))
    64
    """
    leaves = leaves if isinstance(leaves, (list, tuple)) else list(leaves)
    if set(map(len, leaves)) - {HASH_BYTES}:
        index, leaf = next((i, leaf) for i, leaf in enumerate(leaves) if len(leaf) != HASH_BYTES)
        raise InvalidDigest(f"leaf {index} has {len(leaf)} bytes; a leaf hash has 32", index=index)
    return b"".join(leaves)


def verify_inclusion(
    leaf: bytes, index: int, size: int, path: Sequence[bytes], root: bytes, hasher: Hasher = LEDGER
) -> None:
    """Verify that the leaf hash is at `index` under the root of `size` leaves (RFC 9162 §2.1.3.2).

    Take `size` from where the root came from, a signed head or header: a path has the same shape in trees of
    several sizes, so it proves the place and not the size.

    >>> a, b = SHA256.leaf(b"a"), SHA256.leaf(b"b")
    >>> verify_inclusion(a, 0, 2, [b], SHA256.node(a, b), SHA256)
    >>> verify_inclusion(a, 1, 2, [b], SHA256.node(a, b), SHA256)
    Traceback (most recent call last):
    ropewalk.errors.ProofRefused: inclusion of leaf 1 of 2 leads to 8af01af4…, not to the root b137985f…
    """
    _check_size(size)
    if not 0 <= index < size:
        raise InvalidProof(f"leaf {index} is outside a tree of {size}", index=index, size=size)
    _check_hashes("leaf, path and root", (leaf, *path, root))
    place, last, got = index, size - 1, leaf
    for step, sibling in enumerate(path):
        if last == 0:
            raise InvalidProof(f"path has {len(path)} hashes; leaf {index} of {size} takes {step}", step=step)
        if place & 1 or place == last:
            got = hasher.node(sibling, got)
            # A node on the right edge rises unchanged until it is a right child.
            while not place & 1 and place:
                place, last = place >> 1, last >> 1
        else:
            got = hasher.node(got, sibling)
        place, last = place >> 1, last >> 1
    if last:
        raise InvalidProof(f"path has {len(path)} hashes; leaf {index} of {size} takes more", step=len(path))
    _arrive(f"inclusion of leaf {index} of {size}", "root", got, root)


def verify_consistency(
    old: int, new: int, path: Sequence[bytes], old_root: bytes, new_root: bytes, hasher: Hasher = LEDGER
) -> None:
    """Verify that the first `old` leaves under the new root are those under the old one (RFC 9162 §2.1.4.2).

    Every tree extends the empty one; that, and a tree with itself, needs no hashes.

    >>> a, b = SHA256.leaf(b"a"), SHA256.leaf(b"b")
    >>> verify_consistency(1, 2, [b], a, SHA256.node(a, b), SHA256)
    """
    _check_size(new)
    if not 0 <= old <= new:
        raise InvalidProof(f"a tree of {new} does not extend one of {old}", old=old, new=new)
    _check_hashes("path and roots", (*path, old_root, new_root))
    claim = f"consistency of {old} with {new}"
    if old == 0 or old == new:
        if path:
            raise InvalidProof(f"{claim} takes no hashes, path has {len(path)}", step=0)
        _arrive(claim, "old_root", hasher.empty if old == 0 else new_root, old_root)
        if new == 0:
            _arrive(claim, "new_root", hasher.empty, new_root)
        return

    place, last = old - 1, new - 1
    while place & 1:
        place, last = place >> 1, last >> 1
    # A complete old tree is itself the first node, and the verifier already has it.
    nodes = [old_root, *path] if old & (old - 1) == 0 else list(path)
    if not nodes:
        raise InvalidProof(f"{claim} takes more hashes than none", step=0)
    old_got = new_got = nodes[0]
    for step, sibling in enumerate(nodes[1:]):
        if last == 0:
            raise InvalidProof(f"{claim}: path has {len(path)} hashes, too many", step=step)
        if place & 1 or place == last:
            old_got, new_got = hasher.node(sibling, old_got), hasher.node(sibling, new_got)
            while not place & 1 and place:
                place, last = place >> 1, last >> 1
        else:
            new_got = hasher.node(new_got, sibling)
        place, last = place >> 1, last >> 1
    if last:
        raise InvalidProof(f"{claim}: path has {len(path)} hashes, too few", step=len(path))
    _arrive(claim, "old_root", old_got, old_root)
    _arrive(claim, "new_root", new_got, new_root)


def verify_range(
    leaves: Sequence[bytes], start: int, size: int, proof: RangeProof, root: bytes, hasher: Hasher = LEDGER
) -> None:
    """Verify that these leaves stand side by side from `start` under the root of `size` leaves.

    The range of one leaf is its inclusion proof, sorted by side; the range of all leaves needs no hashes.

    >>> a, b, c = map(SHA256.leaf, (b"a", b"b", b"c"))
    >>> verify_range([b, c], 1, 3, RangeProof((a,), ()), SHA256.node(SHA256.node(a, b), c), SHA256)
    """
    _check_size(size)
    end = start + len(leaves)
    if not 0 <= start < end <= size:
        raise InvalidProof(f"leaves {start} to {end} are no range of a tree of {size}", start=start, end=end)
    _check_hashes("leaves, proof and root", (*leaves, *proof.left, *proof.right, root))
    claim = f"range {start} to {end} of {size}"
    left, right = iter(proof.left), iter(proof.right)
    packed, first, final, last = b"".join(leaves), start, end - 1, size - 1
    try:
        while last:
            if first & 1:
                packed = next(left) + packed
            if final & 1 == 0 and final < last:
                packed += next(right)
            # The rest lies on the right edge and rises unchanged.
            odd = len(packed) % (2 * HASH_BYTES)
            packed = hasher.level(packed[: len(packed) - odd]) + packed[len(packed) - odd :]
            first, final, last = first >> 1, final >> 1, last >> 1
    except StopIteration:
        raise InvalidProof(f"{claim}: the proof has too few hashes") from None
    if next(left, None) is not None or next(right, None) is not None:
        raise InvalidProof(f"{claim}: the proof has too many hashes")
    _arrive(claim, "root", packed, root)


def _check_size(size: int) -> None:
    if not 0 <= size <= SIZE_MAX:
        raise InvalidProof(f"{size} is no size of a tree", size=size)


def _check_hashes(what: str, hashes: Iterable[bytes]) -> None:
    if wrong := set(map(len, hashes)) - {HASH_BYTES}:
        raise InvalidProof(f"{what} are 32 bytes each, one has {min(wrong)}", length=min(wrong))


def _arrive(claim: str, step: str, got: bytes, want: bytes) -> None:
    if got != want:
        name = step.replace("_", " ")
        raise ProofRefused(
            f"{claim} leads to {got.hex()[:8]}…, not to the {name} {want.hex()[:8]}…",
            step=step,
            expected=want.hex(),
            got=got.hex(),
        )
