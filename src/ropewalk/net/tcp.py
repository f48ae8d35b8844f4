"""Pipes over TCP, with TLS where a context for it is given."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable

from ropewalk.errors import Unavailable, Usage
from ropewalk.net.admission import Admission, ConnectionLimits, ConnectionSlot
from ropewalk.net.refusals import listening, reason
from ropewalk.net.tls import TlsFiles, certificate_of

CHUNK_BYTES = 64 << 10
GOODBYE_S = 1.0  # how long closing waits for the other side
# A peer whose machine has gone sends nothing more; the system probes it after a minute.
LIMITS = ConnectionLimits(connections_max=64)
KEEP_ALIVE = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))


class TcpPipe:
    """One TCP connection."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, slot: ConnectionSlot | None = None
    ) -> None:
        self._reader = reader
        self._writer = writer
        self.slot = slot  # as the server counts it that accepted the connection
        tls: ssl.SSLObject | None = writer.get_extra_info("ssl_object")
        self.protocol = tls.selected_alpn_protocol() if tls is not None else None  # as both named it
        self.certificate = certificate_of(tls) if tls is not None else None
        self.name = _name(writer.transport, "tcp" if tls is None else "tls")
        _keep_alive(writer)

    async def receive(self) -> bytes:
        try:
            return await self._reader.read(CHUNK_BYTES)
        except OSError as error:
            raise Unavailable(f"{self.name}: {reason(error)}") from error

    async def send(self, data: bytes) -> None:
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError as error:
            raise Unavailable(f"{self.name}: {reason(error)}") from error

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(GOODBYE_S):
                await self._writer.wait_closed()


def _name(transport: asyncio.BaseTransport, scheme: str) -> str:
    """Return the address of the peer for messages."""
    host, port = (transport.get_extra_info("peername") or ("?", 0))[:2]
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _keep_alive(writer: asyncio.StreamWriter) -> None:
    found: socket.socket | None = writer.get_extra_info("socket")
    if found is None:
        return
    with contextlib.suppress(OSError):
        found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEP_ALIVE:
            if hasattr(socket, name):
                found.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


async def connect_tcp(
    host: str, port: int, *, timeout_s: float, tls: ssl.SSLContext | None = None
) -> TcpPipe:
    """Connect; raise Unavailable if nothing answers or its certificate does not match."""
    scheme = "tcp" if tls is None else "tls"
    address = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(
                host, port, limit=CHUNK_BYTES, ssl=tls, server_hostname=host if tls is not None else None
            )
    except TimeoutError as error:
        raise Unavailable(f"{address} does not answer within {timeout_s:g} s") from error
    except socket.gaierror as error:
        raise Unavailable(f"{address}: {error.strerror}", advice="Check the name of the host.") from error
    except ssl.SSLCertVerificationError as error:
        raise Unavailable(
            f"{address}: {reason(error)}",
            advice="Check the host in the address, and that --server-ca is what its certificate leads to.",
        ) from error
    except ssl.SSLError as error:
        raise Unavailable(f"{address}: {reason(error)}", advice="It may speak plain tcp://.") from error
    except OSError as error:
        raise Unavailable(f"{address}: {reason(error)}") from error
    except (UnicodeError, ValueError) as error:
        raise Usage(f"{host[:80]!r} is no name of a host", advice=f"Write {scheme}://HOST:PORT.") from error
    return TcpPipe(reader, writer)


class TcpListener:
    """A port that takes connections, and what was accepted there."""

    def __init__(self, server: asyncio.Server, accepted: ConnectionTasks) -> None:
        self._server = server
        self._accepted = accepted
        self.port: int = server.sockets[0].getsockname()[1]

    def refuse(self) -> None:
        """Accept no more connections."""
        self._server.close()

    def renew(self, _files: TlsFiles, tls: ssl.SSLContext) -> None:
        """Use another certificate for new connections."""
        self._accepted.tls = tls

    async def close(self) -> None:
        self._server.close()
        await self._accepted.close()


