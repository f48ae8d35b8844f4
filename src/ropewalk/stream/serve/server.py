"""A window served to subscribers over WebSockets; a repository fills it, or an upstream.

One task a connection writes, and one reads. What is published is kept once, in the window; the tasks take from there
what their client has credit for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol

from ropewalk.net.admission import ConnectionLimits, ConnectionSlot
from ropewalk.net.log_rate_limit import LogRateLimit
from ropewalk.net.text_socket import TextListener, TextSocket, serve_text
from ropewalk.stream.core.access import EVERYBODY, Access
from ropewalk.stream.core.connection import LIMITS, Connection, StreamLimits
from ropewalk.stream.core.frames import CLIENT_FRAME_BYTES_MAX, Data, ErrorFrame
from ropewalk.stream.core.patterns import Kind
from ropewalk.stream.core.window import Window
from ropewalk.stream.serve.pages import HtmlPage, live_page, probe

STREAM_PATH = "/api/v1/stream"  # S2 §1
CONNECTIONS_MAX = 4_096
HANDSHAKES_MAX = 1_024  # in progress: after a restart all clients come back at once
NAMES_MAX = 4_096  # names whose verdict is remembered
PATIENCE_S = 2.0  # how long a burst waits for one reader to catch up
# Writers that take frames in one turn of the loop. With all of them in one turn, a burst to 500 readers kept requests
# of the same process waiting for seconds.
WRITERS_PER_TURN = 8
SLICE_S = 0.1  # counted at a time: if this process was suspended, no reader is to blame
STUCK_S = 40.0  # how long a socket may take nothing: a ping's period, and the time to answer

_journal = logging.getLogger("ropewalk.stream")
_journal.addHandler(logging.NullHandler())


class Clock:
    """Milliseconds of the day that never jump: the wall clock's at the start, the steady clock's since."""

    def __init__(self) -> None:
        self._start_ns = time.time_ns() - time.monotonic_ns()

    def now_ms(self) -> int:
        """Return the time."""
        return (self._start_ns + time.monotonic_ns()) // 1_000_000

    def now_us(self) -> int:
        """Return the time, finer. A stream's numbers begin here: no earlier run can have come so far."""
        return (self._start_ns + time.monotonic_ns()) // 1_000


class Socket(Protocol):
    """What carries the texts of one client: a WebSocket, or a response that does not end."""

    name: str
    slot: ConnectionSlot | None

    async def receive(self) -> str | bytes | None: ...
    async def send(self, texts: Iterable[str]) -> bool: ...
    async def close(self, code: int = 1000, reason: str = "") -> None: ...
    def abort(self) -> None: ...
    @property
    def ended(self) -> str: ...


class Link:
    """One client: its socket, its connection, and an event that wakes its writer."""

    def __init__(self, socket: Socket, connection: Connection) -> None:
        self.socket = socket
        self.connection = connection
        self.wake = asyncio.Event()
        self.patience_s = PATIENCE_S


