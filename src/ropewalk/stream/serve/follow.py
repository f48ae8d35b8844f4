"""Follow a stream from a program: each frame once and in order, over as many connections as it takes.

`Following` is for asyncio, `follow` for everybody else. Both read ahead in the background as far as credit goes, so
that pings are answered while the program is busy, and both give credit as it consumes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import random
import threading
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from ropewalk.errors import Invalid, RangeExceeded, Unavailable, Usage
from ropewalk.kernel import jcs
from ropewalk.net.text_socket import TextSocket, connect_text
from ropewalk.stream.core.frames import BusEvent, ErrorFrame, RefUpdate
from ropewalk.stream.core.patterns import parse_pattern
from ropewalk.stream.core.subscriber import Item, Lost, Subscriber
from ropewalk.stream.serve.server import STREAM_PATH

CONNECT_S = 10.0
ACK_S = 10.0  # until a server has said that it is a stream
SILENT_S = 45.0  # a server pings every thirty seconds: after this long it is not there any more
PAUSE_S_MIN, PAUSE_S_MAX = 0.05, 10.0  # between two attempts to reach a server that is gone
FRAME_BYTES_MAX = 16 << 20
AHEAD_MAX = 2_000  # items read and not consumed; credit keeps an honest server to half of it
TOLD_EVERY = 50  # frames a thread consumes before it notifies the loop

_journal = logging.getLogger("ropewalk.stream")
_journal.addHandler(logging.NullHandler())


class Following:
    """The frames of a stream, as an asynchronous iterator. Use it as a context.

    Connecting for the first time may raise; after that, a server that goes away is waited for, for as long as
    `patience_s` (None: for ever). Frames that are no longer available are reported by a `Lost` among them.
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
        if isinstance(refs, str) or isinstance(topics, str):  # its letters would be patterns, too
            raise Invalid("refs and topics are lists of patterns", advice='Write topics=["jobs.*"].')
        for name in refs:  # a misspelt pattern is refused before connecting
            parse_pattern("ref", name)
        for name in topics:
            parse_pattern("topic", name)
        if not refs and not topics:
            raise Invalid("nothing to follow", advice="Name at least one ref or topic.")
        if since_seq is not None and not 0 <= since_seq <= jcs.INTEGER_MAX:
            raise RangeExceeded(
                f"there is no frame {since_seq}: frames have numbers from 0 to {jcs.INTEGER_MAX}",
                limit=jcs.INTEGER_MAX,
                advice="Give the seq of the last frame you have; 0 asks for all that is kept.",
            )
        self.url = with_path(url)
        self.subscriber = Subscriber(refs=tuple(refs), topics=tuple(topics), since_seq=since_seq)
        self._token = token
        self._patience_s = patience_s
        self._items: asyncio.Queue[Item | Exception] = asyncio.Queue(AHEAD_MAX)
        self._to_send = asyncio.Event()
        self._begun = asyncio.Event()  # the server has said where the stream is: nothing after that is missed
        self._task: asyncio.Task[None] | None = None
        self._taken = False
        self._seq: int | None = None
        self._pause_s = PAUSE_S_MIN
        self._brought = False  # whether this connection has brought anything
        self._met = False  # whether it was ever a stream that answered
        self._left = False
        self._refusal: ErrorFrame | None = None

    @property
    def seq(self) -> int | None:
        """The last frame handed out; to go on from here another time, give it as `since_seq`.

        Before the first one, the position of the stream when we connected.
        """
        return self._seq if self._seq is not None else self.subscriber.start

    async def __aenter__(self) -> Following:
        socket = await self._connect()
        self._task = asyncio.create_task(self._run(socket))
        begun = asyncio.create_task(self._begun.wait())
        try:
            await asyncio.wait([begun, self._task], timeout=ACK_S, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._task.cancel()
            raise
        finally:
            begun.cancel()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._left = True
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._items.empty():  # a task may wait for what will not come
            self._items.put_nowait(StopAsyncIteration())

    def __aiter__(self) -> Following:
        return self

    async def __anext__(self) -> Item:
        if self._taken:
            self.consumed(1)
        item = await self.take()
        self._taken = isinstance(item, RefUpdate | BusEvent)
        return item

    async def take(self) -> Item:
        """Return the next item. Unlike iterating, it leaves it to the caller to say what is `consumed`."""
        if self._left:
            raise StopAsyncIteration
        item = await self._items.get()
        if isinstance(item, Exception):
            self._items.put_nowait(item)  # it is the last; the next call gets it again
            raise item
        if isinstance(item, RefUpdate | BusEvent | Lost):
            self._seq = item.seq
        return item

    def consumed(self, count: int) -> None:
        """Report frames as consumed. Iterating does it by itself."""
        self.subscriber.consumed(count)
        self._to_send.set()

    async def _run(self, socket: TextSocket) -> None:
        now = asyncio.get_running_loop().time
        end: float | None = None
        failure: Unavailable | None = None
        try:
            while True:
                start, self._brought = now(), False
                await self._talk(socket)
                self._met = self._met or self.subscriber.begun
                if self._refusal is None:  # what was refused will be refused again
                    _journal.info("%s: the connection ended (%s); trying again", self.url, socket.ended)
                if self._brought or now() - start > PAUSE_S_MAX:
                    self._pause_s, end, failure = PAUSE_S_MIN, None, None
                else:  # a server that lets us in and ends it at once is not back
                    failure = Unavailable(f"{self.url} ends every connection ({socket.ended})")
                if end is None and self._patience_s is not None:
                    end = now() + self._patience_s
                socket = await self._connect_again(end, failure)
        except Exception as error:
            await self._items.put(error)

    async def _connect(self) -> TextSocket:
        self.subscriber.connected()
        return await connect_text(
            self.url, timeout_s=CONNECT_S, message_bytes_max=FRAME_BYTES_MAX, token=self._token
        )

    async def _connect_again(self, end: float | None, failure: Unavailable | None) -> TextSocket:
        """Try to connect again until the server is back or the time is up."""
        if self._refusal is not None:
            raise Invalid(f"{self.url} refuses: {self._refusal.message}", reason=self._refusal.code)
        now = asyncio.get_running_loop().time
        while True:
            if failure is not None and end is not None and now() + self._pause_s > end:
                raise failure
            # Not all at the same moment: a server that comes back may have thousands of clients.
            await asyncio.sleep(self._pause_s * (0.5 + random.random() / 2))  # noqa: S311 - jitter, not a secret
            self._pause_s = min(PAUSE_S_MAX, self._pause_s * 2)
            try:
                return await self._connect()
            except Unavailable as error:
                failure = error

    async def _talk(self, socket: TextSocket) -> None:
        """Run one connection to its end."""
        sending = asyncio.create_task(self._send(socket))
        now = asyncio.get_running_loop().time
        ack_by = now() + ACK_S
        try:
            while True:
                async with asyncio.timeout_at(now() + SILENT_S if self.subscriber.begun else ack_by):
                    message = await socket.receive()
                if message is None:
                    return
                for item in self.subscriber.receive(message):
                    await self._pass_on(item)
                if self.subscriber.begun:
                    self._begun.set()
                self._to_send.set()
        except TimeoutError:  # it is silent, without even a ping
            if not self._met and not self.subscriber.begun:
                raise Unavailable(f"{self.url} is no stream: it does not begin with ack") from None
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            await socket.close()

    async def _pass_on(self, item: Item) -> None:
        match item:
            case ErrorFrame(code="INVALID_SUB"):
                self._refusal = item
            case ErrorFrame(code="SLOW_READER"):
                return  # the connection ends; the next one catches up, or reports what is lost
            case _:
                self._brought = self._brought or isinstance(item, RefUpdate | BusEvent)
                await self._items.put(item)

    async def _send(self, socket: TextSocket) -> None:
        while True:
            await self._to_send.wait()
            self._to_send.clear()
            texts = self.subscriber.outgoing()
            if texts and not await socket.send(texts):
                return


class FollowIterator:
    """The frames of a stream, as a plain iterator, for any number of threads. Made by `follow`."""

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        self._items: queue.SimpleQueue[Item | BaseException] = queue.SimpleQueue()
        self._connected: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._following: Following | None = None
        self._room = asyncio.Semaphore(AHEAD_MAX)  # for items not taken yet
        self._counting = threading.Lock()
        self._taken = self._frames = 0  # items, and those that cost credit, since we notified the loop
        self._seq: int | None = None
        self._thread = threading.Thread(
            target=self._main, args=(url, options), name="ropewalk-stream", daemon=True
        )
        self._thread.start()
        error = self._connected.get()
        if error is not None:
            self._thread.join()
            raise error

    @property
    def seq(self) -> int | None:
        """The last frame handed out; to go on from here another time, give it as `since_seq`."""
        if self._seq is None and self._following is not None:
            return self._following.subscriber.start
        return self._seq

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        with self._counting:
            if self._taken >= TOLD_EVERY or (self._taken and self._items.empty()):
                self._call(self._taken, self._frames)
                self._taken = self._frames = 0
        item = self._items.get()
        if isinstance(item, BaseException):
            self._items.put(item)  # it is the last; the next call, or another waiting thread, gets it, too
            raise item
        with self._counting:
            self._taken += 1
            if isinstance(item, RefUpdate | BusEvent):
                self._frames += 1
            if isinstance(item, RefUpdate | BusEvent | Lost):
                self._seq = item.seq
        return item

    def close(self) -> None:
        """Leave the stream; a thread that waits for the next frame gets the end of the iteration."""
        if self._loop is not None and self._stop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended already
                self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._items.put(StopIteration())

    def _call(self, taken: int, frames: int) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._told, taken, frames)

    def _told(self, taken: int, frames: int) -> None:
        assert self._following is not None
        for _ in range(taken):
            self._room.release()
        self._following.consumed(frames)

    def _main(self, url: str, options: dict[str, Any]) -> None:
        try:
            asyncio.run(self._run(url, options))
        except BaseException as error:  # any error: a thread waits for the result
            self._connected.put(error)
            self._items.put(error)

    async def _run(self, url: str, options: dict[str, Any]) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with Following(url, **options) as self._following:
            self._connected.put(None)
            passing = asyncio.create_task(self._pass_on(self._following))
            stopping = asyncio.create_task(self._stop.wait())
            await asyncio.wait([passing, stopping], return_when=asyncio.FIRST_COMPLETED)
            for task in (passing, stopping):
                task.cancel()
            await asyncio.gather(passing, stopping, return_exceptions=True)

    async def _pass_on(self, following: Following) -> None:
        try:
            while True:
                await self._room.acquire()
                self._items.put(await following.take())
        except Exception as error:
            self._items.put(error)


@contextlib.contextmanager
def follow(url: str, **options: Any) -> Iterator[FollowIterator]:
    """Follow a stream from a program without asyncio; the options are those of `Following`.

    `with follow(url, topics=["jobs.*"]) as frames: for frame in frames: …`
    """
    frames = FollowIterator(url, options)
    try:
        yield frames
    finally:
        frames.close()


def with_path(url: str) -> str:
    """Return the address of a stream, where only a host was given."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise Usage(f"{url} is no WebSocket address: {error}", advice="Write ws://HOST:PORT.") from error
    return urlunsplit(parts._replace(path=STREAM_PATH)) if parts.path in ("", "/") else url
