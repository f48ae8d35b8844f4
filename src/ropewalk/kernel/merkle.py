"""Trees that remember: roots that grow, and the proofs they give out.

    root        leaves in, one hash out, nothing kept
    Frontier    grows leaf by leaf, keeps at most one hash per bit of its size
    Nodes       a tree whose complete nodes can be asked for, so any proof is a walk of log n lookups
    Tree        keeps them all in packed levels

Shape, hashing and the verifiers are in `proofs`; all their names can be had from here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from ropewalk.errors import InvalidProof, RangeExceeded
from ropewalk.kernel.proofs import HASH_BYTES as HASH_BYTES
from ropewalk.kernel.proofs import LEDGER as LEDGER
from ropewalk.kernel.proofs import RANGE as RANGE
from ropewalk.kernel.proofs import SHA256 as SHA256
from ropewalk.kernel.proofs import SIZE_MAX as SIZE_MAX
from ropewalk.kernel.proofs import Hasher as Hasher
from ropewalk.kernel.proofs import RangeProof as RangeProof
from ropewalk.kernel.proofs import pack_leaves as pack_leaves
from ropewalk.kernel.proofs import verify_consistency as verify_consistency
from ropewalk.kernel.proofs import verify_inclusion as verify_inclusion
from ropewalk.kernel.proofs import verify_range as verify_range


def root(leaves: Iterable[bytes], hasher: Hasher = LEDGER) -> bytes:
    """Return the root over leaf hashes.

    >>> root([LEDGER.leaf(bytes([i])) for i in range(3)]).hex()[:8]
    'ea0e47a3'
    """
    packed = pack_leaves(leaves)
    if not packed:
        return hasher.empty
    while len(packed) > HASH_BYTES:
        odd = len(packed) % (2 * HASH_BYTES)
        packed = hasher.level(packed[: len(packed) - odd]) + packed[len(packed) - odd :]
    return packed


def root_seed(leaves: Iterable[bytes], hasher: Hasher = LEDGER) -> bytes:
    """Return the root as the first ledger code made it: an odd node is paired with itself. Only for reading such logs.

    Weaker, because two lists share a root: a holder of `[a, b, c]` can show `[a, b, c, c]` under the same signature
    (the class of CVE-2012-2459). Nothing of ours makes or accepts this form by itself.

    >>> a, b, c = map(LEDGER.leaf, (b"a", b"b", b"c"))
    >>> root_seed([a, b, c]) == root_seed([a, b, c, c]), root([a, b, c]) == root([a, b, c, c])
    (True, False)
    """
    packed = pack_leaves(leaves)
    if not packed:
        return hasher.empty
    while len(packed) > HASH_BYTES:
        if len(packed) % (2 * HASH_BYTES):
            packed += packed[-HASH_BYTES:]
        packed = hasher.level(packed)
    return packed


class Frontier:
    """The right edge of a growing tree: enough to append and to know the root, and no more.

    >>> edge = Frontier()
    >>> for i in range(5):
    ...     edge.append(LEDGER.leaf(bytes([i])))
    >>> edge.size, edge.root().hex()[:8], len(edge.to_bytes())
    (5, 'd4043f28', 72)
    """

    __slots__ = ("_peaks", "_size", "hasher")

    def __init__(self, hasher: Hasher = LEDGER) -> None:
        self.hasher = hasher
        self._size = 0
        # Roots of complete subtrees, one per set bit of the size, largest first.
        self._peaks: list[bytes] = []

    @property
    def size(self) -> int:
        """How many leaves were appended."""
        return self._size

    def append(self, leaf: bytes) -> None:
        """Add one leaf hash; two node hashes at most on average."""
        if len(leaf) != HASH_BYTES:
            pack_leaves((leaf,))
        peaks, node, size = self._peaks, self.hasher.node, self._size
        while size & 1:  # every trailing one is a complete subtree of the same height as what we carry
            leaf = node(peaks.pop(), leaf)
            size >>= 1
        peaks.append(leaf)
        self._size += 1

    def root(self) -> bytes:
        """Return the root over everything appended so far."""
        if not self._peaks:
            return self.hasher.empty
        *rest, top = self._peaks
        for peak in reversed(rest):
            top = self.hasher.node(peak, top)
        return top

    def to_bytes(self) -> bytes:
        """Return the frontier as bytes: size (8 bytes, big-endian), then the subtree roots, largest first."""
        return self._size.to_bytes(8, "big") + b"".join(self._peaks)

    @classmethod
    def from_bytes(cls, raw: bytes, hasher: Hasher = LEDGER) -> Frontier:
        """Return the frontier `to_bytes` wrote. Its hashes are believed: compare `root()` with a head you trust."""
        edge = cls(hasher)
        size = int.from_bytes(raw[:8], "big")
        if len(raw) < 8 or len(raw) != 8 + HASH_BYTES * size.bit_count() or size > SIZE_MAX:
            raise InvalidProof(f"{len(raw)} bytes are no frontier of {size} leaves", size=size)
        edge._size = size
        edge._peaks = [raw[i : i + HASH_BYTES] for i in range(8, len(raw), HASH_BYTES)]
        return edge


class Nodes(ABC):
    """A tree by its complete nodes, in any storage: enough to prove things about any size it has had.

    Level k has the roots of all full runs of 2^k leaves. Nothing of that ever changes, so it may come from anywhere
    and be checked afterwards, against a signed root.

    >>> tree: Nodes = MerkleTree(LEDGER.leaf(bytes([i])) for i in range(7))
    >>> verify_consistency(3, 7, tree.consistency(3), tree.root(3), tree.root())
    """

    __slots__ = ("hasher",)
    hasher: Hasher

    @property
    @abstractmethod
    def size(self) -> int:
        """How many leaves the tree has."""

    @abstractmethod
    def node(self, height: int, place: int) -> bytes:
        """Return the root of the leaves from `place` × 2^height on, 2^height of them."""

    def root(self, size: int | None = None) -> bytes:
        """Return the root now, or when the tree had `size` leaves."""
        size = self._size_or_now(size)
        return self._edge(size.bit_length(), size) if size else self.hasher.empty

    def inclusion(self, index: int, size: int | None = None) -> tuple[bytes, ...]:
        """Return the path that proves the leaf at `index` under the root of `size` leaves, bottom up."""
        size = self._size_or_now(size)
        if not 0 <= index < size:
            raise RangeExceeded(f"leaf {index} is outside a tree of {size}", index=index, size=size)
        return tuple(self._path(0, index, size))

    def consistency(self, old: int, new: int | None = None) -> tuple[bytes, ...]:
        """Return the path that proves the tree of `new` leaves extends the tree of `old`."""
        new = self._size_or_now(new)
        if not 0 <= old <= new:
            raise RangeExceeded(f"a tree of {new} does not extend one of {old}", old=old, new=new)
        if old in (0, new):
            return ()
        # The last complete subtree of the old tree is a node of both; from there it is an ordinary path.
        height = (old & -old).bit_length() - 1
        place = (old >> height) - 1
        seed = [self.node(height, place)] if place else []
        return (*seed, *self._path(height, place, new))

    def range(self, start: int, end: int, size: int | None = None) -> RangeProof:
        """Return what proves the leaves from `start` up to, not with, `end` under the root of `size` leaves."""
        size = self._size_or_now(size)
        if not 0 <= start < end <= size:
            raise RangeExceeded(
                f"leaves {start} to {end} are no range of a tree of {size}", start=start, end=end
            )
        left = [self.node(height, (start >> height) - 1) for height in range(64) if start >> height & 1]
        right, last, height = [], size - 1, 0
        while last >> height:
            sibling = (end - 1 >> height) + 1
            if sibling & 1 and sibling <= last >> height:
                right.append(self._subtree(height, sibling, size))
            height += 1
        return RangeProof(tuple(left), tuple(right))

    def _size_or_now(self, size: int | None) -> int:
        if size is None:
            return self.size
        if not 0 <= size <= self.size:
            raise RangeExceeded(f"the tree has {self.size} leaves, not yet {size}", size=size)
        return size

    def _path(self, height: int, place: int, size: int) -> list[bytes]:
        """Return the siblings from one node up to the root of `size` leaves; a missing sibling is a node that rises."""
        path, node, last = [], self.node, size - 1 >> height
        while last:
            sibling = place ^ 1
            if sibling < last:
                path.append(node(height, sibling))
            elif sibling == last:  # the right edge: perhaps not complete at this size
                path.append(self._subtree(height, sibling, size))
            height, place, last = height + 1, place >> 1, last >> 1
        return path

    def _subtree(self, height: int, place: int, size: int) -> bytes:
        if place + 1 << height <= size:
            return self.node(height, place)
        return self._edge(height, size)

    def _edge(self, height: int, size: int) -> bytes:
        """Return the hash of the leaves to the right of the last full run of 2^height leaves."""
        top = b""
        for low in range(height):
            if size >> low & 1:
                node = self.node(low, (size >> low) - 1)
                top = self.hasher.node(node, top) if top else node
        return top


class MerkleTree(Nodes):
    """A tree that keeps its nodes, 32 bytes each in one bytearray per level, and proves things about any earlier size.

    Only complete nodes are kept, so nothing ever changes: level k holds the roots of all full runs of 2^k leaves.

    >>> tree = MerkleTree(LEDGER.leaf(bytes([i])) for i in range(7))
    >>> path = tree.inclusion(4)
    >>> verify_inclusion(tree.leaf(4), 4, 7, path, tree.root())
    >>> verify_consistency(3, 7, tree.consistency(3), tree.root(3), tree.root())
    """

    __slots__ = ("_levels",)

    def __init__(self, leaves: Iterable[bytes] = (), hasher: Hasher = LEDGER) -> None:
        self.hasher = hasher
        self._levels: list[bytearray] = [bytearray()]
        self.extend(leaves)

    @property
    def size(self) -> int:
        """How many leaves the tree has."""
        return len(self._levels[0]) // HASH_BYTES

    def append(self, leaf: bytes) -> None:
        """Add one leaf hash."""
        self.extend((leaf,))

    def extend(self, leaves: Iterable[bytes]) -> None:
        """Add many leaf hashes, hashing level by level, which is much faster than one by one."""
        levels = self._levels
        levels[0] += pack_leaves(leaves)
        for height, below in enumerate(levels):
            if len(below) < 2 * HASH_BYTES:
                return
            if height + 1 == len(levels):
                levels.append(bytearray())  # seen by this very loop: the tree has grown taller
            above = levels[height + 1]
            fresh = below[2 * len(above) : len(below) - len(below) % (2 * HASH_BYTES)]
            if not fresh:
                return
            above += self.hasher.level(fresh)

    def leaf(self, index: int) -> bytes:
        """Return the leaf hash at an index."""
        if not 0 <= index < self.size:
            raise RangeExceeded(f"leaf {index} is outside a tree of {self.size}", index=index, size=self.size)
        return self.node(0, index)

    def nodes(self, height: int, start: int, end: int) -> bytes:
        """Complete nodes `start` to `end` of one level, packed; what a tile holds."""
        level = self._levels[height] if 0 <= height < len(self._levels) else b""
        if not 0 <= start <= end <= len(level) // HASH_BYTES:
            raise RangeExceeded(f"nodes {start} to {end} of level {height} are not complete", height=height)
        return bytes(level[start * HASH_BYTES : end * HASH_BYTES])

    def node(self, height: int, place: int) -> bytes:
        """Return one complete node."""
        at = place * HASH_BYTES
        return bytes(self._levels[height][at : at + HASH_BYTES])


def inclusion_proof(leaves: Iterable[bytes], index: int) -> tuple[bytes, ...]:
    """Return one path over a list of leaf hashes. For many proofs keep a `MerkleTree`.

    >>> leaves = [LEDGER.leaf(bytes([i])) for i in range(5)]
    >>> verify_inclusion(leaves[4], 4, 5, inclusion_proof(leaves, 4), root(leaves))
    """
    return MerkleTree(leaves).inclusion(index)
