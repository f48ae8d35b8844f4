"""Faults between and among peers: bad weather on the way, and some who misbehave beside others who do not."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

from ropewalk.ledger.envelope.envelope import parse
from ropewalk.ledger.remote.messages import RemoteMessage
from ropewalk.net.frames import frame
from tests.torture.scenes.house import House, Server
from tests.torture.scenes.peer import Peer, framed
from tests.torture.scenes.report import Scene
from tests.torture.scenes.stream import Stream
from tests.torture.scenes.weather import Weather
from tests.torture.scenes.workload import Workload
from tests.waiting import Crew, ended, until

__all__ = ["misbehaving_peers", "weather"]

GROWTH_MIB_MAX = 64
IDLE_S = "1"  # of the server; long beside any pause of a healthy peer, short beside our patience


def weather(house: House, work: Workload, scene: Scene, quick: bool) -> None:
    """Clients and a follower behind a proxy that delays, stalls and cuts; the first connection of each is cut."""
    channel, server = "weather", house.server()
    trust = house.create(channel)
    clients, each, cuts = (2, 150, 4) if quick else (6, 1_500, 40)
    streams = [work.raws(each) for _ in range(clients)]
    seed = work.chance.randbytes(8).hex()
    work.drawn(seed)
    copy = house.empty("weather-copy.git")
    with Weather(server.url, seed, cuts=cuts) as bad, Crew(clients) as crew:
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
    scene.check("connections were cut, one of each client at least", bad.cut >= clients, cut=bad.cut)
    scene.check(
        "a follower in the same weather has the same blocks",
        pulled.code == 0 and house.block_hashes(channel, copy) == house.block_hashes(channel),
        said=pulled.err[-300:],
    )
    scene.check("the channel verifies", house.holds(channel))
    scene.measure("connections", bad.connections)
    scene.measure("cuts", bad.cut)
    scene.measure("stalls", bad.stalled)
    scene.measure("sent_again", sum(bool(said.get("replayed")) for told in answers for said in told))


def misbehaving_peers(house: House, work: Workload, scene: Scene, quick: bool) -> None:
    """Two healthy clients go on while others send garbage, read nothing, stop in the middle, or are killed."""
    channel, server = "misbehaving", house.server("tcp", "--idle", IDLE_S)
    house.create(channel)
    batches = [[work.raws(10) for _ in range(12 if quick else 400)] for _ in range(2)]
    killed = work.raws(400 if quick else 2_000)
    garbage = [work.chance.randbytes(400) for _ in range(8)]
    work.drawn(garbage)
    acts: dict[str, Callable[[Peer], None]] = {
        "silent": lambda _: None,
        "garbage before it opens": lambda peer: peer.send(garbage[0]),
        "garbage in frames": lambda peer: peer.send(b"".join(map(frame, garbage))),
        "an endless frame": lambda peer: peer.send(b"\xff\xff\xff\xff" + garbage[0]),
        "half a frame": lambda peer: peer.send(framed(RemoteMessage("head", 1, {}))[:-3]),
        "answers nobody asked for": lambda peer: peer.send(
            framed(RemoteMessage("outcomes", 1, {"first": 0}))
        ),
        "reads nothing": lambda peer: _read_nothing(peer, server),
    }
    before_opening = {"silent", "garbage before it opens"}

    def misbehave(kind: str) -> bool:
        with Peer.connected(server.url, None if kind in before_opening else channel) as peer:
            try:
                acts[kind](peer)
            except ConnectionError:
                return True
            return peer.is_let_go()

    with house.connect(server.url, channel) as remote:
        remote.submit_many([raw for batch in batches[0][:4] for raw in batch])
    with server.watched() as memory, Crew(len(acts) + 1) as crew:
        healthy = [Stream(house, server.url, channel, each) for each in batches]
        acknowledge = {kind: crew.submit(misbehave, kind) for kind in acts}
        answered = crew.submit(_kill_in_the_middle, house, server.url, channel, killed)
        gone = {kind: done.result(300) for kind, done in acknowledge.items()}
        told = answered.result(300)
        for stream in healthy:
            stream.end()
    stands = house.standing(channel)
    sent = {raw for each in batches for batch in each for raw in batch}
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


def _read_nothing(peer: Peer, server: Server) -> None:
    """Ask for all blocks, again and again, far more than fits into any buffer; read none until the server gave up."""
    peer.send(b"".join(framed(RemoteMessage("blocks", number, {"from": 0})) for number in range(1, 2_000)))
    until(lambda: "has read nothing" in server.journal.read_text())


def _kill_in_the_middle(house: House, url: str, channel: str, raws: list[bytes]) -> int:
    """A client that is killed once it has the first answers; how many it had."""
    where = ("ledger", "send", url, "--channel", channel, "--file", "-", "--jsonl", "--json")
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
