"""A stream for programs: what a server tells, once each and in order, over as many connections as it takes.

`Following` is for asyncio, `follow` for everybody else. Both read ahead in the background as far as credit goes, so
that pings are answered while the program is busy, and both give credit as it consumes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from ropewalk.errors import Invalid, RopewalkError, Unavailable
from ropewalk.net.textsocket import TextSocket, connect_text
from ropewalk.node.streamserver import STREAM_PATH
from ropewalk.stream.frames import BusEvent, ErrorFrame, RefUpdate
from ropewalk.stream.patterns import parse_pattern
from ropewalk.stream.subscriber import Item, Subscriber

__all__ = ["Following", "Follows", "follow", "with_path"]

CONNECT_S = 10.0
SILENT_S = 45.0  # a server pings every thirty seconds: after this long it is not there any more
PAUSE_S_MAX = 10.0  # between two attempts to reach a server that is gone
FRAME_BYTES_MAX = 16 << 20
AHEAD_MAX = 2_000  # items read and not consumed; credit keeps an honest server to half of it
TOLD_EVERY = 50  # frames a thread consumes before it tells the loop

_journal = logging.getLogger("ropewalk.stream")
_journal.addHandler(logging.NullHandler())


class Following:
    """The frames of a stream, as an asynchronous iterator. Use it as a context.

    Connecting for the first time may raise; after that, a server that goes away is waited for, for as long as
    `patience_s` says (None: for ever). Frames that cannot be had any more are told by a `Lost` among them.
    """

    def __init__(
        self,
        url: str,
        *,
        refs: Sequence[str] = (),
        topics: Sequence[str] = (),
        since_seq: int | None = None,
        token: str | None = None,
        patience_s: float | None = None,
    ) -> None:
        for name in refs:  # a slip of the pen is told before anybody is asked
            parse_pattern("ref", name)
        for name in topics:
            parse_pattern("topic", name)
        if not refs and not topics:
            raise Invalid("nothing to follow", advice="Name at least one ref or topic.")
        self.url = with_path(url)
        self.subscriber = Subscriber(refs=tuple(refs), topics=tuple(topics), since_seq=since_seq)
        self._token = token
        self._patience_s = patience_s
        self._items: asyncio.Queue[Item | RopewalkError] = asyncio.Queue(AHEAD_MAX)
        self._to_send = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._taken = False
        self._refusal: ErrorFrame | None = None

    @property
    def seq(self) -> int | None:
        """The last frame received; to go on from here another time, give it as `since_seq`."""
        return self.subscriber.seq

    async def __aenter__(self) -> Following:
        socket = await self._connect()
        self._task = asyncio.create_task(self._run(socket))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def __aiter__(self) -> Following:
        return self

    async def __anext__(self) -> Item:
        if self._taken:
            self.consumed(1)
        item = await self.take()
        self._taken = isinstance(item, RefUpdate | BusEvent)
        return item

    async def take(self) -> Item:
        """The next item. Unlike iterating, it leaves it to the caller to say what is `consumed`."""
        item = await self._items.get()
        if isinstance(item, RopewalkError):
            raise item
        return item

    def consumed(self, count: int) -> None:
        """So many frames are done with. Iterating says it by itself."""
        self.subscriber.consumed(count)
        self._to_send.set()

    async def _run(self, socket: TextSocket) -> None:
        try:
            while True:
                await self._talk(socket)
                _journal.info("%s: the connection ended (%s); trying again", self.url, socket.ended)
                socket = await self._connect_again()
        except RopewalkError as error:
            await self._items.put(error)

    async def _connect(self) -> TextSocket:
        self.subscriber.connected()
        return await connect_text(
            self.url, timeout_s=CONNECT_S, message_bytes_max=FRAME_BYTES_MAX, token=self._token
        )

    async def _connect_again(self) -> TextSocket:
        """The server is gone: try until it is back, or until patience ends."""
        if self._refusal is not None:
            raise Invalid(f"{self.url} refuses: {self._refusal.message}", reason=self._refusal.code)
        loop = asyncio.get_running_loop()
        end = None if self._patience_s is None else loop.time() + self._patience_s
        pause_s = 0.05
        while True:
            await asyncio.sleep(pause_s)
            pause_s = min(PAUSE_S_MAX, pause_s * 2)
            try:
                return await self._connect()
            except Unavailable:
                if end is not None and loop.time() + pause_s > end:
                    raise

    async def _talk(self, socket: TextSocket) -> None:
        """One connection, to its end."""
        sending = asyncio.create_task(self._send(socket))
        try:
            while True:
                async with asyncio.timeout(SILENT_S):
                    message = await socket.receive()
                if message is None:
                    return
                for item in self.subscriber.receive(message):
                    await self._pass_on(item)
                self._to_send.set()
        except TimeoutError:
            pass  # it says nothing, not even ping
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            await socket.close()

    async def _pass_on(self, item: Item) -> None:
        if isinstance(item, ErrorFrame) and item.code == "INVALID_SUB":
            self._refusal = item
        elif isinstance(item, ErrorFrame) and item.code == "SLOW_READER":
            pass  # the connection ends; the next one catches up, or says what is lost
        else:
            await self._items.put(item)

    async def _send(self, socket: TextSocket) -> None:
        while True:
            await self._to_send.wait()
            self._to_send.clear()
            texts = self.subscriber.outgoing()
            if texts and not await socket.send(texts):
                return


class Follows:
    """The frames of a stream, as a plain iterator. Made by `follow`."""

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        self._items: queue.SimpleQueue[Item | RopewalkError | None] = queue.SimpleQueue()
        self._connected: queue.SimpleQueue[RopewalkError | None] = queue.SimpleQueue()
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._following: Following | None = None
        self._taken = 0
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run(url, options)), name="ropewalk-stream", daemon=True
        )
        self._thread.start()
        error = self._connected.get()
        if error is not None:
            self._thread.join()
            raise error

    @property
    def seq(self) -> int | None:
        """The last frame received; to go on from here another time, give it as `since_seq`."""
        return self._following.seq if self._following is not None else None

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        if self._taken >= TOLD_EVERY or (self._taken and self._items.empty()):
            taken, self._taken = self._taken, 0
            self._call(taken)
        item = self._items.get()
        if isinstance(item, RopewalkError):
            raise item
        if item is None:
            raise StopIteration
        if isinstance(item, RefUpdate | BusEvent):
            self._taken += 1
        return item

    def close(self) -> None:
        """Leave. Somebody who waits for the next frame gets the end of the iteration."""
        if self._loop is not None and self._stop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended already
                self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._items.put(None)

    def _call(self, taken: int) -> None:
        assert self._loop is not None
        assert self._following is not None
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._following.consumed, taken)

    async def _run(self, url: str, options: dict[str, Any]) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with Following(url, **options) as self._following:
                self._connected.put(None)
                passing = asyncio.create_task(self._pass_on(self._following))
                stopping = asyncio.create_task(self._stop.wait())
                await asyncio.wait([passing, stopping], return_when=asyncio.FIRST_COMPLETED)
                for task in (passing, stopping):
                    task.cancel()
                await asyncio.gather(passing, stopping, return_exceptions=True)
        except RopewalkError as error:
            self._connected.put(error)

    async def _pass_on(self, following: Following) -> None:
        try:
            while True:
                item = await following.take()
                self._items.put(item)
        except RopewalkError as error:
            self._items.put(error)


@contextlib.contextmanager
def follow(url: str, **options: Any) -> Iterator[Follows]:
    """Follow a stream from a program without asyncio; the options are those of `Following`.

    `with follow(url, topics=["jobs.*"]) as frames: for frame in frames: …`
    """
    frames = Follows(url, options)
    try:
        yield frames
    finally:
        frames.close()


def with_path(url: str) -> str:
    """The address of a stream, where only a host was given."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=STREAM_PATH)) if parts.path in ("", "/") else url
