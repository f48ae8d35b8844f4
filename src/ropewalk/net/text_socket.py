"""WebSockets that carry texts: one path, a check of who asks, and everything else answered as HTTP should be.

Other paths may serve pages to a browser; our own pages may connect because their origin is this server.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from http import HTTPStatus
from ipaddress import ip_address
from typing import Protocol

import websockets.asyncio.client as client
import websockets.asyncio.server as server
from websockets.asyncio.connection import Connection
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.http11 import Request, Response
from websockets.protocol import State

from ropewalk.errors import Denied, NotFound, RopewalkError, Unavailable, Usage
from ropewalk.net.admission import Admission, ConnectionLimits, ConnectionSlot
from ropewalk.net.counted_socket import CountedConnection, counted
from ropewalk.net.refusals import connecting, listening

RECEIVED_WAITING_MAX = 16  # messages received and not yet read, before the sender is held up
GOODBYE_S = 2.0
HTTP_PORT = 80  # which no browser names
_journal = logging.getLogger("ropewalk.net")
_journal.addHandler(logging.NullHandler())


class HttpResponse(Protocol):
    """What is answered to a plain request."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def body(self) -> bytes: ...


class TextSocket:
    """One WebSocket. A message is a text, or bytes if the other side sent a binary one."""

    def __init__(self, socket: Connection, name: str, slot: ConnectionSlot | None = None) -> None:
        self._socket = socket
        self.name = name
        self.slot = slot  # as the server counts it that accepted the connection

    async def receive(self) -> str | bytes | None:
        """Return the next message, None once the connection is closed."""
        try:
            return await self._socket.recv()
        except ConnectionClosed:
            return None

    async def send(self, texts: Iterable[str]) -> bool:
        """Send messages in order; False if the connection is closed. Waits while the other side reads nothing.

        They are written at once: for small messages the calls to the kernel would cost more than all the rest.
        """
        protocol = self._socket.protocol
        if protocol.state is not State.OPEN:
            return False
        for text in texts:
            protocol.send_text(text.encode())
        self._socket.transport.write(b"".join(protocol.data_to_send()))
        try:
            await self._socket.drain()
        except OSError:
            return False
        return True

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Say goodbye, and wait a moment for the answer."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_S * 2):
                await self._socket.close(code, reason)

    def abort(self) -> None:
        """Drop the connection without a word."""
        self._socket.transport.abort()

    @property
    def ended(self) -> str:
        """How the other side closed the connection, in words."""
        code, reason = self._socket.close_code, self._socket.close_reason
        return f"{code} {reason}".strip() if code is not None else "open"

    @property
    def close_code(self) -> int | None:
        """The code of the close; None while it is open."""
        return self._socket.close_code


class TextListener:
    """A port that takes WebSockets at one path."""

    def __init__(self, found: server.Server, sockets: set[TextSocket], admission: Admission) -> None:
        self._server = found
        self._admission = admission
        self._open = sockets
        self.port: int = next(iter(found.sockets)).getsockname()[1]

    async def close(self) -> None:
        """Accept no more connections; send a close frame to each client, and drop those that do not answer."""
        self._server.close(code=1001, reason="the server is stopping")
        self._admission.close()
        try:
            async with asyncio.timeout(GOODBYE_S * 2):
                await self._server.wait_closed()
        except TimeoutError:
            for socket in list(self._open):
                socket.abort()
            await self._server.wait_closed()


async def serve_text(
    accept: Callable[[TextSocket], Awaitable[None]],
    host: str,
    port: int,
    *,
    path: str,
    message_bytes_max: int,
    limits: ConnectionLimits,
    token: str | None = None,
    origins: Sequence[str] = (),
    answer: Callable[[str], HttpResponse | None] = lambda _path: None,
    welcomes_own: bool = False,
    refused: Callable[[str, str], None] = lambda _who, _why: None,
) -> TextListener:
    """Listen; `accept` owns each socket until it returns, `answer` serves other paths.

    A browser names the page that asks (Origin); pages that are not listed are refused, or any web page could read what
    only this machine may; our own are accepted with `welcomes_own`. With a token, every client must send it. A newcomer
    may take the place of a client that has sent nothing, until `accept` has called `settle` of its slot.
    """
    admission = Admission(limits, refused)
    sockets: set[TextSocket] = set()
    welcome = set(origins)

    def judge(connection: server.ServerConnection, request: Request) -> Response | None:
        asked = request.path.partition("?")[0]
        if asked != path:
            page = answer(asked)
            if page is not None:
                return _response(page)
            return _problem(NotFound(f"no page is at {asked[:80]}", advice=f"The stream is at {path}."))
        if any(origin not in welcome for origin in request.headers.get_all("Origin")):
            return _problem(
                Denied(
                    "web pages of this origin may not connect",
                    advice="Start the server with --origin and the origin of the page.",
                )
            )
        if token is not None and not _shows(request, token):
            refusal = _problem(
                Denied("this server requires a token", advice="Send the header Authorization: Bearer TOKEN."),
                HTTPStatus.UNAUTHORIZED,
            )
            refusal.headers["WWW-Authenticate"] = "Bearer"
            return refusal
        assert isinstance(connection, CountedConnection) and connection.slot is not None
        if not connection.slot.join():
            return _problem(Unavailable(connection.slot.refusal, advice="Try again later."))
        return None

    async def handle(socket: server.ServerConnection) -> None:
        peer = socket.remote_address
        slot = socket.slot if isinstance(socket, CountedConnection) else None
        taken = TextSocket(socket, f"{peer[0]}:{peer[1]}" if peer else "?", slot)
        sockets.add(taken)
        try:
            await accept(taken)
        finally:
            sockets.discard(taken)

    with listening(host, port):
        found = await server.serve(
            handle,
            host,
            port,
            process_request=judge,
            process_response=_as_problem,
            compression=None,
            open_timeout=limits.handshake_s,
            close_timeout=GOODBYE_S,
            ping_interval=None,  # the frames carry pings
            max_size=message_bytes_max,
            max_queue=RECEIVED_WAITING_MAX,
            server_header=None,
            logger=_journal,
            create_connection=counted(admission),
        )
    admission.open()
    taken = TextListener(found, sockets, admission)
    if welcomes_own:
        welcome.update(page_origins(host, taken.port))
    return taken


