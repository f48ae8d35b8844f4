"""Faults between and among peers: bad weather on the way, and some who misbehave beside others who do not."""

from __future__ import annotations

import json
import subprocess

from ropewalk.ledger.envelope.envelope import parse
from tests.torture.scenes.house import House
from tests.torture.scenes.misbehaving import misbehave
from tests.torture.scenes.report import Scene
from tests.torture.scenes.stream import Stream
from tests.torture.scenes.weather import UdpWeather, Weather
from tests.torture.scenes.workload import Workload
from tests.waiting import Crew, ended

__all__ = ["misbehaving_peers", "weather"]

GROWTH_MIB_MAX = 64
IDLE_S = "1"  # of the server; long beside any pause of a healthy peer, short beside our patience


def weather(house: House, work: Workload, scene: Scene, quick: bool) -> None:
    """Clients and a follower behind a proxy that delays, stalls and cuts, or over QUIC loses and changes addresses."""
    channel, server = "weather", house.server()
    trust = house.create(channel)
    clients, each, cuts = (2, 150, 4) if quick else (6, 1_500, 40)
    streams = [work.raws(each) for _ in range(clients)]
    seed = work.chance.randbytes(8).hex()
    work.drawn(seed)
    copy = house.empty("weather-copy.git")
    quic = house.transport == "quic"
    if house.transport == "grpc":
        cuts *= 2  # its clients connect twice: gRPC says nothing about the certificate of the server
    proxy = UdpWeather(server.url, seed, moves=cuts) if quic else Weather(server.url, seed, cuts=cuts)
    with proxy as bad, Crew(clients) as crew:
        sending = [
            crew.submit(house.send, bad.url, channel, raws, "--retry", "60", "--trust", str(trust))
            for raws in streams
        ]
        answers = [done.result(600) for done in sending]
        pulled = house.pull(bad.url, channel, copy, trust)
    stands = house.standing(channel)
    scene.check(
        "every envelope is answered with a receipt, in order",
        all(
            [said.get("envelope_id") for said in told] == [parse(raw).hex_id for raw in raws]
            for told, raws in zip(answers, streams, strict=True)
        ),
    )
    scene.check(
        "every envelope is sealed once",
        sorted(stands) == sorted(raw for raws in streams for raw in raws),
        sent=clients * each,
        stand=len(stands),
    )
    scene.check(
        "each client's envelopes stand in the order it sent them",
        all([raw for raw in stands if raw in set(raws)] == raws for raws in streams),
    )
    if isinstance(bad, UdpWeather):
        scene.check(
            "the address of each client changed once, and datagrams were lost",
            bad.moved >= clients and bad.lost > 0,
            moved=bad.moved,
        )
    else:
        scene.check("connections were cut, one of each client at least", bad.cut >= clients, cut=bad.cut)
    scene.check(
        "a follower in the same weather has the same blocks",
        pulled.code == 0 and house.block_hashes(channel, copy) == house.block_hashes(channel),
        said=pulled.err[-300:],
    )
    scene.check("the channel verifies", house.holds(channel))
    scene.measure("connections", bad.connections)
    if isinstance(bad, UdpWeather):
        scene.measure("moves", bad.moved)
        scene.measure("lost", bad.lost)
    else:
        scene.measure("cuts", bad.cut)
        scene.measure("stalls", bad.stalled)
    scene.measure("sent_again", sum(bool(said.get("replayed")) for told in answers for said in told))


def misbehaving_peers(house: House, work: Workload, scene: Scene, quick: bool) -> None:
    """Two healthy clients go on while others send garbage, read nothing, stop in the middle, or are killed."""
    channel, server = "misbehaving", house.server(house.transport, "--idle", IDLE_S)
    house.create(channel)
    batches = [[work.raws(10) for _ in range(12 if quick else 400)] for _ in range(2)]
    killed = work.raws(400 if quick else 2_000)
    garbage = [work.chance.randbytes(400) for _ in range(8)]
    work.drawn(garbage)
    # A call of gRPC asks for all blocks once, so they must be more than its windows and buffers take (4 to 8 MiB).
    large = work.raws(40, 512 << 10) if house.transport == "grpc" else []
    with house.connect(server.url, channel) as remote:
        remote.submit_many([raw for batch in batches[0][:4] for raw in batch])
        for raw in large:
            remote.submit(raw)
    files = None if house.transport == "tcp" else house.files("misbehaving")
    with server.watched() as memory, Crew(2) as crew:
        healthy = [Stream(house, server.url, channel, each) for each in batches]
        acting = crew.submit(misbehave, server, files, channel, garbage)
        answered = crew.submit(_kill_in_the_middle, house, server.url, channel, killed)
        gone = acting.result(300)
        told = answered.result(300)
        for stream in healthy:
            stream.end()
    stands = house.standing(channel)
    sent = {*large, *(raw for each in batches for batch in each for raw in batch)}
    standing_killed = [raw for raw in stands if raw in set(killed)]
    scene.check(
        "every envelope of every healthy peer has a receipt and stands once, in order",
        not any(stream.refused for stream in healthy)
        and sorted(raw for raw in stands if raw in sent) == sorted(sent)
        and all([raw for raw in stands if raw in set(stream.sent)] == stream.sent for stream in healthy),
        refused=[stream.refused[:2] for stream in healthy],
    )
    scene.check(
        "whoever misbehaves is let go",
        all(gone.values()),
        **{"still_there": [k for k, v in gone.items() if not v]},
    )
    scene.check(
        "of whoever was killed stands what it had sent so far, no more, with all that was answered",
        killed[: len(standing_killed)] == standing_killed and told <= len(standing_killed),
        answered=told,
        stand=len(standing_killed),
    )
    scene.check("nothing else stands", len(stands) == len(sent) + len(standing_killed))
    scene.check(
        f"the server still runs and holds no more than {GROWTH_MIB_MAX} MiB beyond what it held before",
        server.alive and memory[1] - memory[0] <= GROWTH_MIB_MAX,
        before_mib=round(memory[0], 1),
        most_mib=round(memory[1], 1),
    )
    scene.check("the channel verifies", house.holds(channel))
    scene.measure("healthy_envelopes", len(sent))
    scene.measure("server_growth_mib", memory[1] - memory[0])


def _kill_in_the_middle(house: House, url: str, channel: str, raws: list[bytes]) -> int:
    """A client that is killed once it has the first answers; how many it had."""
    where = (
        "ledger",
        "send",
        url,
        *house.certified(url),
        "--channel",
        channel,
        "--file",
        "-",
        "--jsonl",
        "--json",
    )
    with ended(house.start(*where, stdin=subprocess.PIPE)) as client:
        assert client.stdin is not None and client.stdout is not None
        client.stdin.write("".join(raw.decode() + "\n" for raw in raws[: len(raws) // 2]))
        client.stdin.flush()
        answers = [client.stdout.readline()]
        client.stdin.write("".join(raw.decode() + "\n" for raw in raws[len(raws) // 2 :]))
        client.stdin.flush()
        client.kill()
        answers += client.stdout.readlines()
    return sum(line.endswith("\n") and "envelope_id" in json.loads(line) for line in answers)
