"""Pipes over TCP, with TLS where a context for it is given."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from ropewalk.errors import Unavailable, Usage
from ropewalk.net.refusals import listening, reason
from ropewalk.net.tls import certificate_of

__all__ = ["TcpListening", "TcpPipe", "attending", "connect_tcp", "serve_tcp"]

CHUNK_BYTES = 64 << 10
GOODBYE_S = 1.0  # how long closing waits for the other side
HANDSHAKE_S = 10.0  # for TLS, before anything else may be said
# A peer whose machine has gone says nothing any more; the system asks for signs of life after a minute.
KEEP_ALIVE = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))


class TcpPipe:
    """One TCP connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
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
            await asyncio.wait_for(self._writer.wait_closed(), GOODBYE_S)


def _name(transport: asyncio.BaseTransport, scheme: str) -> str:
    """Who is at the other end, for people."""
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
    """Connect; Unavailable if nobody is there, or if it is not who it should be."""
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


class TcpListening:
    """A port that takes connections, and the tasks of those that came."""

    def __init__(self, server: asyncio.Server, tasks: set[asyncio.Task[None]]) -> None:
        self._server = server
        self._tasks = tasks
        self.port: int = server.sockets[0].getsockname()[1]

    def refuse(self) -> None:
        """Take nobody more."""
        self._server.close()

    async def close(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def serve_tcp(
    accept: Callable[[TcpPipe], Awaitable[None]],
    host: str,
    port: int,
    *,
    tls: ssl.SSLContext | None = None,
    refused: Callable[[str, str], None] = lambda _who, _why: None,
) -> TcpListening:
    """Listen; `accept` owns each pipe until it returns, which must be without an exception.

    `refused` is told who did not come in, and why: with TLS, whose certificate is not accepted.
    """
    tasks: set[asyncio.Task[None]] = set()
    with listening(host, port):
        if tls is None:
            handle = attending(accept, tasks, TcpPipe)
            server = await asyncio.start_server(handle, host, port, limit=CHUNK_BYTES)
        else:
            greet = _greeting(accept, tls, refused)
            server = await asyncio.get_running_loop().create_server(
                lambda: _Greeted(greet, tasks), host, port
            )
    return TcpListening(server, tasks)


def _greeting(
    accept: Callable[[TcpPipe], Awaitable[None]], tls: ssl.SSLContext, refused: Callable[[str, str], None]
) -> Callable[[asyncio.Transport], Coroutine[Any, Any, None]]:
    """What is done with each connection that is to be encrypted."""

    async def greet(transport: asyncio.Transport) -> None:
        try:
            pipe = await _encrypted(transport, tls)
        except OSError as error:
            refused(_name(transport, "tls"), _broken_off(error))
            transport.abort()
            return
        await _attend(accept, pipe)

    return greet


async def _encrypted(transport: asyncio.Transport, tls: ssl.SSLContext) -> TcpPipe:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=CHUNK_BYTES, loop=loop)
    protocol = _Stream(reader, loop=loop)
    secure = await loop.start_tls(
        transport, protocol, tls, server_side=True, ssl_handshake_timeout=HANDSHAKE_S
    )
    if secure is None:  # it left at the very end of the handshake
        raise ConnectionResetError
    protocol.connection_made(secure)
    return TcpPipe(reader, asyncio.StreamWriter(secure, protocol, reader, loop))


def _broken_off(error: OSError) -> str:
    """Why a handshake did not come to its end."""
    if isinstance(error, ConnectionAbortedError) and error.errno is None:
        return f"TLS: not ready within {HANDSHAKE_S:g} s"
    return reason(error) or "it left before TLS was ready"


class _Greeted(asyncio.Protocol):
    """A connection whose handshake is ours: asyncio, where it does that, says nothing of one that fails."""

    def __init__(
        self,
        greet: Callable[[asyncio.Transport], Coroutine[Any, Any, None]],
        tasks: set[asyncio.Task[None]],
    ) -> None:
        self._greet, self._tasks = greet, tasks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        task = asyncio.get_running_loop().create_task(self._greet(transport))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Stream(asyncio.StreamReaderProtocol):
    """A stream inside TLS, where nothing can be sent once the other side has ended."""

    def eof_received(self) -> bool:
        super().eof_received()
        return False


def attending(
    accept: Callable[[TcpPipe], Awaitable[None]],
    tasks: set[asyncio.Task[None]],
    pipe_of: Callable[[asyncio.StreamReader, asyncio.StreamWriter], TcpPipe],
) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """What asyncio calls for each connection: a pipe for `accept`, its task among `tasks`."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        await _attend(accept, pipe_of(reader, writer))

    return handle


async def _attend(accept: Callable[[TcpPipe], Awaitable[None]], pipe: TcpPipe) -> None:
    try:
        # A connection is cancelled when we close; asyncio would report that as an error of its own.
        with contextlib.suppress(asyncio.CancelledError):
            await accept(pipe)
    finally:
        await pipe.close()
