"""Pipes over QUIC: every stream is a pipe, and both sides show a certificate.

aioquic asks for client certificates only through a private attribute, does not judge them, and raises flow control
limits however slowly the application reads. So this module requests the certificate, verifies it before any stream is
looked at, and grants a peer only as much as was read. `tests/unit/net/test_quic.py` pins the private names.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.asyncio.server import QuicServer, serve
from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection

from ropewalk.errors import RopewalkError, Unauthenticated, Unavailable
from ropewalk.net.admission import ConnectionLimits, address_group
from ropewalk.net.certificates import CertificateVerifier
from ropewalk.net.refusals import listening, reason
from ropewalk.net.tls import Certificate, TlsFiles, server_tls

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
IDLE_S: Final = 60.0
KEEP_ALIVE_S: Final = 20.0
DATAGRAM_BYTES: Final = 1200  # every path carries so much (RFC 9000 §14); no larger size is probed
LOOPBACK_DATAGRAM_BYTES: Final = 16 << 10


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
        for limit, value in ((quic._local_max_streams_bidi, STREAMS_MAX), (quic._local_max_streams_uni, 0)):
            limit.value = limit.sent = value

        def initialize(peer_cid: bytes) -> None:
            begin(peer_cid)
            quic.tls._request_client_certificate = True

        def write_stream_limits(builder: Any, space: Any, stream: Any) -> None:
            granted = self._read.get(stream.stream_id, 0) + STREAM_BYTES_MAX
            if granted - stream.max_stream_data_local >= STREAM_BYTES_MAX // 2:
                stream.max_stream_data_local = granted
            with _without(stream.receiver, "highest_offset"):
                stream_limits(builder=builder, space=space, stream=stream)

        def write_connection_limits(builder: Any, space: Any) -> None:
            granted = self._read_total + CONNECTION_BYTES_MAX
            if granted - quic._local_max_data.value >= CONNECTION_BYTES_MAX // 2:
                quic._local_max_data.value = granted
            with _without(quic._local_max_data, "used"):
                limits(builder=builder, space=space)

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
        super().datagram_received(data, addr)
        self._progress.set()

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
        return Unauthenticated(f"{name}: {text}")
    return Unavailable(f"{name}: {text}")


def _configuration(files: TlsFiles, protocol: str, host: str, *, client: bool) -> QuicConfiguration:
    server_tls(files, protocol)  # says what is wrong with the files
    loopback = address_group((host, 0)) in ("127.0.0.1", "::/64") or host == "localhost"
    made = QuicConfiguration(
        is_client=client,
        alpn_protocols=[protocol],
        idle_timeout=IDLE_S,
        max_data=CONNECTION_BYTES_MAX,
        max_stream_data=STREAM_BYTES_MAX,
        max_datagram_size=LOOPBACK_DATAGRAM_BYTES if loopback else DATAGRAM_BYTES,
        server_name=host if client else None,
        cafile=str(files.roots),
        # Without a handler for tickets nothing is resumed: a resumed session shows no certificate.
        verify_mode=ssl.CERT_REQUIRED if client else ssl.CERT_NONE,
    )
    made.load_cert_chain(files.certificate, files.key)
    return made


class QuicListener:
    """A UDP port that takes connections of clients with an accepted certificate."""

    def __init__(
        self,
        opened: Callable[[QuicLink, QuicPipe], None],
        files: TlsFiles,
        limits: ConnectionLimits,
        refused: Callable[[str, str], None],
    ) -> None:
        self._opened, self._limits, self._refused = opened, limits, refused
        self._verifier = CertificateVerifier(files)
        self._links: dict[
            QuicLink, asyncio.TimerHandle | None
        ] = {}  # with the deadline of those that are new
        self._server: QuicServer | None = None
        self.port = 0

    async def open(self, host: str, port: int, files: TlsFiles, protocol: str) -> QuicListener:
        """Begin to listen."""
        self._configure = partial(_configuration, protocol=protocol, host=host, client=False)
        with listening(host, port):
            # A retry packet shows that a client has the address it sends from, before it costs us a handshake.
            self._server = await serve(
                host, port, configuration=self._configure(files), create_protocol=self._begin, retry=True
            )
        assert self._server._transport is not None
        self.port = self._server._transport.get_extra_info("sockname")[1]
        return self

    def settle(self, link: QuicLink) -> None:
        """Keep a connection: its session is open."""
        timer = self._links.get(link)
        if timer is not None:
            timer.cancel()
            self._links[link] = None

    def renew(self, files: TlsFiles) -> None:
        """Use the certificate and the authorities that are in the files now, for new connections."""
        verifier = CertificateVerifier(files)
        if self._server is not None:
            self._server._configuration = self._configure(files)
            self._verifier = verifier

    def refuse(self) -> None:
        """Take no more connections."""
        if self._server is not None:
            self._server._create_protocol = lambda *_a, **_k: _Deaf()

    async def close(self) -> None:
        """End all connections."""
        for link in list(self._links):
            link.close_with(NO_ERROR, Unavailable("the server has stopped"))
        if self._server is not None:
            self._server.close()

    def _begin(self, quic: QuicConnection, stream_handler: Any = None) -> QuicLink:  # noqa: ARG002
        link = QuicLink(
            quic,
            verify=lambda link: self._verifier.check_client(*link.shown),
            opened=self._opened,
            admit=self._admit,
            left=self._leave,
        )
        new = [each for each, timer in self._links.items() if timer is not None]
        if len(new) >= self._limits.handshakes_max:
            new[0].close_with(EXCESSIVE_LOAD, Unavailable(f"{len(new)} handshakes are in progress"))
        late = Unavailable(f"no session within {self._limits.handshake_s:g} s")
        loop = asyncio.get_running_loop()
        self._links[link] = loop.call_later(
            self._limits.handshake_s, partial(link.close_with, REQUEST_REJECTED, late)
        )
        return link

    def _admit(self, link: QuicLink) -> None:
        known = [each for each in self._links if each.certificate is not None]
        same = sum(each.address == link.address for each in known)
        if len(known) >= self._limits.connections_max or same >= self._limits.per_address:
            raise Unavailable(f"{len(known)} connections are open already", advice="Try again later.")

    def _leave(self, link: QuicLink, why: RopewalkError | None) -> None:
        timer = self._links.pop(link, None)
        if timer is not None:
            timer.cancel()
            self._refused(link.name, why.detail if why is not None else "it left before a session was open")


class _Deaf(QuicConnectionProtocol):
    """What answers nothing: the server stops."""

    def __init__(self) -> None:
        self._ignored = True

    def connection_made(self, transport: Any) -> None:
        pass

    def datagram_received(self, data: Any, addr: Any) -> None:
        pass


async def connect_quic(
    host: str, port: int, files: TlsFiles, protocol: str, *, timeout_s: float
) -> tuple[QuicLink, Callable[[], Any]]:
    """Connect; return the connection and what closes it. The server's certificate must be for the host."""
    url = f"quic://{f'[{host}]' if ':' in host else host}:{port}"
    verifier = CertificateVerifier(files)
    links: list[QuicLink] = []

    def begin(quic: QuicConnection, stream_handler: Any = None) -> QuicLink:  # noqa: ARG001
        links.append(QuicLink(quic, verify=lambda link: verifier.check_server(host, *link.shown)))
        return links[0]

    entering = connect(
        host, port, configuration=_configuration(files, protocol, host, client=True), create_protocol=begin
    )
    try:
        async with asyncio.timeout(timeout_s):
            link = await entering.__aenter__()
    except TimeoutError as error:
        raise Unavailable(f"{url} does not answer within {timeout_s:g} s") from error
    except ConnectionError as error:
        failed = links[0].refusal if links else None
        raise failed or Unavailable(f"{url}: the handshake failed") from error
    except OSError as error:
        raise Unavailable(f"{url}: {reason(error)}", advice="Check the name of the host.") from error
    assert isinstance(link, QuicLink)
    alive = asyncio.get_running_loop().create_task(_keep_alive(link))

    async def close() -> None:
        alive.cancel()
        await asyncio.gather(alive, return_exceptions=True)
        with contextlib.suppress(ConnectionError):
            await entering.__aexit__(None, None, None)

    link.name = url
    if link.certificate is None:
        await close()
        raise link.refusal or Unavailable(f"{url}: the server has shown no certificate")
    return link, close


async def _keep_alive(link: QuicLink) -> None:
    while True:
        await asyncio.sleep(KEEP_ALIVE_S)
        await link.ping()
