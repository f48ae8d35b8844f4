"""Copies: a replay beside the live feed that finds what was planted, and followers in number while bundles are made."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from ropewalk.ledger.channel.channel import open_channel
from tests.torture.scenes.house import LOG, House
from tests.torture.scenes.report import Scene, percentiles
from tests.torture.scenes.stream import Stream, gated
from tests.torture.scenes.workload import Workload
from tests.unit.cli.conftest import Answer
from tests.waiting import Crew

__all__ = ["followers", "replay"]


def replay(house: House, work: Workload, scene: Scene, quick: bool) -> None:
    """A copy is replayed while its channel grows; bytes are flipped in it, one at a time, and put right again."""
    channel, server = "replayed", house.server()
    trust = house.create(channel)
    rounds, flips = (1, 2) if quick else (10, 5)
    early = [[work.raws(4) for _ in range(6 if quick else 40)], *([work.raws(4)] for _ in range(rounds))]
    gates = [threading.Event() for _ in early]
    copy = house.empty("replayed-copy.git")
    feed = Stream(house, server.url, channel, gated(early, gates))
    feed.wait_for(sum(map(len, early[0])))
    found: list[dict[str, object]] = []
    pulls, replays = [], []
    try:
        for gate in gates[:-1]:
            pulls.append(house.pull(server.url, channel, copy, trust))
            replays.append(_replay_copy(house, channel, copy, trust).code)
            found += [_plant(house, channel, copy, trust, work) for _ in range(flips)]
            # The channel itself is replayed too, with snapshots, from which the next replay goes on.
            replays.append(_replay_here(house, channel, "--from-snapshot", "--snapshot-every", "5").code)
            gate.set()
    finally:
        for gate in gates:
            gate.set()
        feed.end()
    started = time.perf_counter()
    resumed = _replay_here(house, channel, "--from-snapshot")
    recovery_s = time.perf_counter() - started
    whole = _replay_here(house, channel).json
    pulls.append(house.pull(server.url, channel, copy, trust))
    scene.check(
        "every planted corruption is found, and the block is named",
        all(each["code"] == 5 and each["named"] == each["planted"] for each in found),
        planted=found,
    )
    scene.check("what was not touched replays, copy and channel, beside the live feed", not any(replays))
    scene.check("the feed and the pulls go on", not feed.refused and all(each.code == 0 for each in pulls))
    scene.check(
        "put right again, the copy is the channel",
        house.block_hashes(channel, copy) == house.block_hashes(channel) and house.holds(channel, copy),
    )
    scene.check(
        "from the last snapshot a replay comes to the same root",
        resumed.code == 0
        and resumed.json["from_snapshot"] is not None
        and resumed.json["state_root"] == whole["state_root"],
    )
    scene.measure("planted", len(found))
    scene.measure("blocks", whole["blocks"])
    scene.measure("from_snapshot_s", recovery_s)


def _replay_here(house: House, channel: str, *more: str) -> Answer:
    return house.run("ledger", "replay", "--channel", channel, "--reducer", "counts", "--json", *more)


def _replay_copy(house: House, channel: str, copy: str, trust: Path) -> Answer:
    """As somebody does who trusts nothing but a trust file."""
    return house.run(
        *("ledger", "replay", "--channel", channel, "--reducer", "counts", "--trust", str(trust), "--json"),
        repo=copy,
    )


def _plant(house: House, channel: str, copy: str, trust: Path, work: Workload) -> dict[str, object]:
    """Flip a bit somewhere in an envelope of the copy, replay, and put it right."""
    with open_channel(house.home_of(copy), channel) as reading:
        blocks = list(reading.blocks())
        files = sorted(reading.segments.files_folder.iterdir())
    block = work.chance.choice(blocks)
    raw = work.chance.choice(block.envelopes)
    path = next(each for each in files if each.is_file() and raw in each.read_bytes())
    held = path.read_bytes()
    at = held.index(raw) + work.chance.randrange(len(raw))
    path.write_bytes(held[:at] + bytes([held[at] ^ 1 << work.chance.randrange(8)]) + held[at + 1 :])
    answer = _replay_copy(house, channel, copy, trust)
    path.write_bytes(held)
    said = json.loads(answer.out or answer.err.splitlines()[-1])
    return {
        "planted": block.height,
        "named": said.get("height"),
        "code": answer.code,
        "said": said.get("detail"),
    }


def followers(house: House, work: Workload, scene: Scene, quick: bool) -> None:
    """Many copies catch up at once while the channel grows, and bundles are exported from it and from a copy."""
    channel, server = "followed", house.server()
    trust = house.create(channel)
    count, early = (3, 12) if quick else (16, 300)
    pools = [[work.raws(10) for _ in range(early)], [work.raws(10) for _ in range(4 if quick else 100)]]
    with house.connect(server.url, channel) as remote:
        for batch in pools[0]:
            remote.submit_many(batch)
    caught_up = threading.Event()
    feed = Stream(house, server.url, channel, gated(pools[1:], [caught_up]))
    copies = [house.empty(f"follower-{number}.git") for number in range(count)]
    times: list[float] = []

    def follow(repo: str) -> int:
        started = time.perf_counter()
        code = house.pull(server.url, channel, repo, trust).code
        times.append(time.perf_counter() - started)
        return code

    # Two from the channel itself, two from copies, which sign with keys of their own.
    sources = [LOG, LOG, *copies[:2]]
    bundles = [f"followed-{number}.tar.zst" for number in range(len(sources))]

    def export(number: int) -> int:
        chosen = ("--from", str(number), "--to", str(early // 2 + number), "-o", bundles[number])
        return house.run("bundle", "export", "--channel", channel, *chosen, repo=sources[number]).code

    try:
        with Crew(count + 2) as crew:
            following = [crew.submit(follow, repo) for repo in copies]
            exporting = [crew.submit(export, number) for number in (0, 1)]
            first = [done.result(600) for done in following]
            exporting += [crew.submit(export, number) for number in (2, 3)]
            exported = [done.result(600) for done in exporting]
    finally:
        caught_up.set()
        feed.end()
    again = [house.pull(server.url, channel, repo, trust).code for repo in copies]
    hashes = house.block_hashes(channel)
    believed = _believe_bundles_of(house, trust, sources)
    checked = [
        house.run("bundle", "verify", each, "--trust", str(believed), "--deep").code for each in bundles
    ]
    scene.check(
        "every follower catches up while the channel grows", not any(first + again), codes=first + again
    )
    scene.check(
        "every copy is the channel, block by block",
        all(house.block_hashes(channel, each) == hashes for each in copies),
    )
    scene.check(
        "bundles exported meanwhile, from the channel and from copies, verify",
        not any(exported + checked),
        exported=exported,
        checked=checked,
    )
    scene.check(
        "the feed goes on",
        not feed.refused and sorted(set(feed.sent)) == sorted(raw for b in pools[1] for raw in b),
    )
    scene.measure("followers", count)
    scene.measure("blocks", len(hashes))
    percentiles(scene, "catch_up", times)


def _believe_bundles_of(house: House, trust: Path, repositories: Sequence[str]) -> Path:
    """The trust file with the keys by which these repositories sign bundles."""
    value = json.loads(trust.read_bytes())
    shown = {house.ran("key", "show", "node", "--public", repo=repo).text for repo in repositories}
    value["bundle_signers"] += [
        key for key in map(json.loads, sorted(shown)) if key not in value["bundle_signers"]
    ]
    believed = trust.with_name("bundles.trust.json")
    believed.write_text(json.dumps(value))
    return believed
