"""What one HTTP connection keeps, however much its client sends ahead."""

from __future__ import annotations

import asyncio
from typing import Any

import uvicorn
from tests.waiting import soon
from uvicorn.server import ServerState

from ropewalk.server.http.connections import PIPELINE_MAX, http_protocol

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
