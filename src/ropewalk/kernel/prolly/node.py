"""What a node is: its hash, and which nodes begin a parent.

The format is okra's, with 16-byte hashes and 32 children a node on average; both gossip profiles use it.

- A leaf holds a key and a value. Its hash covers both, with their lengths, also where the value is stored apart.
- Every level begins with an anchor, written here as the empty key; the anchor leaf has the hash of no bytes.
- A node whose hash is small enough is a boundary. Boundaries and anchors begin a new parent; the parent has the
  key of its first child, and the hash of its children's hashes.
- Levels rise until one has only its anchor: the root. So the shape depends on the entries, never on their history.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from blake3 import blake3

from ropewalk.errors import Invalid

ANCHOR = b""  # the key of every level's first node; no entry may have it
HASH_BYTES = 16  # okra's K
FANOUT_MEAN = 32  # okra's Q
KEY_BYTES_MAX = 510  # with its level byte, what an LMDB table takes as a key
LEVELS_MAX = 255  # level 0xff is where okra keeps its metadata

# okra compares four bytes with 2^32 / Q; for Q = 32 the first one decides.
BOUNDARY_BELOW = 2**8 // FANOUT_MEAN


@dataclass(frozen=True, slots=True)
class Node:
    """One node of a tree; leaves (level 0) may carry their value."""

    level: int
    key: bytes
    hash: bytes
    value: bytes | None = None


def leaf_hash(key: bytes, value: bytes) -> bytes:
    """Return the hash of an entry.

    >>> leaf_hash(bytes.fromhex("248fc026fc966f11d9dc942c1a79ce12ac325245"), b"").hex()
    '150fa453a3a2dddf355b3c308ae4d062'
    """
    return blake3(b"".join((len(key).to_bytes(4, "big"), key, len(value).to_bytes(4, "big"), value))).digest(
        HASH_BYTES
    )


def node_hash(child_hashes: Iterable[bytes]) -> bytes:
    """Return the hash of a node above these children.

    >>> node_hash([ANCHOR_HASH, bytes.fromhex("150fa453a3a2dddf355b3c308ae4d062")]).hex()
    '36d5677126a517697d4505109c68e2b9'
    """
    return blake3(b"".join(child_hashes)).digest(HASH_BYTES)


def is_boundary(hash: bytes) -> bool:
    """Return whether a node with this hash begins a new parent (anchors do so with any hash).

    >>> is_boundary(bytes.fromhex("07ffffff")), is_boundary(bytes.fromhex("08000000"))
    (True, False)
    """
    return hash[0] < BOUNDARY_BELOW


ANCHOR_HASH = node_hash([])


def check_key(key: bytes) -> None:
    """Refuse keys that no tree can hold.

    >>> check_key(b"")
    Traceback (most recent call last):
    ...
    ropewalk.errors.Invalid: tree key of 0 bytes; 1 to 510 are allowed
    """
    if not 0 < len(key) <= KEY_BYTES_MAX:
        raise Invalid(f"tree key of {len(key)} bytes; 1 to {KEY_BYTES_MAX} are allowed", size=len(key))
