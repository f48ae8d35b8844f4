"""A task that is cancelled while it closes a connection ends.

`asyncio.wait_for` of Python 3.11 swallows a cancellation that comes in the turn of the loop in which its call has
finished. A lasting peer that was left in that moment connected again and again, and leaving it waited for ever.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import ropewalk
from ropewalk.net.websocket import WebSocketPipe


class ClosingSocket:
    """A WebSocket whose goodbye is answered when the test says so."""

    def __init__(self) -> None:
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def close(self) -> None:
        await self.answered


def test_cancelled_close_ends_its_task():
    async def main() -> None:
        socket = ClosingSocket()
        closing = asyncio.create_task(WebSocketPipe(socket, "ws://peer").close())  # type: ignore[arg-type]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        socket.answered.set_result(None)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing

    asyncio.run(main())


def test_wait_for_is_not_used():
    files = Path(ropewalk.__file__).parent.rglob("*.py")
    assert [path.name for path in files if "asyncio.wait_for(" in path.read_text(encoding="utf-8")] == []
