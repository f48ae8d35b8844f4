"""Run a bridge: connect, move batches in both directions, reconnect with backoff."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from ropewalk.bridge.brokers.loops import BridgedLog, Publisher, Subscriber
from ropewalk.bridge.brokers.port import Broker
from ropewalk.bridge.progress import Progress
from ropewalk.disk.durable import read_file
from ropewalk.errors import RopewalkError, Unavailable

Direction = Literal["out", "in", "both"]
IDLE_S = 0.2  # between two looks at a log with nothing new
BACKOFF_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_journal = logging.getLogger("ropewalk.bridge")


@dataclass(slots=True)
class BridgeReport:
    """What a bridge has moved since it started."""

    published: int = 0
    received: int = 0
    lost: int = 0  # messages that the broker removed before they were read
    reconnects: int = 0
    listeners: list[Callable[[BridgeReport], None]] = field(default_factory=list)

    def tell(self) -> None:
        """Call the listeners."""
        for listener in self.listeners:
            listener(self)


class Bridge:
    """One log and one stream, at an address without credentials. `jitter` returns a number from 0 to 1."""

    def __init__(
        self,
        log: BridgedLog,
        connect: Callable[[], Awaitable[Broker]],
        *,
        address: str,
        direction: Direction = "out",
        form: str = "envelope",
        jitter: Callable[[], float],
    ) -> None:
        self._log, self._connect, self._form = log, connect, form
        ways = {"out": (log.name, address), "in": (address, log.name)}
        kind = address.partition(":")[0]
        self._progress = {
            way: Progress.of(log.repository, kind, *ends)
            for way, ends in ways.items()
            if direction in (way, "both")
        }
        self._jitter = jitter
        self.report = BridgeReport()

    async def once(self) -> BridgeReport:
        """Move everything there is now, in both directions asked for, then return."""
        async with contextlib.AsyncExitStack() as held:
            held.enter_context(self._recorded())
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
            except Unavailable as error:
                if failures == 0:
                    _journal.warning("%s: %s; trying again", self._log.name, error.detail)
                moved = before != (self.report.published, self.report.received)
                failures = 1 if moved else failures + 1
                self.report.reconnects += 1
                pause = BACKOFF_S[min(failures, len(BACKOFF_S)) - 1] * (0.5 + self._jitter())
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await stop.wait()
        return self.report

    async def _session(self, stop: asyncio.Event) -> None:
        async with contextlib.AsyncExitStack() as held:
            held.enter_context(self._recorded())
            publisher, subscriber = await self._ends(held)
            try:
                async with asyncio.TaskGroup() as group:
                    if publisher is not None:
                        group.create_task(self._keep_publishing(publisher, stop))
                    if subscriber is not None:
                        group.create_task(self._keep_receiving(subscriber, stop))
            except* RopewalkError as several:
                raise several.exceptions[0] from several

    @contextlib.contextmanager
    def _recorded(self) -> Iterator[None]:
        """Keep other processes from running this bridge, and record why a run failed."""
        with contextlib.ExitStack() as held:
            for each in self._progress.values():
                held.enter_context(each.held())
            try:
                yield
            except RopewalkError as error:
                for each in self._progress.values():
                    each.fail(error)
                raise

    async def _ends(self, held: contextlib.AsyncExitStack) -> tuple[Publisher | None, Subscriber | None]:
        """Return what moves the events. Each direction has its own connection: an adapter reads at one place only."""
        origin = repository_id(self._log)
        publisher = subscriber = None
        if (progress := self._progress.get("out")) is not None:
            broker = await self._broker(held)
            publisher = Publisher(self._log, broker, progress, origin=origin, form=self._form)
        if (progress := self._progress.get("in")) is not None:
            subscriber = Subscriber(self._log, await self._broker(held), progress, origin=origin)
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
        before = subscriber.lost
        moved = await subscriber.step()
        self.report.received += moved or 0
        self.report.lost += subscriber.lost - before
        if moved:
            self.report.tell()
        return moved is not None

    async def _keep_publishing(self, publisher: Publisher, stop: asyncio.Event) -> None:
        while not stop.is_set():
            if not await self._publish(publisher):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(IDLE_S):
                        await stop.wait()

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
