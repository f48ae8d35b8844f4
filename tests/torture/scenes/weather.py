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

__all__ = ["UdpWeather", "Weather"]

PIECE_BYTES = 16 << 10
JITTER_S = 0.004
STALL_S = (0.1, 0.4)
STALL_CHANCE = 0.02
MOVED_AFTER = (10, 14)  # datagrams of a client; its handshake takes fewer


class Weather:
    """A proxy before a server. The first `cuts` connections are cut, each after some bytes in one direction."""

    def __init__(
        self, url: str, seed: str, *, cuts: int, cut_bytes: tuple[int, int] = (4_000, 20_000)
    ) -> None:
        found = urlsplit(url)
        self._scheme, self._there = found.scheme, (found.hostname, found.port)
        self._seed, self._cuts, self._cut_bytes = seed, cuts, cut_bytes
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._carrying: set[asyncio.Task[None]] = set()
        self.url = ""
        self.connections = self.cut = self.stalled = 0

    def __enter__(self) -> Weather:
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._carry, "127.0.0.1", 0))
        self.url = f"{self._scheme}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
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


class UdpWeather:
    """A proxy of datagrams before a server: some are lost, all come late, so that they overtake one another.

    A path of datagrams cannot be cut but by silence. What it can do to a connection is to change the address of the
    client, as routers do that translate addresses: so it does to each of the first `moves` clients, once.
    """

    def __init__(
        self, url: str, seed: float | str, loss: float = 0.02, jitter_s: float = 0.007, *, moves: int = 0
    ) -> None:
        found = urlsplit(url)
        self._there = (found.hostname, found.port)
        self._chance, self._loss, self._jitter_s = random.Random(seed), loss, jitter_s
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._clients: dict[Any, asyncio.DatagramTransport] = {}
        self._opened: list[asyncio.DatagramTransport] = []
        self._until_moved: dict[Any, int] = {}  # datagrams of a client
        self._moves = moves
        self.url, self.lost, self.moved, self._ended = "", 0, 0, False

    def __enter__(self) -> UdpWeather:
        self._thread.start()
        self._front = asyncio.run_coroutine_threadsafe(
            self._open(None, local_addr=("127.0.0.1", 0)), self._loop
        ).result(LIMIT_S)
        self.url = f"quic://127.0.0.1:{self._front.get_extra_info('sockname')[1]}"
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(LIMIT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LIMIT_S)
        self._loop.close()

    async def _end(self) -> None:
        self._ended = True
        opening = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*opening, return_exceptions=True)
        for transport in self._opened:
            transport.abort()
        await asyncio.sleep(0.01)  # each closes its socket in a later turn of the loop

    async def _open(self, client: Any, **where: Any) -> asyncio.DatagramTransport:
        proxy = self

        class Way(asyncio.DatagramProtocol):
            def datagram_received(self, data: bytes, addr: Any) -> None:
                if proxy._chance.random() < proxy._loss:
                    proxy.lost += 1
                    return
                proxy._loop.call_later(
                    proxy._chance.random() * proxy._jitter_s, proxy._pass, client, data, addr
                )

        transport, _ = await self._loop.create_datagram_endpoint(Way, **where)
        self._opened.append(transport)
        return transport

    def _pass(self, client: Any, data: bytes, addr: Any) -> None:
        if self._ended:
            return
        if client is not None:
            self._front.sendto(data, client)
        elif addr in self._clients:
            self._clients[addr].sendto(data)
            self._until_moved[addr] -= 1
            if self._until_moved[addr] == 0:
                self._loop.create_task(self._move(addr))
        else:
            self._loop.create_task(self._begin(addr, data))

    @property
    def connections(self) -> int:
        """How many clients there were."""
        return len(self._clients)

    async def _move(self, client: Any) -> None:
        """Send what comes from a client from another port on; what is sent to the old one is lost."""
        old, self._clients[client] = (
            self._clients[client],
            await self._open(client, remote_addr=self._there),
        )
        old.abort()
        self.moved += 1

    async def _begin(self, client: Any, data: bytes) -> None:
        known = len(self._until_moved)
        self._until_moved.setdefault(client, self._chance.randint(*MOVED_AFTER) if known < self._moves else 0)
        self._clients[client] = await self._open(client, remote_addr=self._there)
        self._clients[client].sendto(data)