async def serve_tcp(
    accept: Callable[[TcpPipe], Awaitable[None]],
    host: str,
    port: int,
    *,
    limits: ConnectionLimits = LIMITS,
    tls: ssl.SSLContext | None = None,
    refused: Callable[[str, str], None] = lambda _who, _why: None,
) -> TcpListener:
    """Listen; `accept` owns each pipe until it returns, which must be without an exception.

    Until `accept` has called `join` of the pipe's slot, the deadline of the handshake runs. `refused` gets the peers
    that were dropped, and why: a certificate that is not accepted, or no room.
    """
    accepted = ConnectionTasks(accept, limits, refused, tls=tls)
    with listening(host, port):
        server = await asyncio.get_running_loop().create_server(accepted.protocol, host, port)
    accepted.open()
    return TcpListener(server, accepted)


class ConnectionTasks:
    """The connections of one listening socket: each is counted, and has a task from its handshake to its end."""

    def __init__(
        self,
        accept: Callable[[TcpPipe], Awaitable[None]],
        limits: ConnectionLimits,
        refused: Callable[[str, str], None],
        *,
        tls: ssl.SSLContext | None = None,
        pipe_of: Callable[[asyncio.StreamReader, asyncio.StreamWriter, ConnectionSlot], TcpPipe] = TcpPipe,
    ) -> None:
        self._accept, self._refused, self.tls, self._pipe_of = accept, refused, tls, pipe_of
        self._admission = Admission(limits, refused)
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        """Begin, in the running event loop."""
        self._admission.open()

    async def close(self) -> None:
        """End all connections."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._admission.close()

    def protocol(self) -> asyncio.Protocol:
        """Return what asyncio needs for one more connection."""
        return _Incoming(self._begin)

    def _begin(self, transport: asyncio.Transport) -> None:
        slot = self._admission.enter(transport)
        if slot.counted:
            task = asyncio.get_running_loop().create_task(self._attend(transport, slot))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _attend(self, transport: asyncio.Transport, slot: ConnectionSlot) -> None:
        # Dropped before this task began: a handshake would hold its memory until it times out.
        if transport.is_closing():
            return slot.leave()
        try:
            pipe = await self._open(transport, slot)
        except OSError as error:
            if slot.counted:  # otherwise it was said already why it had to go
                self._refused(_name(transport, "tls"), reason(error) or "it left before TLS was ready")
            transport.abort()
        else:
            try:
                # A connection is cancelled when we close; asyncio would report that as an error.
                with contextlib.suppress(asyncio.CancelledError):
                    await self._accept(pipe)
            finally:
                await pipe.close()
        finally:
            slot.leave()

    async def _open(self, transport: asyncio.Transport, slot: ConnectionSlot) -> TcpPipe:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=CHUNK_BYTES, loop=loop)
        if self.tls is None:
            protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
            transport.set_protocol(protocol)
        else:
            protocol = _Stream(reader, loop=loop)
            # The slot's deadline ends the handshake, and is reported; asyncio's own must not come first.
            secure = await loop.start_tls(
                transport, protocol, self.tls, server_side=True, ssl_handshake_timeout=slot.handshake_s * 2
            )
            if secure is None:  # it left at the very end of the handshake, or had to
                raise ConnectionResetError
            transport = secure
        protocol.connection_made(transport)
        return self._pipe_of(reader, asyncio.StreamWriter(transport, protocol, reader, loop), slot)


class _Incoming(asyncio.Protocol):
    """A connection that was just accepted. We do its handshake, because asyncio does not report one that fails."""

    def __init__(self, begin: Callable[[asyncio.Transport], None]) -> None:
        self._begin = begin

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._begin(transport)


class _Stream(asyncio.StreamReaderProtocol):
    """A stream inside TLS, where nothing can be sent once the other side has ended."""

    def eof_received(self) -> bool:
        super().eof_received()
        return False
