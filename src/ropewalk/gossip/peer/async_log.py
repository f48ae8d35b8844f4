"""A gossip log for asyncio: the verbs of `GossipLog`, each run in a thread, and connections that stay."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from itertools import islice
from typing import Any, Generic, Self

from ropewalk.gossip.core.events import Event, Stored
from ropewalk.gossip.core.ids import MessageId
from ropewalk.gossip.core.log import Bound, Cursor, GossipLog
from ropewalk.gossip.core.message import GossipMessage, GossipSignature, Payload, Result, SignedMessage
from ropewalk.gossip.core.writing import Inserted
from ropewalk.gossip.peer.client import SyncReport, sync_with
from ropewalk.gossip.peer.connection import PeerConnection
from ropewalk.gossip.peer.follow import BATCH, follow_async, follow_events_async
from ropewalk.gossip.peer.server import GossipServer
from ropewalk.kernel.keys import SigningKey
from ropewalk.kernel.prolly.node import Node
from ropewalk.net.threads import in_thread


class AsyncLog(Generic[Payload, Result]):
    """The verbs of a log as coroutines. `log` is the log itself, which stays usable from other threads.

    >>> import asyncio
    >>> from ropewalk import gossip
    >>> async def main():
    ...     async with gossip.AsyncLog(gossip.open("com.example", signer=gossip.Ed25519Signer())) as log:
    ...         await log.append({"text": "hello"})
    ...         return [signed.message.payload async for signed in log.iterate()]
    >>> asyncio.run(main())
    [{'text': 'hello'}]
    """

    def __init__(self, log: GossipLog[Payload, Result]) -> None:
        self.log = log
        self.topic = log.topic

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the log."""
        await in_thread(self.log.close)

    # Writing

    async def append(self, payload: Payload, *, signer: SigningKey | None = None) -> Stored[Payload, Result]:
        """Make, sign, apply and store a message on top of all heads."""
        return (await self.append_many([payload], signer=signer))[0]

    async def append_many(
        self, payloads: Iterable[Payload], *, signer: SigningKey | None = None
    ) -> list[Stored[Payload, Result]]:
        """Append several payloads in one transaction: all or none."""
        return await in_thread(lambda: self.log.append_many(payloads, signer=signer))

    async def insert(
        self, raw: bytes | GossipSignature, message: GossipMessage[Payload] | None = None
    ) -> Inserted:
        """Store a message of another peer, given as bytes or as signature and message."""
        return await in_thread(self.log.insert, raw, message)

    async def insert_many(self, raws: Iterable[bytes]) -> list[Inserted]:
        """Store many messages of other peers in one transaction."""
        return await in_thread(self.log.insert_many, raws)

    async def drop_pending(self, ids: Iterable[str] | None = None, *, older_than_s: int | None = None) -> int:
        """Forget pending messages: these, those that have waited so long, or all; return how many."""
        return await in_thread(lambda: self.log.drop_pending(ids, older_than_s=older_than_s))

    async def replay(self) -> int:
        """Call `apply` for every stored message again, parents first; return how many there were."""
        return await in_thread(self.log.replay)

    # Reading

    async def count(self) -> int:
        """Return how many messages are stored."""
        return await in_thread(self.log.__len__)

    async def has(self, id: str) -> bool:
        """Return whether the message is stored."""
        return await in_thread(self.log.has, id)

    async def get(self, id: str) -> SignedMessage | None:
        """Return a stored message, or None."""
        return await in_thread(self.log.get, id)

    async def iterate(
        self, lower: Bound | None = None, upper: Bound | None = None, *, reverse: bool = False
    ) -> AsyncIterator[SignedMessage]:
        """Yield the messages between two bounds by clock, then by hash; read in steps, so that memory is bounded."""
        while batch := await in_thread(self._page, lower, upper, reverse):
            for signed in batch:
                yield signed
            last = Bound(batch[-1].id, inclusive=False)
            lower, upper = (lower, last) if reverse else (last, upper)

    def _page(self, lower: Bound | None, upper: Bound | None, reverse: bool) -> list[SignedMessage]:
        return list(islice(self.log.iterate(lower, upper, reverse=reverse), BATCH))

    def follow(self, after: Cursor | None = None) -> AsyncIterator[tuple[Cursor, SignedMessage]]:
        """Yield messages in the order of arrival, then those that arrive, from this or any other process."""
        return follow_async(self.log, after)

    def follow_events(self) -> AsyncIterator[Event]:
        """Yield `Stored`, `Committed` and `Synced` from now on, from this or any other process."""
        return follow_events_async(self.log)

    async def heads(self) -> list[MessageId]:
        """Return the messages without children."""
        return await in_thread(self.log.heads)

    async def get_clock(self) -> tuple[int, list[MessageId]]:
        """Return the clock of the next appended message, and its parents."""
        return await in_thread(self.log.get_clock)

    async def root(self) -> Node:
        """Return the root of the tree over all messages."""
        return await in_thread(self.log.root)

    async def pending(self) -> list[tuple[MessageId, list[MessageId]]]:
        """Return the messages that wait for parents, each with the missing ones."""
        return await in_thread(self.log.pending)

    async def get_ancestors(self, id: str, clock: int) -> list[MessageId]:
        """Return the frontier of a message's history at a clock."""
        return await in_thread(self.log.get_ancestors, id, clock)

    async def is_ancestor(self, id: str, ancestor: str) -> bool:
        """Return whether one message is in the history of another."""
        return await in_thread(self.log.is_ancestor, id, ancestor)

    # Peers

    def connect(self, url: str, **options: Any) -> PeerConnection:
        """Return a connection to a peer that stays; use it in `async with`."""
        return PeerConnection(self.log, url, **options)

    def serve(self, **options: Any) -> GossipServer:
        """Return a server for peers; use it in `async with`."""
        return GossipServer(self.log, **options)

    async def sync(self, url: str, *, pull_only: bool = False) -> SyncReport:
        """Exchange messages with a peer until both logs are equal, then disconnect."""
        return await sync_with(self.log, url, pull_only=pull_only)
