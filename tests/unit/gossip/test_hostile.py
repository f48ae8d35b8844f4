"""Peers that lie, babble, stall or flood, on real sockets: each is cut off with its reason, and costs little."""

from __future__ import annotations

import asyncio
import resource
import struct
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from tests.prolly import build
from tests.unit.gossip.conftest import key, memory_log
from tests.waiting import soon
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Origin

from ropewalk.errors import (
    BrokenLink,
    DigestMismatch,
    Invalid,
    RopewalkError,
    SigInvalid,
    TooLarge,
    Unavailable,
)
from ropewalk.gossip.core.ids import make_key
from ropewalk.gossip.core.log import GossipLog
from ropewalk.gossip.core.message import MESSAGE_BYTES_MAX, sign
from ropewalk.gossip.core.profiles import V13
from ropewalk.gossip.peer import peer
from ropewalk.gossip.peer.client import SyncReport, sync_with
from ropewalk.gossip.peer.frames import ANSWER_BYTES_MAX, VALUES_FIRST, GossipFrames
from ropewalk.gossip.peer.multistream import Dialer, ProtocolListener
from ropewalk.gossip.peer.muxer import Muxer, Stream
from ropewalk.gossip.peer.server import GossipServer
from ropewalk.gossip.sync import wire
from ropewalk.gossip.sync.questions import (
    AbortResponse,
    ChildrenRequest,
    ChildrenResponse,
    NodeRequest,
    NodeResponse,
    RootRequest,
    RootResponse,
    SyncRequest,
    SyncResponse,
    ValuesRequest,
    ValuesResponse,
    answer,
)
from ropewalk.kernel.digest import sha256
from ropewalk.kernel.prolly.checks import CHILDREN_MAX
from ropewalk.kernel.prolly.node import ANCHOR, ANCHOR_HASH, Node, node_hash
from ropewalk.net.pipe import Pipe
from ropewalk.net.tcp import connect_tcp, serve_tcp
from ropewalk.net.websocket import connect_websocket, serve_websocket

TOPIC = "com.example"
IDLE_S = 60.0  # where silence is not the point: a loaded machine may be slow
SHORT_S = 0.5  # where it is
Ask = Callable[[SyncRequest], SyncResponse]
Reply = Callable[[Stream, GossipFrames], Awaitable[None]]


def filled(count: int, profile: str = "v0.13") -> GossipLog:
    log = memory_log(profile=profile)
    log.append_many({"n": n} for n in range(count))
    return log


def honest(source: GossipLog) -> Ask:
    def ask(request: SyncRequest) -> SyncResponse:
        with source.view() as view:
            return answer(view, source.profile, request)

    return ask


def meet_websocket(
    accept: Callable[[Pipe], Awaitable[None]],
    log: GossipLog,
    *,
    pull_only: bool = True,
    idle_s: float = IDLE_S,
) -> SyncReport:
    """Sync with a WebSocket server that behaves as `accept` does."""

    async def run() -> SyncReport:
        listening = await serve_websocket(accept, "127.0.0.1", 0)
        try:
            url = f"ws://127.0.0.1:{listening.port}"
            return await sync_with(log, url, pull_only=pull_only, idle_s=idle_s)
        finally:
            await listening.close()

    return asyncio.run(run())


def meet_stream(reply: Reply, log: GossipLog, *, idle_s: float = IDLE_S) -> SyncReport:
    """Sync with a server that speaks yamux and multistream properly, and then does what `reply` does."""

    async def accept(pipe: Pipe) -> None:
        tasks = []

        async def serve(stream: Stream) -> None:
            listener = ProtocolListener([f"/canvas/v1/{TOPIC}/sync"])
            while listener.chosen is None:
                listener.receive(await stream.receive())
                await stream.send(listener.data_to_send())
            await reply(stream, GossipFrames(stream, limit=1 << 20, rest=listener.rest))

        def take(stream: Stream) -> None:
            tasks.append(asyncio.ensure_future(serve(stream)))

        async with Muxer(pipe, client=False, accept=take) as muxer:
            await muxer.ended.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    return meet_websocket(accept, log, idle_s=idle_s)


def meet(ask: Ask, log: GossipLog) -> SyncReport:
    """Sync with a server whose answers are those of `ask`."""

    async def reply(stream: Stream, frames: GossipFrames) -> None:
        while (raw := await frames.receive()) is not None:
            response = ask(wire.decode_request(raw, "v0.13"))
            await frames.send(wire.encode_response(response, "v0.13"))
            if isinstance(response, AbortResponse):
                break
        await stream.close()

    return meet_stream(reply, log)


