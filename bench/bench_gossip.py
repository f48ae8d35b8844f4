"""Gossip beside the npm GossipLog 0.13.14 under Node, in the same run and in turns.

Both sides keep their logs in memory, where the original is fastest, except for the rows that say disk. Work in
memory is counted in CPU seconds of the process that does it, because a busy machine stretches a short run and a long
one differently; disk rows are wall time. Node measures itself, so that neither its start nor the pipe to it counts.
Its ancestor index is always on; ours is built when somebody asks, and a row shows what that costs.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.harness import Result, fixed
from ropewalk.disk.memory_tables import MemoryTables
from ropewalk.gossip.core.log import GossipLog
from ropewalk.gossip.core.table import TABLES
from ropewalk.gossip.peer.topics import open_log
from ropewalk.gossip.sync.questions import SyncRequest, SyncResponse, answer
from ropewalk.gossip.sync.session import drive, pull, pull_from, sync_both
from ropewalk.kernel.keys import SigningKey

__all__ = ["run"]

HERE = Path(__file__).parents[1] / "tests" / "interop" / "node"  # one installation for tests and bench
TOPIC = "com.example.bench"
KEY = SigningKey.generate("ed25519", bytes([3] * 32))
NPM = "npm gossiplog 0.13.14"


def payload(i: int) -> dict[str, Any]:
    return {"index": i, "text": f"hello {i}"}


def memory(**options: Any) -> GossipLog:
    return GossipLog(MemoryTables(TABLES), TOPIC, signer=KEY, **options)


class Node:
    """The other side, in a process of its own."""

    def __init__(self) -> None:
        node = shutil.which("node")
        if node is None:
            raise RuntimeError("bench gossip needs Node 20 or newer")
        if not (HERE / "node_modules" / "@canvas-js" / "gossiplog").is_dir():
            subprocess.run(["npm", "ci", "--no-audit", "--no-fund"], cwd=HERE, check=True)
        self._process = subprocess.Popen(
            [node, "measured.mjs"], cwd=HERE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, job: str, **options: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"job": job, **options}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the Node side ended during {job}")
        return json.loads(line)

    def cpu_each(self, job: str, **options: Any) -> float:
        answer = self.ask(job, **options)
        return float(answer["cpu"]) / int(answer["count"])

    def seconds_each(self, job: str, **options: Any) -> float:
        answer = self.ask(job, **options)
        return float(answer["seconds"]) / int(answer["count"])

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextmanager
def node_side() -> Iterator[Node]:
    node = Node()
    try:
        yield node
    finally:
        node.close()


def timed(act: Callable[[], int]) -> float:
    started = time.perf_counter()
    count = act()
    return (time.perf_counter() - started) / count


def cpu(act: Callable[[], int]) -> float:
    started = time.process_time()
    count = act()
    return (time.process_time() - started) / count


def in_turns(
    job: str,
    ours: Callable[[], float],
    theirs: Callable[[], float],
    target: float | None,
    rounds: int,
    note: str = "",
) -> Result:
    """Seconds an operation of both sides, measured in turns; medians are compared."""
    mine, peers = [], []
    if rounds > 1:  # warm caches, imports and compilers before anything counts
        ours()
        theirs()
    for _ in range(rounds):
        mine.append(ours())
        peers.append(theirs())
    rates = (1 / statistics.median(mine), 1 / statistics.median(peers))
    return fixed(job, "ropewalk", NPM, *rates, target, "messages", note, rounds)


def append_all(log: GossipLog, n: int) -> int:
    for i in range(n):
        log.append(payload(i))
    return n


def insert_all(log: GossipLog, raws: list[bytes]) -> int:
    for raw in raws:
        log.insert(raw)
    return len(raws)


def run(quick: bool) -> list[Result]:
    """Every row of the comparison."""
    size, some, rounds = (400, 100, 2) if quick else (10_000, 500, 5)
    differ = 20 if quick else 100
    results: list[Result] = []
    source = memory()
    source.append_many(payload(i) for i in range(size))
    raws = [signed.raw for signed in source.iterate()]
    with node_side() as node:
        number = iter(range(10**6))
        results.append(
            in_turns(
                "append",
                lambda: cpu(lambda: append_all(memory(), some)),
                lambda: node.cpu_each("append", log=f"append{next(number)}", n=some),
                10,
                rounds,
            )
        )
        node.ask("append", log="source", n=size)
        results.append(
            in_turns(
                "insert with verification, one by one",
                lambda: cpu(lambda: insert_all(memory(), raws[:some])),
                lambda: node.cpu_each("insert", **{"from": "source"}, n=some),
                15,
                rounds,
            )
        )
        replica = memory()
        results.append(
            in_turns(
                f"full sync of {size} into an empty replica",
                lambda: cpu(lambda: pull_from(replica, source).received),
                lambda: node.cpu_each("pull", into="replica", **{"from": "source"}),
                30,
                1,
            )
        )
        for side, log in (("source", source), ("replica", replica)):
            log.append_many({"only": side, "i": i} for i in range(differ))
            node.ask("append", log=side, n=differ)
        results.append(
            in_turns(
                f"both ways, {size} shared, {differ} different on each side",
                lambda: cpu(lambda: sum(pulled.received for pulled in sync_both(source, replica))),
                lambda: node.cpu_each("both", one="source", two="replica"),
                5,
                1,
            )
        )
        assert source.root() == replica.root()
        assert node.ask("root", log="source") == node.ask("root", log="replica")
        results.append(
            in_turns(
                "iterate",
                lambda: cpu(lambda: sum(1 for _ in source.iterate())),
                lambda: node.cpu_each("iterate", log="source"),
                3,
                rounds,
            )
        )
        results += on_disk(node, raws, 30 if quick else 100)
    return [*results, against_verify(raws, rounds + 2), index_cost(raws, rounds), *growth(quick)]


def on_disk(node: Node, raws: list[bytes], some: int) -> list[Result]:
    """Durable appends and inserts; what the original does on disk is not fsynced for every message."""
    with tempfile.TemporaryDirectory() as name:
        number = iter(range(10**6))

        def ours(act: Callable[[GossipLog], int]) -> float:
            with open_log(TOPIC, Path(name) / f"ours{next(number)}", signer=KEY) as log:
                return timed(lambda: act(log))

        return [
            in_turns(
                "append on disk",
                lambda: ours(lambda log: append_all(log, some)),
                lambda: node.seconds_each(
                    "append", log=f"disk{next(number)}", n=some, directory=f"{name}/npm{next(number)}"
                ),
                None,
                2,
                "ours is fsynced for every message",
            ),
            in_turns(
                "insert on disk in batches",
                lambda: ours(lambda log: len(log.insert_many(raws))),
                lambda: node.seconds_each(
                    "insert", **{"from": "source"}, n=some, directory=f"{name}/npm{next(number)}"
                ),
                None,
                2,
                "one transaction and one fsync; npm inserts one by one",
            ),
        ]


def against_verify(raws: list[bytes], rounds: int) -> Result:
    """Batched insert with everything it does, against nothing but checking the same signatures."""
    log = memory()
    checked = [log.decode(raw) for raw in raws]
    public = KEY.public
    signed = [(KEY.sign(raw), raw) for raw in raws]
    ours, bare = [], []
    for _ in range(rounds):
        fresh = memory()
        started = time.process_time()
        for start in range(0, len(raws), 512):
            fresh.insert_many(raws[start : start + 512])
        ours.append((time.process_time() - started) / len(raws))
        started = time.process_time()
        for signature, raw in signed:
            public.verify(raw, signature)
        bare.append((time.process_time() - started) / len(checked))
    rates = (1 / statistics.median(ours), 1 / statistics.median(bare))
    job = "insert with verification, batched, against bare Ed25519 verification"
    return fixed(job, "ropewalk insert_many", "libsodium verify", *rates, 0.5, "messages", "CPU time", rounds)


def index_cost(raws: list[bytes], rounds: int) -> Result:
    """What keeping the ancestor index all the time costs a batched insert."""
    with_index: list[float] = []
    without: list[float] = []
    for _ in range(rounds):
        for index, into in ((True, with_index), (False, without)):
            log = memory(index_ancestors=index)
            into.append(cpu(lambda log=log: len(log.insert_many(raws))))  # type: ignore[misc]
    rates = (1 / statistics.median(with_index), 1 / statistics.median(without))
    return fixed(
        "batched insert with the ancestor index always on", "with", "without", *rates, None, "messages"
    )


def growth(quick: bool) -> list[Result]:
    """Cost follows the difference, not the log: the same 100 new messages over ever larger shared logs."""
    rows = []
    for shared in (200, 1000) if quick else (1_000, 10_000, 100_000):
        one, two = memory(), memory()
        one.append_many(payload(i) for i in range(shared))
        raws = [signed.raw for signed in one.iterate()]
        for start in range(0, shared, 4096):
            two.insert_checked([two.decode(raw) for raw in raws[start : start + 4096]])
        two.append_many({"new": i} for i in range(100))
        traffic = 0

        def ask(request: SyncRequest) -> SyncResponse:
            nonlocal traffic
            with two.view() as view:  # noqa: B023
                response = answer(view, two.profile, request)  # noqa: B023
            traffic += weight(request) + weight(response)
            return response

        started = time.perf_counter()
        pulled = drive(pull(one), ask)
        seconds = time.perf_counter() - started
        assert pulled.received == 100
        assert one.root() == two.root()
        rows.append(
            Result(
                f"pull 100 new over {shared} shared", "ropewalk", "–", 100 / seconds, 0.0, 0.0, None, "messages", 1,
                f"{seconds * 1000:.0f} ms, {pulled.requests} requests, {traffic} bytes",
                {"seconds": seconds, "requests": pulled.requests, "bytes": traffic},
            )
        )  # fmt: skip
    return rows


def weight(frame: SyncRequest | SyncResponse) -> int:
    """The bytes of the fields of a question or an answer; the protobuf around them adds a few per field."""
    total = 0
    for name in frame.__slots__:
        value = getattr(frame, name)
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, bytes):
                total += len(item)
            elif hasattr(item, "hash"):
                total += 1 + len(item.key) + len(item.hash) + len(item.value or b"")
    return total
