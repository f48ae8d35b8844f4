"""Bad networks and crowds over gRPC and QUIC: loss and jitter, floods of handshakes, streams that stay half open."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import socket
import subprocess
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection

from ropewalk.errors import RopewalkError
from ropewalk.ledger.envelope.envelope import parse
from ropewalk.ledger.remote.client import LedgerClient
from ropewalk.ledger.remote.conversation import cancelled
from ropewalk.ledger.remote.messages import PROTOCOL, RemoteMessage
from ropewalk.ledger.remote.transports.grpc_client import GrpcSession
from ropewalk.ledger.remote.transports.grpc_messages import request_message
from ropewalk.net.quic.client import connect_quic
from tests.torture.scenes.house import House, Server
from tests.torture.scenes.report import Scene
from tests.torture.scenes.weather import UdpWeather, Weather
from tests.torture.scenes.workload import Workload
from tests.waiting import LIMIT_S

__all__ = ["floods", "lossy_links", "slow_readers"]

NETEM = ("delay", "4ms", "3ms", "loss", "2%")
GROWTH_MIB_MAX = 96
ASKED = 16  # requests of a client that reads no answer


@contextlib.contextmanager
def bad_link() -> Iterator[tuple[str, ...]]:
    """A network namespace whose loopback loses and delays packets: the prefix of commands in it, or none."""
    name = f"ropewalk-{os.getpid()}-{secrets.token_hex(3)}"

    def done(*command: str) -> bool:
        try:
            return subprocess.run(command, capture_output=True, timeout=LIMIT_S, check=False).returncode == 0
        except OSError:
            return False

    inside = ("ip", "netns", "exec", name)
    if not done("ip", "netns", "add", name):
        yield ()
        return
    try:
        shaped = done(*inside, "ip", "link", "set", "lo", "up") and done(
            *inside, "tc", "qdisc", "add", "dev", "lo", "root", "netem", *NETEM
        )
        yield inside if shaped else ()
    finally:
        done("ip", "netns", "del", name)


def lossy_links(house: House, work: Workload, scene: Scene, quick: bool) -> None:
    """Clients and a follower over links that lose and delay packets: `tc netem` where rights allow, else proxies."""
    clients, each = (2, 60) if quick else (4, 800)
    loads = {name: [work.raws(each) for _ in range(clients)] for name in ("tls", "grpc", "quic")}
    tls = ("--tls", str(house.files("client").certificate.parent))
    own = ("--tls", str(house.files("server").certificate.parent))
    with bad_link() as prefix:
        scene.measure("netem", bool(prefix))
        for transport, streams in loads.items():
            channel = f"lossy.{transport}"
            trust = str(house.create(channel))
            listens = () if transport == "tls" else (f"--{transport}", "127.0.0.1:0")
            server = house.serve(*listens, *own, transport=transport, prefix=prefix)
            copy = house.empty(f"{channel}-copy.git")
            with contextlib.ExitStack() as stack:
                url = server.url
                if not prefix and transport == "quic":
                    url = stack.enter_context(UdpWeather(url, work.chance.random())).url
                elif not prefix:
                    url = stack.enter_context(Weather(url, f"{transport}", cuts=0)).url
                where = (url, "--channel", channel, "--trust", trust, "--json", *tls)
                sending = []
                for raws in streams:
                    words = ("ledger", "send", *where, "--file", "-", "--jsonl", "--retry", "60")
                    process = house.start(*words, prefix=prefix, stdin=subprocess.PIPE)
                    sending.append((process, raws))
                answers = []
                for process, raws in sending:
                    text, _ = process.communicate("".join(raw.decode() + "\n" for raw in raws), LIMIT_S)
                    told = [json.loads(line).get("envelope_id") for line in text.splitlines()]
                    answers.append(told == [parse(raw).hex_id for raw in raws])
                pulling = house.start("ledger", "pull", *where, repo=copy, prefix=prefix)
                pulled = pulling.wait(LIMIT_S) == 0
            server.process.kill()
            stands = house.standing(channel)
            scene.check(f"{transport}: every envelope is answered with a receipt, in order", all(answers))
            scene.check(
                f"{transport}: every envelope is sealed once, and the channel verifies",
                sorted(stands) == sorted(raw for raws in streams for raw in raws) and house.holds(channel),
                sent=clients * each,
                stand=len(stands),
            )
            scene.check(
                f"{transport}: a follower over the same link has the same blocks",
                pulled and house.block_hashes(channel, copy) == house.block_hashes(channel),
            )


def floods(house: House, work: Workload, scene: Scene, quick: bool) -> None:
    """Handshakes that never end and streams that stay half open; a healthy client goes on."""
    handshakes, streams = (200, 40) if quick else (3_000, 100)
    house.create("floods")
    raws = {name: work.raws(40) for name in ("grpc", "quic")}
    for transport, healthy in raws.items():
        server = house.server(transport)
        with server.watched() as memory:
            refused = asyncio.run(_flooded(house, server, healthy, handshakes, streams))
        scene.check(
            f"{transport}: a healthy client is answered during the flood", not refused, refused=refused[:2]
        )
        scene.check(
            f"{transport}: the server holds no more than {GROWTH_MIB_MAX} MiB beyond what it held before",
            server.alive and memory[1] - memory[0] <= GROWTH_MIB_MAX,
            most_mib=round(memory[1], 1),
        )
        scene.measure(f"{transport}_growth_mib", memory[1] - memory[0])
    stands = house.standing("floods")
    sent = sorted(raw for each in raws.values() for raw in each)
    scene.check("every envelope of the healthy client is sealed once", sorted(stands) == sent)


async def _flooded(
    house: House, server: Server, raws: list[bytes], handshakes: int, streams: int
) -> list[str]:
    """Send before and during a flood; what was refused."""
    files, found = house.files("client"), urlsplit(server.url)
    async with LedgerClient(server.url, "floods", files=files) as remote:
        await remote.submit_many(raws[:20])
        flood = _hellos if found.scheme == "quic" else _half_open
        with flood(server.url, handshakes):
            if found.scheme == "quic":
                link, close = await connect_quic(
                    "127.0.0.1", found.port or 0, files, PROTOCOL, timeout_s=LIMIT_S
                )
                for _ in range(streams):  # each says the beginning of a frame
                    with contextlib.suppress(RopewalkError):
                        await link.write(link.open_stream(), b"\x00\x00")
            outcomes = await remote.submit_many(raws[20:])
            if found.scheme == "quic":
                await close()
    return [each.detail for each in outcomes if isinstance(each, RopewalkError)]


def slow_readers(house: House, work: Workload, scene: Scene, quick: bool) -> None:
    """Clients ask for all blocks, again and again, and read none; a healthy client sends and reads on."""
    blocks, readers = (24, 3) if quick else (96, 8)
    house.create("slow")
    early, raws = work.raws(blocks, 512 << 10), {name: work.raws(20) for name in ("grpc", "quic")}
    for number, (transport, healthy) in enumerate(raws.items()):
        server = house.server(transport)
        if not number:
            with house.connect(server.url, "slow") as remote:
                for raw in early:
                    remote.submit(raw)
        with server.watched() as memory:
            read, refused = asyncio.run(_unread(house, server.url, healthy, readers))
        asked = readers * ASKED * sum(map(len, early)) >> 20
        scene.check(
            f"{transport}: a healthy client sends and reads all blocks meanwhile",
            not refused and set(early) <= set(read) and set(healthy) <= set(read),
            refused=refused[:2],
        )
        scene.check(
            f"{transport}: the server holds no more than {GROWTH_MIB_MAX} MiB beyond what it held before",
            server.alive and memory[1] - memory[0] <= GROWTH_MIB_MAX,
            most_mib=round(memory[1], 1),
            asked_mib=asked,
        )
        scene.measure(f"{transport}_growth_mib", memory[1] - memory[0])
        scene.measure(f"{transport}_asked_mib", asked)


async def _unread(house: House, url: str, raws: list[bytes], readers: int) -> tuple[list[bytes], list[str]]:
    """What a healthy client reads after it has sent, and what was refused, among clients that read nothing."""
    async with contextlib.AsyncExitStack() as stack:
        calls = []
        for _ in range(readers):
            slow = await stack.enter_async_context(house.remote(url, "slow"))
            session: Any = slow._session
            asking = [RemoteMessage("blocks", number, {"from": 0}) for number in range(1, ASKED + 1)]
            if isinstance(session, GrpcSession):
                read = session.carrier.calls["Read"]
                calls += [read(request_message(each, session._session, 1 << 40)[1]) for each in asking]
            else:
                await cancelled(*(lane.reading for lane in session._lanes.values()))
                for each in asking:
                    await session.send(each)
        async with LedgerClient(url, "slow", files=house.files("healthy")) as healthy:
            outcomes = await healthy.submit_many(raws)
            found = [raw async for _, block in healthy.blocks() for raw in block[1:]]
        for call in calls:
            call.cancel()
            await call.code()
    return found, [each.detail for each in outcomes if isinstance(each, RopewalkError)]


@contextlib.contextmanager
def _half_open(url: str, count: int) -> Iterator[None]:
    """So many TCP connections that begin a TLS record and say no more; those that the server closes stay counted."""
    found = urlsplit(url)
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            with contextlib.suppress(OSError):
                link = stack.enter_context(socket.create_connection((found.hostname, found.port), LIMIT_S))
                link.sendall(b"\x16\x03\x01\x02\x00\x01")
        yield


@contextlib.contextmanager
def _hellos(url: str, count: int) -> Iterator[None]:
    """So many first packets of clients that never answer, each of its own port and connection id."""
    found = urlsplit(url)
    there = (found.hostname, found.port)
    for _ in range(count):
        configuration = QuicConfiguration(is_client=True, alpn_protocols=[PROTOCOL], server_name="127.0.0.1")
        hello = QuicConnection(configuration=configuration)
        hello.connect(there, now=0.0)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
            for data, _ in hello.datagrams_to_send(now=0.0):
                link.sendto(data, there)
    yield