def cut(error: type[RopewalkError], code: int, act: Callable[[], object], match: str | None = None) -> None:
    with pytest.raises(error, match=match) as caught:
        act()
    assert caught.value.exit_code == code


def test_an_honest_server_of_this_kind_is_believed():
    source, target = filled(200), memory_log()
    assert meet(honest(source), target).received == 200
    assert target.root() == source.root()


def test_an_abort_in_the_middle_is_continued_on_a_new_stream():
    source, target = filled(2000), memory_log()
    count = 0

    def ask(request: SyncRequest) -> SyncResponse:
        nonlocal count
        count += 1
        return AbortResponse(10) if count % 40 == 0 else honest(source)(request)

    assert meet(ask, target).received == 2000
    assert count > 80
    assert target.root() == source.root()


def test_a_peer_that_only_aborts_is_given_up(monkeypatch):
    monkeypatch.setattr(peer, "SESSIONS_IDLE_MAX", 4)
    cut(Unavailable, 7, lambda: meet(lambda _: AbortResponse(), memory_log()), "broken off")


def test_a_wrong_hash():
    def ask(request: SyncRequest) -> SyncResponse:
        response = honest(filled(60))(request)
        if isinstance(response, ChildrenResponse):
            first, *rest = response.nodes
            return ChildrenResponse((replace(first, hash=bytes([255] * 16)), *rest))
        return response

    cut(DigestMismatch, 5, lambda: meet(ask, memory_log()))


def test_a_bad_signature_after_good_messages_keeps_the_good_ones():
    good = [sign(V13, key(1), TOPIC, (), n) for n in range(3)]
    made = sign(V13, key(1), TOPIC, tuple(each.key for each in good), "x")
    forged = made.raw.replace(made.signature.signature, good[0].signature.signature)
    values: dict[bytes, bytes] = {each.key: each.raw for each in good}
    values[make_key(V13.code, 2, sha256(forged))] = forged
    tree = build(values.items())

    def ask(request: SyncRequest) -> SyncResponse:
        match request:
            case RootRequest():
                return RootResponse(tree.root)
            case ChildrenRequest(level, key_):
                return ChildrenResponse(tuple(tree.get_children(level, key_)))
            case NodeRequest(level, key_):
                return NodeResponse(tree.get_node(level, key_))
            case ValuesRequest(keys):
                return ValuesResponse(tuple(values[each] for each in keys))

    target = memory_log()
    cut(SigInvalid, 5, lambda: meet(ask, target))
    assert len(target) == 3


def test_endless_children():
    many = tuple(Node(0, n.to_bytes(20, "big"), bytes([200] * 16)) for n in range(1, CHILDREN_MAX + 1))
    nodes = (Node(0, ANCHOR, ANCHOR_HASH), *many)
    root = Node(1, ANCHOR, node_hash([node.hash for node in nodes]))
    cut(
        TooLarge,
        8,
        lambda: meet(
            lambda q: RootResponse(root) if isinstance(q, RootRequest) else ChildrenResponse(nodes),
            memory_log(),
        ),
    )


def test_an_endless_tree_has_an_end():
    cut(
        TooLarge,
        8,
        lambda: meet(lambda _: RootResponse(Node(200, ANCHOR, bytes(16))), memory_log()),
        "levels",
    )


def test_missing_children():
    def ask(request: SyncRequest) -> SyncResponse:
        return ChildrenResponse(()) if isinstance(request, ChildrenRequest) else honest(filled(20))(request)

    cut(BrokenLink, 5, lambda: meet(ask, memory_log()))


def test_too_many_values():
    def ask(request: SyncRequest) -> SyncResponse:
        response = honest(filled(20))(request)
        return ValuesResponse(response.values * 2) if isinstance(response, ValuesResponse) else response

    cut(BrokenLink, 5, lambda: meet(ask, memory_log()))


async def _send_length(stream: Stream, frames: GossipFrames) -> None:
    await frames.receive()
    await stream.send(b"\xff\xff\xff\xff\x0f" + bytes(1000))
    await asyncio.sleep(IDLE_S)


def test_a_huge_length_is_refused_before_its_bytes():
    cut(TooLarge, 8, lambda: meet_stream(_send_length, memory_log()), "a frame must have at most")


