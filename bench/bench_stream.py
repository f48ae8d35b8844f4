"""Streams beside a bare `websockets` server that broadcasts the same texts: what order, credit and catching up cost.

The bare server is the ceiling: it keeps nothing, counts nothing, and lets the buffers of a slow reader grow for ever.
Both are counted in CPU seconds of the serving process, from the first frame given to the last one written to a socket;
the subscribers live in a process of their own, and read with the same library. The last row is the whole way of a
message, from a commit in the repository to a frame in the window, beside reading the same messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import websockets.asyncio.server as server
from websockets.exceptions import ConnectionClosed

from bench.harness import Contestant, Result, compare, fixed
from ropewalk.gitlog.core.envelope import Draft
from ropewalk.gitlog.core.layout import MESSAGES
from ropewalk.gitlog.repository.opening import init_repository
from ropewalk.stream.core.frames import BusEvent
from ropewalk.stream.core.window import Window, WindowBounds
from ropewalk.stream.serve.server import Clock, StreamServer
from ropewalk.stream.serve.source import StreamSource

__all__ = ["run"]

PEER = "bare websockets broadcast"
# Subscribers as anybody would write them: ask, read, and say now and then that more may come.
READERS = """
import asyncio, sys
import websockets.asyncio.client as client

async def read(url):
    async with client.connect(url, compression=None, max_queue=None, ping_interval=None) as socket:
        await socket.send('{"op":"sub","topics":["jobs.*"]}')
        taken = 0
        async for message in socket:
            taken += 1
            if taken % 250 == 0:
                await socket.send('{"op":"credit","credit":250}')

async def main():
    await asyncio.gather(*(read(sys.argv[1]) for _ in range(int(sys.argv[2]))))

asyncio.run(main())
"""


def frames(count: int) -> list[BusEvent]:
    return [BusEvent("jobs/pending", {"index": i, "text": f"hello {i}" * 8}) for i in range(count)]


@contextlib.asynccontextmanager
async def readers(url: str, count: int) -> AsyncIterator[None]:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", READERS, url, str(count))
    try:
        yield
    finally:
        process.terminate()
        await process.wait()


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.001)


async def ours(subscribers: int, count: int) -> float:
    """CPU seconds to give `count` frames to so many subscribers through the stream."""
    clock = Clock()
    window = Window("bench", clock.now_us(), WindowBounds())
    given = frames(count)
    async with StreamServer(window, clock=clock) as served, readers(served.url, subscribers):
        await until(lambda: len([each for each in served.connections if each._subscriptions]) == subscribers)
        started = time.process_time()
        await served.publish(given)
        await until(lambda: all(each.sent == count for each in served.connections))
        spent = time.process_time() - started
        assert len(served.connections) == subscribers
        return spent


async def bare(subscribers: int, count: int) -> float:
    """CPU seconds to broadcast the same texts with nothing around it."""
    window = Window("bench", 0, WindowBounds(frames_max=count + 1))
    connected: set[server.ServerConnection] = set()

    async def handle(socket: server.ServerConnection) -> None:
        await socket.recv()  # the sub
        connected.add(socket)
        with contextlib.suppress(ConnectionClosed):
            async for _ in socket:
                pass

    async with server.serve(handle, "127.0.0.1", 0, compression=None, ping_interval=None) as served:
        port = next(iter(served.sockets)).getsockname()[1]
        async with readers(f"ws://127.0.0.1:{port}/", subscribers):
            await until(lambda: len(connected) == subscribers)
            started = time.process_time()
            for frame in frames(count):
                server.broadcast(connected, window.publish(frame, 0).text)
                if frame.payload["index"] % 50 == 49:
                    await asyncio.sleep(0)
            await until(lambda: not any(each.transport.get_write_buffer_size() for each in connected))
            return time.process_time() - started


def sending(subscribers: int, count: int, rounds: int) -> Result:
    """Deliveries a CPU second: the median of ours and of the peer, in turns."""
    spent: dict[str, list[float]] = {"ours": [], "peer": []}
    ways: list[tuple[str, Callable[[int, int], Awaitable[float]]]] = [("ours", ours), ("peer", bare)]
    for _ in range(rounds):
        for name, way in ways:
            spent[name].append(asyncio.run(way(subscribers, count)))  # type: ignore[arg-type]
    rates = {name: subscribers * count / statistics.median(each) for name, each in spent.items()}
    who = "1 subscriber" if subscribers == 1 else f"{subscribers} subscribers"
    return fixed(
        f"frames to {who}",
        "stream",
        PEER,
        rates["ours"],
        rates["peer"],
        None,
        "frames",
        "CPU of the server",
        rounds,
    )


def reading(count: int, rounds: int) -> list[Result]:
    with tempfile.TemporaryDirectory() as folder, init_repository(folder) as log:
        drafts = [Draft({"type": "job.made", "payload": frame.payload}) for frame in frames(count)]
        source = StreamSource(log)
        log.append_all("jobs/pending", drafts, layout=MESSAGES)

        def streamed() -> int:
            window = Window("bench", 0, WindowBounds())
            source.look()
            source.behind.add("jobs/pending")
            source._passed["jobs/pending"] = type(source._passed["jobs/pending"])(None)
            while found := source.take("jobs/pending"):
                for frame in found:
                    window.publish(frame, 0)
            return count

        def read() -> int:
            return sum(1 for event in log.events("jobs/pending", layout=MESSAGES) if event.payload)

        return compare(
            "messages from commits to frames",
            Contestant("stream", streamed),
            [Contestant("messages read", read)],
            target=None,
            rounds=rounds,
            unit="messages",
        )


def run(quick: bool) -> list[Result]:
    """Frames to one and to a hundred subscribers, and messages from commits to frames."""
    rounds = 3 if quick else 7
    return [
        sending(1, 2_000 if quick else 20_000, rounds),
        sending(100, 100 if quick else 1_000, rounds),
        *reading(1_000 if quick else 10_000, rounds),
    ]
