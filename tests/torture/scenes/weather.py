"""Bad weather between two processes: a proxy on loopback that delays, stalls and cuts the connections it carries.

What loss and jitter do to whoever speaks over TCP is that bytes come late, in other pieces, or no more at all; and that
one connection overtakes another. All of it is drawn from a seed, by the number of the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from tests.waiting import LIMIT_S

__all__ = ["Weather"]

PIECE_BYTES = 16 << 10
JITTER_S = 0.004
STALL_S = (0.1, 0.4)
STALL_CHANCE = 0.02


class Weather:
    """A proxy before a server. The first `cuts` connections are cut, each after some bytes in one direction."""

    def __init__(
        self, url: str, seed: str, *, cuts: int, cut_bytes: tuple[int, int] = (4_000, 20_000)
    ) -> None:
        found = urlsplit(url)
        self._there = found.hostname, found.port
        self._seed, self._cuts, self._cut_bytes = seed, cuts, cut_bytes
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._carrying: set[asyncio.Task[None]] = set()
        self.url = ""
        self.connections = self.cut = self.stalled = 0

    def __enter__(self) -> Weather:
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._carry, "127.0.0.1", 0))
        self.url = f"tcp://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LIMIT_S)
        self._loop.close()

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(LIMIT_S)

    async def _end(self) -> None:
        self._server.close()
        for task in self._carrying:
            task.cancel()
        await asyncio.gather(*self._carrying, return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._carrying.add(task)
        number, self.connections = self.connections, self.connections + 1
        chance = random.Random(f"{self._seed}/{number}")
        upwards, limit = chance.random() < 0.5, chance.randint(*self._cut_bytes)
        cut = limit if number < self._cuts else None
        try:
            there, back = await asyncio.open_connection(*self._there)
        except OSError:
            writer.transport.abort()
            return
        ways = [
            asyncio.ensure_future(self._move(reader, back, chance.random(), cut if upwards else None)),
            asyncio.ensure_future(self._move(there, writer, chance.random(), None if upwards else cut)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for each in (writer, back):
                each.transport.abort()  # what is on its way is lost
            self._carrying.discard(task)

    async def _move(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, seed: float, cut: int | None
    ) -> None:
        chance, moved = random.Random(seed), 0
        with contextlib.suppress(OSError):
            while data := await source.read(chance.randint(1, PIECE_BYTES)):
                await asyncio.sleep(chance.random() * JITTER_S)
                if chance.random() < STALL_CHANCE:
                    self.stalled += 1
                    await asyncio.sleep(chance.uniform(*STALL_S))
                moved += len(data)
                if cut is not None and moved >= cut:
                    self.cut += 1
                    return
                target.write(data)
                await target.drain()
