"""The port of the gossip engine: named, ordered tables that change together or not at all.

`stores.memory` and `stores.lmdb` implement it; one suite of tests holds both to the same behaviour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from ropewalk.errors import Conflict
from ropewalk.gossip.core.ids import ProfileName
from ropewalk.gossip.core.message import check_topic, profile_named
from ropewalk.gossip.core.profiles import Profile

T = TypeVar("T")

VERSION = b"1"  # of the tables; bytes on disk change only together with this
TABLES = ("meta", "messages", "heads", "tree", "arrivals", "ancestors", "pending", "waiting")


class View(Protocol):
    """One moment of the tables; later commits do not show."""

    def get(self, table: str, key: bytes) -> bytes | None:
        """Return the value under a key, or None."""

    def scan(
        self, table: str, start: bytes = b"", stop: bytes | None = None, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and values with `start <= key < stop`, in bytewise order of the keys."""

    def count(self, table: str) -> int:
        """Return how many keys the table has; constant time."""


class Transaction(View, Protocol):
    """A view that also writes; it sees its own writes at once, others see them after the commit."""

    def put(self, table: str, key: bytes, value: bytes) -> None:
        """Set the value under a key."""

    def delete(self, table: str, key: bytes) -> None:
        """Remove a key; a missing key is no error."""


class TableStore(Protocol):
    """Ordered, transactional tables: one writer, many readers, a commit is durable when it returns."""

    def read(self) -> AbstractContextManager[View]:
        """Return a view of the tables as of now."""

    def transact(self, body: Callable[[Transaction], T]) -> T:
        """Run `body` as one transaction: all of it is durable when this returns, or none of it if it raises.

        A store that has to make room runs `body` again from the start, so `body` must not count on running once.
        """

    def version(self) -> int:
        """Return a number that changes with every commit of any process; constant time."""

    def close(self) -> None:
        """Give back what the store holds; closing twice is no error."""


def settle_profile(table: TableStore, topic: str, wanted: ProfileName | None) -> Profile:
    """Return the profile of these tables; it is fixed when the topic is made, and so is the topic."""
    with table.read() as view:
        rows = [view.get("meta", key) for key in (b"version", b"profile", b"topic")]
    version, found, name = ((row or b"").decode(errors="replace") for row in rows)
    if rows[0] is None:
        profile = profile_named(wanted or "v0.13")
        check_topic(profile, topic)
        table.transact(lambda change: _found(change, profile, topic))
        return settle_profile(table, topic, wanted)  # another process may have been first
    if version != VERSION.decode():
        raise Conflict(
            f"the tables of {topic} have version {version}, this ropewalk reads {VERSION.decode()}"
        )
    if wanted is not None and found != wanted:
        raise Conflict(
            f"topic {topic} is stored in profile {found}, not {wanted}",
            advice="The profile is fixed when the topic is made; open it without naming one.",
        )
    if name != topic:
        raise Conflict(f"these tables belong to topic {name!r}, not to {topic!r}")
    return profile_named(found)


def _found(change: Transaction, profile: Profile, topic: str) -> None:
    if change.get("meta", b"version") is None:
        change.put("meta", b"version", VERSION)
        change.put("meta", b"profile", profile.name.encode())
        change.put("meta", b"topic", topic.encode())