async def _send_garbage(stream: Stream, frames: GossipFrames) -> None:
    await frames.receive()
    await stream.send(wire.frame(b"\xff\xfe garbage"))
    await asyncio.sleep(IDLE_S)


def test_garbage_instead_of_an_answer():
    cut(Invalid, 8, lambda: meet_stream(_send_garbage, memory_log()))


async def _drip(stream: Stream, frames: GossipFrames) -> None:
    await frames.receive()
    await stream.send(b"\x80\x80\x01")  # sixteen kilobytes, announced
    while True:
        await stream.send(b"x")
        await asyncio.sleep(0.05)


def test_a_byte_now_and_then_is_not_progress():
    cut(Unavailable, 7, lambda: meet_stream(_drip, memory_log(), idle_s=4 * SHORT_S), "no progress")


async def _stay_silent(stream: Stream, frames: GossipFrames) -> None:
    await asyncio.sleep(IDLE_S)


def test_a_stream_that_never_answers():
    cut(Unavailable, 7, lambda: meet_stream(_stay_silent, memory_log(), idle_s=SHORT_S))


async def _hang_up(stream: Stream, frames: GossipFrames) -> None:
    await frames.receive()
    await stream.close()


def test_a_stream_that_ends_instead_of_answering():
    cut(Unavailable, 7, lambda: meet_stream(_hang_up, memory_log()), "instead of answering")


async def _swamp(stream: Stream, frames: GossipFrames) -> None:
    """Fifteen megabytes of one answer that fits its announcement but is no protobuf."""
    await frames.receive()
    await stream.send(b"\x80\x80\xc0\x07")
    for _ in range(15):
        await stream.send(bytes(1 << 20))
    await asyncio.sleep(IDLE_S)


def test_the_largest_answer_stays_within_its_bound():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cut(Invalid, 8, lambda: meet_stream(_swamp, memory_log()))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10


def test_unchecked_messages_of_a_peer_do_not_pile_up(monkeypatch):
    monkeypatch.setattr("ropewalk.gossip.peer.frames.HELD_BYTES", 1000)
    monkeypatch.setattr("ropewalk.gossip.peer.frames.VALUES_BYTES", 1)  # one message an answer
    asked: list[int] = []
    source = filled(60)

    def ask(request: SyncRequest) -> SyncResponse:
        response = honest(source)(request)
        if isinstance(response, ValuesResponse):
            asked.append(len(response.values))
            # Sixteen good ones, then whatever the peer likes to send.
            if sum(asked) > 16:
                return ValuesResponse((bytes(400),) * len(response.values))
        return response

    cut(DigestMismatch, 5, lambda: meet(ask, memory_log()))
    assert sum(asked) < 25


def test_large_messages_after_many_small_ones_do_not_stop_a_sync(monkeypatch):
    monkeypatch.setattr("ropewalk.gossip.sync.wire.RESPONSE_BYTES_MAX", 40_000)
    monkeypatch.setattr("ropewalk.gossip.peer.frames.VALUES_BYTES", 20_000)
    source, target = memory_log(), memory_log()
    source.append_many(range(600))
    source.append_many({"big": bytes(2000), "n": n} for n in range(60))

    async def run() -> SyncReport:
        async with GossipServer(source) as server:
            return await sync_with(target, server.url, pull_only=True, idle_s=IDLE_S)

    assert asyncio.run(run()).received == 660
    assert target.root() == source.root()


def test_large_messages_do_not_stop_a_sync(
    monkeypatch,
):
    monkeypatch.setattr(peer, "ANSWER_BYTES_MAX", 30_000)
    monkeypatch.setattr("ropewalk.gossip.peer.frames.VALUES_BYTES", 20_000)
    source, target = memory_log(), memory_log()
    source.append_many(range(600))
    source.append_many({"big": bytes(2000), "n": n} for n in range(60))
    assert meet(honest(source), target).received == 660
    assert target.root() == source.root()


def test_the_first_messages_of_a_session_fit_one_answer_however_large():
    assert VALUES_FIRST * (MESSAGE_BYTES_MAX + 10) < ANSWER_BYTES_MAX


def speak(raw: bytes) -> Callable[[Pipe], Awaitable[None]]:
    async def accept(pipe: Pipe) -> None:
        await pipe.send(raw)
        await _silent(pipe)

    return accept


async def _silent(pipe: Pipe) -> None:
    while await pipe.receive():
        pass


