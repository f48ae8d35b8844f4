"""Honest peers on real sockets: what one has, all have, pushed at once or pulled in time."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.gossip.conftest import key, memory_log, raws
from tests.waiting import soon

from ropewalk.errors import Conflict, Unavailable, Usage
from ropewalk.gossip.core.events import Committed, Synced
from ropewalk.gossip.core.ids import id_of
from ropewalk.gossip.core.log import GossipLog
from ropewalk.gossip.core.message import sign
from ropewalk.gossip.core.pending import PendingLimits
from ropewalk.gossip.peer import broadcast
from ropewalk.gossip.peer.client import SyncReport, sync_with
from ropewalk.gossip.peer.frames import GossipFrames
from ropewalk.gossip.peer.multistream import Dialer
from ropewalk.gossip.peer.muxer import Muxer
from ropewalk.gossip.peer.peer import Peer
from ropewalk.gossip.peer.server import GossipServer
from ropewalk.gossip.peer.topics import open_log
from ropewalk.gossip.sync import live, wire
from ropewalk.net.pipe import Pipe
from ropewalk.net.tcp import connect_tcp, serve_tcp
from ropewalk.net.websocket import connect_websocket

BOTH = pytest.mark.parametrize("profile", ["v0.6", "v0.13"])
TOPIC = "com.example"
IDLE_S = 60.0  # nobody is silent here; a loaded machine may be slow


@BOTH
def test_both_ways_ends_with_one_root_and_exact_counts(profile, make_table):
    server_log = GossipLog(make_table(), TOPIC, profile=profile, signer=key(1))
    client_log = GossipLog(make_table(), TOPIC, profile=profile, signer=key(2))
    server_log.append_many(range(700))
    client_log.insert_many(raws(server_log)[:400])
    client_log.append_many(range(90))
    heard: list[Synced] = []
    client_log.on(heard.append, Synced)  # type: ignore[arg-type]

    async def run() -> None:
        async with GossipServer(server_log) as server:
            report = await sync_with(client_log, server.url, idle_s=IDLE_S)
            assert (report.received, report.sent, report.refused, report.taken) == (300, 90, 0, True)
            assert report.root == server_log.root() == client_log.root()
            again = await sync_with(client_log, server.url, idle_s=IDLE_S)
            assert (again.received, again.sent) == (0, 0)

    asyncio.run(run())
    assert server_log.heads() == client_log.heads()
    assert [event.received for event in heard[:1]] == [300]


def test_broken_off_sync_says_that_messages_are_kept():
    """The advice was that nothing had changed, after a thousand messages."""
    source, log = memory_log(), memory_log(signer=key(2))
    source.append_many(range(3000))

    async def run() -> Unavailable:
        loop = asyncio.get_running_loop()
        async with GossipServer(source) as server:

            def leave(_: object) -> None:
                for peer in list(server.peers):
                    loop.call_soon_threadsafe(peer.leave)

            log.on(leave, Committed)
            with pytest.raises(Unavailable) as broken:
                await sync_with(log, server.url, idle_s=IDLE_S)
            return broken.value

    assert "is kept" in asyncio.run(run()).advice_now
    assert 0 < len(log) < 3000


@BOTH
def test_pull_only_gives_nothing_away(profile):
    server_log = memory_log(profile=profile)
    client_log = memory_log(profile=profile, signer=key(2))
    server_log.append_many(range(30))
    client_log.append("mine")

    async def run() -> None:
        async with GossipServer(server_log) as server:
            report = await sync_with(client_log, server.url, pull_only=True, idle_s=IDLE_S)
            assert (report.received, report.sent) == (30, 0)

    asyncio.run(run())
    assert (len(server_log), len(client_log)) == (30, 31)


@BOTH
def test_empty_logs_meet(profile):
    log = memory_log(profile=profile)

    async def run() -> None:
        async with GossipServer(memory_log(profile=profile)) as server:
            report = await sync_with(log, server.url, idle_s=IDLE_S)
            assert (report.received, report.sent, report.taken) == (0, 0, True)
            await asyncio.to_thread(log.append, 1)
            assert (await sync_with(log, server.url, idle_s=IDLE_S)).sent == 1

    asyncio.run(run())


def test_what_one_peer_appends_reaches_all_the_others():
    logs = [memory_log(signer=key(n)) for n in range(1, 5)]

    async def run() -> None:
        async with GossipServer(logs[0]) as server:
            peers = []
            for log in logs[1:]:
                peer = Peer(log, await connect_websocket(server.url, timeout_s=IDLE_S), dialer=True)
                await peer.__aenter__()
                await peer.start_push()
                peers.append(peer)
            await soon(lambda: len(server.peers) == 3)
            await asyncio.to_thread(logs[0].append, "from the server")
            await soon(lambda: all(len(log) == 1 for log in logs))
            signed = sign(logs[1].profile, key(2), TOPIC, (), "by a client")
            await asyncio.to_thread(logs[1].insert, signed.raw)
            peers[0].push([signed])
            await soon(lambda: all(len(log) == 2 for log in logs))
            # Too many to push one by one: they are announced and pulled.
            await asyncio.to_thread(logs[0].append_many, range(500))
            await soon(lambda: all(len(log) == 502 for log in logs))
            assert len({log.root() for log in logs}) == 1
            for peer in peers:
                await peer.__aexit__(None, None, None)
            await soon(lambda: not server.peers)

    asyncio.run(run())


def test_pushed_orphan_waits_for_pulled_parents():
    source, target = memory_log(), memory_log()
    source.append_many(range(40))
    last = list(source.iterate())[-1]

    async def run() -> None:
        async with GossipServer(target) as server:
            peer = Peer(source, await connect_websocket(server.url, timeout_s=IDLE_S), dialer=True)
            async with peer:
                _, frames = await peer._dial(peer._push_protocol, wire.EVENT_BYTES_MAX)
                await frames.send(wire.encode_event(wire.Insert(last.key, last.raw)))
                await soon(lambda: len(target) == 40)

    asyncio.run(run())
    assert target.pending() == []
    assert target.root() == source.root()


def test_pushed_orphan_with_full_pending_is_pulled():
    source, target = memory_log(), memory_log(pending_limits=PendingLimits(count=0))
    source.append_many(range(40))
    last = list(source.iterate())[-1]

    async def run() -> None:
        async with GossipServer(target) as server:
            peer = Peer(source, await connect_websocket(server.url, timeout_s=IDLE_S), dialer=True)
            async with peer:
                _, frames = await peer._dial(peer._push_protocol, wire.EVENT_BYTES_MAX)
                await frames.send(wire.encode_event(wire.Insert(last.key, last.raw)))
                await soon(lambda: len(target) == 40)

    asyncio.run(run())
    assert target.root() == source.root()


def test_what_another_handle_of_the_store_appends_is_pushed_too(tmp_path):
    follower = memory_log(signer=key(2))
    with (
        open_log(TOPIC, tmp_path / "log") as served,
        open_log(TOPIC, tmp_path / "log", signer=key(1)) as other,
    ):

        async def run() -> None:
            async with GossipServer(served) as server:
                peer = Peer(follower, await connect_websocket(server.url, timeout_s=IDLE_S), dialer=True)
                async with peer:
                    await peer.start_push()
                    await soon(lambda: bool(server.peers))
                    await asyncio.to_thread(other.append, "elsewhere")
                    await soon(lambda: len(follower) == 1)

        asyncio.run(run())


def test_a_server_breaks_long_sessions_off_and_the_pull_goes_on():
    source, target = memory_log(), memory_log()
    source.append_many(range(3000))

    async def run() -> None:
        async with GossipServer(source, session_s=0.1) as server:
            report = await sync_with(target, server.url, pull_only=True, idle_s=IDLE_S)
            assert report.received == 3000

    asyncio.run(run())
    assert target.root() == source.root()


def test_large_messages_fit_the_windows():
    source, target = memory_log(), memory_log()
    source.append_many([bytes(3 << 20)] * 6)
    source.append_many(range(5))

    async def run() -> None:
        async with GossipServer(source) as server:
            assert (await sync_with(target, server.url, idle_s=IDLE_S)).received == 11

    asyncio.run(run())
    assert target.root() == source.root()


def test_an_address_of_the_other_profile_is_refused_with_the_reason():
    for url, profile in (("tcp://127.0.0.1:9", "v0.13"), ("ws://127.0.0.1:9", "v0.6")):
        with pytest.raises(Conflict, match="speaks"):
            asyncio.run(sync_with(memory_log(profile=profile), url))


@pytest.mark.parametrize(
    "url",
    [
        *(
            "http://x",
            "nothing",
            "tcp://127.0.0.1",
            "tcp://127.0.0.1:x",
            "tcp://:5",
            "tcp://[::1",
            "tcp://a..b:1",
        ),
        f"tcp://{'a' * 80}:1",
        *("ws://", "ws://a..b:1", "ws://[::1", "ws://127.0.0.1:99999"),
    ],
)
def test_what_is_no_address_is_bad_usage(url):
    log = memory_log(profile="v0.13" if url.startswith("ws") else "v0.6")
    with pytest.raises(Usage):
        asyncio.run(sync_with(log, url))


# The recorded sessions of the JavaScript packages, replayed on real sockets.


def load(log: GossipLog, rows: list[dict[str, str]]) -> GossipLog:
    log.insert_many(bytes.fromhex(row["signed_message_cbor"]) for row in rows)
    return log


def test_we_answer_the_recorded_v06_client_byte_for_byte(vector):
    data = vector("v0.6-sync")
    log = load(memory_log(data["topic"], profile="v0.6"), data["before"]["server"])
    sides: dict[str, bytes] = {"client->server": b"", "server->client": b""}
    for each in data["frames"]:
        sides[each["dir"]] += bytes.fromhex(each["hex"])

    async def run() -> bytes:
        async with GossipServer(log) as server:
            pipe = await connect_tcp("127.0.0.1", server.port, timeout_s=IDLE_S)
            await pipe.send(sides["client->server"])
            found = b""
            while len(found) < len(sides["server->client"]):
                found += await asyncio.wait_for(pipe.receive(), IDLE_S)
            await pipe.close()
            return found

    assert asyncio.run(run()) == sides["server->client"]


def test_the_recorded_v06_server_leads_us_to_the_recorded_root(vector):
    data = vector("v0.6-sync")
    log = load(memory_log(data["topic"], profile="v0.6"), data["before"]["client"])
    sides: dict[str, bytes] = {"client->server": b"", "server->client": b""}
    for each in data["frames"]:
        sides[each["dir"]] += bytes.fromhex(each["hex"])
    requests = wire.FrameCutter(1 << 20).receive(sides["client->server"])
    answers = dict(zip(requests, wire.FrameCutter(1 << 20).receive(sides["server->client"]), strict=True))

    async def accept(pipe: Pipe) -> None:
        frames = GossipFrames(pipe, limit=1 << 20)
        while raw := await frames.receive():
            await frames.send(answers[raw])

    async def run() -> None:
        listening = await serve_tcp(accept, "127.0.0.1", 0)
        await sync_with(log, f"tcp://127.0.0.1:{listening.port}", pull_only=True, idle_s=IDLE_S)
        await listening.close()

    asyncio.run(run())
    root = log.root()
    assert {"level": root.level, "hash": root.hash.hex()} == data["after"]["root_client"]
    assert len(log) == data["after"]["count_client"]


def test_we_answer_the_recorded_websocket_client_byte_for_byte(vector):
    data = vector("v0.13-websocket")
    log = load(memory_log(data["topic"]), data["before"]["server"])
    said: dict[str, bytes] = {"c->s": b"", "s->c": b""}
    for each in data["frames"]:
        raw = bytes.fromhex(each["hex"])
        if raw[1] == 0 and raw[4:8] == b"\0\0\0\3":  # the data of the client's sync stream
            said[each["dir"]] += raw[12:]
    assert said["c->s"].startswith(Dialer(f"/canvas/v1/{data['topic']}/sync").data_to_send())

    async def run() -> bytes:
        async with GossipServer(log) as server:
            pipe = await connect_websocket(server.url, timeout_s=IDLE_S)
            async with Muxer(pipe, client=True, accept=lambda _: None) as muxer:
                stream = muxer.open()
                await stream.send(said["c->s"])
                found = b""
                while len(found) < len(said["s->c"]):
                    found += await asyncio.wait_for(stream.receive(), IDLE_S)
                return found

    assert asyncio.run(run()) == said["s->c"]


def test_slow_peer_gets_heads_instead_of_messages(monkeypatch):
    """What waits for a slow peer is bounded in bytes; the rest it pulls."""
    monkeypatch.setattr(live, "OUTBOX_BYTES_MAX", 3 << 20)
    monkeypatch.setattr(broadcast, "PUSHED_BYTES_MAX", 2 << 20)
    log = memory_log()
    count = 16

    async def run() -> tuple[int, list[bytes]]:
        async with GossipServer(log) as server:
            pipe = await connect_websocket(server.url, timeout_s=IDLE_S)
            async with Muxer(pipe, client=True, accept=lambda _: None) as muxer:
                stream, dialer = muxer.open(), Dialer(f"/canvas/v1/{TOPIC}/push")
                await stream.send(dialer.data_to_send())
                while dialer.chosen is None:
                    dialer.receive(await stream.receive())
                for n in range(count):
                    log.append({"n": n, "text": "x" * (1 << 20)})
                    await asyncio.sleep(0.02)
                await soon(lambda: any(peer.live._announcing for peer in server.peers))
                assert all(peer.live.queued_bytes <= 3 << 20 for peer in server.peers)
                frames = GossipFrames(stream, limit=wire.EVENT_BYTES_MAX, rest=dialer.rest)
                inserted = 0
                while True:
                    event = wire.decode_event(await frames.receive() or b"")
                    if isinstance(event, wire.Insert):
                        inserted += 1
                    elif log.heads() == [id_of(head) for head in event.heads]:
                        return inserted, list(event.heads)

    inserted, _ = asyncio.run(run())
    assert inserted < count


def test_v06_messages_that_do_not_fit_one_answer_are_exchanged(monkeypatch):
    monkeypatch.setattr("ropewalk.gossip.sync.questions.CARRIED_BYTES_MAX", 10_000)
    one, two = (memory_log(profile="v0.6", signer=key(n)) for n in (1, 2))
    one.append_many({"n": n, "text": "x" * 2000} for n in range(120))
    two.append_many({"n": n, "text": "y" * 2000} for n in range(80))

    async def run() -> SyncReport:
        async with GossipServer(one) as server:
            return await sync_with(two, server.url, idle_s=IDLE_S)

    report = asyncio.run(run())
    assert (report.received, report.sent, report.taken) == (120, 80, True)
    assert one.root() == two.root()
