"""Serve a stream again: one connection to the upstream for any number of clients."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
from collections.abc import Iterator
from typing import Any

from ropewalk.errors import RopewalkError, Unavailable, Usage
from ropewalk.gitlog.repository.repository import GitRepository
from ropewalk.kernel.ulid import next_ulid
from ropewalk.net.text_socket import TextSocket, connect_text
from ropewalk.net.threads import in_thread
from ropewalk.stream.core.connection import LIMITS, StreamLimits
from ropewalk.stream.core.window import PROXY_BOUNDS, WindowBounds
from ropewalk.stream.proxy.client import CatchUp
from ropewalk.stream.proxy.proxy import Proxy
from ropewalk.stream.proxy.relay import PLACES_MAX
from ropewalk.stream.serve.audit import record_miss
from ropewalk.stream.serve.follow import CONNECT_S, FRAME_BYTES_MAX, PAUSE_S_MAX, SILENT_S, with_path
from ropewalk.stream.serve.server import Clock, StreamServer

PAUSE_S_MIN = 0.05
STEADY_S = 5.0  # a link that held for so long was no failure
FETCHES_MAX = 16  # connections to the upstream for clients that were away for long
TICK_S = 1.0

_journal = logging.getLogger("ropewalk.stream")


class StreamProxy:
    """Serves the stream at `upstream_url`. Use it as a context; it is entered once the upstream has answered.

    `refs` and `topics` say what is carried from the beginning; without any, everything is. `log` is a repository in
    which misses are recorded. Other options are those of `StreamServer`.
    """

    def __init__(
        self,
        upstream_url: str,
        *,
        refs: tuple[str, ...] = (),
        topics: tuple[str, ...] = (),
        upstream_token: str | None = None,
        log: GitRepository | None = None,
        bounds: WindowBounds = PROXY_BOUNDS,
        places_max: int = PLACES_MAX,
        limits: StreamLimits = LIMITS,
        **options: Any,
    ) -> None:
        self.upstream_url = with_path(upstream_url)
        self._clock = Clock()
        self.proxy = Proxy(
            next_ulid(None, self._clock.now_ms(), os.urandom(10)),
            self._clock.now_us(),
            refs=refs,
            topics=topics,
            bounds=bounds,
            places_max=places_max,
            limits=limits,
            changed=self._change,
        )
        self.server = StreamServer(
            self.proxy.window,
            clock=self._clock,
            limits=limits,
            connection=lambda: self.proxy.connect(self._clock.now_ms()),
            **options,
        )
        self._token = upstream_token
        self._log = log
        self._changes: set[asyncio.Event] = set()
        self._linked = asyncio.Event()
        self._waking = False
        self._fetching: dict[CatchUp, asyncio.Task[None]] = {}
        self._fetches = asyncio.Semaphore(FETCHES_MAX)
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def url(self) -> str:
        """Where clients connect to."""
        return self.server.url

    async def __aenter__(self) -> StreamProxy:
        link = asyncio.create_task(self._keep_linked())
        self._tasks = [link]
        try:
            # Not before: two proxies of one another would never know.
            waiting = asyncio.create_task(self._linked.wait())
            await asyncio.wait([link, waiting], return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if link.done():
                link.result()
            await self.server.__aenter__()
        except BaseException:
            await self._end_tasks()
            raise
        self._tasks += [asyncio.create_task(self._tend()), asyncio.create_task(self._record())]
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self.server.__aexit__(*exc)
        await self._end_tasks()

    async def wait(self) -> None:
        """Wait for an error that another attempt would not mend, such as an upstream that is this proxy."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def _end_tasks(self) -> None:
        tasks = [*self._tasks, *self._fetching.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # The link

    async def _keep_linked(self) -> None:
        loop = asyncio.get_running_loop()
        pause_s, reported = PAUSE_S_MIN, ""
        with self._noticing() as changed:
            while True:
                while not self.proxy.reading:  # no client takes what is here already
                    await changed.wait()
                    changed.clear()
                start = loop.time()
                trouble = await self._link()
                waited_for = trouble is None or isinstance(trouble, Unavailable)  # it may come back
                if isinstance(trouble, Usage) or (
                    trouble is not None and not waited_for and not self._linked.is_set()
                ):
                    raise trouble
                now = trouble.detail if trouble is not None else "the link ended"
                if now != reported:  # once, however often it is tried
                    _journal.info("%s: %s", self.upstream_url, now)
                reported = now
                self.server.fault = f"the upstream: {now}"
                pause_s = PAUSE_S_MIN if loop.time() - start > STEADY_S else min(PAUSE_S_MAX, pause_s * 2)
                await asyncio.sleep(pause_s * random.uniform(0.5, 1))  # noqa: S311 - so that not all come at once

    async def _link(self) -> RopewalkError | None:
        """Run one link to its end and return what was wrong with it."""
        try:
            socket = await self._connect()
        except RopewalkError as error:
            return error
        try:
            await self._talk(self.proxy, socket)
        except RopewalkError as error:
            return error
        finally:
            await socket.close()
        return None

    async def _connect(self) -> TextSocket:
        return await connect_text(
            self.upstream_url, timeout_s=CONNECT_S, message_bytes_max=FRAME_BYTES_MAX, token=self._token
        )

    async def _talk(self, side: Proxy | CatchUp, socket: TextSocket) -> None:
        side.connected()
        sending = asyncio.create_task(self._send(side, socket))
        try:
            with self._noticing() as changed:
                while not side.ended:
                    if not side.reading:
                        await changed.wait()
                        changed.clear()
                        continue
                    async with asyncio.timeout(SILENT_S):
                        message = await socket.receive()
                    if message is None:
                        return
                    for error in side.receive(message, self._clock.now_ms()):
                        _journal.warning("%s: %s: %s", self.upstream_url, error.code, error.message)
                    if side is self.proxy:
                        self._linked.set()
                        self.server.fault = None
                    self._wake_soon()
        except TimeoutError:
            _journal.info("%s is silent", self.upstream_url)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _send(self, side: Proxy | CatchUp, socket: TextSocket) -> None:
        with self._noticing() as changed:
            while True:
                texts = side.outgoing()
                if texts and not await socket.send(texts):
                    return
                await changed.wait()
                changed.clear()

    # What clients that were away for long have missed

    async def _fetch(self, catch_up: CatchUp) -> None:
        async with self._fetches:
            pause_s = PAUSE_S_MIN
            while not catch_up.ended:
                try:
                    socket = await self._connect()
                    try:
                        await self._talk(catch_up, socket)
                    finally:
                        await socket.close()
                except RopewalkError as error:
                    _journal.info("%s: %s", self.upstream_url, error.detail)
                if not catch_up.ended:
                    catch_up.dropped(self._clock.now_ms())
                    await asyncio.sleep(pause_s)
                    pause_s *= 2
                self.server.wake()

    # Background work

    async def _tend(self) -> None:
        """Start fetches, drop what is too old, and pass on what came of it."""
        loop = asyncio.get_running_loop()
        tick_at = loop.time() + TICK_S
        with self._noticing() as changed:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(tick_at):
                        await changed.wait()
                changed.clear()
                for catch_up in self.proxy.catch_ups:
                    if catch_up not in self._fetching and not catch_up.ended:
                        self._fetching[catch_up] = asyncio.create_task(self._fetch(catch_up))
                self._fetching = {key: task for key, task in self._fetching.items() if not task.done()}
                if loop.time() >= tick_at:
                    tick_at = loop.time() + TICK_S
                    self.proxy.tick(self._clock.now_ms())
                    self.server.wake()

    async def _record(self) -> None:
        """Put misses on the record, one at a time; a repository that cannot take one does not end the proxy."""
        with self._noticing() as changed:
            while True:
                while self.proxy.misses:
                    miss = self.proxy.misses.popleft()
                    _journal.warning("frame %d was asked for in vain: %s", miss.missing_seq, miss.reason)
                    if self._log is not None:
                        stream, upstream = self.proxy.window.stream, self.proxy.upstream or ""
                        try:
                            await in_thread(record_miss, self._log, miss, stream, upstream)
                        except (RopewalkError, OSError) as error:
                            _journal.warning("the miss is not on the record: %s", error)
                await changed.wait()
                changed.clear()

    def _wake_soon(self) -> None:
        """Wake the writers once for all that was read at a time: with many clients, waking costs most."""
        if not self._waking:
            self._waking = True
            asyncio.get_running_loop().call_soon(self._wake)

    def _wake(self) -> None:
        self._waking = False
        self._change()
        self.server.wake()

    def _change(self) -> None:
        for event in self._changes:
            event.set()

    @contextlib.contextmanager
    def _noticing(self) -> Iterator[asyncio.Event]:
        """Return a new event that is set whenever something may have changed."""
        event = asyncio.Event()
        self._changes.add(event)
        try:
            yield event
        finally:
            self._changes.discard(event)
