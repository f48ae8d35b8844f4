"""Live peers: the state machine alone, and connections that stay, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.gossip.conftest import key, memory_log
from tests.waiting import soon

from ropewalk import gossip
from ropewalk.errors import Conflict, DigestMismatch, TooLarge, Unavailable
from ropewalk.gossip.core.events import Synced
from ropewalk.gossip.core.log import GossipLog
from ropewalk.gossip.core.message import SignedMessage
from ropewalk.gossip.core.pending import PendingLimits
from ropewalk.gossip.peer import frames
from ropewalk.gossip.peer.multistream import Dialer
from ropewalk.gossip.peer.muxer import Muxer
from ropewalk.gossip.peer.peer_list import FOLDER, PeerList, read_peers
from ropewalk.gossip.peer.tls import client_context, server_context
from ropewalk.gossip.peer.topics import open_log
from ropewalk.gossip.sync import live, wire
from ropewalk.gossip.sync.live import Backoff, LiveSession
from ropewalk.gossip.sync.questions import ChildrenResponse
from ropewalk.net.websocket import connect_websocket

TOPIC = "com.example"
IDLE_S = 60.0
BOTH = pytest.mark.parametrize("profile", ["v0.6", "v0.13"])


def session(log: GossipLog, *, now_s: float = 0.0, chance: float = 0.5) -> LiveSession:
    return LiveSession(log, "10.0.0.1", now_s=now_s, random=lambda: chance)


def sent(one: LiveSession) -> list[wire.PushEvent]:
    events = []
    while (event := one.next_event()) is not None:
        events.append(event)
    return events


def signed(log: GossipLog, payload: object = 1) -> SignedMessage:
    found = log.get(log.append(payload).id)
    assert found is not None
    return found


# The machine


def test_live_session_announces_heads_when_push_opens():
    log = memory_log()
    head = signed(log)
    one = session(log)
    one.offer([head])
    assert sent(one) == []  # no push stream yet
    one.open_push()
    assert sent(one) == [wire.Update((head.key,))]


def test_live_session_does_not_push_back_what_the_peer_sent():
    log, other = memory_log(), memory_log(signer=key(2))
    theirs = signed(other)
    one = session(log)
    one.open_push()
    sent(one)
    assert not one.receive([wire.encode_event(wire.Insert(theirs.key, theirs.raw))])
    assert (one.received, log.has(theirs.id)) == (1, True)
    one.offer([theirs])
    assert sent(one) == [] and one.sent == 0


def test_live_session_pushes_each_message_once():
    log = memory_log()
    one = session(log)
    one.open_push()
    sent(one)
    message = signed(log)
    one.offer([message])
    one.offer([message])
    assert sent(one) == [wire.Insert(message.key, message.raw)]
    one.served([message.key])
    assert one.sent == 1


def test_pushed_message_is_relayed_before_it_is_durable_and_once():
    log, other = memory_log(), memory_log(signer=key(2))
    theirs = signed(other)
    behind = session(log)
    behind.open_push()
    sent(behind)
    durable_first: list[bool] = []

    def relay(messages: list[SignedMessage]) -> None:
        with log.table.read() as view:
            durable_first.append(view.count("messages") > 0)
        behind.offer(messages)

    one = LiveSession(log, "10.0.0.1", now_s=0.0, random=lambda: 0.5, relay=relay)
    one.receive([wire.encode_event(wire.Insert(theirs.key, theirs.raw))])
    assert durable_first == [False]
    assert sent(behind) == [wire.Insert(theirs.key, theirs.raw)]
    behind.offer([theirs])  # as after the commit
    assert sent(behind) == []


def test_what_the_rules_refuse_or_hold_back_is_not_relayed():
    relayed: list[SignedMessage] = []
    log, other = memory_log(validate=lambda payload: payload != 1), memory_log(signer=key(2))
    refused, _, waiting = signed(other, 1), signed(other, 2), signed(other, 3)
    one = LiveSession(log, "10.0.0.1", now_s=0.0, random=lambda: 0.5, relay=relayed.extend)
    assert one.receive([wire.encode_event(wire.Insert(each.key, each.raw)) for each in (refused, waiting)])
    assert relayed == []
    assert [id for id, _ in log.pending()] == [waiting.id]


def test_an_append_that_fails_is_pushed_to_no_peer():
    """Only a message of another peer goes on before the commit; our own must not leave if `append` raises."""
    log, other = memory_log(), memory_log(signer=key(2))

    async def run() -> None:
        async with (
            gossip.serve(log) as server,
            gossip.connect(other, server.url, idle_s=IDLE_S) as connection,
        ):
            await connection.synced(IDLE_S)
            await soon(lambda: bool(server.peers))
            whole = log.table.transact

            def full(body: Any) -> Any:
                def failing(change: Any) -> Any:
                    body(change)
                    raise Unavailable("the disk is full")

                return whole(failing)

            log.table.transact = full  # type: ignore[method-assign]
            with pytest.raises(Unavailable):
                await asyncio.to_thread(log.append, "lost")
            log.table.transact = whole  # type: ignore[method-assign]
            await asyncio.to_thread(log.append, "kept")
            await soon(lambda: len(other) > 0)

    asyncio.run(run())
    assert [each.message.payload for each in other.iterate()] == ["kept"]


def test_live_session_pulls_for_unknown_heads_and_parents():
    log, other = memory_log(), memory_log(signer=key(2))
    below, above = signed(other, 1), signed(other, 2)
    one = session(log)
    assert one.receive([wire.encode_event(wire.Update((above.key,)))])
    assert one.receive([wire.encode_event(wire.Insert(above.key, above.raw))])
    assert not one.receive([wire.encode_event(wire.Insert(below.key, below.raw))])
    assert not one.receive([wire.encode_event(wire.Update((above.key,)))])
    assert len(log) == 2


def test_live_session_keeps_good_messages_before_a_lie():
    log, other = memory_log(), memory_log(signer=key(2))
    good, bad = signed(other, 1), signed(other, 2)
    one = session(log)
    pushed = [wire.Insert(good.key, good.raw), wire.Insert(good.key[:-1] + b"\0", bad.raw)]
    with pytest.raises(DigestMismatch):
        one.receive([wire.encode_event(event) for event in pushed])
    assert log.has(good.id) and not log.has(bad.id)


def test_live_session_outbox_is_bounded(monkeypatch):
    log = memory_log()
    one = session(log)
    one.open_push()
    sent(one)
    messages = [signed(log, n) for n in range(live.OUTBOX_MAX + 1)]
    one.offer(messages)
    assert sent(one) == [wire.Update((messages[-1].key,))]
    monkeypatch.setattr(live, "OUTBOX_BYTES_MAX", 100)
    one.offer([signed(log, "x" * 200)])
    assert one.queued_bytes == 0 and isinstance(sent(one)[0], wire.Update)


def test_live_session_forgets_the_oldest_seen_key():
    one = session(memory_log())
    for n in range(live.SEEN_MAX + 1):
        one.served([n.to_bytes(20, "big")])
    one.served([(0).to_bytes(20, "big")])
    assert one.sent == live.SEEN_MAX + 2
    one.served([(5).to_bytes(20, "big")])
    assert one.sent == live.SEEN_MAX + 2


def test_anti_entropy_rounds_are_jittered():
    early, late = (session(memory_log(), chance=chance) for chance in (0.0, 0.999))
    assert early.due_s == 0.5 * live.ANTI_ENTROPY_S < late.due_s <= 1.5 * live.ANTI_ENTROPY_S
    early.open_push()
    sent(early)
    assert not early.is_due(early.due_s - 0.1) and sent(early) == []
    assert early.is_due(early.due_s)
    assert sent(early) == [wire.Update(())]
    assert early.due_s == live.ANTI_ENTROPY_S


def test_backoff_grows_to_its_limit_and_starts_again():
    backoff = Backoff(lambda: 0.0)
    waits = [backoff.failed() for _ in range(12)]
    assert waits == sorted(waits) and waits[0] == live.RETRY_FIRST_S / 2 and waits[-1] == live.RETRY_S_MAX / 2
    backoff.succeeded()
    assert backoff.failed() == waits[0]
    assert backoff.failed(broken=True) == live.RETRY_S_MAX / 2


def test_pending_quota_of_one_peer():
    """One address cannot fill the table with messages of many authors."""
    log = memory_log(pending_limits=PendingLimits(per_peer=2))
    orphans = []
    for n in range(4):
        other = memory_log(signer=key(10 + n))
        other.append(0)
        orphans.append(signed(other))
    first = log.insert_checked(orphans[:3], peer="10.0.0.1")
    assert [each.status for each in first] == ["pending", "pending", "refused"] or len(log.pending()) == 2
    (refused,) = [each for each in first if each.status == "refused"]
    assert isinstance(refused.error, TooLarge) and "peer 10.0.0.1" in refused.error.detail
    assert log.insert_checked(orphans[3:], peer="10.0.0.2")[0].pending
    assert log.drop_pending() == 3
    assert log.insert_checked(orphans[:1], peer="10.0.0.1")[0].pending


# Connections


@BOTH
def test_connection_exchanges_what_either_side_appends(profile):
    one, two = (memory_log(profile=profile, signer=key(n)) for n in (1, 2))
    one.append("before")

    async def run() -> None:
        async with gossip.serve(one) as server, gossip.connect(two, server.url, idle_s=IDLE_S) as peer:
            await peer.synced(IDLE_S)
            assert len(two) == 1
            await asyncio.to_thread(two.append, "from two")
            await soon(lambda: len(one) == 2)
            await asyncio.to_thread(one.append, "from one")
            await soon(lambda: len(two) == 3)
            await soon(lambda: (peer.received, peer.state) == (2, "connected"))
            # In v0.6 leaves carry their messages, so a peer is also sent some that it has.
            assert peer.sent == 1 if profile == "v0.13" else peer.sent >= 1
        assert peer.state == "closed"

    asyncio.run(run())
    assert one.root() == two.root()


def test_three_peers_in_a_ring_send_nothing_twice():
    """Loops and duplicates cost nothing: each message is stored once and sent over no link twice."""
    logs = [memory_log(signer=key(n)) for n in (1, 2, 3)]

    async def run() -> None:
        async with contextlib.AsyncExitStack() as stack:
            urls: list[str] = []
            connections = []
            for log in logs:
                server = await stack.enter_async_context(gossip.serve(log, upstreams=urls, idle_s=IDLE_S))
                urls.append(server.url)
                connections += server.connections
            closing = gossip.connect(logs[0], urls[2], idle_s=IDLE_S)  # closes the ring
            connections.append(await stack.enter_async_context(closing))
            for connection in connections:
                await connection.synced(IDLE_S)
            for n, log in enumerate(logs):
                await asyncio.to_thread(log.append, n)
            await soon(lambda: all(len(log) == 3 for log in logs))
            assert sum(connection.sent for connection in connections) <= 3 * len(connections)
            assert sum(connection.received for connection in connections) <= 3 * len(connections)

    asyncio.run(run())
    assert len({log.root() for log in logs}) == 1


def test_connection_waits_for_a_peer_that_is_down_and_returns():
    one, two = memory_log(), memory_log(signer=key(2))
    states: list[str] = []

    async def run() -> None:
        async with gossip.serve(one) as server:
            port, url = server.port, server.url
        quick = Backoff(lambda: 1.0, first_s=0.01, limit_s=0.05)
        async with gossip.connect(two, url, idle_s=IDLE_S, backoff=quick) as peer:
            await soon(lambda: peer.error is not None)
            assert peer.state in ("waiting", "connecting") and isinstance(peer.error, Unavailable)
            with pytest.raises(Unavailable, match="did not sync within"):
                await peer.synced(0.01)
            for n in range(2):  # it comes, goes and comes again
                async with gossip.serve(one, port=port):
                    await asyncio.to_thread(two.append, n)
                    await soon(lambda: one.root() == two.root())
                    await soon(lambda: peer.state == "connected")
                    states.append(peer.state)
                await soon(lambda: peer.state != "connected")

    asyncio.run(run())
    assert states == ["connected", "connected"] and len(one) == 2


def test_anti_entropy_repairs_a_lost_push(monkeypatch):
    """A push that got lost is found by the next round, without any new message."""
    monkeypatch.setattr(LiveSession, "offer", lambda *_: None)
    one, two = memory_log(), memory_log(signer=key(2))

    async def run() -> None:
        async with gossip.serve(one) as server, gossip.connect(two, server.url, interval_s=0.1) as peer:
            await peer.synced(IDLE_S)
            await asyncio.to_thread(one.append, "lost")
            await asyncio.to_thread(two.append, "lost too")
            await soon(lambda: one.root() == two.root())

    asyncio.run(run())
    assert len(one) == 2


def test_lying_peer_is_cut_off_and_tried_rarely(monkeypatch):
    """A lie ends the connection; the next attempt waits as long as any, and the log keeps what was verified."""
    waits: list[bool] = []

    class Counted(Backoff):
        def failed(self, *, broken: bool = False) -> float:
            waits.append(broken)
            return 3600.0

    one, two = memory_log(), memory_log(signer=key(2))
    one.append_many(range(60))
    answer = frames._answer

    def lying(view: Any, profile: Any, request: Any) -> Any:
        raw, keys = answer(view, profile, request)
        found = wire.decode_response(raw, profile.name)
        if not isinstance(found, ChildrenResponse):
            return raw, keys
        first, *rest = found.nodes
        lie = ChildrenResponse((replace(first, hash=bytes([255] * 16)), *rest))
        return wire.encode_response(lie, profile.name), keys

    monkeypatch.setattr(frames, "_answer", lying)

    async def run() -> None:
        async with gossip.serve(one) as server:
            backoff = Counted(lambda: 0.5)
            async with gossip.connect(two, server.url, idle_s=IDLE_S, backoff=backoff) as peer:
                await soon(lambda: bool(waits))
                assert isinstance(peer.error, DigestMismatch) and peer.state == "waiting"

    asyncio.run(run())
    assert waits == [True] and len(two) == 0


def test_peer_that_reads_nothing_is_disconnected():
    """A slow peer holds a bounded queue, and one that reads nothing for the idle limit is cut off."""
    log = memory_log()

    async def run() -> None:
        async with gossip.serve(log, idle_s=0.5) as server:
            pipe = await connect_websocket(server.url, timeout_s=IDLE_S)
            async with Muxer(pipe, client=True, accept=lambda _: None) as muxer:
                stream, dialer = muxer.open(), Dialer(f"/canvas/v1/{TOPIC}/push")
                await stream.send(dialer.data_to_send())
                while dialer.chosen is None:
                    dialer.receive(await stream.receive())
                await soon(lambda: bool(server.peers))
                (peer,) = server.peers
                for n in range(3):
                    await asyncio.to_thread(log.append, f"{n}" * (1 << 20))
                await soon(lambda: not server.peers)
                assert isinstance(peer.error, Unavailable) and "read nothing" in peer.error.detail

    asyncio.run(run())


def test_connect_refuses_a_wrong_profile_at_once():
    with pytest.raises(Conflict, match="speaks"):
        gossip.connect(memory_log(profile="v0.6"), "ws://127.0.0.1:1")


def test_sync_events_come_once_per_sync():
    one, two = memory_log(), memory_log(signer=key(2))
    events: list[Synced] = []
    two.on(events.append, Synced)  # type: ignore[arg-type]
    one.append(1)

    async def run() -> None:
        async with gossip.serve(one) as server, gossip.connect(two, server.url) as peer:
            await peer.synced(IDLE_S)

    asyncio.run(run())
    assert [event.received for event in events][:1] == [1]


# The list of peers


def test_peer_list_shows_running_processes_only(tmp_path):
    with PeerList(tmp_path) as published:
        published.write([{"url": "ws://b", "sent": 10**9}, {"url": "ws://a", "sent": 1}])
        assert [row["url"] for row in read_peers(tmp_path)] == ["ws://a", "ws://b"]
        published.write([{"url": "ws://a", "sent": 1}])
        assert [row["url"] for row in read_peers(tmp_path)] == ["ws://a"]
    assert read_peers(tmp_path) == []
    dead = "import sys; from pathlib import Path; from ropewalk.gossip.peer.peer_list import PeerList;"
    dead += "PeerList(Path(sys.argv[1])).__enter__().write([{'url': 'x'}]); import os; os._exit(0)"
    subprocess.run([sys.executable, "-c", dead, str(tmp_path)], check=True)
    assert len(list((tmp_path / FOLDER).iterdir())) == 1
    assert read_peers(tmp_path) == [] and list((tmp_path / FOLDER).iterdir()) == []


def test_peers_of_a_server_are_published(tmp_path):
    with open_log(TOPIC, tmp_path / "log", signer=key(1)) as log:
        other = memory_log(signer=key(2))

        async def run() -> None:
            nowhere = "ws://127.0.0.1:9"
            async with gossip.serve(log, upstreams=[nowhere]) as server, gossip.connect(other, server.url):
                await soon(lambda: len(read_peers(tmp_path / "log")) == 2)
                await asyncio.to_thread(other.append, 1)

                def listed() -> bool:
                    rows = {row["direction"]: row for row in read_peers(tmp_path / "log")}
                    inbound, outbound = rows["in"], rows["out"]
                    return (inbound["state"], inbound["received"], outbound["url"]) == (
                        "connected",
                        1,
                        nowhere,
                    ) and outbound["state"] in ("connecting", "waiting")

                await soon(listed)
                json.dumps(read_peers(tmp_path / "log"))

        asyncio.run(run())
        assert read_peers(tmp_path / "log") == []


# TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> Path:
    """A certificate for 127.0.0.1 that vouches for itself, with its key in the same file."""
    path: Path = tmp_path_factory.mktemp("tls") / "both.pem"
    path.write_bytes(make_certificate())
    return path


def make_certificate() -> bytes:
    import datetime
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    secret = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "peer")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(secret.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(secret, hashes.SHA256())
    )
    key_pem = secret.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return made.public_bytes(serialization.Encoding.PEM) + key_pem


def test_wss_connects_with_a_trusted_certificate(certificate):
    one, two = memory_log(), memory_log(signer=key(2))
    one.append(1)
    server_tls = server_context(certificate, certificate, client_ca=certificate)
    mutual = client_context(certificate, certificate, certificate)

    async def run() -> None:
        async with gossip.serve(one, tls=server_tls) as server:
            assert server.url.startswith("wss://")
            async with gossip.connect(two, server.url, tls=mutual, idle_s=IDLE_S) as peer:
                await peer.synced(IDLE_S)
            for refused in (client_context(), client_context(certificate)):
                async with gossip.connect(two, server.url, tls=refused, idle_s=5.0) as peer:
                    await soon(lambda peer=peer: peer.error is not None)  # type: ignore[misc]
                    assert isinstance(peer.error, Unavailable), peer.error
                    assert peer.state != "connected"

    asyncio.run(run())
    assert len(two) == 1
    assert isinstance(mutual, ssl.SSLContext) and mutual.verify_mode == ssl.CERT_REQUIRED
