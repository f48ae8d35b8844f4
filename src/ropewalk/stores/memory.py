"""Ordered transactional tables in memory, with the same isolation and rollback as the ones on disk."""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from ropewalk.errors import Conflict, NotFound

__all__ = ["MemoryTables"]

T = TypeVar("T")
_SLICE = 256  # how many keys a scan copies at a time, so that a long scan does not copy the table


class _Sorted:
    """A map that also keeps its keys in order."""

    __slots__ = ("keys", "values")

    def __init__(self, keys: list[bytes] | None = None, values: dict[bytes, bytes] | None = None) -> None:
        self.keys = [] if keys is None else keys
        self.values = {} if values is None else values

    def copy(self) -> _Sorted:
        return _Sorted(self.keys.copy(), self.values.copy())

    def put(self, key: bytes, value: bytes) -> None:
        if key not in self.values:
            if not self.keys or key > self.keys[-1]:
                self.keys.append(key)
            else:
                insort(self.keys, key)
        self.values[key] = value

    def delete(self, key: bytes) -> None:
        if self.values.pop(key, None) is not None:
            del self.keys[bisect_left(self.keys, key)]

    def range(self, start: bytes, stop: bytes | None, reverse: bool) -> Iterator[bytes]:
        low = bisect_left(self.keys, start)
        high = len(self.keys) if stop is None else bisect_left(self.keys, stop)
        if reverse:
            for end in range(high, low, -_SLICE):
                yield from reversed(self.keys[max(low, end - _SLICE) : end])
        else:
            for begin in range(low, high, _SLICE):
                yield from self.keys[begin : min(high, begin + _SLICE)]


class _Snapshot:
    """The tables as they stood when the view was opened; commits replace tables, they never change shared ones."""

    __slots__ = ("_tables",)

    def __init__(self, tables: dict[str, _Sorted]) -> None:
        self._tables = tables

    def _table(self, name: str) -> _Sorted:
        try:
            return self._tables[name]
        except KeyError:
            raise NotFound(f"no table {name!r}", name=name) from None

    def get(self, table: str, key: bytes) -> bytes | None:
        return self._table(table).values.get(key)

    def scan(
        self, table: str, start: bytes = b"", stop: bytes | None = None, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        rows = self._table(table)
        for key in rows.range(start, stop, reverse):
            yield key, rows.values[key]

    def count(self, table: str) -> int:
        return len(self._table(table).values)


class _Changes(_Snapshot):
    """A transaction: what it wrote lies over what was committed, and is dropped by forgetting it."""

    __slots__ = ("_grown", "gone", "written")

    def __init__(self, tables: dict[str, _Sorted]) -> None:
        super().__init__(tables)
        self.written = {name: _Sorted() for name in tables}
        self.gone: dict[str, set[bytes]] = {name: set() for name in tables}
        self._grown = dict.fromkeys(tables, 0)  # keys here minus keys committed

    def get(self, table: str, key: bytes) -> bytes | None:
        value = self.written[table].values.get(key)
        if value is not None:
            return value
        return None if key in self.gone[table] else self._table(table).values.get(key)

    def scan(
        self, table: str, start: bytes = b"", stop: bytes | None = None, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        base, over, gone = self._table(table), self.written[table], self.gone[table]
        below, above = base.range(start, stop, reverse), over.range(start, stop, reverse)
        old, new = next(below, None), next(above, None)
        while old is not None or new is not None:
            if new is None or (old is not None and old != new and (old < new) is not reverse):
                assert old is not None
                if old not in gone:
                    yield old, base.values[old]
                old = next(below, None)
            else:
                if old == new:
                    old = next(below, None)
                yield new, over.values[new]
                new = next(above, None)

    def count(self, table: str) -> int:
        return len(self._table(table).values) + self._grown[table]

    def put(self, table: str, key: bytes, value: bytes) -> None:
        written, gone = self.written[table], self.gone[table]
        if key in gone or (key not in written.values and key not in self._table(table).values):
            self._grown[table] += 1
        written.put(key, bytes(value))
        gone.discard(key)

    def delete(self, table: str, key: bytes) -> None:
        written, gone = self.written[table], self.gone[table]
        committed = key in self._table(table).values
        if key in written.values or (committed and key not in gone):
            self._grown[table] -= 1
        written.delete(key)
        if committed:
            gone.add(key)


class MemoryTables:
    """Tables that live as long as the process.

    >>> tables = MemoryTables(("fruit",))
    >>> tables.transact(lambda change: change.put("fruit", b"fig", b"sweet"))
    >>> with tables.read() as view:
    ...     view.get("fruit", b"fig")
    b'sweet'
    """

    def __init__(self, tables: tuple[str, ...]) -> None:
        self._tables = {name: _Sorted() for name in tables}
        self._writer = threading.RLock()
        self._commit = threading.Lock()
        self._writing = False
        self._readers = 0

    @contextmanager
    def read(self) -> Iterator[_Snapshot]:
        with self._commit:
            self._readers += 1
            tables = dict(self._tables)
        try:
            yield _Snapshot(tables)
        finally:
            with self._commit:
                self._readers -= 1

    def transact(self, body: Callable[[_Changes], T]) -> T:
        with self._writer:
            if self._writing:
                raise Conflict("a transaction is already open in this thread")
            self._writing = True
            try:
                changes = _Changes(self._tables)
                result = body(changes)
                self._apply(changes)
                return result
            finally:
                self._writing = False

    def _apply(self, changes: _Changes) -> None:
        with self._commit:
            for name, written in changes.written.items():
                gone = changes.gone[name]
                if not written.keys and not gone:
                    continue
                # Open views keep the table they saw; without any, changing it in place is cheaper.
                table = self._tables[name].copy() if self._readers else self._tables[name]
                for key in gone:
                    table.delete(key)
                for key in written.keys:
                    table.put(key, written.values[key])
                self._tables[name] = table

    def close(self) -> None:
        """Nothing to give back; the tables stay readable."""