def _response(page: HttpResponse) -> Response:
    headers = Headers({**page.headers, "Content-Length": str(len(page.body)), "Connection": "close"})
    return Response(page.status, HTTPStatus(page.status).phrase, headers, page.body)


def _problem(error: RopewalkError, status: int | None = None) -> Response:
    """Return a refusal as problem+json (RFC 9457)."""
    code = HTTPStatus(status if status is not None else error.status)
    body = json.dumps({**error.to_problem(), "status": code.value}).encode() + b"\n"
    headers = {
        "Content-Type": "application/problem+json",
        "Content-Length": str(len(body)),
        "Connection": "close",
    }
    return Response(code.value, code.phrase, Headers(headers), body)


def _as_problem(_connection: object, _request: Request, response: Response) -> Response | None:
    """Give the refusals of the WebSocket library, which are plain texts, the form of ours."""
    if not response.headers.get("Content-Type", "").startswith("text/plain"):
        return None
    detail = (response.body or b"").decode("utf-8", "replace").strip().replace("\n", " ")
    problem = _problem(Usage(detail, advice="Open it as a WebSocket (RFC 6455)."), response.status_code)
    kept = [(name, value) for name, value in response.headers.raw_items() if name not in problem.headers]
    for name, value in kept:  # Upgrade, for example, which 426 must name
        problem.headers[name] = value
    return problem


def page_origins(host: str, port: int) -> set[str]:
    """Return what a browser calls our pages, by addresses alone: a name can be made to resolve to this machine.

    >>> page_origins("192.0.2.7", 8090)
    {'http://192.0.2.7:8090'}
    """
    try:
        address = ip_address(host)
    except ValueError:
        address = None
    names = {"127.0.0.1", "localhost", "[::1]"}
    if address is not None and not address.is_unspecified:
        own = f"[{address}]" if address.version == 6 else str(address)  # spelled as a browser does
        names = names | {own} if address.is_loopback else {own}
    end = f":{port}" if port != HTTP_PORT else ""
    return {f"http://{name}{end}" for name in names}


def _shows(request: Request, token: str) -> bool:
    shown = request.headers.get_all("Authorization")
    if len(shown) != 1:
        return False
    scheme, _, found = shown[0].partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(
        found.strip().encode("utf-8", "surrogateescape"), token.encode()
    )


async def connect_text(
    url: str, *, timeout_s: float, message_bytes_max: int, token: str | None = None
) -> TextSocket:
    """Connect; the error tells an unreachable server, a refusal and a wrong address apart."""
    with connecting(url, timeout_s):
        try:
            socket = await client.connect(
                url,
                additional_headers={"Authorization": f"Bearer {token}"} if token is not None else None,
                compression=None,
                open_timeout=timeout_s,
                close_timeout=GOODBYE_S,
                ping_interval=None,
                max_size=message_bytes_max,
                max_queue=RECEIVED_WAITING_MAX,
                proxy=None,
                logger=_journal,
            )
        except InvalidStatus as error:
            raise _refused(url, error.response.status_code) from error
    return TextSocket(socket, url)


def _refused(url: str, status: int) -> Denied | NotFound | Unavailable:
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return Denied(
            f"{url} wants a token that it knows",
            advice="Give the server's token: --token-file; a proxy's is --upstream-token-file.",
        )
    if status == HTTPStatus.NOT_FOUND:
        return NotFound(f"nothing is streamed at {url}", name=url, advice="Check the path of the address.")
    return Unavailable(f"{url} answers {status}, not as a WebSocket")
