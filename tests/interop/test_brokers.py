"""Bridges to message brokers: real NATS and Redis servers, killed bridges, other publishers."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nats
import pytest
from tests import forking
from tests.tools import skip_or_fail
from tests.unit.cli.conftest import living_in
from tests.waiting import LIMIT_S

import ropewalk
from ropewalk.bridge.brokers import forms
from ropewalk.bridge.brokers.loops import Subscriber, find_log
from ropewalk.bridge.brokers.nats import NatsBroker
from ropewalk.bridge.brokers.port import START, Broker, Moved, Outgoing
from ropewalk.bridge.brokers.redis import RedisBroker
from ropewalk.bridge.brokers.run import Bridge
from ropewalk.bridge.mirror import mirror
from ropewalk.bridge.progress import Progress, list_progress
from ropewalk.errors import Unavailable
from ropewalk.gitlog.core.envelope import Draft
from ropewalk.gitlog.core.layout import MESSAGES
from ropewalk.gitlog.repository.opening import open_repository

PROCESSES: dict[str, subprocess.Popen[bytes]] = {}  # by URL
SERVERS = {"nats": "nats-server", "redis": "redis-server"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(params=sorted(SERVERS))
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Return the URL of a server that keeps its streams on disk."""
    with started(request.param, tmp_path / "server") as url:
        yield url


