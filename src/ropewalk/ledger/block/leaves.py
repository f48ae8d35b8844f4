"""Leaf hashes of a block's envelopes, end to end, and the root over them: in compiled loops where they are there."""

from __future__ import annotations

from collections.abc import Sequence

from ropewalk import native
from ropewalk.kernel.merkle import HASH_BYTES, LEDGER, root

FEW = 8  # below this, a call costs more than it saves


def leaf_hashes(envelopes: Sequence[bytes]) -> bytes:
    """Return the ids of the envelopes, 32 bytes each.

    >>> leaf_hashes([b"a", b"b"]) == LEDGER.leaf(b"a") + LEDGER.leaf(b"b")
    True
    """
    if len(envelopes) >= FEW and native.is_here():
        from ropewalk.native.hashing import hash_all

        found = hash_all(LEDGER.leaf_prefix, envelopes)
        if found is not None:
            out, left = found
            for at in left:
                out[HASH_BYTES * at : HASH_BYTES * (at + 1)] = LEDGER.leaf(envelopes[at])
            return bytes(out)
    return b"".join(map(LEDGER.leaf, envelopes))


def split_hashes(packed: bytes) -> list[bytes]:
    """Return packed hashes one by one.

    >>> len(split_hashes(bytes(64)))
    2
    """
    return [packed[at : at + HASH_BYTES] for at in range(0, len(packed), HASH_BYTES)]


def leaves_root(packed: bytes) -> bytes:
    """Return the Merkle root over packed leaf hashes.

    >>> leaves_root(LEDGER.leaf(b"a")) == LEDGER.leaf(b"a")
    True
    """
    if len(packed) >= FEW * HASH_BYTES and native.is_here():
        from ropewalk.native.hashing import fold

        found = fold(LEDGER.node_prefix, packed)
        if found is not None:
            return found
    return root(split_hashes(packed))
