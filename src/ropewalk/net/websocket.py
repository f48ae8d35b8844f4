"""Pipes over WebSockets: binary messages, whose borders mean nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from socket import SOCK_STREAM
from typing import Any
from urllib.parse import urlsplit

import websockets.asyncio.client as client
import websockets.asyncio.server as server
from websockets.asyncio.connection import Connection
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from ropewalk.errors import Invalid, TooLarge, Unavailable
from ropewalk.net.admission import Admission, ConnectionLimits, ConnectionSlot
from ropewalk.net.counted_socket import CountedConnection, counted
from ropewalk.net.pipe import Accept
from ropewalk.net.public_address import is_public
from ropewalk.net.refusals import connecting, listening

MESSAGE_BYTES_MAX = 1 << 20  # one WebSocket message; the JavaScript side sends 64 KiB
MESSAGES_WAITING_MAX = 4  # received and not yet read, before the sender is held up
GOODBYE_S = 1.0
Credentials = tuple[Sequence[str], bytes | None]
Permits = Callable[[IPv4Address | IPv6Address, int], bool]
Admit = Callable[[Sequence[str], bytes | None], str | None]
LIMITS = ConnectionLimits(connections_max=64)
_TOO_BIG = 1009
_BROKEN = (1002, 1007)
_journal = logging.getLogger("ropewalk.net")
_journal.addHandler(logging.NullHandler())


class WebSocketPipe:
    """One WebSocket."""

    def __init__(
        self,
        socket: Connection,
        name: str,
        slot: ConnectionSlot | None = None,
        credentials: Credentials = ((), None),
    ) -> None:
        self._socket = socket
        self.credentials = credentials  # Authorization headers and certificate that a client showed
        self.name = name
        self.slot = slot  # as the server counts it that accepted the connection

    async def receive(self) -> bytes:
        try:
            while True:
                data = await self._socket.recv(decode=False)
                if data:  # an empty message is allowed and says nothing; no bytes would mean the end
                    return bytes(data)
        except ConnectionClosed as error:
            sent = error.sent.code if error.sent is not None and not error.rcvd_then_sent else None
            if sent == _TOO_BIG:
                raise TooLarge(
                    f"{self.name} sent a WebSocket message of more than {MESSAGE_BYTES_MAX} bytes",
                    limit=MESSAGE_BYTES_MAX,
                ) from error
            if sent in _BROKEN:
                raise Invalid(f"{self.name} does not speak WebSocket: {error}", reason="websocket") from error
            return b""

    async def send(self, data: bytes) -> None:
        try:
            await self._socket.send(data)
        except ConnectionClosed as error:
            raise Unavailable(f"{self.name} has closed the connection") from error

    async def close(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_S * 2):  # `wait_for` of Python 3.11 may swallow a cancellation
                await self._socket.close()


async def connect_websocket(
    url: str,
    *,
    timeout_s: float,
    tls: ssl.SSLContext | None = None,
    token: str | None = None,
    permits: Permits | None = None,
) -> WebSocketPipe:
    """Connect; raise Unavailable if no WebSocket answers. `tls` is for `wss://`; default: the system's authorities.

    With `permits`, a host name must stand for public addresses, or for others that it permits; else nothing is sent.
    """
    options: dict[str, Any] = {"ssl": tls} if tls is not None and url.lower().startswith("wss:") else {}
    if token is not None:
        options["additional_headers"] = {"Authorization": f"Bearer {token}"}
    with connecting(url, timeout_s):
        if permits is not None:
            # The address that was judged is the one connected to, whatever a second lookup would say. With it, the
            # library follows no redirect to another host.
            options["host"] = await _permitted(url, permits, timeout_s)
        socket = await client.connect(
            url,
            compression=None,
            open_timeout=timeout_s,
            close_timeout=GOODBYE_S,
            ping_interval=None,  # who uses the pipe knows better when it has been silent for too long
            max_size=MESSAGE_BYTES_MAX,
            max_queue=MESSAGES_WAITING_MAX,
            proxy=None,
            logger=_journal,
            **options,
        )
    return WebSocketPipe(socket, url)


async def _permitted(url: str, permits: Permits, timeout_s: float) -> str:
    host, port = urlsplit(url).hostname or "", urlsplit(url).port or 0
    async with asyncio.timeout(timeout_s):
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=SOCK_STREAM)
    for *_, where in found:
        address = str(where[0]).partition("%")[0]
        if not is_public(address) and not permits(ip_address(address), port):
            raise Unavailable(f"{url} is at {where[0]}, which is neither public nor allowed")
    return str(found[0][-1][0])


class WebSocketListener:
    """A port that takes WebSockets."""

    def __init__(self, found: server.Server, admission: Admission) -> None:
        self._server = found
        self._admission = admission
        self.port: int = next(iter(found.sockets)).getsockname()[1]

    async def close(self) -> None:
        self._server.close()
        self._admission.close()
        await self._server.wait_closed()


async def serve_websocket(
    accept: Accept,
    host: str,
    port: int,
    *,
    limits: ConnectionLimits = LIMITS,
    refused: Callable[[str, str], None] = lambda _who, _why: None,
    tls: ssl.SSLContext | None = None,
    origins: Sequence[str] = (),
    admit: Admit | None = None,
) -> WebSocketListener:
    """Listen; `accept` owns each pipe until it returns, and calls `join` of its slot; see `serve_tcp`.

    Web pages of other origins than `origins` are refused: a page could read and write as this machine. `admit` gets
    the Authorization headers and the client certificate, and returns why the client may not connect, or None.
    """
    admission = Admission(limits, refused)

    def shown(socket: server.ServerConnection, request: Request | None) -> Credentials:
        channel = socket.transport.get_extra_info("ssl_object")
        certificate = channel.getpeercert(binary_form=True) if channel is not None else None
        return request.headers.get_all("Authorization") if request is not None else (), certificate

    async def handle(socket: server.ServerConnection) -> None:
        peer = socket.remote_address
        slot = socket.slot if isinstance(socket, CountedConnection) else None
        name = f"ws://{peer[0]}:{peer[1]}" if peer else "ws://?"
        await accept(WebSocketPipe(socket, name, slot, shown(socket, socket.request)))

    def judge(socket: server.ServerConnection, request: Request) -> Response | None:
        found = [each for each in request.headers.get_all("Origin") if each not in origins]
        if not found:
            why = admit(*shown(socket, request)) if admit is not None else None
            if why is None:
                return None
            refused(f"{socket.remote_address[0]}", why)
            return socket.respond(401, f"{why}\n")
        refused(f"{socket.remote_address[0]}", f"web pages of {found[0][:80]!r} may not connect")
        return socket.respond(
            403, "Web pages of this origin may not connect; start the peer with --origin.\n"
        )

    with listening(host, port):
        found = await server.serve(
            handle,
            host,
            port,
            compression=None,
            open_timeout=limits.handshake_s,
            close_timeout=GOODBYE_S,
            ping_interval=None,
            max_size=MESSAGE_BYTES_MAX,
            max_queue=MESSAGES_WAITING_MAX,
            server_header=None,
            logger=_journal,
            ssl=tls,
            create_connection=counted(admission),
            process_request=judge,
        )
    admission.open()
    return WebSocketListener(found, admission)