def test_garbage_for_yamux():
    cut(Invalid, 8, lambda: meet_websocket(speak(b"this is not yamux at all"), memory_log()))


def test_a_yamux_frame_that_no_window_allows():
    huge = struct.pack(">BBHII", 0, 0, 1, 2, 0xFFFFFFFF)
    cut(TooLarge, 8, lambda: meet_websocket(speak(huge), memory_log()))


def test_a_websocket_message_beyond_the_limit():
    cut(TooLarge, 8, lambda: meet_websocket(speak(bytes(2 << 20)), memory_log()))


def test_a_websocket_that_never_says_anything():
    cut(Unavailable, 7, lambda: meet_websocket(_silent, memory_log(), idle_s=SHORT_S), "silent")


def test_a_peer_of_another_topic():
    async def run() -> None:
        async with GossipServer(memory_log("com.other")) as server:
            await sync_with(memory_log(), server.url, idle_s=IDLE_S)

    cut(Unavailable, 7, lambda: asyncio.run(run()), "does not speak")


def test_no_websocket_and_nobody_at_all():
    async def no_websocket(pipe: Pipe) -> None:
        await pipe.receive()
        await pipe.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async def run() -> None:
        listening = await serve_tcp(no_websocket, "127.0.0.1", 0)
        port = listening.port
        try:
            with pytest.raises(Unavailable):
                await sync_with(memory_log(), f"ws://127.0.0.1:{port}", idle_s=IDLE_S)
        finally:
            await listening.close()
        for url, profile in (("ws", "v0.13"), ("tcp", "v0.6")):
            with pytest.raises(Unavailable):
                await sync_with(memory_log(profile=profile), f"{url}://127.0.0.1:{port}", idle_s=IDLE_S)

    asyncio.run(run())


@pytest.mark.slow
def test_a_peer_that_talks_and_asks_but_takes_nothing_is_given_up(monkeypatch):
    monkeypatch.setattr(peer, "QUESTIONS_IDLE_MAX", 20)
    empty, log = memory_log(), filled(3)

    async def accept(pipe: Pipe) -> None:
        tasks = []

        async def serve(stream: Stream) -> None:
            listener = ProtocolListener([f"/canvas/v1/{TOPIC}/{name}" for name in ("push", "sync")])
            while listener.chosen is None:
                listener.receive(await stream.receive())
                await stream.send(listener.data_to_send())
            frames = GossipFrames(stream, limit=1 << 20, rest=listener.rest)
            if listener.chosen.endswith("push"):
                tasks.append(asyncio.ensure_future(ask()))
                while True:
                    await frames.send(wire.encode_event(wire.Update(())))
                    await asyncio.sleep(0.02)
            while (raw := await frames.receive()) is not None:
                response = honest(empty)(wire.decode_request(raw, "v0.13"))
                await frames.send(wire.encode_response(response, "v0.13"))
            await stream.close()

        async def ask() -> None:
            dialer, stream = Dialer(f"/canvas/v1/{TOPIC}/sync"), muxer.open()
            await stream.send(dialer.data_to_send())
            while True:
                await stream.send(wire.frame(wire.encode_request(RootRequest())))
                await stream.receive()

        def take(stream: Stream) -> None:
            tasks.append(asyncio.ensure_future(serve(stream)))

        async with Muxer(pipe, client=False, accept=take) as muxer:
            await muxer.ended.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    cut(Unavailable, 7, lambda: meet_websocket(accept, log, pull_only=False, idle_s=3), "does not take")


# The same over TCP, in v0.6.


def meet_tcp(
    accept: Callable[[Pipe], Awaitable[None]], log: GossipLog, *, idle_s: float = IDLE_S
) -> SyncReport:
    async def run() -> SyncReport:
        listening = await serve_tcp(accept, "127.0.0.1", 0)
        try:
            return await sync_with(log, f"tcp://127.0.0.1:{listening.port}", idle_s=idle_s)
        finally:
            await listening.close()

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("raw", "error", "code"),
    [
        (b"\xff\xff\xff\xff\x0f", TooLarge, 8),
        (b"\x03abc", Invalid, 8),
        (b"", Unavailable, 7),
        (b"\x05", Unavailable, 7),
    ],
)
def test_v06_peers_that_babble_or_stall(raw: bytes, error: type[RopewalkError], code: int):
    async def accept(pipe: Pipe) -> None:
        await pipe.receive()
        await pipe.send(raw)
        await asyncio.sleep(IDLE_S)

    idle_s = SHORT_S if error is Unavailable else IDLE_S
    cut(error, code, lambda: meet_tcp(accept, memory_log(profile="v0.6"), idle_s=idle_s))