class StreamServer:
    """Takes subscribers of one window. Use it as a context.

    `look` is awaited before a client is accepted, so that rules that just changed apply. `connection` makes the
    connection of a client. With `page`, browsers are shown the live page at `/`.
    """

    def __init__(
        self,
        window: Window,
        *,
        clock: Clock,
        host: str = "127.0.0.1",
        port: int = 0,
        limits: StreamLimits = LIMITS,
        access: Access = EVERYBODY,
        token: str | None = None,
        origins: Sequence[str] = (),
        page: bool = False,
        connections_max: int = CONNECTIONS_MAX,
        address_max: int | None = None,
        connection: Callable[[], Connection] | None = None,
        look: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.window = window
        self.host = host
        self.port = port
        self.access = access
        self.fault: str | None = None  # why nothing can be sent just now; the owner of the window sets it
        self._clock = clock
        self._limits = limits
        self._token = token
        self._origins = origins
        self._page = page
        self._connections = ConnectionLimits(connections_max, HANDSHAKES_MAX, address_max=address_max)
        self._refused = LogRateLimit(_journal.warning)
        self._connection = connection or self._open
        self._look = look
        self._links: set[Link] = set()
        self._turns = asyncio.Semaphore(WRITERS_PER_TURN)
        self._listening: TextListener | None = None
        self._taken = asyncio.Event()
        self._seen: dict[tuple[Kind, str], bool] = {}
        self._fresh_frames = 0  # published since the readers were given time
        self._fresh_bytes = 0

    @property
    def url(self) -> str:
        """Where clients connect to."""
        return f"ws://{self._authority}{STREAM_PATH}"

    @property
    def _authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def page_url(self) -> str | None:
        """Where browsers are shown what happens; None if they are not."""
        if not self._page:
            return None
        here = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host)  # noqa: S104 - no client connects to all addresses
        return f"http://{here}:{self.port}/" if here is not None else f"http://{self._authority}/"

    @property
    def connections(self) -> list[Connection]:
        """Those who are connected."""
        return [link.connection for link in self._links]

    async def __aenter__(self) -> StreamServer:
        self._listening = await serve_text(
            self._accept,
            self.host,
            self.port,
            path=STREAM_PATH,
            message_bytes_max=CLIENT_FRAME_BYTES_MAX,
            limits=self._connections,
            token=self._token,
            origins=self._origins,
            answer=self._answer,
            welcomes_own=self._page,
            refused=lambda who, why: self._refused(f"{who}: dropped: {why}"),
        )
        self.port = self._listening.port
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._listening is not None
        await self._listening.close()
        self._refused.close()

    # What is published

    async def publish(self, frames: Iterable[Data]) -> None:
        """Give frames to everybody who asked for such, or withhold them; then let the readers take them.

        No client is dropped for being slower than we are: after every quarter of the window
        the readers get time. One that does not catch up within `PATIENCE_S` delays the others no longer.
        """
        for frame in frames:
            self._put(frame)
            if self._room_is_short():
                await self._settle()
        self.wake()

    def warn(self, error: ErrorFrame) -> None:
        """Tell the readers of a topic that something is wrong with it, also those who come before it is over."""
        self.window.trouble(error)
        for link in self._links:
            link.connection.warn(error)
        self.wake()

    def withhold(self, kind: Kind, name: str) -> None:
        """Report a hidden change, once, to the clients that asked for such."""
        for link in self._links:
            link.connection.withhold(kind, name)
        self.wake()

    def set_access(self, access: Access) -> None:
        """Apply other rules from now on."""
        self.access = access
        self._seen.clear()
        for link in self._links:
            link.connection.set_access(access)

    def forget(self) -> None:
        """Keep nothing of what was published. Who had not taken all of it is closed, and learns what is lost."""
        self.window.forget()
        self.wake()

    def wake(self) -> None:
        """Wake the writers that have something to send."""
        for link in self._links:
            if link.connection.has_word or link.connection.has_more:
                link.wake.set()

    def _put(self, frame: Data) -> None:
        if self._sees(frame.subject, frame.name):
            kept = self.window.publish(frame, self._clock.now_ms())
            self._fresh_frames += 1
            self._fresh_bytes += kept.size
        else:
            self.withhold(frame.subject, frame.name)

    def _sees(self, kind: Kind, name: str) -> bool:
        known = self._seen.get((kind, name))
        if known is None:
            if len(self._seen) >= NAMES_MAX:
                self._seen.clear()
            known = self._seen[kind, name] = self.access.sees(kind, name)
        return known

    def _room_is_short(self) -> bool:
        """Return whether so much was published that readers must take some of it before there is more."""
        bounds = self.window.bounds
        return self._fresh_frames * 4 >= bounds.frames_max or self._fresh_bytes * 4 >= bounds.bytes_max

    async def _settle(self) -> None:
        """Wait until the readers have caught up, as long as each of them has patience left."""
        loop = asyncio.get_running_loop()
        self.wake()
        while True:
            behind = {link for link in self._links if link.connection.has_more}
            for link in self._links - behind:
                link.patience_s = PATIENCE_S
            wait_s = max((link.patience_s for link in behind), default=0.0)
            if wait_s <= 0:
                break
            start = loop.time()
            self._taken.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(SLICE_S, wait_s)):
                    await self._taken.wait()
            waited_s = min(SLICE_S, loop.time() - start)
            for link in behind:
                link.patience_s -= waited_s
        self._fresh_frames = self._fresh_bytes = 0

    # Who is connected

    def _answer(self, path: str) -> HtmlPage | None:
        page = live_page().get(path) if self._page else None
        return page or probe(path, self.fault, seq=self.window.seq, connections=len(self._links))

    def _open(self) -> Connection:
        return Connection(self.window, now_ms=self._clock.now_ms(), limits=self._limits, access=self.access)

    async def _accept(self, socket: TextSocket) -> None:
        if self._look is not None:
            await self._look()
        await self.carry(socket, self._connection())

    async def carry(self, socket: Socket, connection: Connection) -> None:
        """Carry one connection over a socket until either ends."""
        link = Link(socket, connection)
        self._links.add(link)
        _journal.info("%s: connected, %d now", socket.name, len(self._links))
        reading = asyncio.create_task(self._read(link))
        try:
            await self._write(link, reading)
        finally:
            reading.cancel()
            link.connection.leave()
            self._links.discard(link)
            self._taken.set()
            await asyncio.gather(reading, return_exceptions=True)
            _journal.info("%s: left (%s), %d now", socket.name, socket.ended, len(self._links))

    async def _read(self, link: Link) -> None:
        while (message := await link.socket.receive()) is not None:
            link.connection.receive(message, self._clock.now_ms())
            if link.socket.slot is not None:
                link.socket.slot.settle()
            link.wake.set()

    async def _write(self, link: Link, reading: asyncio.Task[None]) -> None:
        connection = link.connection
        reading.add_done_callback(lambda _: link.wake.set())
        while not reading.done():
            async with self._turns:
                link.wake.clear()
                texts = connection.take(self._clock.now_ms())
                # As of now: one that comes while we send has its own last frames.
                closing = connection.closing
                if texts:
                    await asyncio.sleep(0)
            if texts:
                try:
                    async with asyncio.timeout(STUCK_S):
                        if not await link.socket.send(texts):
                            return None
                except TimeoutError:
                    _journal.info("%s: takes nothing; dropped", link.socket.name)
                    return link.socket.abort()
                self._taken.set()
            if closing is not None:
                return await link.socket.close(closing.code, closing.reason)
            if connection.closing is None and not (texts and connection.has_more):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout((connection.due_ms - self._clock.now_ms()) / 1000):
                        await link.wake.wait()
        return None
