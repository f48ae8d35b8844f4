"""Ordered rows in memory, for trees and tables that need no disk."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator

BLOCK_ROWS_MAX = 2048  # a block is split in two beyond this; inserting moves at most so many keys
STEP_ROWS = 64  # how many keys a scan takes at a time


class MemoryStore:
    """A map that keeps its keys in order, in blocks, so that inserting stays cheap at any size.

    >>> store = MemoryStore()
    >>> store.put(b"b", b"2"), store.put(b"a", b"1"), store.put(b"c", b"3")
    (None, None, None)
    >>> [key for key, _ in store.scan(b"a", b"c", reverse=True)]
    [b'b', b'a']
    """

    __slots__ = ("_blocks", "_firsts", "_rows")

    def __init__(self) -> None:
        self._rows: dict[bytes, bytes] = {}
        self._blocks: list[list[bytes]] = [[]]
        self._firsts: list[bytes] = [b""]  # the least key each block may hold

    def __len__(self) -> int:
        return len(self._rows)

    def copy(self) -> MemoryStore:
        """Return a store with the same rows that changes apart."""
        made = MemoryStore()
        made._rows, made._blocks, made._firsts = dict(self._rows), [*map(list, self._blocks)], [*self._firsts]
        return made

    def get(self, key: bytes) -> bytes | None:
        """Return the value under a key, or None."""
        return self._rows.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        """Set the value under a key."""
        if key not in self._rows:
            at = bisect_right(self._firsts, key) - 1
            block = self._blocks[at]
            insort(block, key)
            if len(block) > BLOCK_ROWS_MAX:
                upper = block[BLOCK_ROWS_MAX // 2 :]
                del block[BLOCK_ROWS_MAX // 2 :]
                self._blocks.insert(at + 1, upper)
                self._firsts.insert(at + 1, upper[0])
        self._rows[key] = value

    def delete(self, key: bytes) -> None:
        """Remove a key; a missing key is no error."""
        if self._rows.pop(key, None) is not None:
            at = bisect_right(self._firsts, key) - 1
            block = self._blocks[at]
            del block[bisect_left(block, key)]
            if not block and at:
                del self._blocks[at], self._firsts[at]

    def scan(
        self, start: bytes = b"", stop: bytes | None = None, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and values with `start <= key < stop`, in bytewise order; the store may change meanwhile."""
        return self._down(start, stop) if reverse else self._up(start, stop)

    # Both walks find their place again after every few keys: a block may be split or emptied meanwhile.

    def _up(self, start: bytes, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        rows, blocks = self._rows, self._blocks
        while True:
            at = bisect_right(self._firsts, start) - 1
            low = bisect_left(blocks[at], start)
            while low == len(blocks[at]):
                at, low = at + 1, 0
                if at == len(blocks):
                    return
            keys = blocks[at][low : low + STEP_ROWS]
            for key in keys:
                if stop is not None and key >= stop:
                    return
                if (value := rows.get(key)) is not None:
                    yield key, value
            start = keys[-1] + b"\0"

    def _down(self, start: bytes, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        rows, blocks = self._rows, self._blocks
        while True:
            at = (len(blocks) if stop is None else bisect_left(self._firsts, stop)) - 1
            if at < 0:
                return
            high = len(blocks[at]) if stop is None else bisect_left(blocks[at], stop)
            while high == 0:
                at -= 1
                if at < 0:
                    return
                high = len(blocks[at])
            keys = blocks[at][max(0, high - STEP_ROWS) : high]
            for key in reversed(keys):
                if key < start:
                    return
                if (value := rows.get(key)) is not None:
                    yield key, value
            stop = keys[0]
