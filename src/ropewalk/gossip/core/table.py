"""The port of the gossip engine: named, ordered tables that change together or not at all.

`stores.memory` and `stores.lmdb` implement it; one suite of tests holds both to the same behaviour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

T = TypeVar("T")

TABLES = ("meta", "messages", "heads", "tree", "arrivals", "ancestors", "pending", "waiting")


class View(Protocol):
    """One moment of the tables; later commits do not show."""

    def get(self, table: str, key: bytes) -> bytes | None:
        """The value under a key, or None."""

    def scan(
        self, table: str, start: bytes = b"", stop: bytes | None = None, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values with `start <= key < stop`, in bytewise order of the keys."""

    def count(self, table: str) -> int:
        """How many keys the table has; constant time."""


class Transaction(View, Protocol):
    """A view that also writes; it sees its own writes at once, others see them after the commit."""

    def put(self, table: str, key: bytes, value: bytes) -> None:
        """Set the value under a key."""

    def delete(self, table: str, key: bytes) -> None:
        """Remove a key; a missing key is no error."""


class TableStore(Protocol):
    """Ordered, transactional tables: one writer, many readers, a commit is durable when it returns."""

    def read(self) -> AbstractContextManager[View]:
        """A view of the tables as of now."""

    def transact(self, body: Callable[[Transaction], T]) -> T:
        """Run `body` as one transaction: all of it is durable when this returns, or none of it if it raises.

        A store that has to make room runs `body` again from the start, so `body` must not count on running once.
        """

    def version(self) -> int:
        """Return a number that changes with every commit of any process; constant time."""

    def close(self) -> None:
        """Give back what the store holds; closing twice is no error."""
