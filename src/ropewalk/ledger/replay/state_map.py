"""A replayed state as a Merkle map: its root proves single members, and that a member is absent.

Every value of the state that is not a non-empty object is a *leaf*; its key is the list of member names that lead to
it. Leaves are sorted by key: name by name in the order of code points, the shorter list first. So a key and all below
it are neighbours, and the neighbours of a gap prove absence. A leaf holds only the hash of its value: a proof does not
show the values of neighbours.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import blake3 as blake3_module

from ropewalk import native
from ropewalk.errors import Invalid, InvalidProof, RangeExceeded
from ropewalk.kernel import jcs, merkle
from ropewalk.kernel.digest import Tag, blake3, tagged
from ropewalk.ledger.block.leaves import leaves_root, split_hashes
from ropewalk.ledger.replay.reducers import State

Key = tuple[str, ...]
_BAD_ESCAPE = re.compile(r"~(?![01])")
LEAVES_MAX = 100_000  # members of one value that a proof may show
TREE = merkle.Hasher(
    "state", blake3_module.blake3, bytes(Tag.STATE_LEAF), bytes(Tag.STATE_NODE), blake3(Tag.EMPTY)
)


@dataclass(frozen=True, slots=True)
class StateLeaf:
    """A member of the state by its key, and the hash of its value."""

    key: Key
    value_hash: bytes

    def hash(self) -> bytes:
        return TREE.leaf(jcs.encode([list(self.key), self.value_hash.hex()]))


class StateMap:
    """All leaves of a state, in order, and the tree over them.

    >>> whole = StateMap({"web": {"prod": "1.2"}, "n": 3})
    >>> whole.keys
    [('n',), ('web', 'prod')]
    >>> check_members(whole.root(), whole.prove(("web",)), ("web",), {"prod": "1.2"})
    """

    def __init__(self, state: State) -> None:
        # Keys, values and hashes as plain lists: a state may have millions of leaves.
        found = sorted(_walk((), b"[", state))  # keys differ, so values are never compared
        self.keys = [key for key, _, _ in found]
        self._values = [value for _, _, value in found]
        packed = _hash_natively(jcs.encode(state))
        leaves = _hash_leaves(found) if packed is None else split_hashes(packed)
        self._tree = merkle.MerkleTree(leaves, TREE)

    def root(self) -> bytes:
        """Return the root; it covers the number of leaves."""
        return map_root(self._tree.size, self._tree.root())

    def prove(self, key: Key) -> MemberProof:
        """Return the leaves at and below a key with their neighbours, and the hashes around them."""
        start, end = self._run(key)
        if end - start > LEAVES_MAX:
            raise RangeExceeded(
                f"{pointer_text(key)} has {end - start:,} members, a proof shows at most {LEAVES_MAX:,}",
                advice="Prove a key further down.",
            )
        start, end = max(0, start - 1), min(len(self.keys), end + 1)
        around = self._tree.range(start, end)
        return MemberProof(
            self._tree.size, start, tuple(self.leaf(n) for n in range(start, end)), around, self._tree.root()
        )

    def leaf(self, index: int) -> StateLeaf:
        return StateLeaf(self.keys[index], _value_hash(self._values[index]))

    def _run(self, key: Key) -> tuple[int, int]:
        start = bisect_left(self.keys, key)
        end = start
        while end < len(self.keys) and self.keys[end][: len(key)] == key:
            end += 1
        return start, end


@dataclass(frozen=True, slots=True)
class MemberProof:
    """A run of neighbouring leaves of a state map, and the hashes that lead to its root."""

    size: int
    index: int
    leaves: tuple[StateLeaf, ...]
    around: merkle.RangeProof
    tree_root: bytes


def state_map_root(canonical: bytes) -> bytes:
    """Return the root of a state as a map, from the canonical bytes of the state.

    >>> state_map_root(b'{"a":2,"b":1}') == StateMap({"b": 1, "a": 2}).root()
    True
    """
    packed = _hash_natively(canonical)
    if packed is None:
        return StateMap(jcs.parse(canonical)).root()
    return map_root(len(packed) // merkle.HASH_BYTES, leaves_root(packed, TREE))


def map_root(size: int, root: bytes) -> bytes:
    """Return the root of a map from the number of its leaves and the root of its tree."""
    return tagged(Tag.STATE_MAP, size.to_bytes(8, "big"), root)


def _walk(key: Key, text: bytes, value: State) -> Iterator[tuple[Key, bytes, State]]:
    """Yield key, the beginning of the key's canonical bytes, and value of every leaf."""
    if isinstance(value, dict) and value:
        for name, member in value.items():
            below = text + (b"," if key else b"") + jcs.encode(name)
            if isinstance(member, dict) and member:
                yield from _walk((*key, name), below, member)
            else:
                yield (*key, name), below, member
    else:
        yield key, text, value


