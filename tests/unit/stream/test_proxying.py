"""A proxy on real sockets of this machine: origin, proxy, clients."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import websockets.asyncio.client as client
from tests.unit.stream.conftest import publish
from tests.unit.stream.items import bus_event
from tests.unit.stream.test_serving import closed, running, told, told_of
from tests.waiting import LIMIT_S, soon

from ropewalk.errors import Denied, NotFound, Usage
from ropewalk.gitlog.core.layout import MESSAGES
from ropewalk.gitlog.repository.opening import init_repository
from ropewalk.kernel import jcs
from ropewalk.stream.core.connection import StreamLimits
from ropewalk.stream.core.frames import BusEvent, RefUpdate
from ropewalk.stream.core.subscriber import Item, Lost
from ropewalk.stream.core.window import WindowBounds
from ropewalk.stream.proxy.proxy import MISS_TOPIC
from ropewalk.stream.serve.audit import MISSES
from ropewalk.stream.serve.follow import Following
from ropewalk.stream.serve.proxy_server import StreamProxy
from ropewalk.stream.serve.repository_stream import RepositoryStream


async def take(frames: Following, count: int) -> list[Item]:
    async with asyncio.timeout(LIMIT_S):
        return [await anext(frames) for _ in range(count)]


def ids(items: list[Item]) -> list[Any]:
    return [item.payload["id"] if isinstance(item, BusEvent) else type(item) for item in items]


def messages(*numbers: int) -> list[dict[str, Any]]:
    return [{"id": number} for number in numbers]


def test_two_clients_through_one_link(log):
    async def test() -> None:
        async with RepositoryStream(log) as origin, StreamProxy(origin.url) as proxy:
            async with (
                Following(proxy.url, topics=["jobs.*"]) as one,
                Following(proxy.url, topics=["**"], refs=["refs/**"]) as two,
            ):
                await asyncio.to_thread(publish, log, "jobs/a", *messages(1, 2))
                first = await take(one, 2)
                assert ids(first) == [1, 2]
                update, *events = await take(two, 3)
                assert ids(events) == [1, 2]
                assert isinstance(update, RefUpdate)
                assert update.seq_origin is not None
                number = bus_event(events[0]).seq_origin
                assert number is not None and number > update.seq_origin
                assert [event.seq for event in events] == [event.seq for event in first]
            assert len(origin.server.connections) == 1

    running(test)


@pytest.mark.slow
def test_a_replay_hit_and_a_fetch_from_the_origin_and_a_miss(log):
    async def test() -> None:
        async with (
            RepositoryStream(log, bounds=WindowBounds(frames_max=12)) as origin,
            StreamProxy(origin.url, topics=("jobs",), bounds=WindowBounds(frames_max=5), log=log) as proxy,
        ):
            async with Following(proxy.url, topics=["jobs"]) as frames:
                for number in range(30):  # one by one, so that no window runs over
                    await asyncio.to_thread(publish, log, "jobs", {"id": number})
                    (item,) = await take(frames, 1)
                    assert ids([item]) == [number]
                last = frames.seq
                assert last is not None
            await soon(lambda: not proxy.server.connections)

            async with Following(proxy.url, topics=["jobs"], since_seq=last - 4) as frames:
                assert ids(await take(frames, 4)) == [26, 27, 28, 29]
            assert len(origin.server.connections) == 1

            # The proxy keeps 25 to 29; the origin its last twelve, of which every second is a ref that moved.
            async with Following(proxy.url, topics=["jobs"], since_seq=last - 6) as frames:
                items = await take(frames, 6)
                assert ids(items) == [24, 25, 26, 27, 28, 29]
                assert [item.seq for item in items] == list(range(last - 5, last + 1))

            async with Following(proxy.url, topics=["jobs"], since_seq=last - 20) as frames:
                (lost,) = await take(frames, 1)
                assert isinstance(lost, Lost)
                assert lost.reason == "expired"
                assert "Read the refs and topics themselves" in lost.message
                await asyncio.to_thread(publish, log, "jobs", {"id": 30})
                assert ids(await take(frames, 1)) == [30]
            await soon(lambda: log.store.head_names(MISSES) != [])
            await soon(lambda: MISS_TOPIC in log.topics(MESSAGES))
        (ref,) = log.store.head_names(MISSES)
        _, raw = log.store.get(log.store.head(ref))
        record: Any = jcs.parse(raw)
        assert record["missingSeq"] == last - 19
        assert (record["stream"], record["upstream"]) == (proxy.proxy.window.stream, origin.window.stream)
        (event,) = log.events(MISS_TOPIC, layout=MESSAGES)
        assert event.payload["ref"] == ref

    running(test)


def test_a_slow_client_beside_a_fast_one_holds_nobody_up(log):
    async def test() -> None:
        limits = StreamLimits(outstanding_max=50)
        async with (
            RepositoryStream(log) as origin,
            StreamProxy(origin.url, limits=limits) as proxy,
            client.connect(proxy.url) as slow,
            Following(proxy.url, topics=["jobs"]) as fast,
        ):
            await told_of(slow, "ack")
            await slow.send('{"op":"sub","topics":["jobs"]}')
            await slow.send(
                '{"op":"credit","credit":1}'
            )  # from here on it speaks of credit, and gives no more
            await soon(lambda: sum(each.subscribed for each in proxy.proxy.clients) == 2)
            await asyncio.to_thread(publish, log, "jobs", *messages(*range(500)))
            assert ids(await take(fast, 500)) == list(range(500))
            seen: list[int] = []
            while len(seen) < 50:
                frame = await told(slow)
                seen += [frame["payload"]["id"]] if frame["kind"] == "bus.event" else []
            assert seen == list(range(50))

    running(test)


def test_proxy_stops_reading_with_stalled_client(log):
    async def test() -> None:
        limits = StreamLimits(outstanding_max=20)
        async with (
            RepositoryStream(log, limits=limits) as origin,
            StreamProxy(origin.url, limits=limits, topics=("jobs",)) as proxy,
            client.connect(proxy.url) as slow,
        ):
            await told_of(slow, "ack")
            await slow.send('{"op":"sub","topics":["jobs"]}')
            await slow.send('{"op":"credit","credit":1}')
            await soon(lambda: any(each.subscribed for each in proxy.proxy.clients))
            await asyncio.to_thread(publish, log, "jobs", *messages(*range(200)))
            await soon(lambda: not proxy.proxy.reading)
            (link,) = origin.server.connections
            assert link.credit == 0
            seen: list[int] = []
            while len(seen) < 200:
                frame = await told(slow)
                if frame["kind"] == "bus.event":
                    seen.append(frame["payload"]["id"])
                    await slow.send('{"op":"credit","credit":1}')
            assert seen == list(range(200))

    running(test)


def test_closed_stalled_link_is_asked_again(log):
    async def test() -> None:
        quick = StreamLimits(outstanding_max=20, stall_ms=50, idle_ms=200)
        async with (
            RepositoryStream(log, limits=quick) as origin,
            StreamProxy(origin.url, limits=StreamLimits(outstanding_max=20), topics=("jobs",)) as proxy,
            client.connect(proxy.url) as slow,
        ):
            await told_of(slow, "ack")
            await slow.send('{"op":"sub","topics":["jobs"]}')
            await slow.send('{"op":"credit","credit":1}')
            await soon(lambda: any(each.subscribed for each in proxy.proxy.clients))
            (link,) = origin.server.connections
            await asyncio.to_thread(publish, log, "jobs", *messages(*range(100)))
            await soon(lambda: link.closing is not None)
            assert link.closing is not None
            assert link.closing.code == 1001
            seen: list[int] = []
            while len(seen) < 100:
                frame = await told(slow)
                if frame["kind"] == "bus.event":
                    seen.append(frame["payload"]["id"])
                    await slow.send('{"op":"credit","credit":1}')
            assert seen == list(range(100))

    running(test)


def test_patterns_beyond_those_configured_are_asked_of_the_origin(log):
    async def test() -> None:
        async with (
            RepositoryStream(log) as origin,
            StreamProxy(origin.url, topics=("jobs",)) as proxy,
            Following(proxy.url, topics=["other.*"]) as frames,
        ):
            (lost,) = await take(frames, 1)
            assert isinstance(lost, Lost)
            await asyncio.to_thread(publish, log, "other/x", {"id": 1})
            assert ids(await take(frames, 1)) == [1]

    running(test)


def test_through_two_proxies_the_chain_is_named_and_a_loop_is_refused(log):
    async def test() -> None:
        async with (
            RepositoryStream(log) as origin,
            StreamProxy(origin.url) as near,
            StreamProxy(near.url) as far,
            client.connect(far.url) as socket,
        ):
            ack = await told_of(socket, "ack")
            assert ack["via"] == [near.proxy.window.stream, origin.window.stream]
            near.upstream_url = far.url  # somebody points the first at the last
            for connection in origin.server.connections:
                connection.close(1001, "moving")
            origin.server.wake()
            with pytest.raises(Usage, match="a loop"):
                async with asyncio.timeout(LIMIT_S):
                    await asyncio.gather(near.wait(), far.wait())

    running(test)


def test_a_wrong_upstream_is_said_at_once(log):
    async def test() -> None:
        async with RepositoryStream(log, token="secret") as origin:
            with pytest.raises(Denied):
                await StreamProxy(origin.url).__aenter__()
            with pytest.raises(NotFound):
                await StreamProxy(origin.url.replace("stream", "elsewhere")).__aenter__()
            with pytest.raises(Usage):
                await StreamProxy("http://127.0.0.1:1").__aenter__()
            async with StreamProxy(origin.url, upstream_token="secret", token="other") as proxy:
                with pytest.raises(Denied):
                    await Following(proxy.url, topics=["jobs"]).__aenter__()
                async with Following(proxy.url, topics=["jobs"], token="other") as frames:
                    await asyncio.to_thread(publish, log, "jobs", {"id": 1})
                    assert ids(await take(frames, 1)) == [1]

    running(test)


def test_a_miss_that_cannot_be_recorded_does_not_end_the_proxy(log, tmp_path):
    async def test() -> None:
        with init_repository(tmp_path / "other.git") as record:
            (record.store.place.git_dir / "refs" / "gatos").mkdir(parents=True)
            (record.store.place.git_dir / "refs" / "gatos" / "audit").write_text(
                "in the way", encoding="ascii"
            )
            async with (
                RepositoryStream(log) as origin,
                StreamProxy(origin.url, log=record) as proxy,
                Following(proxy.url, topics=["**"], since_seq=7) as frames,
            ):
                lost, told_miss = await take(frames, 2)
                assert isinstance(lost, Lost)
                assert bus_event(told_miss).topic == MISS_TOPIC
                await soon(lambda: not proxy.proxy.misses)
                await asyncio.to_thread(publish, log, "jobs", {"id": 1})
                assert ids(await take(frames, 1)) == [1]

    running(test)


def test_a_client_of_a_proxy_that_stops_is_told_that_it_goes_away(log):
    async def test() -> None:
        async with RepositoryStream(log) as origin:
            async with StreamProxy(origin.url) as proxy:
                socket = await client.connect(proxy.url)
                assert json.loads(await socket.recv())["kind"] == "ack"
            assert (await closed(socket))[0] == 1001

    running(test)