def test_a_v06_peer_that_lies_about_a_value():
    source = filled(40, "v0.6")

    async def accept(pipe: Pipe) -> None:
        frames = GossipFrames(pipe, limit=1 << 20)
        while (raw := await frames.receive()) is not None:
            response = honest(source)(wire.decode_request(raw, "v0.6"))
            if isinstance(response, ChildrenResponse) and response.nodes[-1].value is not None:
                last = replace(response.nodes[-1], value=b"other")
                response = ChildrenResponse((*response.nodes[:-1], last))
            await frames.send(wire.encode_response(response, "v0.6"))

    cut(DigestMismatch, 5, lambda: meet_tcp(accept, memory_log(profile="v0.6")))


def test_a_v06_peer_that_only_answers_is_said_to_lack_ours():
    source, target = filled(40, "v0.6"), memory_log(profile="v0.6", signer=key(2))
    target.append("mine")

    async def accept(pipe: Pipe) -> None:
        frames = GossipFrames(pipe, limit=1 << 20)
        while raw := await frames.receive():
            response = honest(source)(wire.decode_request(raw, "v0.6"))
            await frames.send(wire.encode_response(response, "v0.6"))

    report = meet_tcp(accept, target)
    assert (report.received, report.sent, report.taken) == (40, 0, False)


# Clients that attack a server: it sheds them and serves the others.


def attack(
    act: Callable[[GossipServer], Awaitable[None]],
    profile: str = "v0.13",
    *,
    idle_s: float = IDLE_S,
    peers_max: int = 64,
) -> None:
    source = filled(50, profile)

    async def run() -> None:
        async with GossipServer(source, idle_s=idle_s, peers_max=peers_max) as server:
            await act(server)
            target = memory_log(profile=profile)
            report = await sync_with(target, server.url, idle_s=IDLE_S)
            assert report.received == 50

    asyncio.run(run())


@pytest.mark.parametrize(
    "raw",
    [
        b"garbage that is no yamux",
        struct.pack(">BBHII", 0, 0, 1, 1, 0xFFFFFFFF),
        struct.pack(">BBHII", 0, 2, 1, 0, 1) * 50_000,
        b"".join(struct.pack(">BBHII", 0, 1, 1, n, 0) for n in range(1, 20_001, 2)),
    ],
    ids=["garbage", "huge frame", "ping flood", "ten thousand streams"],
)
def test_a_server_survives(raw: bytes):
    async def act(server: GossipServer) -> None:
        pipe = await connect_websocket(server.url, timeout_s=IDLE_S)
        try:
            for at in range(0, len(raw), 1 << 19):
                await pipe.send(raw[at : at + (1 << 19)])
        except Unavailable:
            pass  # cut off in the middle, as it should be
        await pipe.close()

    attack(act)


@pytest.mark.parametrize(
    "raw",
    [
        wire.frame(wire.encode_request(ValuesRequest((bytes(20),)))),
        wire.frame(wire.encode_request(ChildrenRequest(200, ANCHOR))),
        wire.frame(wire.encode_request(ValuesRequest((bytes(20),) * 5000))),
        wire.frame(b"\xff\xff"),
        b"\xff\xff\xff\xff\x0f",
    ],
    ids=["unknown key", "no such level", "too many keys", "no protobuf", "huge length"],
)
def test_a_bad_question_ends_its_session_only(raw: bytes):
    async def act(server: GossipServer) -> None:
        pipe = await connect_websocket(server.url, timeout_s=IDLE_S)
        async with Muxer(pipe, client=True, accept=lambda _: None) as muxer:
            for sent, good in ((raw, False), (wire.frame(wire.encode_request(RootRequest())), True)):
                stream = muxer.open()
                await stream.send(Dialer(f"/canvas/v1/{TOPIC}/sync").data_to_send() + sent)
                dialer = Dialer(f"/canvas/v1/{TOPIC}/sync")
                try:
                    while dialer.chosen is None:
                        dialer.receive(await stream.receive())
                    frames = GossipFrames(stream, limit=1 << 20, rest=dialer.rest)
                    assert (await frames.receive() is not None) == good
                except Unavailable:
                    assert not good

    attack(act)


