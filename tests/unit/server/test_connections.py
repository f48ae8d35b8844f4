"""What one HTTP connection keeps, however much its client sends ahead."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from tests.waiting import soon
from uvicorn.server import ServerState

from ropewalk.errors import Invalid
from ropewalk.server.http.connections import HEAD_BYTES_MAX, PIPELINE_MAX, http_protocol
from ropewalk.server.http.direct import DirectAppends
from ropewalk.server.http.problems import on_error

GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Wire:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written, self.paused, self.closed = b"", False, False

    def get_extra_info(self, _name: str) -> Any:
        return None

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True


def test_requests_sent_ahead_are_bounded():
    async def main() -> None:
        go, asked = asyncio.Event(), 0

        async def app(_scope: Any, receive: Any, send: Any) -> None:
            nonlocal asked
            asked += 1
            await receive()
            await go.wait()
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})

        config = uvicorn.Config(app, log_config=None, lifespan="off")
        connection = http_protocol(60, 10)(config, ServerState(), {})
        wire: Any = Wire()
        connection.connection_made(wire)
        connection.data_received(GET * (3 * PIPELINE_MAX))
        await soon(lambda: asked == 1)
        assert (
            wire.paused and len(connection.pipeline) == PIPELINE_MAX
        )  # although the first has asked for its body
        go.set()
        await soon(lambda: wire.closed)
        answers = wire.written.split(b"HTTP/1.1 200 OK\r\n")[1:]
        assert len(answers) == PIPELINE_MAX + 1
        assert [b"connection: close" in each for each in answers] == [False] * PIPELINE_MAX + [True]

    asyncio.run(main())


def test_reading_goes_on_after_the_last_request():
    async def main() -> None:
        async def app(_scope: Any, _receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})

        connection = http_protocol(60, 10)(
            uvicorn.Config(app, log_config=None, lifespan="off"), ServerState(), {}
        )
        wire: Any = Wire()
        connection.connection_made(wire)
        for rounds in (1, 2):
            connection.data_received(GET * 5)
            await soon(lambda count=5 * rounds: wire.written.count(b"200 OK") == count)  # type: ignore[misc]
            assert not wire.paused and not wire.closed
        connection.connection_lost(None)

    asyncio.run(main())


def held(go: asyncio.Event, request_s: float = 60, direct: Any = None) -> tuple[Any, Any]:
    """A connection whose requests are answered when `go` is set, and its transport."""

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await go.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    config = uvicorn.Config(app, log_config=None, lifespan="off")
    connection, wire = http_protocol(request_s, 10, direct)(config, ServerState(), {}), Wire()
    connection.connection_made(wire)  # type: ignore[arg-type]
    return connection, wire


CHUNKED = b"POST /a HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "sent,answers",
    [
        ([GET + b"garbage\r\n\r\n" + GET], 1),
        ([GET, GET + CHUNKED + b"zz\r\n"], 2),
        (
            [
                GET,
                *([b"GET / HTTP/1.1\r\n"] + [b"X: %s\r\n" % (b"x" * 1_000)] * (HEAD_BYTES_MAX // 1_000 + 1)),
                GET,
            ],
            1,
        ),
    ],
    ids=["garbage", "body", "head"],
)
def test_refusal_waits_for_earlier_answers(sent, answers):
    async def main() -> None:
        go = asyncio.Event()
        connection, wire = held(go)
        for each in sent:
            connection.data_received(each)
        assert connection._is_full and not wire.written and not wire.closed
        go.set()
        await soon(lambda: wire.closed)
        assert wire.written.count(b"HTTP/1.1 ") == wire.written.count(b"200 OK") == answers

    asyncio.run(main())


def test_many_requests_for_an_upgrade_are_served():
    async def main() -> None:
        go = asyncio.Event()
        go.set()
        connection, wire = held(go)
        asked = GET[:-2] + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
        connection.data_received(asked * 1_000)
        await soon(lambda: wire.written.count(b"200 OK") == 1_000)
        connection.connection_lost(None)

    asyncio.run(main())


def refusing(go: asyncio.Event, request_s: float, *, by_head: bool = True) -> tuple[Any, Any]:
    """A connection that refuses each append, by its head or when it is whole, and its transport."""

    def refuse(scope: Any) -> None:
        if by_head:
            raise Invalid("no")
        scope["state"]["identity"] = None

    guard = SimpleNamespace(
        admit=refuse, refusal=lambda _scope, error: on_error(None, error), count=lambda *_: None
    )
    return held(go, request_s, DirectAppends(SimpleNamespace(telemetry=None), guard))  # type: ignore[arg-type]


POST = b"POST /api/v1/messages?topic=a HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"
SOCKET = GET[:-2] + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"


def test_answer_at_once_stops_the_timer():
    async def main() -> None:
        connection, wire = refusing(asyncio.Event(), 0.02)
        connection.data_received(POST)
        assert b"400 Bad Request" in wire.written
        await asyncio.sleep(0.1)
        assert not wire.closed
        connection.data_received(GET[:9])  # a request that is not whole still has its time
        await soon(lambda: wire.closed)

    asyncio.run(main())


def test_client_that_sends_no_more_is_dropped():
    async def main() -> None:
        connection, wire = refusing(asyncio.Event(), 0.02)
        connection.data_received(POST[:-2])
        connection.data_received(POST[-2:])
        await soon(lambda: wire.closed)

    asyncio.run(main())


def test_answer_at_once_does_not_end_the_next():
    async def main() -> None:
        go = asyncio.Event()
        connection, wire = refusing(go, 60)
        connection.timeout_keep_alive = 0.02
        connection.data_received(POST + GET)
        await asyncio.sleep(0.1)
        assert not wire.closed
        go.set()
        await soon(lambda: b"200 OK" in wire.written and wire.closed)

    asyncio.run(main())


def test_nothing_is_taken_behind_a_close():
    async def main() -> None:
        connection, wire = refusing(asyncio.Event(), 60, by_head=False)
        connection.data_received(POST[:-1])
        connection.shutdown()
        connection.data_received(POST[-1:] + POST + SOCKET)
        assert wire.closed and wire.written.count(b"HTTP/1.1 ") == 1

    asyncio.run(main())
