"""Ordered transactional tables in memory, with the same isolation and rollback as the ones on disk."""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import TypeVar

from ropewalk.errors import Conflict, NotFound

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

    def slices(self, start: bytes, stop: bytes | None, reverse: bool) -> Iterator[list[bytes]]:
        low = bisect_left(self.keys, start)
        high = len(self.keys) if stop is None else bisect_left(self.keys, stop)
        if reverse:
            for end in range(high, low, -_SLICE):
                yield self.keys[max(low, end - _SLICE) : end][::-1]
        else:
            for begin in range(low, high, _SLICE):
                yield self.keys[begin : min(high, begin + _SLICE)]

    def range(self, start: bytes, stop: bytes | None, reverse: bool) -> Iterator[bytes]:
        return chain.from_iterable(self.slices(start, stop, reverse))


class _Snapshot:
    """The tables as they were when the view was opened; commits replace tables, they never change shared ones."""

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
        value_of = rows.values.__getitem__
        for keys in rows.slices(start, stop, reverse):
            yield from zip(keys, map(value_of, keys), strict=True)

    def count(self, table: str) -> int:
        return len(self._table(table).values)


class _Overlay:
    """What a transaction wrote to one table, lying over what was committed."""

    __slots__ = ("base", "gone", "grown", "written")

    def __init__(self, base: _Sorted) -> None:
        self.base = base
        self.written = _Sorted()
        self.gone: set[bytes] = set()
        self.grown = 0  # keys here minus keys committed

    def get(self, key: bytes) -> bytes | None:
        value = self.written.values.get(key)
        if value is not None:
            return value
        return None if key in self.gone else self.base.values.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        if key in self.gone or (key not in self.written.values and key not in self.base.values):
            self.grown += 1
        self.written.put(key, value)
        self.gone.discard(key)

    def delete(self, key: bytes) -> None:
        committed = key in self.base.values
        if key in self.written.values or (committed and key not in self.gone):
            self.grown -= 1
        self.written.delete(key)
        if committed:
            self.gone.add(key)

    def scan(self, start: bytes, stop: bytes | None, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        base, over, gone = self.base, self.written, self.gone
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


class _Changes(_Snapshot):
    """A transaction; it is taken back by forgetting its overlays."""

    __slots__ = ("overlays",)

    def __init__(self, tables: dict[str, _Sorted]) -> None:
        super().__init__(tables)
        self.overlays: dict[str, _Overlay] = {}

    def _overlay(self, table: str) -> _Overlay:
        over = self.overlays.get(table)
        if over is None:
            over = self.overlays[table] = _Overlay(self._table(table))
        return over

    def get(self, table: str, key: bytes) -> bytes | None:
        over = self.overlays.get(table)
        return over.get(key) if over is not None else self._table(table).values.get(key)

    def scan(
        self, table: str, start: bytes = b"", stop: bytes | None = None, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        over = self.overlays.get(table)
        return (
            over.scan(start, stop, reverse) if over is not None else super().scan(table, start, stop, reverse)
        )

    def count(self, table: str) -> int:
        over = self.overlays.get(table)
        return super().count(table) + (over.grown if over is not None else 0)

    def put(self, table: str, key: bytes, value: bytes) -> None:
        self._overlay(table).put(key, value)

    def delete(self, table: str, key: bytes) -> None:
        self._overlay(table).delete(key)


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
        self._version = 0

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
            for name, over in changes.overlays.items():
                # Open views keep the table they saw; without any, changing it in place is cheaper.
                table = self._tables[name].copy() if self._readers else self._tables[name]
                for key in over.gone:
                    table.delete(key)
                for key in over.written.keys:
                    table.put(key, over.written.values[key])
                self._tables[name] = table
            self._version += 1

    def version(self) -> int:
        """Return a number that grows with every commit."""
        return self._version

    def close(self) -> None:
        """Give nothing back; the tables stay readable."""
