"""Lines of a block: leaf hashes end to end, the tree over them, their form; in compiled loops where they are there."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import overload

from ropewalk import native
from ropewalk.errors import RangeExceeded
from ropewalk.kernel.merkle import HASH_BYTES, LEDGER, Hasher

FEW = 8  # below this, a call costs more than it saves
LINES_ROOM = 8_192  # hashed in one call, as many as a block may have


class StoredLines(Sequence[bytes]):
    """The lines of a stored body without its padding, cut only when one is asked for: hashing them needs no copies.

    >>> lines = StoredLines(b"record\\none\\ntwo\\n\\n")
    >>> lines[0], len(lines), lines[1:].size, list(lines[1:])
    (b'record', 3, 6, [b'one', b'two'])
    """

    def __init__(self, body: bytes, start: int = 0) -> None:
        self._body, self._start, self._stop = body, start, len(body)
        while self._stop > start and body[self._stop - 1] == 10:
            self._stop -= 1

    @cached_property
    def _lines(self) -> list[bytes]:
        return self._body[self._start : self._stop].split(b"\n")

    @cached_property
    def _behind_first(self) -> StoredLines | None:
        end = self._body.find(b"\n", self._start, self._stop)
        return None if end < 0 else StoredLines(self._body, end + 1)

    @cached_property
    def hashes(self) -> bytes | None:
        """The leaf hashes of the lines, end to end; None where Python must make them."""
        if not native.is_here() or self._start == self._stop:
            return None
        from ropewalk.native.hashing import hash_lines

        return hash_lines(LEDGER.leaf_prefix, self._body, self._start, self._stop, LINES_ROOM)

    @property
    def size(self) -> int:
        """The bytes of the lines, without newlines."""
        return self._stop - self._start - len(self) + 1

    @cached_property
    def _count(self) -> int:
        if not self._start:
            return 1 if self._behind_first is None else 1 + len(self._behind_first)
        return len(self._lines) if self.hashes is None else len(self.hashes) // HASH_BYTES

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> bytes: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[bytes]: ...
    def __getitem__(self, at: int | slice) -> bytes | Sequence[bytes]:
        behind = self._behind_first
        if behind is not None and at == slice(1, None):
            return behind
        if behind is not None and at == 0:
            return self._body[self._start : behind._start - 1]
        return self._lines[at]


def leaf_hashes(envelopes: Sequence[bytes]) -> bytes:
    """Return the ids of the envelopes, 32 bytes each.

    >>> leaf_hashes([b"a", b"b"]) == LEDGER.leaf(b"a") + LEDGER.leaf(b"b")
    True
    """
    if isinstance(envelopes, StoredLines) and envelopes.hashes is not None:
        return envelopes.hashes
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


def leaves_root(packed: bytes, hasher: Hasher = LEDGER) -> bytes:
    """Return the Merkle root over packed leaf hashes.

    >>> leaves_root(LEDGER.leaf(b"a")) == LEDGER.leaf(b"a")
    True
    """
    return tree_levels(packed, hasher)[-1] if packed else hasher.empty


def leaves_path(packed: bytes, index: int) -> tuple[bytes, ...]:
    """Return the inclusion path of one of the packed leaf hashes.

    >>> leaves_path(LEDGER.leaf(b"a") + LEDGER.leaf(b"b"), 0) == (LEDGER.leaf(b"b"),)
    True
    """
    if not 0 <= index < len(packed) // HASH_BYTES:
        raise RangeExceeded(f"leaf {index} is outside a tree of {len(packed) // HASH_BYTES}", index=index)
    path = []
    for level in tree_levels(packed)[:-1]:
        sibling = level[HASH_BYTES * (index ^ 1) : HASH_BYTES * ((index ^ 1) + 1)]
        if sibling:  # else the node moves up
            path.append(sibling)
        index >>= 1
    return tuple(path)


def tree_levels(packed: bytes, hasher: Hasher = LEDGER) -> list[bytes]:
    """Return the levels of the tree over at least one leaf hash, packed: the leaves first, the root last.

    >>> [len(level) // HASH_BYTES for level in tree_levels(bytes(3 * HASH_BYTES))]
    [3, 2, 1]
    """
    if len(packed) >= FEW * HASH_BYTES and native.is_here():
        from ropewalk.native.hashing import levels

        found = levels(hasher.node_prefix, packed)
        if found is not None:
            return found
    tree = [packed]
    while len(tree[-1]) > HASH_BYTES:
        below = tree[-1]
        odd = len(below) % (2 * HASH_BYTES)
        tree.append(hasher.level(below[: len(below) - odd]) + below[len(below) - odd :])
    return tree


def surely_canonical(text: bytes, count: int) -> bytes:
    """Return for each of the lines of a text 1 if a compiled loop found it to be a canonical JSON object, else 0.

    >>> len(surely_canonical(b'{"a":1}\\n', 1)), surely_canonical(b'{"a": 1}\\n', 1)
    (1, b'\\x00')
    """
    if native.is_here():
        from ropewalk.native.canonical import canonical_lines

        found = canonical_lines(text, count)
        if found is not None and len(found) == count:
            return found
    return bytes(count)
