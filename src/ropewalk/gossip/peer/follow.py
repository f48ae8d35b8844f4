"""Follow a log: what has arrived, and then what arrives, from this or any other process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from ropewalk.gossip.core.log import Cursor, GossipLog
from ropewalk.gossip.core.message import SignedMessage
from ropewalk.gossip.peer.commit_watch import CommitWatch
from ropewalk.net.threads import in_thread

BATCH = 256  # messages read in one view of the store, which must not stay open while the reader works


def follow(log: GossipLog, after: Cursor | None = None) -> Iterator[tuple[Cursor, SignedMessage]]:
    """Yield messages in the order of arrival, each with the cursor to continue from; never ends."""
    version = -1
    with CommitWatch(log) as watch:
        while True:
            current = log.version()
            if current == version:
                watch.wait()
                continue
            while batch := _read(log, after):
                after = batch[-1][0]
                yield from batch
            version = current


async def follow_async(
    log: GossipLog, after: Cursor | None = None
) -> AsyncIterator[tuple[Cursor, SignedMessage]]:
    """Follow as `follow` does, for asyncio."""
    version = -1
    with CommitWatch(log) as watch:
        while True:
            current = log.version()
            if current == version:
                await watch.wait_async()
                continue
            while batch := await in_thread(_read, log, after):
                after = batch[-1][0]
                for row in batch:
                    yield row
            version = current


def _read(log: GossipLog, after: Cursor | None) -> list[tuple[Cursor, SignedMessage]]:
    batch: list[tuple[Cursor, SignedMessage]] = []
    for row in log.arrivals(after):
        batch.append(row)
        if len(batch) == BATCH:
            break
    return batch
