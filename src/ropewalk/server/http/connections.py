"""Connections of the server: HTTP/1.1 with bounds on number and time, and WebSockets for the stream."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sized
from http import HTTPStatus
from typing import Any, cast

import httptools
import websockets.asyncio.server as sockets
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from websockets.exceptions import InvalidHandshake
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.server import ServerProtocol

from ropewalk.errors import NotFound, RopewalkError, Unavailable
from ropewalk.net.log_rate_limit import LogRateLimit
from ropewalk.net.text_socket import GOODBYE_S, RECEIVED_WAITING_MAX, TextSocket, _as_problem, _problem
from ropewalk.server.auth.auth_file import Credentials
from ropewalk.server.auth.rights import Identity
from ropewalk.server.http.direct import DirectAppend, DirectAppends
from ropewalk.server.http.guard import Gate
from ropewalk.server.http.problems import MEDIA_TYPE, body_of, headers_of, http_problem
from ropewalk.server.node import ServerNode
from ropewalk.stream.core.frames import CLIENT_FRAME_BYTES_MAX
from ropewalk.stream.serve.server import STREAM_PATH

HANDSHAKE_S = 10.0
HEAD_BYTES_MAX = 32 << 10
PIPELINE_MAX = 1_024  # requests of a connection that wait for the answer to the one before
FRAMING_BYTES_MAX = 512 << 10  # chunk extensions and trailers: the parser keeps them
FRAMING_FACTOR = 9  # a body in chunks of one byte takes six bytes for each
_journal = logging.getLogger("ropewalk.server")


def certificate_of(transport: asyncio.BaseTransport) -> bytes | None:
    """Return the client certificate of a connection, if it has shown one."""
    tls = transport.get_extra_info("ssl_object")
    found = tls.getpeercert(binary_form=True) if tls is not None else None
    return found if isinstance(found, bytes) else None


class _OneWrite:
    """A transport that writes what one turn of the loop gives it in one call: head and body of an answer together."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self.raw = transport
        self._loop = loop
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self.flush)
        self._parts.append(data)

    def flush(self) -> None:
        if self._parts:
            parts, self._parts = self._parts, []
            self.raw.write(b"".join(parts))

    def close(self) -> None:
        self.flush()
        self.raw.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


class _Flow(FlowControl):
    """Reading stays paused while requests that were sent ahead wait for their turn, else they pile up without limit."""

    def __init__(self, transport: asyncio.Transport, pipeline: Sized) -> None:
        super().__init__(transport)
        self._pipeline = pipeline

    def resume_reading(self) -> None:
        if not self._pipeline:
            super().resume_reading()


