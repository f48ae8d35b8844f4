"""Pipes over QUIC: every stream is a pipe, and both sides show a certificate.

aioquic asks for client certificates only through a private attribute, does not judge them, and raises flow control
limits however slowly the application reads. So this module requests the certificate, verifies it before any stream is
looked at, and grants a peer only as much as was read. `tests/unit/net/test_quic.py` pins the private names.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final

from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.quic import events
from aioquic.quic.connection import QuicConnection

from ropewalk.errors import RopewalkError, Unauthenticated, Unavailable
from ropewalk.net.admission import address_group
from ropewalk.net.quic.datagrams import DATAGRAM_BYTES, waiting
from ropewalk.net.tls import Certificate

# S4 §5 means the codes of HTTP/3 (RFC 9114 §8.1), used on raw QUIC.
NO_ERROR: Final = 0x100
PROTOCOL_ERROR: Final = 0x101
EXCESSIVE_LOAD: Final = 0x107
REQUEST_REJECTED: Final = 0x10B
MEANINGS: Final = {
    PROTOCOL_ERROR: "the peer broke the protocol",
    EXCESSIVE_LOAD: "the peer is overloaded; try again later",
    REQUEST_REJECTED: "the peer did not take the request",
}
STREAMS_MAX: Final = 32  # open at once, of one connection
STREAM_BYTES_MAX: Final = 256 << 10  # received on one stream and not read
CONNECTION_BYTES_MAX: Final = 2 << 20  # received on all streams of a connection and not read
SEND_BYTES_MAX: Final = 256 << 10  # written to one stream and not acknowledged


class QuicPipe:
    """One stream of a connection."""

    def __init__(self, link: QuicLink, stream_id: int) -> None:
        self.name, self.certificate, self.stream_id = link.name, link.certificate, stream_id
        self._link = link
        self._received = bytearray()
        self._changed = asyncio.Event()
        self._ended = self._closed = False
        self.error: RopewalkError | None = None

    async def receive(self) -> bytes:
        while not self._received and not self._ended and self.error is None:
            self._changed.clear()
            await self._changed.wait()
        if self._received:
            data = bytes(self._received)
            self._received.clear()
            self._link.consumed(self.stream_id, len(data))
            return data
        if self.error is not None:
            raise self.error
        return b""

    async def send(self, data: bytes) -> None:
        await self._link.write(self, data)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._link.end(self.stream_id)

    def reset(self, code: int) -> None:
        """End both directions at once, for a reason."""
        self._closed = True
        self._link.refuse(self.stream_id, code)

    def feed(self, data: bytes, ended: bool) -> None:
        """Take bytes that came."""
        self._received += data
        self._ended = self._ended or ended
        self._changed.set()

    @property
    def ended(self) -> bool:
        """Whether nothing more can come."""
        return self._ended or self.error is not None

    def drop(self) -> bytes:
        """Give up what came and was not read."""
        left = bytes(self._received)
        self._received.clear()
        return left

    def fail(self, error: RopewalkError) -> None:
        """Record that there will be no more: the stream or the connection was broken off."""
        self.error = self.error or error
        self._changed.set()


class QuicLink(QuicConnectionProtocol):
    """One connection. `opened` gets each stream that the peer opens; `verify` judges its certificate, or raises."""

    def __init__(
        self,
        quic: QuicConnection,
        stream_handler: Any = None,  # noqa: ARG002 - aioquic passes it
        *,
        verify: Callable[[QuicLink], Certificate],
        opened: Callable[[QuicLink, QuicPipe], None] | None = None,
        admit: Callable[[QuicLink], None] | None = None,
        left: Callable[[QuicLink, RopewalkError | None], None] | None = None,
    ) -> None:
        super().__init__(quic)
        self.name = "quic"
        self.certificate: Certificate | None = None
        self.refusal: RopewalkError | None = None
        self._verify, self._opened, self._admit, self._left = verify, opened, admit, left
        self._pipes: dict[int, QuicPipe] = {}
        self._read: dict[int, int] = {}
        self._read_total = 0
        self._deaf: set[int] = set()  # streams that we have left and the peer has not ended
        self._progress = asyncio.Event()
        self._bound(quic)

    def _bound(self, quic: Any) -> None:
        """Request certificates, and bound what the peer may send, in the instance: aioquic has no setting for it."""
        begin, stream_limits, limits = (
            quic._initialize,
            quic._write_stream_limits,
            quic._write_connection_limits,
        )
        own = (quic._local_max_data, quic._local_max_streams_bidi, quic._local_max_streams_uni)
        for limit, value in zip(own[1:], (STREAMS_MAX, 0), strict=True):
            limit.value = limit.sent = value

        def initialize(peer_cid: bytes) -> None:
            begin(peer_cid)
            quic.tls._request_client_certificate = True

        def write_stream_limits(builder: Any, space: Any, stream: Any) -> None:
            granted = self._read.get(stream.stream_id, 0) + STREAM_BYTES_MAX
            if granted - stream.max_stream_data_local >= STREAM_BYTES_MAX // 2:
                stream.max_stream_data_local = granted
            elif stream.max_stream_data_local_sent == stream.max_stream_data_local:
                return  # called for every stream and packet
            with _without(stream.receiver, "highest_offset"):
                stream_limits(builder=builder, space=space, stream=stream)

        def write_connection_limits(builder: Any, space: Any) -> None:
            granted = self._read_total + CONNECTION_BYTES_MAX
            if granted - quic._local_max_data.value >= CONNECTION_BYTES_MAX // 2:
                quic._local_max_data.value = granted
            elif all(limit.sent == limit.value for limit in own):
                return
            with _without(quic._local_max_data, "used"):
                limits(builder=builder, space=space)

        if quic.configuration.max_datagram_size > DATAGRAM_BYTES:
            # Within one machine no router has a queue to spare, and a pause of the loop lasts a millisecond or more.
            quic._loss._pacer.update_rate = lambda **_rate: None
        quic._initialize = initialize
        quic._write_stream_limits = write_stream_limits
        quic._write_connection_limits = write_connection_limits

    @property
    def shown(self) -> tuple[Any, list[Any]]:
        """The certificate of the peer and what came with it; nothing about them is verified."""
        tls = self._quic.tls
        return tls._peer_certificate, tls._peer_certificate_chain

    @property
    def streams(self) -> int:
        """How many streams are open."""
        return len(self._pipes)

    def open_stream(self) -> QuicPipe:
        """Open a stream."""
        stream_id = self._quic.get_next_available_stream_id()
        self._quic.send_stream_data(stream_id, b"")
        pipe = self._pipes[stream_id] = QuicPipe(self, stream_id)
        return pipe

    def close_with(self, code: int, error: RopewalkError) -> None:
        """End the connection for a reason, which the peer gets to read."""
        self.refusal = error
        self.close(error_code=code, reason_phrase=f"{error.code}: {error.detail}"[:200])

    def consumed(self, stream_id: int, count: int) -> None:
        """Let the peer send so much more."""
        self._read[stream_id] = self._read.get(stream_id, 0) + count
        self._read_total += count
        self._transmit_soon()

    async def write(self, pipe: QuicPipe, data: bytes) -> None:
        """Send on a stream; returns once most of what was sent before is acknowledged."""
        while pipe.error is None:
            stream = self._quic._streams.get(pipe.stream_id)
            if stream is None or stream.sender._buffer_stop - stream.sender._buffer_start < SEND_BYTES_MAX:
                break
            self._progress.clear()
            await self._progress.wait()
        if pipe.error is not None:
            raise pipe.error
        try:
            self._quic.send_stream_data(pipe.stream_id, data)
        except (ValueError, RuntimeError) as error:
            raise Unavailable(f"{self.name}: the stream has ended") from error
        self._transmit_soon()

    def end(self, stream_id: int) -> None:
        """Send nothing more on a stream."""
        with contextlib.suppress(ValueError, RuntimeError):
            self._quic.send_stream_data(stream_id, b"", end_stream=True)
            self._transmit_soon()
        self._forget(stream_id)

    def refuse(self, stream_id: int, code: int) -> None:
        """Break off both directions of a stream."""
        with contextlib.suppress(ValueError, RuntimeError):
            self._quic.stop_stream(stream_id, code)
        with contextlib.suppress(ValueError, RuntimeError):
            self._quic.reset_stream(stream_id, code)
        self._transmit_soon()
        self._forget(stream_id)

    def _forget(self, stream_id: int) -> None:
        pipe = self._pipes.pop(stream_id, None)
        if pipe is not None:
            self._read_total += len(pipe.drop())
            self._read.pop(stream_id, None)
            if not pipe.ended:
                self._deaf.add(stream_id)

    def datagram_received(self, data: Any, addr: Any) -> None:
        if self.name == "quic":
            self.name = f"quic://{addr[0]}:{addr[1]}"
        now = self._loop.time()
        self._quic.receive_datagram(data, addr, now=now)
        if self._quic.configuration.is_client:  # connections to a server share its socket
            for more in waiting(self._transport):
                self._quic.receive_datagram(*more, now=now)
        self._process_events()
        self._transmit_soon()  # with what the readers of these streams write, and not once for every datagram
        self._progress.set()

    async def wait_closed(self) -> None:
        """Wait for nothing: a client closes its socket, which ends the closing state (RFC 9000 §10.2)."""

    @property
    def address(self) -> str:
        """What counts as one address."""
        return address_group(self._quic._network_paths[0].addr)

    def quic_event_received(self, event: events.QuicEvent) -> None:
        if isinstance(event, events.HandshakeCompleted):
            self._judge()
        elif isinstance(event, events.StreamDataReceived) and self.certificate is not None:
            self._take(event)
        elif isinstance(event, events.StreamReset | events.StopSendingReceived):
            self._deaf.discard(event.stream_id)
            pipe = self._pipes.get(event.stream_id)
            if pipe is not None:
                text = MEANINGS.get(event.error_code, f"broken off with code {event.error_code:#x}")
                pipe.fail(Unavailable(f"{self.name}: {text}"))
        elif isinstance(event, events.ConnectionTerminated):
            self.refusal = self.refusal or _ended(self.name, event)
            for pipe in self._pipes.values():
                pipe.fail(self.refusal)
            self._progress.set()
            if self._left is not None:
                self._left(self, self.refusal)

    def _judge(self) -> None:
        """Verify the peer before anything that it sent is looked at."""
        try:
            found = self._verify(self)
            if self._admit is not None:
                self._admit(self)
            self.certificate = found
        except Unavailable as error:
            self.close_with(EXCESSIVE_LOAD, error)
        except RopewalkError as error:
            self.close_with(REQUEST_REJECTED, error)

    def _take(self, event: events.StreamDataReceived) -> None:
        pipe = self._pipes.get(event.stream_id)
        if pipe is None:
            if event.stream_id in self._deaf or self._opened is None:
                self._read_total += len(event.data)
                if event.end_stream:
                    self._deaf.discard(event.stream_id)
                return
            pipe = self._pipes[event.stream_id] = QuicPipe(self, event.stream_id)
            self._opened(self, pipe)
        pipe.feed(event.data, event.end_stream)


@contextlib.contextmanager
def _without(holder: Any, name: str) -> Any:
    """Keep a counter at 0 within: aioquic doubles a limit whenever half of it was used."""
    kept = getattr(holder, name)
    setattr(holder, name, 0)
    try:
        yield
    finally:
        setattr(holder, name, kept)


def _ended(name: str, event: events.ConnectionTerminated) -> RopewalkError:
    text = event.reason_phrase or MEANINGS.get(event.error_code, "the connection has ended")
    # An application's refusal of us, or an alert of TLS about our certificate (RFC 9001 §4.8).
    if (event.frame_type is None and event.error_code == REQUEST_REJECTED) or (
        event.frame_type is not None and event.error_code >> 8 == 1
    ):
        detail = f"{name}: {text.removeprefix('Unauthenticated: ')}"
        return Unauthenticated(detail, advice="Get a certificate that the other side accepts.")
    return Unavailable(f"{name}: {text}")