def _hash_natively(canonical: bytes) -> bytes | None:
    """Return the leaf hashes end to end, as the compiled loop makes them; None where Python must."""
    # Members are sorted by UTF-16 units there, and leaves by code points.
    if not native.is_here() or not jcs.is_in_code_point_order(canonical):
        return None
    from ropewalk.native.hashing import state_leaves

    return state_leaves(canonical, bytes(Tag.STATE_VALUE), TREE.leaf_prefix)


def _hash_leaves(leaves: Iterable[tuple[Key, bytes, State]]) -> list[bytes]:
    """Return the leaf hashes, as `StateLeaf.hash` does one by one."""
    new, prefix, encode = blake3_module.blake3, TREE.leaf_prefix, jcs.encode
    value_prefix = bytes(Tag.STATE_VALUE)
    return [
        new(b'%b[%b],"%b"]' % (prefix, text, new(value_prefix + encode(value)).hexdigest().encode())).digest()
        for _, text, value in leaves
    ]


def _value_hash(value: State) -> bytes:
    return tagged(Tag.STATE_VALUE, jcs.encode(value))


def check_members(root: bytes, proof: MemberProof, key: Key, *value: State) -> None:
    """Raise unless a map with this root has exactly this value at a key, or nothing there if no value is given."""
    expected = (
        [StateLeaf(at, _value_hash(member)) for at, _, member in sorted(_walk(key, b"", *value))]
        if value
        else []
    )
    leaves, end = proof.leaves, proof.index + len(proof.leaves)
    if any(low.key >= high.key for low, high in pairwise(leaves)):
        raise InvalidProof("proof: leaves must be sorted by key, each once")
    below = [leaf for leaf in leaves if leaf.key < key]
    found = [leaf for leaf in leaves if leaf.key[: len(key)] == key]
    if found != expected:
        raise InvalidProof(f"proof: the leaves at {pointer_text(key)} are not those of the value")
    # A neighbour on each side, or the end of the map, shows that nothing was left out.
    if (not below and proof.index) or (len(below) + len(found) == len(leaves) and end != proof.size):
        raise InvalidProof(f"proof: no neighbour shows that all of {pointer_text(key)} is there")
    if map_root(proof.size, proof.tree_root) != root:
        raise InvalidProof("proof: size and tree root do not give the root of the state")
    hashes = [leaf.hash() for leaf in leaves]
    merkle.verify_range(hashes, proof.index, proof.size, proof.around, proof.tree_root, TREE)


def parse_pointer(text: str) -> Key:
    """Parse a JSON pointer (RFC 6901) into a key.

    >>> parse_pointer("/web/a~1b")
    ('web', 'a/b')
    """
    if (text and not text.startswith("/")) or _BAD_ESCAPE.search(text):
        raise Invalid(
            f'a key must be a JSON pointer such as /prod/web, with ~ as ~0 and / as ~1, got "{text}"'
        )
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:])


def pointer_text(key: Key) -> str:
    """Return a key as the JSON pointer that names it alone.

    >>> pointer_text(("web", "a/b")), pointer_text(())
    ('/web/a~1b', '')
    """
    return "".join(f"/{name.replace('~', '~0').replace('/', '~1')}" for name in key)


def value_at(state: State, key: Key) -> tuple[Any, ...]:
    """Return the value at a key in a tuple, or an empty one."""
    for name in key:
        if not isinstance(state, dict) or name not in state:
            return ()
        state = state[name]
    return (state,)
