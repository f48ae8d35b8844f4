"""Ordered transactional tables in memory, with the same isolation and rollback as the ones on disk."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from ropewalk.errors import Conflict, NotFound
from ropewalk.kernel.prolly.memory import MemoryStore

T = TypeVar("T")


class _Snapshot:
    """The tables as they were when the view was opened; commits replace tables, they never change shared ones."""

    __slots__ = ("_tables",)

    def __init__(self, tables: dict[str, MemoryStore]) -> None:
        self._tables = tables

    def _table(self, name: str) -> MemoryStore:
        try:
            return self._tables[name]
        except KeyError:
            raise NotFound(f"no table {name!r}", name=name) from None

    def get(self, table: str, key: bytes) -> bytes | None:
        return self._table(table).get(key)

    def scan(
        self, table: str, start: bytes = b"", stop: bytes | None = None, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        return self._table(table).scan(start, stop, reverse)

    def count(self, table: str) -> int:
        return len(self._table(table))


class _Overlay:
    """What a transaction wrote to one table, lying over what was committed."""

    __slots__ = ("base", "gone", "grown", "written")

    def __init__(self, base: MemoryStore) -> None:
        self.base = base
        self.written = MemoryStore()
        self.gone: set[bytes] = set()
        self.grown = 0  # keys here minus keys committed

    def get(self, key: bytes) -> bytes | None:
        value = self.written.get(key)
        return value if value is not None or key in self.gone else self.base.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        self.grown += self.get(key) is None
        self.written.put(key, value)
        self.gone.discard(key)

    def delete(self, key: bytes) -> None:
        self.grown -= self.get(key) is not None
        self.written.delete(key)
        if self.base.get(key) is not None:
            self.gone.add(key)

    def scan(self, start: bytes, stop: bytes | None, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        below, above = self.base.scan(start, stop, reverse), self.written.scan(start, stop, reverse)
        old, new = next(below, None), next(above, None)
        while old is not None or new is not None:
            if new is None or (old is not None and old[0] != new[0] and (old[0] < new[0]) is not reverse):
                assert old is not None
                if old[0] not in self.gone:
                    yield old
                old = next(below, None)
            else:
                if old is not None and old[0] == new[0]:
                    old = next(below, None)
                yield new
                new = next(above, None)


class _Changes(_Snapshot):
    """A transaction; it is taken back by forgetting its overlays."""

    __slots__ = ("overlays",)

    def __init__(self, tables: dict[str, MemoryStore]) -> None:
        super().__init__(tables)
        self.overlays: dict[str, _Overlay] = {}

    def _overlay(self, table: str) -> _Overlay:
        over = self.overlays.get(table)
        if over is None:
            over = self.overlays[table] = _Overlay(self._table(table))
        return over

    def get(self, table: str, key: bytes) -> bytes | None:
        over = self.overlays.get(table)
        return over.get(key) if over is not None else self._table(table).get(key)

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
        self._tables = {name: MemoryStore() for name in tables}
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
                for key, value in over.written.scan():
                    table.put(key, value)
                self._tables[name] = table
            self._version += 1

    def version(self) -> int:
        """Return a number that grows with every commit."""
        return self._version

    def close(self) -> None:
        """Give nothing back; the tables stay readable."""
