"""Streams on real sockets of this machine: what happens in a repository reaches who asked for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import websockets.asyncio.client as client
from tests.unit.stream.conftest import publish
from tests.unit.stream.items import bus_event
from tests.waiting import LIMIT_S, Crew, aside, soon
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Origin

from ropewalk.errors import Denied, Invalid, InvalidName, NotFound, Unavailable
from ropewalk.gitlog.core.layout import MESSAGES
from ropewalk.gitlog.repository.opening import open_repository
from ropewalk.gitlog.repository.repository import GitRepository
from ropewalk.kernel.schema import shipped as schema
from ropewalk.stream.core.connection import Connection, StreamLimits
from ropewalk.stream.core.frames import BusEvent, ErrorFrame, RefUpdate
from ropewalk.stream.core.subscriber import Item, Lost
from ropewalk.stream.core.window import WindowBounds
from ropewalk.stream.serve import server
from ropewalk.stream.serve.follow import Following, follow
from ropewalk.stream.serve.repository_stream import RepositoryStream
from ropewalk.stream.serve.source import StreamSource


def running(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(LIMIT_S):
            await test()

    asyncio.run(bounded())


async def told(socket: client.ClientConnection) -> dict[str, Any]:
    """The next frame; whatever it is, it fits the schema."""
    async with asyncio.timeout(LIMIT_S):
        frame: dict[str, Any] = json.loads(await socket.recv())
    schema.validate("api/stream_frame", frame)
    return frame


async def told_of(socket: client.ClientConnection, kind: str) -> dict[str, Any]:
    while (frame := await told(socket))["kind"] != kind:
        if frame["kind"] == "ping":
            await socket.send('{"kind":"pong"}')
    return frame


async def closed(socket: client.ClientConnection) -> tuple[int | None, str | None]:
    async with asyncio.timeout(LIMIT_S):
        await socket.wait_closed()
    return socket.close_code, socket.close_reason


def test_a_message_and_its_ref_reach_a_plain_websocket_client(log):
    async def run() -> None:
        async with RepositoryStream(log) as stream, client.connect(stream.url) as socket:
            ack = await told(socket)
            assert ack["kind"] == "ack"
            await socket.send('{"op":"sub","refs":["refs/gatos/messages/**"],"topics":["gatos.jobs.*"]}')
            await socket.send('{"kind":"ping"}')
            assert await told(socket) == {"kind": "pong"}  # so the sub was taken
            publish(log, "jobs/pending", {"id": 7})
            stream.look()
            update, event = await told(socket), await told(socket)
            (stored,) = log.read("jobs/pending", layout=MESSAGES).events
            assert (update["kind"], update["ref"]) == ("ref.update", "refs/gatos/messages/jobs/pending/head")
            assert (update["old"], update["new"]) == (None, stored.commit)
            assert (event["kind"], event["topic"], event["payload"]) == (
                "bus.event",
                "jobs/pending",
                {"id": 7},
            )
            assert (event["ulid"], event["type"], event["commit"], event["content_id"]) == (
                stored.ulid,
                "test.made",
                stored.commit,
                stored.content_id,
            )
            assert ack["seq"] < update["seq"] < event["seq"]

    running(run)


def test_every_message_comes_in_order_though_the_head_jumps(log):
    async def run() -> None:
        async with (
            RepositoryStream(log, look_s=0.01) as stream,
            Following(stream.url, topics=["jobs"]) as frames,
        ):
            for batch in range(8):
                publish(log, "jobs", *({"n": batch * 400 + each} for each in range(400)))
            got = [frame async for frame in _first(frames, 3_200)]
            assert [frame.payload["n"] for frame in got] == list(range(3_200))
            seqs = [frame.seq for frame in got]
            assert seqs == sorted(set(seqs))

    running(run)


async def _first(frames: Following, count: int) -> Any:
    for _ in range(count):
        async with asyncio.timeout(LIMIT_S):
            item = await anext(frames)
        assert isinstance(item, RefUpdate | BusEvent), item
        yield item


def test_plain_s2_client_gets_everything(log):
    async def run() -> None:
        async with RepositoryStream(log) as stream, client.connect(stream.url) as socket:
            await socket.send('{"op":"sub","topics":["gatos.jobs"]}')
            await socket.send('{"kind":"ping"}')
            assert (await told_of(socket, "pong"))["kind"] == "pong"
            publish(log, "jobs", *({"n": n} for n in range(2_500)))
            got = [await told_of(socket, "bus.event") for _ in range(2_500)]
            assert [frame["payload"]["n"] for frame in got] == list(range(2_500))

    running(run)


def test_what_git_pushes_comes_message_by_message(log, tmp_path):
    publish(log, "jobs", {"n": 0})
    clone = tmp_path / "clone.git"
    _git(log, "clone", "--mirror", "--quiet", str(log.store.place.git_dir), str(clone))
    with open_repository(clone) as elsewhere:
        publish(elsewhere, "jobs", *({"n": n} for n in range(1, 41)))

    async def run() -> None:
        async with RepositoryStream(log) as stream, Following(stream.url, topics=["jobs"]) as frames:
            push = ["push", "--quiet", str(log.store.place.git_dir), "refs/gatos/messages/jobs/head"]
            with open_repository(clone) as elsewhere:
                await asyncio.to_thread(_git, elsewhere, *push)
            assert [frame.payload["n"] async for frame in _first(frames, 40)] == list(range(1, 41))

    running(run)


def test_only_new_appends_of_others_are_seen(log, tmp_path):
    publish(log, "jobs", {"n": "old"})

    async def run() -> None:
        async with RepositoryStream(log) as stream, Following(stream.url, topics=["**"]) as frames:
            with open_repository(tmp_path / "log.git") as other:
                publish(other, "jobs", {"n": 1}, {"n": 2})
                publish(other, "fresh/topic", {"n": 3})
            got = [frame async for frame in _first(frames, 3)]
            assert {(frame.topic, frame.payload["n"]) for frame in got} == {
                ("jobs", 1),
                ("jobs", 2),
                ("fresh/topic", 3),
            }

    running(run)


def test_refs_of_every_kind_are_reported(log):
    async def run() -> None:
        async with RepositoryStream(log) as stream, Following(stream.url, refs=["refs/gatos/**"]) as frames:
            receipt = log.append("deploy", {"type": "t", "payload": {}})
            (head,) = [frame async for frame in _first(frames, 1)]
            assert (head.ref, head.old, head.new) == (
                "refs/gatos/shiplog/deploy/head",
                None,
                receipt.commit,
            )
            log.store.move_head("refs/gatos/state/public/ui", None, receipt.commit)
            (state,) = [frame async for frame in _first(frames, 1)]
            assert state.ref == "refs/gatos/state/public/ui"
            await asyncio.to_thread(_git, log, "pack-refs", "--all")
            log.store.drop_head("refs/gatos/state/public/ui", receipt.commit)
            (gone,) = [frame async for frame in _first(frames, 1)]
            assert (gone.ref, gone.old, gone.new) == ("refs/gatos/state/public/ui", receipt.commit, None)

    running(run)


def _git(log: GitRepository, *arguments: str) -> None:
    import subprocess

    subprocess.run(["git", "--git-dir", str(log.store.place.git_dir), *arguments], check=True)


def test_a_client_comes_back_and_misses_nothing(log):
    async def run() -> None:
        async with RepositoryStream(log) as stream, Following(stream.url, topics=["jobs"]) as frames:
            publish(log, "jobs", {"n": 1})
            assert [frame.payload["n"] async for frame in _first(frames, 1)] == [1]
            for n in range(2, 6):
                for connection in stream.server.connections:
                    connection.close(1001, "on purpose")
                stream.server.wake()
                publish(log, "jobs", {"n": n})
                assert [frame.payload["n"] async for frame in _first(frames, 1)] == [n]

    running(run)


def test_a_new_run_of_the_server_is_told_apart_and_live_frames_follow(log):
    async def run() -> None:
        async with RepositoryStream(log) as first:
            frames = Following(first.url, topics=["jobs"])
            await frames.__aenter__()
            publish(log, "jobs", {"n": 1})
            assert [frame.payload["n"] async for frame in _first(frames, 1)] == [1]
            port = first.server.port
        publish(log, "jobs", {"n": "while nobody listened"})
        async with RepositoryStream(log, port=port) as second:
            async with asyncio.timeout(LIMIT_S):
                lost = await anext(frames)
            assert isinstance(lost, Lost)
            assert lost.reason == "restarted"
            assert frames.subscriber.stream == second.window.stream
            publish(log, "jobs", {"n": 2})
            assert [frame.payload["n"] async for frame in _first(frames, 1)] == [2]
            await frames.__aexit__(None, None, None)

    running(run)


def test_a_plain_program_follows_without_asyncio(log):
    started, stop = threading.Event(), threading.Event()
    urls: list[str] = []

    def serve() -> None:
        async def run() -> None:
            async with RepositoryStream(log) as stream:
                urls.append(stream.url)
                started.set()
                await aside(stop.wait, LIMIT_S)

        asyncio.run(run())

    served = Crew(1).submit(serve)
    try:
        assert started.wait(LIMIT_S)
        with follow(urls[0], topics=["jobs"]) as frames:
            publish(log, "jobs", *({"n": n} for n in range(1_500)))  # more than there is credit for at first
            assert [bus_event(next(frames)).payload["n"] for _ in range(1_500)] == list(range(1_500))
            assert frames.seq is not None
    finally:
        stop.set()
        served.result(LIMIT_S)


# What is refused


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("hello", "expected"),
        ("[]", "object"),
        ('{"op":"subscribe"}', "/op"),
        ('{"op":"sub","op":"sub"}', "duplicate key"),
        ('{"op":"sub","refs":["heads/x"]}', "begin with refs/"),
        ('{"op":"sub","topics":["a..b"]}', "a part is empty"),
        ('{"op":"sub","sinceSeq":-1}', "/sinceSeq"),
        (json.dumps({"op": "sub", "refs": [f"refs/gatos/{n}" for n in range(21)]}), "21 ref patterns"),
        (json.dumps({"op": "sub", "topics": [f"t{n}" for n in range(21)]}), "21 topic patterns"),
        (b'{"op":"sub"}', "binary"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_bad_input_is_answered_with_a_reason_and_1008(log, message, reason):
    async def run() -> None:
        async with RepositoryStream(log) as stream, client.connect(stream.url) as socket:
            await told(socket)
            await socket.send(message)
            error = await told(socket)
            assert (error["kind"], error["code"]) == ("error", "INVALID_SUB")
            assert reason in error["message"]
            assert (await closed(socket))[0] == 1008

    running(run)


def test_the_reason_also_reaches_a_client_that_spoke_before_it_listened(log):
    async def run() -> None:
        async with RepositoryStream(log) as stream:
            for _ in range(20):
                async with client.connect(stream.url) as socket:
                    await socket.send("null")
                    assert (await told(socket))["kind"] == "ack"
                    assert (await told(socket))["code"] == "INVALID_SUB"
                    assert (await closed(socket))[0] == 1008
            with pytest.raises(Invalid, match=r"refuses: .* at most 20"):
                async with Following(stream.url, topics=[f"t{n}" for n in range(21)]) as frames:
                    await anext(frames)

    running(run)


def test_a_huge_frame_closes_with_1009_and_harms_nobody(log):
    async def run() -> None:
        async with RepositoryStream(log) as stream, Following(stream.url, topics=["jobs"]) as frames:
            async with client.connect(stream.url, max_size=None) as socket:
                await told(socket)
                await socket.send('{"op":"sub","topics":["' + "x" * (1 << 20) + '"]}')
                assert (await closed(socket))[0] == 1009
            publish(log, "jobs", {"n": 1})
            assert [frame.payload["n"] async for frame in _first(frames, 1)] == [1]

    running(run)


def test_gone_or_unknown_seq_is_expired_then_live(log):
    async def run() -> None:
        async with RepositoryStream(log, bounds=WindowBounds(frames_max=5)) as stream:
            publish(log, "jobs", *({"n": n} for n in range(20)))
            await soon(lambda: stream.window.seq == stream.window.base + 21)
            for since in (stream.window.base + 3, stream.window.seq + 1_000, 3):
                async with client.connect(stream.url) as socket:
                    await told(socket)
                    await socket.send(json.dumps({"op": "sub", "topics": ["jobs"], "sinceSeq": since}))
                    error = await told(socket)
                    assert (error["code"], error["missingSeq"]) == ("REPLAY_EXPIRED", since + 1)
                    first = await told(socket)  # a frame that is still kept, and asked for
                    assert error["oldestSeq"] <= first["seq"] <= error["oldestSeq"] + 1
                    publish(log, "jobs", {"n": since})
                    while (await told(socket))["payload"] != {"n": since}:
                        pass

    running(run)


def test_other_paths_are_not_found(log):
    async def run() -> None:
        async with RepositoryStream(log) as stream:
            for path in ("/", "/api/v1/streams", "/api/v1/stream/x"):
                with pytest.raises(InvalidStatus) as refused:
                    await client.connect(f"ws://127.0.0.1:{stream.server.port}{path}")
                assert refused.value.response.status_code == 404
            async with client.connect(stream.url + "?x=1"):
                pass
            with pytest.raises(NotFound):
                async with Following(f"ws://127.0.0.1:{stream.server.port}/elsewhere", topics=["jobs"]):
                    pass

    running(run)


def test_plain_http_is_answered_as_http(log):
    async def run() -> None:
        async with RepositoryStream(log) as stream:
            for path, status in (("/", b"404"), ("/api/v1/stream", b"426")):
                reader, writer = await asyncio.open_connection("127.0.0.1", stream.server.port)
                writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                assert (await reader.readline()).split()[1] == status
                writer.close()
                await writer.wait_closed()

    running(run)


def test_http_refusals_are_problem_json(log):
    upgrade = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    ours = f"{upgrade}Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"

    async def asked(port: int, path: str, headers: str) -> tuple[int, dict[str, str], dict[str, Any]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n".encode())
        head, _, body = (await asyncio.wait_for(reader.read(), 30)).decode().partition("\r\n\r\n")
        writer.close()
        await writer.wait_closed()
        status, *lines = head.split("\r\n")
        found = dict(line.split(": ", 1) for line in lines)
        return int(status.split()[1]), found, json.loads(body)

    async def run() -> None:
        async with RepositoryStream(log, token="right", connections_max=1) as stream:
            held = await client.connect(stream.url, additional_headers={"Authorization": "Bearer right"})
            await held.send('{"kind":"ping"}')
            await told(held)
            await told(held)
            right = f"{ours}Authorization: Bearer right\r\n"
            for path, headers, expected in (
                ("/nowhere", ours, 404),
                ("/api/v1/stream", ours, 401),
                ("/api/v1/stream", f"{ours}Origin: https://evil.example\r\n", 403),
                ("/api/v1/stream", right, 503),
            ):
                status, found, problem = await asked(stream.server.port, path, headers)
                assert (status, found["Content-Type"]) == (expected, "application/problem+json")
                assert problem["status"] == expected
                assert problem["detail"] and problem["advice"] and problem["code"]
            await held.close()
            plain = await asked(stream.server.port, "/api/v1/stream", "Authorization: Bearer right\r\n")
            assert (plain[0], plain[1]["Upgrade"], plain[2]["status"]) == (426, "websocket", 426)

    running(run)


def test_a_web_page_of_somebody_else_may_not_connect(log):
    async def run() -> None:
        async with RepositoryStream(log, origins=["https://ops.example"]) as stream:
            for origin in ("https://evil.example", "null", "http://127.0.0.1"):
                with pytest.raises(InvalidStatus) as refused:
                    await client.connect(stream.url, origin=Origin(origin))
                assert refused.value.response.status_code == 403
            async with client.connect(stream.url, origin=Origin("https://ops.example")) as socket:
                assert (await told(socket))["kind"] == "ack"

    running(run)


def test_a_token_is_asked_of_everybody(log):
    async def run() -> None:
        async with RepositoryStream(log, token="right") as stream:
            for token in (None, "wrong", ""):
                with pytest.raises(Denied):
                    async with Following(stream.url, topics=["jobs"], token=token):
                        pass
            async with Following(stream.url, topics=["jobs"], token="right") as frames:
                publish(log, "jobs", {"n": 1})
                assert [frame.payload["n"] async for frame in _first(frames, 1)] == [1]

    running(run)


def test_all_origins_are_checked(log):
    async def status(stream: RepositoryStream, *headers: tuple[str, str]) -> int:
        try:
            async with client.connect(stream.url, additional_headers=headers):
                return 101
        except InvalidStatus as error:
            return error.response.status_code

    async def run() -> None:
        ours, theirs = ("Origin", "https://ours.example"), ("Origin", "https://theirs.example")
        token = ("Authorization", "bearer right")
        async with RepositoryStream(log, token="right", origins=[ours[1]]) as stream:
            assert await status(stream, token, ours) == 101
            assert await status(stream, token, ours, theirs) == 403
            assert await status(stream, token, token) == 401
            assert await status(stream, ("Authorization", "Bearer right\xff")) == 401
            assert await status(stream, ("Authorization", "Basic right")) == 401

    running(run)


def test_more_connections_than_allowed_are_turned_away(log):
    async def run() -> None:
        async with (
            RepositoryStream(log, connections_max=2) as stream,
            client.connect(stream.url) as one,
            client.connect(stream.url) as two,
        ):
            for each in (one, two):
                await told(each)
                await each.send('{"kind":"ping"}')  # a client that has sent nothing would make room
                assert (await told(each))["kind"] == "pong"
            with pytest.raises(InvalidStatus) as refused:
                await client.connect(stream.url)
            assert refused.value.response.status_code == 503

    running(run)


def test_a_client_says_what_is_wrong_with_what_it_was_given(log):
    async def run() -> None:
        with pytest.raises(InvalidName):
            Following("ws://127.0.0.1:1", topics=["a..b"])
        with pytest.raises(Invalid, match="nothing to follow"):
            Following("ws://127.0.0.1:1")
        with pytest.raises(Unavailable):
            async with Following("ws://127.0.0.1:1", topics=["jobs"]):
                pass
        many = [f"t{n}" for n in range(21)]
        async with RepositoryStream(log) as stream, Following(stream.url, topics=many) as frames:
            with pytest.raises(Invalid, match="21 topic patterns"):
                await anext(frames)

    running(run)


# What may be seen


def policy(log: GitRepository, document: dict[str, Any]) -> None:
    changed = log.store.place.home / "policy.new"  # renamed: a server that reads half of it shows nothing
    changed.write_text(json.dumps(document), encoding="utf-8")
    changed.replace(log.store.place.home / "policy.json")


def errors(items: list[Any]) -> list[ErrorFrame]:
    return [item for item in items if isinstance(item, ErrorFrame)]


def test_forbidden_topics_not_sent_reported_once(log):
    policy(
        log,
        {
            "stream": {
                "topics": {"deny": ["payroll.**"]},
                "refs": {"deny": ["refs/gatos/messages/payroll/**"]},
            }
        },
    )

    async def run() -> None:
        async with (
            RepositoryStream(log, look_s=0.01) as stream,
            Following(stream.url, topics=["**"], refs=["refs/gatos/**"]) as frames,
        ):
            for n in range(3):
                publish(log, "payroll/march", {"salary": n})
                publish(log, "jobs", {"n": n})
            items: list[Item] = []
            while [type(item) for item in items].count(BusEvent) < 3 or len(errors(items)) < 2:
                async with asyncio.timeout(LIMIT_S):
                    items.append(await anext(frames))
            publish(log, "jobs", {"n": 3})
            while not isinstance(items[-1], BusEvent) or items[-1].payload["n"] < 3:
                items.append(await anext(frames))
            assert sorted((error.code, error.ref or error.topic) for error in errors(items)) == [
                ("POLICY_DENIED", "**"),
                ("POLICY_DENIED", "refs/gatos/**"),
            ]
            assert "payroll" not in repr(items)

    running(run)


def test_a_forbidden_name_is_refused_at_once_and_the_rest_goes_on(log):
    policy(log, {"stream": {"topics": {"allow": ["jobs.**", "jobs"]}}})

    async def run() -> None:
        async with (
            RepositoryStream(log) as stream,
            Following(stream.url, topics=["payroll", "jobs"]) as frames,
        ):
            async with asyncio.timeout(LIMIT_S):
                error = await anext(frames)
            assert isinstance(error, ErrorFrame)
            assert (error.code, error.topic) == ("POLICY_DENIED", "payroll")
            publish(log, "payroll", {"salary": 1})
            publish(log, "jobs", {"n": 1})
            assert [frame.payload async for frame in _first(frames, 1)] == [{"n": 1}]

    running(run)


def test_private_members_recorded_before_the_rule_are_not_shown(log, monkeypatch):
    publish(log, "orders", {"id": 0})

    async def run() -> None:
        async with RepositoryStream(log) as stream, Following(stream.url, topics=["orders"]) as frames:
            # Other software writes here too, and knows of no rule.
            with open_repository(log.store.place.git_dir) as other:
                monkeypatch.setattr(other.privacy, "policy", lambda: None)
                policy(log, {"privacy": {"rules": [{"select": "**.email", "action": "pointerize"}]}})
                publish(other, "orders", {"id": 1, "customer": {"email": "ada@example.test", "name": "Ada"}})
            got = [frame.payload async for frame in _first(frames, 1)]
            assert got == [{"id": 1, "customer": {"name": "Ada"}}]

    running(run)


@pytest.mark.parametrize("text", ["{", '{"stream": {"topics": {"deny": ["a..b"]}}}', '{"streams": {}}'])
def test_rules_nobody_can_read_let_nothing_through(log, text):
    (log.store.place.home / "policy.json").write_text(text, encoding="utf-8")

    async def run() -> None:
        async with RepositoryStream(log) as stream, Following(stream.url, refs=["refs/gatos/**"]) as frames:
            log.store.move_head("refs/gatos/state/x", None, "0" * 39 + "1")
            async with asyncio.timeout(LIMIT_S):
                item = await anext(frames)
            assert isinstance(item, ErrorFrame)
            assert item.code == "POLICY_DENIED"

    running(run)


@pytest.mark.slow
def test_rewritten_topic_reported_until_accepted(log):
    publish(log, "jobs", {"n": 0})
    old = log.store.head("refs/gatos/messages/jobs/head")
    assert old is not None

    async def run() -> None:
        async with RepositoryStream(log) as stream, Following(stream.url, topics=["jobs"]) as frames:
            publish(log, "jobs", {"n": 1})
            assert [frame.payload["n"] async for frame in _first(frames, 1)] == [1]
            now = log.store.head("refs/gatos/messages/jobs/head")
            log.store.move_head("refs/gatos/messages/jobs/head", now, old)
            async with asyncio.timeout(LIMIT_S):
                error = await anext(frames)
            assert isinstance(error, ErrorFrame)
            assert (error.code, error.topic) == ("HISTORY_REWRITTEN", "jobs")
            with open_repository(log.store.place.git_dir) as other:
                await asyncio.to_thread(other.lines.accept, MESSAGES, "jobs", "test")
                await asyncio.to_thread(publish, other, "jobs", {"n": 2})
            items: list[Item] = []
            while not items or not isinstance(items[-1], BusEvent):
                async with asyncio.timeout(LIMIT_S):
                    items.append(await anext(frames))
            assert items[-1].payload == {"n": 2}

    running(run)


# Heartbeat and slow readers


@pytest.mark.slow
def test_pings_come_and_silence_ends_the_connection(log):
    async def run() -> None:
        limits = StreamLimits(ping_ms=50, pong_ms=3_000)  # long enough to answer on a loaded machine
        async with RepositoryStream(log, limits=limits) as stream, client.connect(stream.url) as socket:
            await told(socket)
            for _ in range(3):
                assert (await told(socket))["kind"] == "ping"
                await socket.send('{"kind":"pong"}')
            with pytest.raises(ConnectionClosed):
                while True:
                    await told(socket)
            assert await closed(socket) == (1008, "pong timeout")

    running(run)


def _was_heard_after(connection: Connection, before_ms: int) -> bool:
    return connection._heard_ms != before_ms


def test_client_answers_pings_while_owner_is_busy(log):
    async def run() -> None:
        limits = StreamLimits(ping_ms=20, pong_ms=20_000)
        async with RepositoryStream(log, limits=limits) as stream, Following(stream.url, topics=["jobs"]):
            await soon(lambda: len(stream.server.connections) == 1)
            (connection,) = stream.server.connections
            for _ in range(10):  # nobody asks for the next frame all the while
                before = connection._heard_ms
                await soon(partial(_was_heard_after, connection, before))
            assert connection.closing is None

    running(run)


def test_stalled_reader_delays_nobody_hears_gap(log):
    async def run() -> None:
        async with (
            RepositoryStream(
                log, bounds=WindowBounds(frames_max=200), limits=StreamLimits(outstanding_max=50)
            ) as stream,
            Following(stream.url, topics=["jobs"]) as brisk,
            client.connect(stream.url) as slow,
        ):
            await told(slow)
            await slow.send('{"op":"sub","topics":["jobs"]}')
            await slow.send('{"op":"credit","credit":0}')  # it speaks for itself, and wants no more
            await slow.send('{"kind":"ping"}')
            assert await told(slow) == {"kind": "pong"}
            publish(log, "jobs", *({"n": n} for n in range(1_000)))
            got = [frame.payload["n"] async for frame in _first(brisk, 1_000)]
            assert got == list(range(1_000))
            seen = []
            with pytest.raises(ConnectionClosed):
                while True:
                    seen.append(await told(slow))
            events = [frame for frame in seen if frame["kind"] == "bus.event"]
            assert [frame["payload"]["n"] for frame in events] == list(range(50))
            assert events[-1]["credit"] == 0
            assert (seen[-1]["code"], seen[-1]["missingSeq"]) == ("SLOW_READER", events[-1]["seq"] + 1)
            assert (await closed(slow))[0] == 1008

    running(run)


def test_a_socket_nobody_reads_holds_a_bounded_amount(log):
    async def run() -> None:
        async with (
            RepositoryStream(log, bounds=WindowBounds(bytes_max=4 << 20)) as stream,
            client.connect(stream.url, max_queue=1) as deaf,
            Following(stream.url, topics=["jobs"]) as brisk,
        ):
            await told(deaf)
            await deaf.send('{"op":"sub","topics":["jobs"]}')
            await soon(lambda: any(each._subscriptions for each in stream.server.connections))
            text = "x" * 200_000
            for n in range(100):  # 20 MB, of which it takes none
                publish(log, "jobs", {"n": n, "text": text})
            assert [frame.payload["n"] async for frame in _first(brisk, 100)] == list(range(100))
            assert (
                sum(stream.window[seq].size for seq in range(stream.window.oldest, stream.window.seq + 1))
                <= 4 << 20
            )
            await soon(lambda: any(each.closing is not None for each in stream.server.connections))
            deaf.transport.abort()

    running(run)


@pytest.mark.slow
def test_stalled_reader_does_not_block_stop(log, monkeypatch):
    monkeypatch.setattr(server, "STUCK_S", 3_600.0)

    async def run() -> None:
        async with client_that_never_reads() as connect:
            async with RepositoryStream(log) as stream:
                await connect(stream)
                for n in range(24):  # more than the buffers of two sockets hold
                    await asyncio.to_thread(publish, log, "jobs", {"n": n, "text": "x" * 900_000})
                stream.look()
                await soon(lambda: any(each.sent for each in stream.server.connections))
            assert not stream.server.connections

    running(run)


@contextlib.asynccontextmanager
async def client_that_never_reads() -> Any:
    sockets: list[asyncio.StreamWriter] = []

    async def connect(stream: RepositoryStream) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", stream.server.port, limit=1_024)
        sockets.append(writer)
        lines = ["GET /api/v1/stream HTTP/1.1", "Host: x", "Upgrade: websocket", "Connection: Upgrade"]
        lines += ["Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "", ""]
        message = b'{"op":"sub","topics":["**"]}'
        writer.write("\r\n".join(lines).encode() + bytes((0x81, 0x80 | len(message))) + bytes(4) + message)
        await soon(lambda: any(each._subscriptions for each in stream.server.connections))
        assert reader is not None

    try:
        yield connect
    finally:
        for each in sockets:
            each.transport.abort()


def test_hundreds_of_connections_get_every_frame(log):
    async def run() -> None:
        async with RepositoryStream(log) as stream:
            followers = [Following(stream.url, topics=["jobs"]) for _ in range(300)]
            for start in range(0, 300, 50):
                await asyncio.gather(*(each.__aenter__() for each in followers[start : start + 50]))
            await soon(lambda: sum(bool(each._subscriptions) for each in stream.server.connections) == 300)
            publish(log, "jobs", *({"n": n} for n in range(20)))

            async def read(frames: Following) -> list[int]:
                return [frame.payload["n"] async for frame in _first(frames, 20)]

            assert await asyncio.gather(*map(read, followers)) == [list(range(20))] * 300
            await asyncio.gather(*(each.__aexit__(None, None, None) for each in followers))
            await soon(lambda: not stream.server.connections)
            assert not stream.window.readers

    running(run)


# What goes wrong behind the stream


def test_members_that_become_private_are_shown_to_nobody_who_comes_back(log):
    policy = log.store.place.home / "policy.json"

    async def run() -> None:
        async with RepositoryStream(log) as stream:
            async with Following(stream.url, topics=["jobs"]) as frames:
                publish(log, "jobs", {"n": 1, "password": "hush"})
                (first,) = [frame async for frame in _first(frames, 1)]
                assert first.payload["password"] == "hush"
                changed = policy.with_suffix(".new")  # renamed: a server that reads half of it shows nothing
                changed.write_text('{"privacy":{"rules":[{"select":"**.password","action":"redact"}]}}')
                changed.replace(policy)
                publish(log, "jobs", {"n": 2, "password": "hush"})
                (second,) = [frame async for frame in _first(frames, 1)]  # it had taken all, so it goes on
                assert second.payload == {"n": 2}
            async with client.connect(stream.url) as socket:
                await socket.send(json.dumps({"op": "sub", "topics": ["jobs"], "sinceSeq": first.seq - 1}))
                assert (await told_of(socket, "error"))["code"] == "REPLAY_EXPIRED"
            async with Following(stream.url, topics=["jobs"], since_seq=second.seq - 1) as frames:
                assert [frame.payload async for frame in _first(frames, 1)] == [{"n": 2}]

    running(run)


def test_events_during_rule_change_come_later(log):
    policy = log.store.place.home / "policy.json"

    async def run() -> None:
        async with (
            RepositoryStream(log, look_s=0.01) as stream,
            Following(stream.url, topics=["**"], refs=["refs/gatos/**"]) as frames,
        ):
            await soon(lambda: any(each._subscriptions for each in stream.server.connections))
            for n in range(5):
                policy.write_text("", encoding="utf-8")  # as `cat > policy.json` begins
                await soon(lambda: not stream.server.access.sees("topic", "jobs"))
                elsewhere = log.store.place.home / "aside.json"
                policy.rename(elsewhere)  # or we could not publish either
                publish(log, "jobs", {"n": n})
                elsewhere.rename(policy)
                policy.write_text('{"stream":{"topics":{"deny":["payroll.**"]}}}', encoding="utf-8")
                got: list[Any] = []
                while len(got) < 2:
                    async with asyncio.timeout(LIMIT_S):
                        item = await anext(frames)
                    if not isinstance(item, ErrorFrame):  # it may be told that something is withheld
                        got.append(item)
                assert (got[0].ref, got[1].payload) == ("refs/gatos/messages/jobs/head", {"n": n})

    running(run)


def test_a_fault_nobody_thought_of_does_not_end_the_watch(log, monkeypatch):
    faults = [MemoryError("none left"), KeyError("what"), OSError(24, "Too many open files")]
    real = StreamSource.look

    def look(source: StreamSource) -> list[RefUpdate]:
        if faults:
            raise faults.pop()
        return real(source)

    async def run() -> None:
        async with (
            RepositoryStream(log, look_s=0.01) as stream,
            Following(stream.url, topics=["**"]) as frames,
        ):
            monkeypatch.setattr(StreamSource, "look", look)
            await soon(lambda: not faults)  # a look under way might see the message before them
            publish(log, "jobs", {"n": 1})
            assert [frame.payload["n"] async for frame in _first(frames, 1)] == [1]

    running(run)


def test_messages_before_fault_sent_once(log, monkeypatch):
    faults = [OSError(24, "Too many open files"), OSError(5, "Input/output error")]
    real = StreamSource.frame

    def frame(source: StreamSource, topic: str, event: Any) -> BusEvent:
        if faults and event.payload["n"] == 7:
            raise faults.pop()
        return real(source, topic, event)

    async def run() -> None:
        monkeypatch.setattr(StreamSource, "frame", frame)
        async with (
            RepositoryStream(log, look_s=0.01) as stream,
            Following(stream.url, topics=["**"]) as frames,
        ):
            publish(log, "jobs", *({"n": n} for n in range(20)))
            assert [frame.payload["n"] async for frame in _first(frames, 20)] == list(range(20))
            assert not faults

    running(run)
