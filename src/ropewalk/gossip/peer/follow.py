"""Follow a log: what has arrived, and then what arrives, from this or any other process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from itertools import islice
from typing import TypeVar

from ropewalk.gossip.core.events import Committed, Event, Stored, newest_sync
from ropewalk.gossip.core.log import Cursor, GossipLog
from ropewalk.gossip.core.message import SignedMessage
from ropewalk.gossip.core.tree import root_of
from ropewalk.gossip.core.writing import counted
from ropewalk.gossip.peer.commit_watch import CommitWatch
from ropewalk.net.threads import in_thread

BATCH = 256  # messages read in one view of the store, which must not stay open while the reader works
T = TypeVar("T")
Read = Callable[[], list[T]]


def follow(log: GossipLog, after: Cursor | None = None) -> Iterator[tuple[Cursor, SignedMessage]]:
    """Yield messages in the order of arrival, each with the cursor to continue from; never ends."""
    return _each(log, _Arrivals(log, after).read)


def follow_async(log: GossipLog, after: Cursor | None = None) -> AsyncIterator[tuple[Cursor, SignedMessage]]:
    """Follow as `follow` does, for asyncio."""
    return _each_async(log, _Arrivals(log, after).read)


def follow_events(log: GossipLog) -> Iterator[Event]:
    """Yield `Stored`, `Committed` and `Synced` from now on, from this or any other process; never ends.

    They are what the store shows: a `Stored` has no result of `apply`, several transactions between two looks share
    one `Committed`, and of the syncs between two looks only the last that brought messages is a `Synced`.
    """
    return _each(log, _Events(log).read)


def follow_events_async(log: GossipLog) -> AsyncIterator[Event]:
    """Follow events as `follow_events` does, for asyncio."""
    return _each_async(log, _Events(log).read)


def _each(log: GossipLog, read: Read[T]) -> Iterator[T]:
    version = -1
    with CommitWatch(log) as watch:
        while True:
            current = log.version()
            if current == version:
                watch.wait()
                continue
            while batch := read():
                yield from batch
            version = current


async def _each_async(log: GossipLog, read: Read[T]) -> AsyncIterator[T]:
    version = -1
    with CommitWatch(log) as watch:
        while True:
            current = log.version()
            if current == version:
                await watch.wait_async()
                continue
            while batch := await in_thread(read):
                for each in batch:
                    yield each
            version = current


class _Arrivals:
    def __init__(self, log: GossipLog, after: Cursor | None) -> None:
        self._log, self._after = log, after

    def read(self) -> list[tuple[Cursor, SignedMessage]]:
        batch = list(islice(self._log.arrivals(self._after), BATCH))
        self._after = batch[-1][0] if batch else self._after
        return batch


class _Events:
    def __init__(self, log: GossipLog) -> None:
        self._log = log
        with log.view() as view:
            self._seen, self._root, self._syncs = counted(view).arrived, root_of(view), newest_sync(view)[0]
        self._arrivals = _Arrivals(log, Cursor(f"arrival:{self._seen}"))

    def read(self) -> list[Event]:
        found: list[Event] = []
        for _, signed in self._arrivals.read():
            found.append(Stored(signed.id, signed.signature, signed.message, None))
        self._seen += len(found)
        if found:
            return found
        with self._log.view() as view:
            if counted(view).arrived != self._seen:
                return []  # more has arrived: the root is told after it, with the next look
            root, (syncs, newest) = root_of(view), newest_sync(view)
        if root != self._root:
            found.append(Committed(root))
        if newest is not None and syncs != self._syncs:
            found.append(newest)
        self._root, self._syncs = root, syncs
        return found
