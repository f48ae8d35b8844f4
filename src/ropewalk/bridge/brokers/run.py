"""Run a bridge: connect, move batches in both directions, reconnect with backoff."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal

from ropewalk.bridge.brokers.loops import BridgedLog, Publisher, Subscriber
from ropewalk.bridge.brokers.port import Broker
from ropewalk.disk.durable import read_file
from ropewalk.errors import RopewalkError, Unavailable

Direction = Literal["out", "in", "both"]
IDLE_S = 0.2  # between two looks at a log with nothing new
BACKOFF_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


@dataclass(slots=True)
class BridgeReport:
    """What a bridge has moved since it started."""

    published: int = 0
    received: int = 0
    reconnects: int = 0
    listeners: list[Callable[[BridgeReport], None]] = field(default_factory=list)

    def tell(self) -> None:
        """Call the listeners."""
        for listener in self.listeners:
            listener(self)


class Bridge:
    """One log and one stream. `jitter` returns a number from 0 to 1."""

    def __init__(
        self,
        log: BridgedLog,
        connect: Callable[[], Awaitable[Broker]],
        *,
        direction: Direction = "out",
        form: str = "envelope",
        jitter: Callable[[], float],
    ) -> None:
        self._log, self._connect, self._direction, self._form = log, connect, direction, form
        self._jitter = jitter
        self.report = BridgeReport()

    async def once(self) -> BridgeReport:
        """Move everything there is now, in both directions asked for, then return."""
        async with contextlib.AsyncExitStack() as held:
            publisher, subscriber = await self._ends(held)
            if subscriber is not None:
                while await self._receive(subscriber):
                    pass
            if publisher is not None:
                while await self._publish(publisher):
                    pass
        return self.report

    async def run(self, stop: asyncio.Event) -> BridgeReport:
        """Move what comes until `stop` is set; a broker that is away is tried again with backoff."""
        failures = 0
        while not stop.is_set():
            before = (self.report.published, self.report.received)
            try:
                await self._session(stop)
                return self.report
            except Unavailable:
                moved = before != (self.report.published, self.report.received)
                failures = 1 if moved else failures + 1
                self.report.reconnects += 1
                pause = BACKOFF_S[min(failures, len(BACKOFF_S)) - 1] * (0.5 + self._jitter())
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), pause)
        return self.report

    async def _session(self, stop: asyncio.Event) -> None:
        async with contextlib.AsyncExitStack() as held:
            publisher, subscriber = await self._ends(held)
            try:
                async with asyncio.TaskGroup() as group:
                    if publisher is not None:
                        group.create_task(self._keep_publishing(publisher, stop))
                    if subscriber is not None:
                        group.create_task(self._keep_receiving(subscriber, stop))
            except* RopewalkError as several:
                raise several.exceptions[0] from several

    async def _ends(self, held: contextlib.AsyncExitStack) -> tuple[Publisher | None, Subscriber | None]:
        """Return what moves the events. Each direction has its own connection: an adapter reads at one place only."""
        origin = repository_id(self._log)
        publisher = subscriber = None
        if self._direction in ("out", "both"):
            publisher = Publisher(self._log, await self._broker(held), origin=origin, form=self._form)
            held.enter_context(publisher.progress.held())
        if self._direction in ("in", "both"):
            subscriber = Subscriber(self._log, await self._broker(held), origin=origin)
            held.enter_context(subscriber.progress.held())
        return publisher, subscriber

    async def _broker(self, held: contextlib.AsyncExitStack) -> Broker:
        broker = await self._connect()
        held.push_async_callback(broker.close)
        return broker

    async def _publish(self, publisher: Publisher) -> bool:
        moved = await publisher.step()
        self.report.published += moved or 0
        if moved:
            self.report.tell()
        return moved is not None

    async def _receive(self, subscriber: Subscriber) -> bool:
        moved = await subscriber.step()
        self.report.received += moved or 0
        if moved:
            self.report.tell()
        return moved is not None

    async def _keep_publishing(self, publisher: Publisher, stop: asyncio.Event) -> None:
        while not stop.is_set():
            if not await self._publish(publisher):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), IDLE_S)

    async def _keep_receiving(self, subscriber: Subscriber, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self._receive(subscriber)


def repository_id(log: BridgedLog) -> str:
    """Return the id by which a repository knows its own messages again; made once, then kept."""
    store = log.repository.store
    path = store.place.home / "bridges" / "origin"
    with contextlib.suppress(OSError):
        found = read_file(path, 64).decode("ascii", "replace").strip()
        if len(found) == 32:
            return found
    store.disk.make_directories(path.parent)
    with contextlib.suppress(FileExistsError):  # another bridge was faster: its id counts
        store.disk.write_new(path, secrets.token_hex(16).encode() + b"\n")
    return read_file(path, 64).decode().strip()
