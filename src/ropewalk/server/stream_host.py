"""The stream of a node: messages, events of namespaces and blocks of channels, over WebSockets and as SSE."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from ropewalk.errors import RopewalkError
from ropewalk.gitlog.core.envelope import Event
from ropewalk.gitlog.core.layout import MESSAGES, SHIPLOG, Layout
from ropewalk.gitlog.repository.repository import GitRepository
from ropewalk.kernel import jcs
from ropewalk.ledger.block.block import Block
from ropewalk.ledger.channel.channel import open_channel
from ropewalk.ledger.channel.settings import FOLDER, channels
from ropewalk.ledger.envelope.envelope import parse_stored
from ropewalk.net.admission import ConnectionSlot
from ropewalk.net.threads import in_thread
from ropewalk.server.auth.auth_file import Authenticator, Credentials
from ropewalk.server.auth.rights import Identity, client_access
from ropewalk.stream.core.access import Access
from ropewalk.stream.core.connection import POLICY, Connection
from ropewalk.stream.core.frames import BusEvent, Credit, Pong, RefUpdate, Sub, encode
from ropewalk.stream.serve.repository_stream import RepositoryStream
from ropewalk.stream.serve.server import Socket, StreamServer
from ropewalk.stream.serve.source import CHUNK, StreamSource

NAMESPACES, CHANNELS = "shiplog/", "ledger/"
SSE_WAITING_MAX = 64  # writes that a client has not taken
SSE_CREDIT = 500
COUNTED = ("ref.update", "bus.event")  # frames that cost credit
CACHED_CHARS_MAX = 8_192  # of a frame whose form as a Server-Sent Event is kept for the other clients


class NodeSource(StreamSource):
    """All that a node streams. Message topics named `shiplog/…` or `ledger/…` are not: the names are taken."""

    def __init__(self, log: GitRepository) -> None:
        super().__init__(log)
        self._home = log.store.place.home
        self._marks: dict[str, object] = {}
        self._heights: dict[str, int] = {}
        self._look_at_channels(first=True)

    def look(self) -> list[RefUpdate]:
        """Return the refs that moved; channels that grew are `behind` as well."""
        moved = super().look()
        self._look_at_channels()
        return moved

    def topic_of(self, ref: str) -> str | None:
        """Return the stream topic of a head: messages under their own name, a namespace as `shiplog/NS`."""
        namespace = SHIPLOG.topic_of(ref)
        if namespace is not None:
            return NAMESPACES + namespace
        topic = MESSAGES.topic_of(ref)
        return None if topic is None or topic.startswith((NAMESPACES, CHANNELS)) else topic

    def log_of(self, topic: str) -> tuple[Layout, str]:
        """Return the git log behind a stream topic."""
        if topic.startswith(NAMESPACES):
            return SHIPLOG, topic.removeprefix(NAMESPACES)
        return MESSAGES, topic

    def take(self, topic: str) -> list[BusEvent]:
        """Return the next frames of a topic; none if all were handed out."""
        if not topic.startswith(CHANNELS):
            return super().take(topic)
        self.rules.look()
        if self.access.sealed:
            return []
        channel = topic.removeprefix(CHANNELS)
        start = self._heights[channel]
        with open_channel(self._home, channel) as reading:
            end = min(reading.head().height, start + CHUNK)
            blocks = list(reading.blocks(start, end - 1)) if end > start else []
        self._heights[channel] = max(start, end)
        if not blocks:
            self.behind.discard(topic)
        return [_block_frame(topic, block) for block in blocks]

    def trim_all(self, keep: int) -> bool:
        """Pass over what no window would keep; return whether there was any."""
        cut = False
        for topic in self.behind:
            with contextlib.suppress(RopewalkError):  # its readers get an error frame
                if topic.startswith(CHANNELS):
                    cut |= self._trim_channel(topic.removeprefix(CHANNELS), keep)
                else:
                    cut |= self.trim(topic, keep)
        return cut

    def _trim_channel(self, channel: str, keep: int) -> bool:
        height = _height(self._home, channel)
        cut = height - self._heights[channel] > keep
        if cut:
            self._heights[channel] = height - keep
        return cut

    def pass_over(self, topic: str) -> None:
        """Go on behind the head of a topic."""
        if not topic.startswith(CHANNELS):
            return super().pass_over(topic)
        self.behind.discard(topic)
        self._heights[topic.removeprefix(CHANNELS)] = _height(self._home, topic.removeprefix(CHANNELS))
        return None

    def frame(self, topic: str, event: Event) -> BusEvent:
        """Return the frame of an event; one of a namespace also names it."""
        found = super().frame(topic, event)
        if topic.startswith(NAMESPACES) and found.about is not None:
            return BusEvent(found.topic, found.payload, about={**found.about, "ns": event.topic})
        return found

    def _look_at_channels(self, *, first: bool = False) -> None:
        for channel in channels(self._home):
            mark = _segments_mark(self._home / FOLDER / channel)
            if mark == self._marks.get(channel):
                continue
            known = channel in self._marks
            self._marks[channel] = mark
            if first:
                self._heights[channel] = _height(self._home, channel)
            else:
                if not known:
                    self._heights[channel] = 0
                self.behind.add(CHANNELS + channel)


def _segments_mark(folder: Path) -> object:
    """Return what changes whenever a block is written: names and sizes of the segments."""
    try:
        with os.scandir(folder / "segments") as found:
            return sorted((each.name, each.stat().st_size) for each in found)
    except OSError:
        return None


def _height(home: Path, channel: str) -> int:
    try:
        with open_channel(home, channel) as reading:
            return reading.head().height
    except RopewalkError:  # its readers get an error frame
        return 0


def _block_frame(topic: str, block: Block) -> BusEvent:
    ids = [parse_stored(raw).hex_id for raw in block.envelopes]
    facts: dict[str, Any] = {"height": block.height, "block_hash": block.hash.hex(), "envelope_ids": ids}
    return BusEvent(topic, facts, about={"type": "ledger.block"})


class NodeStream(RepositoryStream):
    """The stream of a node, which reads the logs only while it has clients: without any, appends cost nothing here.

    What was appended meanwhile is caught up with before the next client is let in, up to the size of the window.
    """

    def __init__(self, log: GitRepository, **options: Any) -> None:
        super().__init__(log, **options)
        self._looking = asyncio.Lock()

    async def catch_up(self) -> None:
        """Read what was appended while there was no client."""
        source = self._source
        if self.server.connections or not isinstance(source, NodeSource):
            return
        async with self._looking:
            await in_thread(source.look)
            if await in_thread(source.trim_all, self.window.bounds.frames_max):
                self.window.forget()
                self.window.seq += 1  # a client that goes on from before learns that frames are missing
            await super()._look(source, True)

    async def _look(self, source: StreamSource, again: bool) -> None:
        if self.server.connections:
            async with self._looking:
                await super()._look(source, again)


class HostedStream(StreamServer):
    """A stream server that does not listen: sockets come from the HTTP server.

    Every connection sees what the policy allows, narrowed by the rights of its client.
    """

    def __init__(self, *arguments: Any, authenticator: Authenticator, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._authenticator = authenticator
        self.catch_up: Callable[[], Awaitable[None]] | None = None
        self._clients: dict[Connection, tuple[Credentials, Identity]] = {}
        self._sockets: set[Socket] = set()

    async def __aenter__(self) -> HostedStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close_clients()

    async def close_clients(self) -> None:
        """Close every connection with 1001."""
        await asyncio.gather(
            *(socket.close(1001, "the server is stopping") for socket in list(self._sockets)),
            return_exceptions=True,
        )

    async def serve_client(self, socket: Socket, identity: Identity, shown: Credentials) -> None:
        """Carry the stream to one client."""
        if self._look is not None:
            await self._look()
        if self.catch_up is not None:
            await self.catch_up()
        connection = Connection(
            self.window,
            now_ms=self._clock.now_ms(),
            limits=self._limits,
            access=client_access(self.access, identity),
        )
        self._clients[connection] = shown, identity
        self._sockets.add(socket)
        try:
            await self.carry(socket, connection)
        finally:
            self._sockets.discard(socket)
            del self._clients[connection]

    def set_access(self, access: Access) -> None:
        """Apply other rules of the repository, for each client within its rights."""
        super().set_access(access)
        for connection, (_, identity) in self._clients.items():
            connection.set_access(client_access(access, identity))

    def recheck(self) -> None:
        """Ask again who the clients are: rights that changed hold now, a client that was revoked is closed."""
        for connection, (shown, before) in list(self._clients.items()):
            try:
                identity = self._authenticator.identify(shown)
            except RopewalkError as error:
                connection.close(POLICY, error.detail)
                continue
            if identity != before:
                self._clients[connection] = shown, identity
                connection.set_access(client_access(self.access, identity))
        self.wake()


def _sse_part(text: str) -> tuple[str, bytes]:
    """Return the kind of a frame and its bytes as a Server-Sent Event."""
    found: Any = jcs.parse_foreign(text.encode())
    kind = str(found.get("kind"))
    if kind == "ping":
        return kind, b": ping\n\n"
    front = b"id: %d\n" % int(found["seq"]) if kind in COUNTED else b""
    return kind, b"%sevent: %s\ndata: %s\n\n" % (front, kind.encode(), text.encode())


# The same frame goes to many clients; parsing it for each held all up.
_sse_cached = lru_cache(512)(_sse_part)


class EventStream:
    """Server-Sent Events in the place of a socket: subscribes once, answers pings, and gives credit for what was sent.

    `chunks` is what the response sends; it ends when the stream ends.
    """

    def __init__(self, name: str, subscription: Sub) -> None:
        self.name = name
        self.slot: ConnectionSlot | None = None
        self.ended = "open"
        self.chunks: asyncio.Queue[bytes | None] = asyncio.Queue(SSE_WAITING_MAX)
        self._incoming: deque[str] = deque([encode(subscription)])
        self._arrived = asyncio.Event()
        self._arrived.set()
        self._gone = False
        self._credit = 0

    async def receive(self) -> str | None:
        """Return what the client would say next; None once it has gone."""
        while not self._incoming:
            if self._gone:
                return None
            self._arrived.clear()
            await self._arrived.wait()
        return self._incoming.popleft()

    async def send(self, texts: Iterable[str]) -> bool:
        """Queue frames for the response; False once the client has gone."""
        parts = []
        for text in texts:
            kind, part = (_sse_cached if len(text) <= CACHED_CHARS_MAX else _sse_part)(text)
            parts.append(part)
            if kind == "ping":
                self._say(encode(Pong()))
            elif kind in COUNTED:
                self._credit += 1
        if self._credit >= SSE_CREDIT:
            self._say(encode(Credit(self._credit)))
            self._credit = 0
        if self._gone:
            return False
        await self.chunks.put(b"".join(parts))
        return not self._gone

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """End the response."""
        self.ended = f"{code} {reason}".strip()
        self.leave()

    def abort(self) -> None:
        """Drop the client."""
        self.leave()

    def leave(self) -> None:
        """End: the client has gone, or the stream has."""
        if not self._gone:
            self._gone = True
            self._arrived.set()
            # The client takes nothing: make room for the end, and for what `send` is waiting to put.
            while self.chunks.qsize() > SSE_WAITING_MAX - 2:
                self.chunks.get_nowait()
            self.chunks.put_nowait(None)

    def _say(self, text: str) -> None:
        self._incoming.append(text)
        self._arrived.set()
