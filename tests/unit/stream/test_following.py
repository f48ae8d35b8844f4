"""Clients of a stream against servers that lie, and owners who do what owners do."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
import websockets.asyncio.server as server
from tests.unit.stream.conftest import publish
from tests.unit.stream.items import bus_event
from tests.waiting import LIMIT_S, Crew, aside, soon, until
from websockets.exceptions import ConnectionClosed

from ropewalk.errors import Invalid, Unavailable, Usage
from ropewalk.stream.core.frames import BusEvent, encode
from ropewalk.stream.serve import follow as following
from ropewalk.stream.serve.follow import Following, FollowIterator, follow
from ropewalk.stream.serve.repository_stream import RepositoryStream

ACK = json.dumps({"kind": "ack", "stream": "01HF", "seq": 100, "credit": 1_000, "ts": ""})


def event(seq: int, text: str = "") -> str:
    return encode(BusEvent("jobs", {"n": seq, "text": text}, seq, "2026-01-02T03:04:05.678Z"))


Handler = Callable[[server.ServerConnection], Awaitable[None]]


@contextlib.asynccontextmanager
async def served(handle: Handler) -> AsyncIterator[str]:
    """A server that says what the test wants."""

    async def handled(socket: server.ServerConnection) -> None:
        with contextlib.suppress(ConnectionClosed):
            await handle(socket)

    async with server.serve(handled, "127.0.0.1", 0, ping_interval=None, compression=None) as found:
        yield f"ws://127.0.0.1:{next(iter(found.sockets)).getsockname()[1]}"


@contextlib.contextmanager
def served_beside(handle: Handler) -> Iterator[str]:
    """The same in a thread of its own, for clients that block."""
    found: list[str] = []
    ready = threading.Event()
    ends: list[Callable[[], object]] = []

    async def run() -> None:
        end = asyncio.Event()
        loop = asyncio.get_running_loop()
        ends.append(lambda: loop.call_soon_threadsafe(end.set))
        async with served(handle) as url:
            found.append(url)
            ready.set()
            await end.wait()

    serving = Crew(1).submit(lambda: asyncio.run(run()))
    assert ready.wait(LIMIT_S)
    try:
        yield found[0]
    finally:
        ends[0]()
        serving.result(LIMIT_S)


def running(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(LIMIT_S):
            await test()

    asyncio.run(bounded())


def test_follow_backs_off_from_ending_server():
    came: list[float] = []

    async def ending(socket: server.ServerConnection) -> None:
        came.append(asyncio.get_running_loop().time())
        await socket.send(ACK)
        await socket.close()

    async def run() -> None:
        async with served(ending) as url, Following(url, topics=["jobs"], patience_s=1.5) as frames:
            with pytest.raises(Unavailable, match="ends every connection"):
                await anext(frames)

    running(run)
    assert 1 <= len(came) <= 10  # each pause is longer than the last; one every 50 ms would be thirty


def test_a_server_that_never_says_ack_is_no_stream(monkeypatch):
    monkeypatch.setattr(following, "ACK_S", 0.5)

    async def pinging(socket: server.ServerConnection) -> None:
        while True:
            await socket.send('{"kind":"ping"}')
            await asyncio.sleep(0.05)

    async def run() -> None:
        async with served(pinging) as url, Following(url, topics=["jobs"]) as frames:
            with pytest.raises(Unavailable, match="does not begin with ack"):
                await anext(frames)

    running(run)


def test_after_an_error_whoever_asks_again_gets_it_again():
    async def garbling(socket: server.ServerConnection) -> None:
        await socket.send(ACK)
        await socket.send('{"kind":"bus.event"}')
        await socket.wait_closed()

    async def run() -> None:
        async with served(garbling) as url, Following(url, topics=["jobs"]) as frames:
            for _ in range(3):
                with pytest.raises(Invalid, match="without a sound topic"):
                    await anext(frames)

    running(run)
    with served_beside(garbling) as url, follow(url, topics=["jobs"]) as plain:
        for _ in range(3):
            with pytest.raises(Invalid, match="without a sound topic"):
                next(plain)
    with pytest.raises((StopIteration, Invalid)):
        next(plain)


@pytest.mark.slow
def test_follow_bounds_memory_without_credit():
    sent = [100]

    async def flooding(socket: server.ServerConnection) -> None:
        await socket.send(ACK)
        while True:
            await socket.send(event(sent[0] + 1, "x" * 20_000))
            sent[0] += 1

    with served_beside(flooding) as url, follow(url, topics=["jobs"]) as frames:
        before = -1
        while before != sent[0]:  # until nothing moves any more
            before = sent[0]
            threading.Event().wait(1.0)
        assert frames._items.qsize() <= following.AHEAD_MAX
        assert sent[0] < 3 * following.AHEAD_MAX
        got = [next(frames) for _ in range(5_000)]
    assert [frame.seq for frame in got] == list(range(101, 5_101))


def test_resume_number_is_of_last_frame_handed_out(log):
    async def run() -> None:
        async with RepositoryStream(log) as stream:
            async with Following(stream.url, topics=["jobs"]) as frames:
                publish(log, "jobs", *({"n": n} for n in range(10)))
                await soon(lambda: frames._items.qsize() == 10)
                assert frames.seq == stream.window.base
                first = await anext(frames)
                assert frames.seq == first.seq
            since = frames.seq
            with pytest.raises(StopAsyncIteration):
                await anext(frames)

            def rest() -> list[int]:
                with follow(stream.url, topics=["jobs"], since_seq=since) as plain:
                    assert plain.seq == since
                    second = next(plain)
                    assert plain.seq == second.seq
                with follow(stream.url, topics=["jobs"], since_seq=plain.seq) as plain:
                    items = [second, *(next(plain) for _ in range(8))]
                    return [bus_event(item).payload["n"] for item in items]

            assert await aside(rest) == list(range(1, 10))

    running(run)


def test_threads_share_an_iterator_until_closed(log):
    def drain(frames: FollowIterator, got: list[int]) -> None:
        got.extend(bus_event(frame).payload["n"] for frame in frames)

    async def run() -> None:
        async with RepositoryStream(log, look_s=0.01) as stream:

            def share() -> list[list[int]]:
                with follow(stream.url, topics=["jobs"]) as frames:
                    got: list[list[int]] = [[] for _ in range(4)]
                    crew = Crew(4)
                    drained = [crew.submit(drain, frames, each) for each in got]
                    for batch in range(10):
                        publish(log, "jobs", *({"n": batch * 400 + n} for n in range(400)))
                    until(lambda: sum(map(len, got)) == 4_000)
                    assert not any(each.done() for each in drained)
                for each in drained:
                    each.result(LIMIT_S)
                return got

            got = await aside(share)
            assert sorted(n for each in got for n in each) == list(range(4_000))

    running(run)


def test_what_is_wrong_with_the_arguments_is_raised_and_nobody_waits():
    with pytest.raises(TypeError), follow("ws://127.0.0.1:1", topic=["jobs"]):
        pass
    with pytest.raises(Usage), follow("ws://[::1", topics=["jobs"]):
        pass
    with pytest.raises(Invalid, match="lists of patterns"), follow("ws://127.0.0.1:1", topics="jobs"):
        pass


@pytest.mark.parametrize(
    "texts",
    [
        ['{"kind":"ack"}', event(90), event(7), event(7)],
        [ACK, event(99), event(100), event(3)],
        [ACK, '{"kind":"weather","seq":7}', '{"kind":"pong"}', '{"kind":"ack","stream":"01HF","seq":1}'],
    ],
)
def test_numbers_that_fall_and_kinds_nobody_knows_are_passed_over(texts):
    async def lying(socket: server.ServerConnection) -> None:
        for text in (*texts, event(101)):
            await socket.send(text)
        await socket.wait_closed()

    async def run() -> None:
        async with served(lying) as url, Following(url, topics=["jobs"]) as frames:
            seqs: list[int] = []
            while not seqs or seqs[-1] != 101:
                item = await anext(frames)
                assert item.seq is not None
                seqs.append(item.seq)
            assert seqs == sorted(set(seqs))

    running(run)


def test_follow_begins_with_the_ack():
    """What is published once the `with` is entered comes: the server has said where the stream is."""

    async def late(socket: server.ServerConnection) -> None:
        await asyncio.sleep(0.2)
        await socket.send(ACK)
        await socket.wait_closed()

    with served_beside(late) as url, follow(url, topics=["jobs"]) as frames:
        assert frames.seq == 100
