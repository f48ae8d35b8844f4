"""Load: every transport at three sizes, a steady stream with bursts in it, and what a policy costs."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

from ropewalk.errors import RopewalkError
from ropewalk.ledger.ingest.ticket import LedgerReceipt
from ropewalk.ledger.remote.client import LedgerClient
from ropewalk.ledger.remote.messages import RemoteMessage, outcome_of
from tests.torture.scenes.house import TRANSPORTS, House
from tests.torture.scenes.peer import Peer, framed
from tests.torture.scenes.report import Scene, percentiles
from tests.torture.scenes.workload import Workload

__all__ = ["bursts", "policy_cost", "transports"]

# Bytes, envelopes in one go, envelopes one by one; the last two for quick runs and for full ones.
SIZES = (
    ("1_kib", 1 << 10, (96, 32), (8_000, 1_000)),
    ("64_kib", 64 << 10, (12, 8), (600, 200)),
    ("1_mib", (1 << 20) - 4096, (3, 3), (48, 24)),
)
CALLERS = 4
GROWTH_MIB_MAX = 64  # of a server, whatever is offered to it


def transports(house: House, work: Workload, scene: Scene, quick: bool) -> None:
    """Throughput of envelopes sent in one go, and how long each takes that is sent by itself, until it is durable."""
    loads = [
        (name, work.raws(many, size), work.raws(single, size))
        for name, size, small, large in SIZES
        for many, single in (small if quick else large,)
    ]
    for transport in TRANSPORTS:
        channel = f"load.{transport}"
        house.create(channel)
        refused: list[str] = []
        for name, together, apart in loads:
            client = house.client(transport, channel)
            took_s, latencies, told = asyncio.run(_sent(client, together, apart))
            refused += told
            scene.measure(f"{transport}_{name}_envelopes_per_s", len(together) / took_s)
            scene.measure(f"{transport}_{name}_mib_per_s", sum(map(len, together)) / took_s / (1 << 20))
            percentiles(scene, f"{transport}_{name}_durable", latencies)
        sent = [raw for _, together, apart in loads for raw in together + apart]
        scene.check(
            f"{transport}: every envelope of every size has a receipt, stands once, and the channel verifies",
            not refused and sorted(house.standing(channel)) == sorted(sent) and house.holds(channel),
            refused=refused[:3],
        )


async def _sent(
    client: LedgerClient, together: list[bytes], apart: list[bytes]
) -> tuple[float, list[float], list[str]]:
    latencies: list[float] = []
    todo = iter(apart)

    async def call() -> None:
        for raw in todo:
            started = time.perf_counter()
            await client.submit(raw)
            latencies.append(time.perf_counter() - started)

    async with client:
        started = time.perf_counter()
        outcomes = await client.submit_many(together)
        took_s = time.perf_counter() - started
        await asyncio.gather(*(call() for _ in range(CALLERS)))
    return took_s, latencies, [each.detail for each in outcomes if isinstance(each, RopewalkError)]


def bursts(house: House, work: Workload, scene: Scene, quick: bool) -> None:
    """A steady stream of four clients, then ten times as much at a stroke, again and again; then somebody who pours."""
    channel, server = "bursts", house.server()
    house.create(channel)
    each, ticks, strokes = (2, 5, 2) if quick else (10, 100, 20)
    steady = [work.raws(each * ticks) for _ in range(CALLERS)]
    bursting = [work.raws(10 * each * strokes) for _ in range(CALLERS)]
    poured, times = work.raws(12 if quick else 48, 512 << 10), 4 if quick else 8
    with server.watched() as memory:
        seen = asyncio.run(_streams(house, server.url, channel, steady, bursting, each))
        if house.transport == "tcp":  # the only one over which we speak byte by byte
            waits, unanswered = _pour(server.url, channel, poured * times)
            scene.check(
                "more than was agreed on waits on the side of whoever sends it",
                waits > 0 and not unanswered,
                waits=waits,
                unanswered=unanswered,
            )
        else:
            with house.connect(server.url, channel) as remote:
                seen["refused"] += sum(
                    isinstance(each, RopewalkError) for each in remote.submit_many(poured * times)
                )
    sent = [raw for raws in (*steady, *bursting, poured) for raw in raws]
    stands = house.standing(channel)
    scene.check(
        "nothing is lost and nothing stands twice",
        sorted(stands) == sorted(sent) and not seen["refused"],
        sent=len(sent),
        stand=len(stands),
        refused=seen["refused"],
    )
    scene.check("each client's envelopes stand in the order it sent them", _in_order(stands, steady))
    scene.check(
        f"the server holds no more than {GROWTH_MIB_MAX} MiB beyond what it held before",
        memory[1] - memory[0] <= GROWTH_MIB_MAX and server.alive,
        before_mib=round(memory[0], 1),
        most_mib=round(memory[1], 1),
    )
    scene.measure("server_growth_mib", memory[1] - memory[0])
    scene.measure("poured_mib", times * sum(map(len, poured)) / (1 << 20))
    percentiles(scene, "steady_durable", seen["steady"])
    percentiles(scene, "burst_durable", seen["burst"])


async def _streams(
    house: House, url: str, channel: str, steady: list[list[bytes]], bursting: list[list[bytes]], each: int
) -> dict[str, Any]:
    seen: dict[str, Any] = {"steady": [], "burst": [], "refused": 0}

    async def submit(client: LedgerClient, raw: bytes, times: list[float]) -> None:
        started = time.perf_counter()
        try:
            await client.submit(raw)
        except RopewalkError:
            seen["refused"] += 1
        times.append(time.perf_counter() - started)

    async def stream(number: int) -> None:
        async with house.remote(url, channel) as client:
            tasks = set[asyncio.Task[None]]()
            for at in range(0, len(steady[number]), each):
                tasks |= {
                    asyncio.create_task(submit(client, raw, seen["steady"]))
                    for raw in steady[number][at : at + each]
                }
                await asyncio.sleep(0.02)
            await asyncio.gather(*tasks)
            for at in range(0, len(bursting[number]), 10 * each):
                stroke = bursting[number][at : at + 10 * each]
                await asyncio.gather(*(submit(client, raw, seen["burst"]) for raw in stroke))

    await asyncio.gather(*map(stream, range(len(steady))))
    return seen


def _pour(url: str, channel: str, raws: list[bytes]) -> tuple[int, int]:
    """Send far more than was agreed on without reading an answer; how often it had to wait, and what got no receipt."""
    with Peer.connected(url, channel) as peer:
        for number, raw in enumerate(raws, 1):
            peer.send(framed(RemoteMessage("append", number, {}, (raw,))))
        answers = receipts = 0
        while answers < len(raws) and (said := peer.receive()) is not None:
            answers += said.op == "outcomes"
            receipts += sum(isinstance(outcome_of(part), LedgerReceipt) for part in said.parts)
        return peer.waits, len(raws) - receipts


def _in_order(stands: list[bytes], streams: list[list[bytes]]) -> bool:
    place = {raw: number for number, raw in enumerate(stands)}
    return all([place[raw] for raw in raws] == sorted(place[raw] for raw in raws) for raws in streams)


POLICY: dict[str, Any] = {
    "version": 1,
    "name": "scene",
    "rules": [
        {
            "id": "domains",
            "name": "domains",
            "version": 1,
            "kind": "domains",
            "decision": "deny",
            "allowed": ["ea.*"],
        },
        {
            "id": "signed",
            "name": "signatures",
            "version": 1,
            "kind": "signed_fields",
            "decision": "deny",
            "fields": "present",
        },
        {
            "id": "shape",
            "name": "payloads",
            "version": 1,
            "kind": "schema",
            "decision": "deny",
            "schema": {
                "type": "object",
                "required": ["n", "text"],
                "additionalProperties": False,
                "properties": {"n": {"type": "integer", "minimum": 1}, "text": {"type": "string"}},
            },
        },
    ],
}


def policy_cost(house: House, work: Workload, scene: Scene, quick: bool) -> None:
    """The same envelopes into a channel without a policy and into one with rules and a schema, in turns."""
    server = house.server()
    rounds, count = (3, 100) if quick else (9, 3_000)
    house.create("free")
    house.create("ruled", POLICY)
    raws = [work.raws(count) for _ in range(rounds)]
    stranger = work.raws(1, domain="elsewhere")
    spent: dict[str, list[float]] = {"free": [], "ruled": []}
    took: dict[str, list[float]] = {"free": [], "ruled": []}
    refused: list[str] = []
    clients = {name: house.connect(server.url, name) for name in spent}
    try:
        for number, batch in enumerate(raws):
            for name in ("free", "ruled") if number % 2 else ("ruled", "free"):
                cpu, started = server.cpu_s(), time.perf_counter()
                outcomes = clients[name].submit_many(batch)
                took[name].append(time.perf_counter() - started)
                spent[name].append(server.cpu_s() - cpu)
                refused += [each.detail for each in outcomes if isinstance(each, RopewalkError)]
        (denied,) = clients["ruled"].submit_many(stranger)
        (taken,) = clients["free"].submit_many(stranger)
    finally:
        for client in clients.values():
            client.close()
    sent = [raw for batch in raws for raw in batch]
    scene.check("the policy lets in what keeps to it", not refused, refused=refused[:3])
    scene.check(
        "the policy is asked: what it forbids is denied, and stands only where there is none",
        isinstance(denied, RopewalkError)
        and denied.code == "PolicyDenied"
        and isinstance(taken, LedgerReceipt),
    )
    scene.check(
        "both channels hold the same envelopes",
        house.standing("ruled") == sent and house.standing("free") == [*sent, *stranger],
    )
    for name, times in took.items():
        scene.measure(f"{name}_envelopes_per_s", count / statistics.median(times))
    ratio = statistics.median(took["ruled"]) / statistics.median(took["free"])
    scene.measure("policy_time_ratio", ratio)
    if sum(spent["free"]) > 0:
        scene.measure("policy_server_cpu_ratio", sum(spent["ruled"]) / sum(spent["free"]))
