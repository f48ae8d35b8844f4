"""A remote channel over QUIC: a stream for every correlation id, one for envelopes without, one for the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from ropewalk.errors import Invalid, RopewalkError, Unavailable
from ropewalk.kernel.keys import PublicKey
from ropewalk.ledger.remote.client_session import ClientSession, FrameSession, PipeCarrier
from ropewalk.ledger.remote.conversation import cancelled
from ropewalk.ledger.remote.messages import PROTOCOL, RemoteMessage, correlation_of
from ropewalk.ledger.remote.negotiate import Agreement
from ropewalk.net.quic.client import connect_quic
from ropewalk.net.quic.link import STREAMS_MAX, QuicLink
from ropewalk.net.tls import TlsFiles

LANES_MAX: Final = STREAMS_MAX - 4  # streams that are kept open; the server must have seen the end of others


class QuicCarrier(PipeCarrier):
    """A connection; its first stream negotiates."""

    def __init__(self, link: QuicLink, close: Callable[[], Any], idle_s: float) -> None:
        self.link, self._close, self.idle_s = link, close, idle_s
        super().__init__(link.open_stream(), idle_s)

    def session(self, agreement: Agreement, responder: PublicKey, facts: dict[str, Any]) -> ClientSession:
        first = super().session(agreement, responder, facts)
        assert isinstance(first, FrameSession)
        made = QuicSession(self, agreement, responder, facts)
        made.begin(_REST, first)
        return made

    async def close(self) -> None:
        await self._close()


async def reach_quic(host: str, port: int, files: TlsFiles, timeout_s: float, idle_s: float) -> QuicCarrier:
    """Connect."""
    link, close = await connect_quic(host, port, files, PROTOCOL, timeout_s=timeout_s)
    return QuicCarrier(link, close, idle_s)


_REST: Final = object()  # the lane of what is not about envelopes


@dataclass(slots=True)
class _Lane:
    """One stream: its requests are numbered from 1 there, whatever their numbers in the session are."""

    session: FrameSession
    numbers: dict[int, int] = field(default_factory=dict)  # not yet answered: ours by theirs
    count: int = 0
    reading: asyncio.Task[None] | None = None


@dataclass(slots=True)
class QuicSession(ClientSession):
    """A session over many streams; each answers in order, and they do not wait for one another."""

    carrier: QuicCarrier
    ordered: ClassVar[bool] = False
    _inbox: asyncio.Queue[RemoteMessage | RopewalkError] = field(default_factory=asyncio.Queue)
    _lanes: dict[Any, _Lane] = field(default_factory=dict)  # the longest unused first
    _freed: asyncio.Event = field(default_factory=asyncio.Event)
    _broken: RopewalkError | None = None  # what ended a stream: the session is not continued

    def begin(self, key: Any, session: FrameSession) -> _Lane:
        """Begin to read a stream."""
        lane = self._lanes[key] = _Lane(session)
        lane.reading = asyncio.get_running_loop().create_task(self._read(lane))
        return lane

    async def send(self, message: RemoteMessage) -> None:
        key = correlation_of(message.parts[0]) if message.op == "append" else _REST
        lane = self._lanes.pop(key, None)
        if lane is None:
            await self._make_room()
            carrier = PipeCarrier(self.carrier.link.open_stream(), self.carrier.idle_s)
            made = carrier.session(self.agreement, self.responder, self.facts)
            assert isinstance(made, FrameSession)
            lane = self.begin(key, made)
        self._lanes[key] = lane
        lane.count += 1
        lane.numbers[lane.count] = message.number
        await lane.session.send(RemoteMessage(message.op, lane.count, message.facts, message.parts))

    async def receive(self) -> RemoteMessage | None:
        found = await self._inbox.get()
        if isinstance(found, RopewalkError):
            raise found
        return found

    async def close(self) -> None:
        await cancelled(*(lane.reading for lane in self._lanes.values() if lane.reading is not None))
        await ClientSession.close(self)

    async def _make_room(self) -> None:
        """Close the stream that was unused for longest, once there is one; raise if a stream has failed meanwhile."""
        while len(self._lanes) >= LANES_MAX:
            if self._broken is not None:
                raise self._broken
            for key, lane in self._lanes.items():
                if not lane.numbers and key is not _REST:
                    del self._lanes[key]
                    assert lane.reading is not None
                    await cancelled(lane.reading)
                    await lane.session.carrier.close()
                    break
            else:
                self._freed.clear()
                await self._freed.wait()

    async def _read(self, lane: _Lane) -> None:
        try:
            while (message := await lane.session.receive()) is not None:
                if message.number == 0:
                    self._inbox.put_nowait(message)
                    continue
                number = lane.numbers.get(message.number)
                if number is None or message.number != min(lane.numbers):
                    raise Invalid(f"message: an answer to {message.number}, which was not asked")
                self._inbox.put_nowait(RemoteMessage(message.op, number, message.facts, message.parts))
                if self._is_last(number, message):
                    del lane.numbers[message.number]
                    self._freed.set()
            raise Unavailable(f"{self.carrier.link.name} has ended a stream")
        except RopewalkError as error:
            self._broken = self._broken or error
            self._freed.set()
            self._inbox.put_nowait(error)

    def _is_last(self, number: int, message: RemoteMessage) -> bool:
        """Return whether a message ends its answer: outcomes may come in several, blocks end with `blocks`."""
        if message.op == "outcomes":
            request = self.sent.get(number)
            return request is None or message.natural("first") + len(message.parts) >= len(request.parts)
        return message.op != "block"