def test_pushed_lies_end_the_connection():
    made = sign(V13, key(1), TOPIC, (), "pushed")
    lies = [
        wire.Insert(bytes([1] + [0] * 19), made.raw),
        wire.Insert(made.key, made.raw[:-1] + b"x"),
        wire.Insert(made.key, b""),
    ]

    async def act(server: GossipServer) -> None:
        for lie in lies:
            pipe = await connect_websocket(server.url, timeout_s=IDLE_S)
            async with Muxer(pipe, client=True, accept=lambda _: None) as muxer:
                stream = muxer.open()
                hello = Dialer(f"/canvas/v1/{TOPIC}/push").data_to_send()
                await stream.send(hello + wire.frame(wire.encode_event(lie)))
                await asyncio.wait_for(muxer.ended.wait(), IDLE_S)
        assert len(server.log) == 50

    attack(act)


def test_a_stream_given_up_before_it_began_does_not_end_the_connection():
    async def act(server: GossipServer) -> None:
        pipe = await connect_websocket(server.url, timeout_s=IDLE_S)
        async with Muxer(pipe, client=True, accept=lambda _: None) as muxer:
            hello = Dialer(f"/canvas/v1/{TOPIC}/sync").data_to_send()
            given_up = muxer.open()
            await given_up.send(hello[:10])
            given_up.reset()
            stream = muxer.open()
            await stream.send(hello + wire.frame(wire.encode_request(RootRequest())))
            answered = b""
            while server.log.root().hash not in answered:
                answered += await asyncio.wait_for(stream.receive(), IDLE_S)
            assert muxer.error is None

    attack(act)


def test_more_peers_than_allowed_are_turned_away():
    async def act(server: GossipServer) -> None:
        pipes = [await connect_websocket(server.url, timeout_s=IDLE_S) for _ in range(2)]
        met, late = (
            peer.Peer(memory_log(), pipe, dialer=True, idle_s=IDLE_S, session_s=IDLE_S) for pipe in pipes
        )
        async with met, late:
            await met.meet()
            await late.start_push()
            await asyncio.wait_for(late.stay(), IDLE_S)
            assert met.error is None
        for pipe in pipes:
            await pipe.close()
        await soon(lambda: not server.peers)

    attack(act, peers_max=1)


def test_a_silent_tcp_client_is_dropped_after_the_idle_limit():
    async def act(server: GossipServer) -> None:
        pipe = await connect_tcp("127.0.0.1", server.port, timeout_s=IDLE_S)
        assert await asyncio.wait_for(pipe.receive(), IDLE_S) == b""
        await pipe.close()

    attack(act, "v0.6", idle_s=3)  # short for the silent one, long enough for the honest one after it


def test_empty_websocket_messages_say_nothing_however_many():
    async def accept(pipe: Pipe) -> None:
        for _ in range(3000):
            await pipe.send(b"")
        await pipe.send(b"no yamux either")
        await _silent(pipe)

    cut(Invalid, 8, lambda: meet_websocket(accept, memory_log()))


def test_a_peer_with_many_sessions_at_once_gets_all_its_answers():
    async def act(server: GossipServer) -> None:
        pipe = await connect_websocket(server.url, timeout_s=IDLE_S)

        async def session(muxer: Muxer) -> None:
            dialer, stream = Dialer(f"/canvas/v1/{TOPIC}/sync"), muxer.open()
            await stream.send(dialer.data_to_send() + wire.frame(wire.encode_request(RootRequest())))
            while dialer.chosen is None:
                dialer.receive(await stream.receive())
            assert await GossipFrames(stream, limit=1 << 20, rest=dialer.rest).receive() is not None
            await stream.close()

        async with Muxer(pipe, client=True, accept=lambda _: None) as muxer:
            await asyncio.gather(*[session(muxer) for _ in range(60)])

    attack(act)


def test_pages_of_unlisted_origins_are_refused():
    """A web page could read and write as this machine; one that the operator lists may connect."""

    async def main() -> None:
        listed = "https://app.example"
        async with GossipServer(memory_log(), origins=(listed,)) as server:
            async with connect(server.url, origin=Origin(listed)):
                pass
            for origin in ("https://evil.example", "null", "https://app.example.evil"):
                with pytest.raises(InvalidStatus, match="403"):
                    await connect(server.url, origin=Origin(origin))

    asyncio.run(main())
