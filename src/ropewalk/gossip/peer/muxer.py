"""Many pipes in one: a yamux session over a pipe, for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

from ropewalk.errors import RopewalkError, Unavailable
from ropewalk.gossip.peer import yamux
from ropewalk.net.pipe import Pipe

WAITING_BYTES_MAX = 256 << 10  # of one stream, before its writer is held up
KEEP_ALIVE_S = 30.0  # as the JavaScript side does
SILENCE_S_MAX = 4 * KEEP_ALIVE_S  # a peer that answers no ping for so long is gone


class Stream:
    """One pipe of many; the peer can send no more than a window ahead of the reader."""

    def __init__(self, muxer: Muxer, number: int) -> None:
        self._muxer = muxer
        self.number = number
        self.name = muxer.pipe.name
        self._chunks: deque[bytes] = deque()
        self._changed = asyncio.Event()
        self._ended = False  # the peer has finished sending
        self._broken: RopewalkError | None = None

    async def receive(self) -> bytes:
        """Return the next bytes; none after the peer has finished."""
        while not self._chunks:
            if self._ended:
                return b""
            self._check()
            self._changed.clear()
            await self._changed.wait()
        data = self._chunks.popleft()
        self._muxer.consumed(self.number, len(data))
        return data

    async def send(self, data: bytes) -> None:
        """Send bytes; returns when little of them is waiting."""
        self._check()
        self._muxer.put(self.number, data)
        while self._muxer.waiting(self.number) > WAITING_BYTES_MAX:
            self._check()
            self._changed.clear()
            await self._changed.wait()
        self._check()

    async def close(self) -> None:
        """Finish sending."""
        self._muxer.finish(self.number)

    def reset(self) -> None:
        """Give up the stream in both directions."""
        self._muxer.reset(self.number)

    def _check(self) -> None:
        error = self._broken or self._muxer.error
        if error is not None:
            raise error

    def handle(self, event: yamux.Event) -> None:
        """Handle an event of the session."""
        match event:
            case yamux.Received(_, data):
                self._chunks.append(data)
            case yamux.Finished():
                self._ended = True
            case yamux.Reset():
                self._broken = Unavailable(f"{self.name} gave up a stream")
            case _:
                pass
        self._changed.set()

    def wake(self) -> None:
        """Look again: something about the connection has changed."""
        self._changed.set()


class Muxer:
    """Streams over a pipe. Use it as a context; `ended` is set at its end, and `error` is the reason."""

    def __init__(
        self,
        pipe: Pipe,
        *,
        client: bool,
        accept: Callable[[Stream], None],
    ) -> None:
        self.pipe = pipe
        self.error: RopewalkError | None = None
        self.ended = asyncio.Event()
        self._session = yamux.YamuxSession(client=client)
        self._accept = accept
        self._streams: dict[int, Stream] = {}
        self._outgoing = asyncio.Event()
        self._received_at = 0.0
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Muxer:
        self._received_at = asyncio.get_running_loop().time()
        self._tasks = [asyncio.create_task(each()) for each in (self._read, self._write, self._keep_alive)]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.error is None:
            self._session.go_away()
            self._outgoing.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._drained()
        self.end(Unavailable(f"the connection to {self.pipe.name} was closed here"))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.pipe.close()

    def open(self) -> Stream:
        """Begin a stream."""
        if self.error is not None:
            raise self.error
        number = self._session.open()
        self._outgoing.set()
        stream = self._streams[number] = Stream(self, number)
        return stream

    def end(self, error: RopewalkError) -> None:
        """End everything for a reason; the first one counts."""
        if self.error is None:
            self.error = error
        self.ended.set()
        self._outgoing.set()
        for stream in self._streams.values():
            stream.wake()

    # What streams ask of their connection.

    def put(self, number: int, data: bytes) -> None:
        """Queue bytes on a stream."""
        self._session.send(number, data)
        self._outgoing.set()

    def waiting(self, number: int) -> int:
        """Return how many bytes of a stream are queued."""
        return self._session.waiting(number)

    def consumed(self, number: int, count: int) -> None:
        """Note that the reader of a stream took bytes."""
        self._session.consumed(number, count)
        self._outgoing.set()

    def finish(self, number: int) -> None:
        """Finish a stream in our direction."""
        self._session.finish(number)
        if not self._session.knows(number):
            self._streams.pop(number, None)
        self._outgoing.set()

    def reset(self, number: int) -> None:
        """Give up a stream in both directions."""
        self._session.reset(number)
        self._streams.pop(number, None)
        self._outgoing.set()

    async def _read(self) -> None:
        try:
            while data := await self.pipe.receive():
                self._received_at = asyncio.get_running_loop().time()
                for event in self._session.receive(data):
                    self._tell(event)
                self._outgoing.set()
            self.end(Unavailable(f"{self.pipe.name} has closed the connection"))
        except RopewalkError as error:
            self.end(error)

    def _tell(self, event: yamux.Event) -> None:
        if isinstance(event, yamux.Closed):
            why = f" with code {event.reason}" if event.reason else ""
            self.end(Unavailable(f"{self.pipe.name} said goodbye{why}"))
            return
        if isinstance(event, yamux.Opened):
            stream = self._streams[event.stream] = Stream(self, event.stream)
            self._accept(stream)
            return
        found = self._streams.get(event.stream)
        if found is not None:
            found.handle(event)
            if isinstance(event, yamux.Reset) or not self._session.knows(event.stream):
                del self._streams[event.stream]

    async def _write(self) -> None:
        try:
            while True:
                data = self._session.data_to_send()
                if data:
                    await self.pipe.send(data)
                    self._look_again()
                    continue
                if self.error is not None:
                    return
                self._outgoing.clear()
                await self._outgoing.wait()
        except RopewalkError as error:
            self.end(error)

    def _look_again(self) -> None:
        for number, stream in list(self._streams.items()):
            stream.wake()
            if not self._session.knows(number):
                del self._streams[number]

    async def _drained(self) -> None:
        while self._outgoing.is_set() and self.error is None:
            await asyncio.sleep(0)

    async def _keep_alive(self) -> None:
        count = 0
        while self.error is None:
            await asyncio.sleep(KEEP_ALIVE_S)
            silence = asyncio.get_running_loop().time() - self._received_at
            if silence > SILENCE_S_MAX:
                self.end(Unavailable(f"{self.pipe.name} has been silent for {silence:.0f} s"))
                return
            count += 1
            self._session.ping(count)
            self._outgoing.set()
