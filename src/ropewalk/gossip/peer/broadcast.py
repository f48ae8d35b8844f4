"""Pass on what arrives in a log to all connected peers, and publish the list of peers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from ropewalk.errors import RopewalkError
from ropewalk.gossip.core.events import Committed, Event
from ropewalk.gossip.core.log import Cursor, GossipLog
from ropewalk.gossip.core.message import SignedMessage
from ropewalk.gossip.peer.commit_watch import CommitWatch
from ropewalk.gossip.peer.frames import reason
from ropewalk.gossip.peer.peer_list import PeerList
from ropewalk.net.threads import in_thread

PUBLISH_S = 0.5  # how often the list of peers is written, if it changed
PUSHED_MAX = 64  # messages pushed one by one; a larger batch is announced, and pulled
PUSHED_BYTES_MAX = 8 << 20

_journal = logging.getLogger("ropewalk.gossip.peers")
_journal.addHandler(logging.NullHandler())


class PushTarget(Protocol):
    """What a broadcaster pushes to: a connected peer."""

    def push(self, messages: Iterable[SignedMessage]) -> None: ...

    def announce(self) -> None: ...


class ListedPeer(Protocol):
    """What a list of peers shows: a connection, or the attempt to get one."""

    def status(self) -> dict[str, Any]: ...


class Broadcaster:
    """Pushes to `targets` what arrives in a log, from this or any other process. Use it as a context."""

    def __init__(self, log: GossipLog) -> None:
        self.log = log
        self.targets: set[PushTarget] = set()
        self.listed: set[ListedPeer] = set()
        self.learned: Callable[[], list[dict[str, Any]]] = list  # rows of addresses without a connection
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stack = contextlib.ExitStack()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Broadcaster:
        loop = self._loop = asyncio.get_running_loop()
        version = self.log.version()
        cursor = await in_thread(self.log.last_arrival)

        watch = self._stack.enter_context(CommitWatch(self.log))

        def grown(_: Event) -> None:
            loop.call_soon_threadsafe(watch.wake)  # listeners are called in the thread that wrote

        self._stack.callback(self.log.on(grown, Committed))
        published = self._stack.enter_context(PeerList(getattr(self.log.table, "path", None)))
        self._tasks = [
            asyncio.create_task(self._watch(watch, version, cursor)),
            asyncio.create_task(self._publish(published)),
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._stack.close()

    async def _watch(self, watch: CommitWatch, version: int, cursor: Cursor | None) -> None:
        while True:
            await watch.wait_async()
            try:
                if version != (version := self.log.version()):
                    cursor = await self._pass_on(cursor)
            except RopewalkError as error:
                _journal.warning(reason(error, self.log.topic))
                version = -1
                await asyncio.sleep(PUBLISH_S)

    def relay(self, messages: list[SignedMessage]) -> None:
        """Push messages that a peer pushed and the rules passed, from the thread that is about to store them.

        Many are left to the commit, after which they may be announced instead.
        """
        if self._loop is not None and 0 < len(messages) <= PUSHED_MAX:
            self._loop.call_soon_threadsafe(self._push, messages)

    def _push(self, messages: list[SignedMessage]) -> None:
        for target in list(self.targets):
            target.push(messages)

    async def _pass_on(self, cursor: Cursor | None) -> Cursor | None:
        cursor, fresh = await in_thread(self._fresh, cursor)
        if fresh is None:
            for target in list(self.targets):
                target.announce()
        elif fresh:
            self._push(fresh)
        return cursor

    def _fresh(self, cursor: Cursor | None) -> tuple[Cursor | None, list[SignedMessage] | None]:
        """Return the newest cursor and what arrived after the given one, or None if it is too much to push."""
        if not self.targets:
            return self.log.last_arrival(), []
        rows: list[tuple[Cursor, SignedMessage]] = []
        size = 0
        for row in self.log.arrivals(cursor):
            rows.append(row)
            size += len(row[1].raw)
            if len(rows) > PUSHED_MAX or size > PUSHED_BYTES_MAX:
                return self.log.last_arrival(), None
        return rows[-1][0] if rows else cursor, [signed for _, signed in rows]

    async def _publish(self, published: PeerList) -> None:
        while True:
            published.write([each.status() for each in self.listed] + self.learned())
            await asyncio.sleep(PUBLISH_S)