@contextmanager
def started(kind: str, folder: Path, *options: str) -> Iterator[str]:
    program = shutil.which(SERVERS[kind]) or shutil.which(f"/usr/sbin/{SERVERS[kind]}")
    if program is None:
        skip_or_fail(f"{SERVERS[kind]} is not installed (Debian package of that name)")
    port = free_port()
    folder.mkdir()
    command = {
        "nats": [program, "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(folder)],
        "redis": [
            program,
            "--bind",
            "127.0.0.1",
            "--port",
            str(port),
            "--dir",
            str(folder),
            "--appendonly",
            "yes",
        ],
    }[kind]
    process = subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + LIMIT_S
        while not listens(port):
            assert time.monotonic() < until and process.poll() is None
            time.sleep(0.02)
        url = f"{kind}://127.0.0.1:{port}"
        PROCESSES[url] = process
        yield url
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        process.wait(LIMIT_S)


async def connect(url: str) -> Broker:
    if url.startswith("nats"):
        return await NatsBroker.connect(url, "jobs.pending")
    return await RedisBroker.connect(url, "jobs.pending")


def make(tmp_path: Path, name: str = "log") -> Path:
    ropewalk.init(tmp_path / name).close()
    return tmp_path / name


def publish(path: Path, numbers: range) -> None:
    with open_repository(path) as log:
        drafts = [Draft({"ns": "", "type": "job.made", "payload": {"n": n}}) for n in numbers]
        for outcome in log.append_all("jobs", drafts, layout=MESSAGES):
            assert not isinstance(outcome, Exception), outcome


def bridge(path: Path, url: str, *options: str) -> list[str]:
    kind = url.partition(":")[0]
    place = ["--subject" if kind == "nats" else "--stream", "jobs.pending"]
    head = ["--repo", str(path), "bridge", kind, "--url", url]
    return [*head, "--log", "messages/jobs", *place, "--json", *options]  # the last of equal options counts


def once(path: Path, url: str, *options: str) -> dict[str, int]:
    done = living_in(path.parent)(*bridge(path, url, "--once", *options))
    assert done.code == 0, done.err
    return dict(done.json)


def streamed(url: str) -> list[int]:
    """Return the numbers of the jobs in the stream, in its order."""

    async def read() -> list[int]:
        broker = await connect(url)
        found: list[int] = []
        at = START
        while batch := await broker.fetch(at, 256, 0.5):
            at = batch[-1].position
            found += [json.loads(each.body)["payload"]["n"] for each in batch]
        await broker.close()
        return found

    return asyncio.run(read())


def recorded(path: Path) -> list[int]:
    with open_repository(path) as log:
        if "jobs" not in log.topics(MESSAGES):
            return []
        return [event.payload.get("n", -1) for event in log.events("jobs", layout=MESSAGES)]


def test_events_reach_the_stream_once(server, tmp_path):
    path = make(tmp_path)
    publish(path, range(600))
    assert once(path, server)["published"] == 600
    assert once(path, server)["published"] == 0
    publish(path, range(600, 605))
    assert once(path, server)["published"] == 5
    assert streamed(server) == list(range(605))


def test_lost_progress_file_publishes_nothing_twice(server, tmp_path):
    path = make(tmp_path)
    publish(path, range(300))
    once(path, server)
    for progress in path.rglob("progress.json"):
        progress.unlink()
    assert once(path, server)["published"] == 0
    assert streamed(server) == list(range(300))


def test_messages_come_in_once_and_in_order(server, tmp_path):
    there, here = make(tmp_path, "there"), make(tmp_path, "here")
    publish(there, range(300))
    once(there, server)
    assert once(here, server, "--direction", "in")["received"] == 300
    assert once(here, server, "--direction", "in")["received"] == 0
    for progress in here.rglob("progress.json"):
        progress.unlink()
    assert once(here, server, "--direction", "in")["received"] == 0
    with open_repository(here) as log:
        events = list(log.events("jobs", layout=MESSAGES))
    assert [each.payload["payload"]["n"] for each in events] == list(range(300))
    assert all(
        each.envelope["refs"]["broker"].startswith(("JOBS_PENDING@", "jobs.pending@")) for each in events
    )
    report = ropewalk.verify(here)
    assert report.ok


@pytest.mark.slow
def test_both_directions_make_no_loop(server, tmp_path):
    one, two = make(tmp_path, "one"), make(tmp_path, "two")
    publish(one, range(5))
    publish(two, range(5, 10))
    for _ in range(3):
        once(one, server, "--direction", "both")
        once(two, server, "--direction", "both")
    assert len(streamed(server)) == 10
    assert len(recorded(one)) == len(recorded(two)) == 10


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_bridges_lose_and_double_nothing(server, tmp_path, kills):
    """SIGKILL at random moments of publishing and receiving."""
    chance = random.Random(22)
    there, here = make(tmp_path, "there"), make(tmp_path, "here")
    for kill in range(kills):
        publish(there, range(kill * 200, kill * 200 + 200))
        path, option = ((there, "out"), (here, "in"))[kill % 2]
        process = forking.Popen[bytes](
            bridge(path, server, "--direction", option),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(chance.uniform(0.05, 0.7))
        process.send_signal(signal.SIGKILL)
        process.wait(LIMIT_S)
    once(there, server)
    once(here, server, "--direction", "in")
    assert streamed(server) == list(range(kills * 200))
    with open_repository(here) as log:
        found = [event.payload["payload"]["n"] for event in log.events("jobs", layout=MESSAGES)]
    assert found == list(range(kills * 200))


def test_batch_behind_another_publisher_is_refused_whole(server):
    async def act() -> None:
        broker = await connect(server)
        first = [Outgoing(f"a{n}", b"{}", {}) for n in range(3)]
        end = await broker.publish(first, START)
        with pytest.raises(Moved):
            await broker.publish([Outgoing("b", b"{}", {})], START)
        assert await broker.last() == end
        await broker.close()

    asyncio.run(act())


def test_full_nats_stream_keeps_a_prefix(tmp_path):
    """A message that the server refuses stops those behind it, and so does a stream that is gone."""

    async def act(url: str) -> None:
        broker: Any = await connect(url)
        await broker._context.update_stream(
            name=broker.stream, subjects=[broker.subject], max_msgs=2, discard="new"
        )
        batch = [Outgoing(f"a{n}", b"%d" % n, {}) for n in range(4)]
        with pytest.raises(Unavailable, match="maximum messages exceeded"):
            await broker.publish(batch, START)
        assert [each.body for each in await broker.fetch(START, 9, 0.2)] == [b"0", b"1"]
        await broker._context.delete_stream(broker.stream)
        with pytest.raises(Unavailable, match="no stream has the subject"):
            await broker.publish(batch[:1], START)
        await broker.close()

    with started("nats", tmp_path / "server") as url:
        asyncio.run(act(url))


def test_halted_server_is_not_an_empty_stream(server):
    """A bridge that takes a slow answer for the end of the stream publishes again what is there."""

    async def act() -> list[int]:
        broker = await connect(server)
        end = await broker.publish([Outgoing(f"m{n}", b"%d" % n, {}) for n in range(20)], START)
        first = await broker.fetch(START, 10, 2.0)
        PROCESSES[server].send_signal(signal.SIGSTOP)
        os.waitpid(PROCESSES[server].pid, os.WUNTRACED)  # returns once it is stopped
        rest = asyncio.create_task(broker.fetch(first[-1].position, 10, 0.2))
        await asyncio.sleep(0.5)
        PROCESSES[server].send_signal(signal.SIGCONT)
        found = [*first, *await rest]
        assert not await broker.fetch(end, 10, 0.2)
        await broker.close()
        return [int(each.body) for each in found]

    assert asyncio.run(act()) == list(range(20))


def test_unrecordable_messages_leave_a_record(server, tmp_path):
    here = make(tmp_path, "here")
    huge = Outgoing("huge", b"[" + b"1," * 300_000 + b"1]", {})
    odd = [
        Outgoing("odd", b"\xff\x00", {}),
        Outgoing("key", b'{"a": "AKIA' + b'QRSTUVWX23456Z7A"}', {}),
        huge,
    ]

    async def act() -> None:
        broker = await connect(server)
        await broker.publish([*odd, Outgoing("good", b'{"n": 1}', {})], START)
        await broker.close()

    asyncio.run(act())
    assert once(here, server, "--direction", "in")["received"] == 4
    with open_repository(here) as log:
        events = list(log.events("jobs", layout=MESSAGES))
    assert events[0].type == "broker.message"
    assert events[0].payload == {"data_base64": "/wA="}
    assert events[1].type == "bridge.refused" and "AKIA" not in json.dumps(events[1].payload)
    assert events[-1].payload == {"n": 1}


def test_forged_positions_and_headers_are_not_believed(server, tmp_path):
    there, here = make(tmp_path, "there"), make(tmp_path, "here")
    publish(there, range(3))
    once(there, server)
    with open_repository(there) as log:
        last = list(log.events("jobs", layout=MESSAGES))[-1]
    origin = (next(there.rglob("bridges")) / "origin").read_text().strip()
    forged = {forms.PATH: origin, forms.LOG: "messages/jobs", forms.CONTENT_ID: last.content_id}

    async def act() -> None:
        broker = await connect(server)
        bodies = [
            Outgoing(f"f{n}", b"{}", {**forged, forms.ULID: ulid})
            for n, ulid in enumerate(("7" * 26, "x", ""))
        ]
        await broker.publish(bodies, await broker.last())
        await broker.close()

    asyncio.run(act())
    publish(there, range(3, 5))
    for progress in there.rglob("progress.json"):
        progress.unlink()
    assert once(there, server)["published"] == 2
    with open_repository(here) as log:
        for ref in ("JOBS_PENDING:99999999", "jobs.pending:99999999-0", "JOBS_PENDING:" + "9" * 5000):
            log.append(
                "jobs", {"ns": "", "type": "t", "payload": {}, "refs": {"broker": ref}}, layout=MESSAGES
            )
    assert once(here, server, "--direction", "in")["received"] == 8


@pytest.mark.slow
def test_messages_removed_before_reading_are_counted(server, tmp_path):
    """Retention passes a bridge that is away. One that ends after it has noticed does not count them twice."""
    address = f"{server}/jobs.pending"
    here = make(tmp_path, "here")
    foreign(server, 4)
    assert once(here, server, "--direction", "in")["lost"] == 0

    async def outgrow() -> None:
        broker: Any = await connect(server)
        batch = [Outgoing(f"y{n}", b"{}", {}) for n in range(9)]
        await broker.publish(batch, await broker.last())
        if server.startswith("nats"):
            await broker._context.purge_stream(broker.stream, keep=2)
        else:
            await broker._client.xtrim(broker.stream, maxlen=2, approximate=False)
        await broker.close()

    asyncio.run(outgrow())
    shutil.copytree(here, tmp_path / "copy")

    async def end_early() -> None:
        broker: Any = await connect(server)
        with open_repository(tmp_path / "copy") as log:
            progress = Progress.of(log, server.partition(":")[0], address, "messages/jobs")
            ending: Any = Subscriber(find_log(log, "messages/jobs"), broker, progress, origin="0" * 32)
            ending._append = None  # whatever ends it there
            with pytest.raises(TypeError):
                await ending.step()
        await broker.close()

    asyncio.run(end_early())
    done = once(tmp_path / "copy", server, "--direction", "in")
    assert (done["received"], done["lost"]) == (2, 0)
    whole = living_in(tmp_path)(*bridge(here, server, "--once", "--direction", "in"))
    assert whole.json["lost"] == 7 and "removed 7 messages before they were read" in whole.err
    for path in (here, tmp_path / "copy"):
        with open_repository(path) as log:
            assert [row["lost"] for row in list_progress(log)] == [7]


@pytest.mark.slow
def test_shared_nats_stream_warns_of_removed_messages(tmp_path):
    """The numbers of a stream with several subjects do not tell whose messages were removed."""
    here = make(tmp_path, "here")

    async def act(url: str, count: int) -> None:
        client = await nats.connect(url)
        stream = client.jetstream()
        if count == 1:
            await stream.add_stream(name="MANY", subjects=["jobs.*"])
        for n in range(count):
            await stream.publish("jobs.pending" if n % 2 == 0 else "jobs.other", b"{}")
        if count > 1:
            await stream.purge_stream("MANY", keep=2)
        await client.close()

    with started("nats", tmp_path / "server") as url:
        command = bridge(here, url, "--once", "--direction", "in")
        asyncio.run(act(url, 1))
        first = living_in(tmp_path)(*command)
        assert first.json["received"] == 1 and "removed" not in first.err
        asyncio.run(act(url, 8))
        second = living_in(tmp_path)(*command)
    assert (second.json["received"], second.json["lost"]) == (1, 0)
    assert "stream MANY removed messages 2 to 7, perhaps some of subject jobs.pending" in second.err


def foreign(url: str, count: int) -> None:
    """Publish messages of another program to the stream."""

    async def act() -> None:
        broker = await connect(url)
        batch = [Outgoing(f"x{n}", json.dumps({"n": 1000 + n}).encode(), {}) for n in range(count)]
        await broker.publish(batch, await broker.last())
        await broker.close()

    asyncio.run(act())


@pytest.mark.slow
def test_equal_streams_of_two_servers_are_kept_apart(server, tmp_path):
    """Progress at one server must not count for a stream of the same name at another, in either direction."""
    path, kind = make(tmp_path), server.partition(":")[0]
    with started(kind, tmp_path / "other") as other:
        publish(path, range(5))
        assert once(path, server)["published"] == 5
        foreign(other, 8)
        assert once(path, other)["published"] == 5
        here = make(tmp_path, "here")
        assert once(here, server, "--direction", "in")["received"] == 5
        assert once(here, other, "--direction", "in")["received"] == 13
        with open_repository(here) as log:
            assert [row["target"] for row in list_progress(log)] == ["messages/jobs"] * 2
        relay = make(tmp_path, "relay")  # what came from one server goes out to the other
        foreign(server, 2)
        assert once(relay, server, "--direction", "in")["received"] == 7
        assert once(relay, other)["published"] == 7


@pytest.mark.slow
def test_two_streams_make_no_loop(server, tmp_path):
    """one -> A -> two -> B -> one: an event comes home and is not taken in again."""
    one, two = make(tmp_path, "one"), make(tmp_path, "two")
    publish(one, range(2))
    option = "--subject" if server.startswith("nats") else "--stream"
    moved = []
    for _ in range(2):
        moved += [
            once(one, server, option, "a")["published"],
            once(two, server, option, "a", "--direction", "in")["received"],
            once(two, server, option, "b")["published"],
            once(one, server, option, "b", "--direction", "in")["received"],
        ]
    assert moved == [2, 2, 2, 0, 0, 0, 0, 0]


@pytest.mark.slow
def test_mirrored_logs_share_a_stream(server, tmp_path):
    """Copies have the same ULID and content id; the broker must not take one for a duplicate of the other."""
    path = make(tmp_path)
    publish(path, range(3))
    with open_repository(path) as log:
        mirror(log, "topic:jobs", "topic:copies")
    assert once(path, server)["published"] == 3
    assert once(path, server, "--log", "messages/copies")["published"] == 3
    assert streamed(server) == [0, 1, 2] * 2


@pytest.mark.slow
def test_clone_publishes_nothing_twice(server, tmp_path):
    path = make(tmp_path)
    publish(path, range(3))
    once(path, server)
    shutil.copytree(path, tmp_path / "clone", ignore=shutil.ignore_patterns("bridges"))
    publish(tmp_path / "clone", range(3, 5))
    assert once(tmp_path / "clone", server)["published"] == 2
    assert streamed(server) == list(range(5))


@pytest.mark.slow
def test_stream_made_anew_is_filled_and_read_again(server, tmp_path):
    path, here = make(tmp_path), make(tmp_path, "here")
    publish(path, range(3))
    once(path, server)
    assert once(here, server, "--direction", "in")["received"] == 3

    async def remove() -> None:
        broker: Any = await connect(server)
        if server.startswith("nats"):
            await broker._context.delete_stream(broker.stream)
        else:
            await broker._client.delete(broker.stream)
        await broker.close()

    asyncio.run(remove())
    if server.startswith("nats"):
        foreign(server, 4)  # more than the first stream had
    publish(path, range(3, 5))
    assert once(path, server)["published"] == 5
    assert once(here, server, "--direction", "in")["received"] == (9 if server.startswith("nats") else 5)


def test_failing_bridge_records_why(tmp_path):
    path = make(tmp_path)
    publish(path, range(3))
    url = f"nats://u:secret@127.0.0.1:{free_port()}"
    assert living_in(tmp_path)(*bridge(path, url, "--once")).code == 7
    with open_repository(path) as log:
        (row,) = list_progress(log)
    assert row["lag"] == 3 and "cannot connect" in row["error"] and "secret" not in json.dumps(row)


def test_events_before_one_too_large_are_published(tmp_path):
    path = make(tmp_path)
    publish(path, range(2))
    with open_repository(path) as log:
        huge = {"ns": "", "type": "job.made", "payload": {"n": 2, "x": "a b " * 20_000}}
        log.append("jobs", huge, layout=MESSAGES)
    publish(path, range(3, 4))
    (tmp_path / "small.conf").write_text("max_payload: 65536")
    with started("nats", tmp_path / "server", "-c", str(tmp_path / "small.conf")) as url:
        refused = living_in(tmp_path)(*bridge(path, url, "--once"))
        assert refused.code == 8 and b"must be at most" in refused.out
        assert living_in(tmp_path)(*bridge(path, url, "--once")).code == 8
        assert streamed(url) == [0, 1]
    with open_repository(path) as log:
        assert "must be at most" in next(list_progress(log))["error"]


def test_bridge_outlives_a_server_that_restarts(tmp_path):
    """Backoff is injected: nothing here waits for seconds."""
    path = make(tmp_path)
    publish(path, range(3))
    calls = []

    async def act() -> None:
        async def refuse() -> Broker:
            calls.append(1)
            if len(calls) == 3:
                stop.set()
            raise Unavailable("away")

        stop = asyncio.Event()
        with open_repository(path) as log:
            running = Bridge(
                find_log(log, "messages/jobs"), refuse, address="nats://x/y", jitter=lambda: -0.49
            )
            report = await asyncio.wait_for(running.run(stop), LIMIT_S)
        assert report.reconnects == 3 and report.published == 0

    asyncio.run(act())


def test_wrong_log_and_address_get_clear_errors(tmp_path):
    path = make(tmp_path)
    for options, words in (
        (["--log", "ledger/audit"], "messages/TOPIC or shiplog/NS"),
        (["--log", "messages/jobs"], "cannot connect"),
    ):
        command = ("--repo", str(path), "bridge", "nats", "--once", "--url", "nats://u:secret@127.0.0.1:1")
        done = living_in(tmp_path)(*command, *options)
        assert done.code in (2, 7) and words in done.err and "secret" not in done.err