class HttpConnection(HttpToolsProtocol):
    """One HTTP connection. A client that is slow to send a request, or sends none, is dropped."""

    request_s: float
    connections_max: int
    direct: DirectAppends | None
    _late: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _framing = 0  # bytes of the request that are neither head nor body, nor in proportion to the body
    _upgraded = False
    _in_body = False  # between the head and the end of a request that has a cycle
    _is_ended = False  # a request ended in the data that came last
    _is_full = False  # nothing more is read: the connection closes behind the answers that are due

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.transport = cast(asyncio.Transport, _OneWrite(transport, self.loop))
        self.flow = _Flow(transport, self.pipeline)
        certificate = certificate_of(transport)
        if certificate is not None:
            self.app_state = {**self.app_state, "certificate": certificate}
        if len(self.connections) > self.connections_max:
            full = Unavailable(f"{self.connections_max} connections are open already")
            return self._refuse(full.to_problem(), headers_of(full))
        self._start_timer()
        return None

    def data_received(self, data: bytes) -> None:
        if self._is_full or self.transport.is_closing():
            return
        before, self._is_ended = self.cycle, False
        self._framing += len(data)
        self._feed(data)
        if self._is_ended or self.cycle is not before or (self._in_body and self._is_busy):
            self._head_bytes = 0
        else:  # still within the head of a request
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                self._refuse_head()
        if not (self._in_body and self._is_busy):
            self._framing = 0
        elif self._framing > FRAMING_BYTES_MAX:
            self._refuse_head()
        if self._is_ended or self._is_full:
            self._stop_timer()
        is_timed = self._is_busy or self.timeout_keep_alive_task is not None
        if self._late is None and not self._is_full and (self._in_body or not is_timed):
            self._start_timer()

    def _feed(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        while data:
            rest = b""
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserError:
                self.logger.warning("Invalid HTTP request received.")
                self.send_400_response("")
            except httptools.HttpParserUpgrade as end:
                if self._is_full or self.transport.is_closing():
                    return
                if self._should_upgrade():
                    self.handle_websocket_upgrade()
                else:
                    rest = self._without_upgrade(data[end.args[0] :])
            data = rest

    def _without_upgrade(self, rest: bytes) -> bytes:
        """Return a request for another protocol as one for HTTP/1.1, as RFC 9110 §7.8 allows, and what is behind it.

        HTTP clients of Java ask for HTTP/2 in this way by default. The parser has skipped the body.
        """
        method = self.parser.get_method()
        if method == b"CONNECT":
            self.send_400_response("")
            return b""
        kept = [
            each for each in self.headers if each[0] not in (b"upgrade", b"connection", b"http2-settings")
        ]
        if not self.parser.should_keep_alive():
            kept.append((b"connection", b"close"))
        lines = b"".join(b"%s: %s\r\n" % each for each in kept)
        self.parser = httptools.HttpRequestParser(self)
        return b"%s %s HTTP/1.1\r\n%s\r\n%s" % (method, self.url, lines, rest)

    def _should_upgrade(self) -> bool:
        # A WebSocket takes the connection over, so the answers before it must be out.
        return self.parser.get_method() == b"GET" and not self._is_busy and super()._should_upgrade()

    @property
    def _is_fed_again(self) -> bool:
        return bool(self.parser.should_upgrade()) and not self._should_upgrade()

    def on_body(self, body: bytes) -> None:
        self._framing = max(0, self._framing - FRAMING_FACTOR * len(body))
        if self._in_body:  # else the cycle is that of an earlier request
            super().on_body(body)

    def on_headers_complete(self) -> None:
        before = self.cycle
        self._unset_keepalive_if_required()  # an append before it may have been answered in this turn
        if not (self._is_full or self.transport.is_closing()):
            self._take_head()
        self._in_body = self.cycle is not before

    def _take_head(self) -> None:
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > HEAD_BYTES_MAX:
            return self._refuse_head()
        if self._is_fed_again:
            return None
        if len(self.pipeline) >= PIPELINE_MAX:  # these are answered, and the connection is closed behind them
            self.pipeline[0][0].keep_alive = False
            self._is_full = True
            return None
        # Behind another request it waits for its turn.
        found = None if self.direct is None or self._is_busy else self.direct.take(self)
        if found is None:
            return super().on_headers_complete()
        self.cycle = found  # type: ignore[assignment]
        found.admit()
        return None

    def on_message_complete(self) -> None:
        if not self._in_body:
            return
        self._in_body, self._is_ended = False, True
        super().on_message_complete()
        cycle: object = self.cycle
        if isinstance(cycle, DirectAppend):
            cycle.run()

    def on_response_complete(self) -> None:
        if self._is_full and not self.pipeline:
            self.transport.close()
        super().on_response_complete()

    def write_whole(self, data: bytes) -> None:
        """Write an answer behind those before it, in this turn of the loop."""
        cast(_OneWrite, self.transport).flush()
        cast(_OneWrite, self.transport).raw.write(data)

    def _refuse_head(self) -> None:
        detail = f"the head of the request has more than {HEAD_BYTES_MAX} bytes"
        self._refuse(http_problem(431, detail), {})

    @property
    def _is_busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def handle_websocket_upgrade(self) -> None:
        self._stop_timer()
        self.transport = cast(_OneWrite, self.transport).raw
        super().handle_websocket_upgrade()
        self._upgraded = True

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002
        """Answer what is no HTTP request."""
        self._refuse(http_problem(400, "the request is not valid HTTP/1.1"), {})

    def _expire(self) -> None:
        detail = f"the request was not sent within {self.request_s:g} s"
        self._refuse(http_problem(408, detail), {})

    def _refuse(self, problem: dict[str, Any], headers: dict[str, str]) -> None:
        """Answer and close. Behind requests that wait for their answers only close, after these."""
        if self._is_full or self.transport.is_closing():
            return
        self._is_full = True
        if self._is_busy and (self.pipeline or not self._in_body):
            if self._in_body:
                self.pipeline.popleft()
            self.cycle.keep_alive = False
            return
        if self._in_body and self.cycle.response_started:
            self.transport.abort() if self._is_busy else self.transport.close()
            return
        body = body_of(problem)
        status = HTTPStatus(problem["status"])
        lines = {"Content-Type": MEDIA_TYPE, "Content-Length": str(len(body)), "Connection": "close"}
        text = "".join(f"{name}: {value}\r\n" for name, value in {**lines, **headers}.items())
        self.transport.write(f"HTTP/1.1 {status.value} {status.phrase}\r\n{text}\r\n".encode() + body)
        self.transport.close()

    def _start_timer(self) -> None:
        if not self._upgraded:
            self._late = self.loop.call_later(self.request_s, self._expire)

    def _stop_timer(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


def http_protocol(
    request_s: float, connections_max: int, direct: DirectAppends | None = None
) -> type[HttpConnection]:
    """Return the class of HTTP connections."""
    facts = {"request_s": request_s, "connections_max": connections_max, "direct": direct}
    return type("Connection", (HttpConnection,), facts)


class StreamSockets:
    """WebSockets that come in over the port of the HTTP server; makes one connection object for each.

    It replaces the server object of the `websockets` package, so that sockets behave as those of `stream serve` do.
    """

    def __init__(self, node: ServerNode, gate: Gate) -> None:
        self._node = node
        self._gate = gate
        self.logger = logging.getLogger("ropewalk.net")
        self._refusals = LogRateLimit(_journal.warning)
        self.all_connections: set[sockets.ServerConnection] = set()
        self.handler_tasks: set[asyncio.Task[None]] = set()

    def __call__(self, **_uvicorn: Any) -> sockets.ServerConnection:
        """Make the connection of a client that asked for an upgrade."""
        protocol = ServerProtocol(max_size=CLIENT_FRAME_BYTES_MAX, logger=self.logger)
        return sockets.ServerConnection(
            protocol,
            self,  # type: ignore[arg-type]
            ping_interval=None,
            close_timeout=GOODBYE_S,
            max_queue=RECEIVED_WAITING_MAX,
        )

    def is_serving(self) -> bool:
        """Return whether new clients are taken."""
        return not self._node.draining

    async def handler(self, connection: sockets.ServerConnection) -> None:
        """Serve one client."""
        admitted: list[tuple[Identity, Credentials]] = []

        def judge(_connection: sockets.ServerConnection, request: Request) -> Response | None:
            try:
                admitted.append(self._admit(connection, request))
            except RopewalkError as error:
                self._node.metrics.refused.labels(error.code).inc()
                self._refusals(f"refused WebSocket: {error.code}: {error.detail}")
                refusal = _problem(error)
                for name, value in headers_of(error).items():
                    refusal.headers[name] = value
                return refusal
            return None

        self.all_connections.add(connection)
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                await connection.handshake(judge, _as_problem, None)
            if connection.protocol.state is State.OPEN and admitted:
                peer = connection.remote_address
                name = f"{peer[0]}:{peer[1]}" if peer else "?"
                await self._node.stream.serve_client(TextSocket(connection, name), *admitted[0])
                await connection.close()
        except (TimeoutError, InvalidHandshake, OSError) as error:
            _journal.info("a WebSocket handshake failed: %s", error)
        finally:
            connection.transport.abort()
            self.all_connections.discard(connection)
            task = asyncio.current_task()
            if task is not None:
                self.handler_tasks.discard(task)

    def _admit(self, connection: sockets.ServerConnection, request: Request) -> tuple[Identity, Credentials]:
        if request.path.partition("?")[0] != STREAM_PATH:
            raise NotFound(f"no stream is at {request.path[:80]}", advice=f"The stream is at {STREAM_PATH}.")
        if len(self.all_connections) > self._node.settings.connections_max:
            raise Unavailable(f"{self._node.settings.connections_max} streams are open already")
        transport = connection.transport
        peer, here = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        secure = transport.get_extra_info("ssl_object") is not None
        headers = [
            (name.encode("latin-1"), value.encode("latin-1")) for name, value in request.headers.raw_items()
        ]
        return self._gate.admit(
            headers,
            peer[0] if peer else "?",
            here[0] if here else None,
            "https" if secure else "http",
            certificate_of(transport),
        )
