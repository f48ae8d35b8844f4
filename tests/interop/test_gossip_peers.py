"""The npm GossipLog itself as the other peer: same bytes, same roots, in both directions."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.tools import install_npm_packages, needs
from tests.waiting import LIMIT_S, soon

from ropewalk import gossip
from ropewalk.errors import SigInvalid
from ropewalk.gossip.core.log import GossipLog
from ropewalk.gossip.core.verify import verify_log
from ropewalk.gossip.peer.client import sync_with
from ropewalk.gossip.peer.frames import Questions
from ropewalk.gossip.peer.peer import Peer
from ropewalk.gossip.peer.server import GossipServer
from ropewalk.gossip.peer.topics import open_log
from ropewalk.kernel.keys import SigningKey

HERE = Path(__file__).parent / "node"
NODE = shutil.which("node")
TOPIC = "com.example.interop"
MESSAGES = 2_000
ANSWER_S = 400.0  # Node makes all of them before it answers
pytestmark = [
    pytest.mark.slow,
    needs("node", "npm"),
    pytest.mark.timeout(600),  # the first run installs the package and compiles its SQLite
]


@pytest.fixture(scope="session")
def package() -> Path:
    """Return the folder of the npm package, installed once from the lock file."""
    return install_npm_packages(HERE, "@canvas-js/gossiplog")


class NodePeer:
    """A GossipLog in a Node process, led by lines."""

    def __init__(self, folder: Path, topic: str = TOPIC) -> None:
        assert NODE is not None
        self._process = subprocess.Popen(
            [NODE, "peer.mjs", topic],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def do(self, name: str, **given: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": name, **given}) + "\n")
        self._process.stdin.flush()
        # A peer that never answers is ended, and with it the waiting.
        timer = threading.Timer(ANSWER_S, self._process.kill)
        timer.start()
        try:
            answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        finally:
            timer.cancel()
        assert answer.get("done") == name, answer
        return answer

    def status(self) -> dict[str, Any]:
        return self.do("status")

    def listen(self) -> str:
        port = free_port()
        self.do("listen", port=port)
        return f"ws://127.0.0.1:{port}"

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def key(n: int) -> SigningKey:
    return SigningKey.generate("ed25519", bytes([n] * 32))


def root(log: GossipLog) -> dict[str, Any]:
    node = log.root()
    return {"level": node.level, "hash": node.hash.hex()}


@pytest.fixture(scope="session")
def big(package: Path) -> Iterator[NodePeer]:
    """A Node replica with 2,000 messages of two authors, forks and merges, made once."""
    peer = NodePeer(package)
    made = peer.do("fork", count=MESSAGES, every=100)
    assert made["count"] == MESSAGES
    assert len(made["heads"]) > 1
    yield peer
    peer.close()


@pytest.fixture
def node(package: Path) -> Iterator[NodePeer]:
    peer = NodePeer(package)
    yield peer
    peer.close()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[GossipLog]:
    with open_log(TOPIC, tmp_path / "log", signer=key(1)) as found:
        yield found


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    end = time.monotonic() + LIMIT_S
    while not await holds():
        assert time.monotonic() < end, "did not come together"
        await asyncio.sleep(0.1)


@contextlib.asynccontextmanager
async def connected(log: GossipLog, node: NodePeer) -> AsyncIterator[GossipServer]:
    async with GossipServer(log) as server:
        await asyncio.to_thread(node.do, "connect", url=server.url)
        yield server


async def same(log: GossipLog, node: NodePeer) -> bool:
    return bool((await asyncio.to_thread(node.status))["root"] == await asyncio.to_thread(root, log))


async def wrote(node: NodePeer, count: int) -> bool:
    return bool((await asyncio.to_thread(node.status))["count"] >= count)


def test_gossip_converges_with_node_peer(big, log):
    url = big.listen()
    report = asyncio.run(sync_with(log, url))
    assert (report.received, report.sent) == (MESSAGES, 0)
    assert root(log) == big.status()["root"]
    assert verify_log(log).to_json()["ok"]
    log.append_many({"from": "python", "n": n} for n in range(50))
    report = asyncio.run(sync_with(log, url))
    assert (report.received, report.sent) == (0, 50)
    status = big.status()
    assert status["root"] == root(log)
    assert status["heads"] == log.heads()
    assert status["count"] == len(log)


def test_a_slow_pull_outlives_the_two_seconds_node_gives_a_session(big, tmp_path, monkeypatch):
    """Node breaks every sync session off two seconds after it began; the pull goes on in the next one."""
    url = big.listen()
    sessions = 0
    ask, dial = Questions._ask, Peer._dial

    async def slowly(self: Questions, request: Any) -> Any:
        await asyncio.sleep(0.05)
        return await ask(self, request)

    async def counted(self: Peer, protocol: str, limit: int) -> Any:
        nonlocal sessions
        sessions += 1
        return await dial(self, protocol, limit)

    monkeypatch.setattr(Questions, "_ask", slowly)
    monkeypatch.setattr(Peer, "_dial", counted)
    with open_log(TOPIC, tmp_path / "slow") as log:
        report = asyncio.run(sync_with(log, url, pull_only=True))
        assert report.received >= MESSAGES
        assert sessions > 1
        assert root(log) == big.status()["root"]


def test_node_is_a_client_of_a_ropewalk_server(big, tmp_path, package):
    with open_log(TOPIC, tmp_path / "log", signer=key(2)) as log:
        log.append_many({"from": "python", "n": n} for n in range(300))

        async def meet() -> None:
            async with connected(log, big):
                await until(lambda: same(log, big))
                # From here on each message is pushed as it is made.
                await asyncio.to_thread(log.append, {"live": "python"})
                await until(lambda: same(log, big))
                await asyncio.to_thread(big.do, "append", payloads=[{"live": "node"}])
                await until(lambda: same(log, big))

        asyncio.run(meet())
        assert len(log) >= MESSAGES + 302
        assert big.status()["heads"] == log.heads()
        assert verify_log(log).to_json()["ok"]


def test_node_does_not_notice_discovery(node, log):
    """Node at either end of a peer that announces and discovers: it answers "na", and everything else goes on."""

    async def meet() -> None:
        url = await asyncio.to_thread(node.listen)
        server = GossipServer(log, upstreams=[url], announce=["ws://127.0.0.1:1"], discover=["127.0.0.1:1"])
        async with server:
            (link,) = server.connections
            await link.synced(LIMIT_S)
            await soon(lambda: link._peer is not None and not link._peer._exchanges)
            peer = link._peer
            await asyncio.to_thread(node.do, "connect", url=server.url)
            for n in range(3):
                await asyncio.to_thread(log.append, {"python": n})
                await asyncio.to_thread(node.do, "append", payloads=[{"node": n}])
                await until(lambda: same(log, node))
            assert link._peer is peer  # the connection on which node was asked is still the same

    asyncio.run(meet())
    assert len(log) == 6


def test_both_write_at_once_and_converge(node, log):
    async def meet() -> int:
        async with connected(log, node):
            await asyncio.to_thread(node.do, "write", every_ms=10)
            count = 0
            for count in range(1, 101):
                await asyncio.to_thread(log.append, {"from": "python", "n": count})
                await asyncio.sleep(0.01)
            await until(lambda: wrote(node, count + 20))
            written = (await asyncio.to_thread(node.do, "rest"))["written"]
            await until(lambda: same(log, node))
            assert len(log) == count + written
            return count

    assert asyncio.run(meet()) > 0
    assert node.status()["heads"] == log.heads()
    assert verify_log(log).to_json()["ok"]


def test_syncs_with_a_node_server_end_while_both_write(node, log):
    """A sync ends when the peer has what we had when it began, not when both stop writing."""
    url = node.listen()

    async def meet() -> None:
        await asyncio.to_thread(node.do, "write", every_ms=10)
        for n in range(5):
            await asyncio.to_thread(log.append_many, [{"from": "python", "n": n}] * 10)
            ours = [signed.id for signed in log.iterate() if signed.message.payload.get("from") == "python"]
            await sync_with(log, url)
            there = {id_ for id_, _ in (await asyncio.to_thread(node.do, "dump"))["rows"]}
            assert there.issuperset(ours)
        assert (await asyncio.to_thread(node.do, "rest"))["written"] > 0
        await sync_with(log, url)

    asyncio.run(meet())
    assert root(log) == node.status()["root"]


def test_messages_signed_here_verify_there_and_the_reverse(node, log):
    payloads: list[Any] = [
        None,
        True,
        -1,
        1.5,
        2**53 - 1,
        "ü",
        b"\x00\xff",
        [],
        {"z": 1, "aa": [{"b": None}]},
    ]
    for codec in ("dag-cbor", "dag-json"):
        for payload in payloads:
            stored = log.append(payload, codec=codec)
            signed = log.get(stored.id)
            assert signed is not None
            assert node.do("insert", raw=signed.raw.hex())["id"] == stored.id
    there: list[Any] = [None, True, -1, 1.5, 2**53 - 1, "ü", [], {"z": 1, "aa": [{"b": None}]}]
    for codec in ("dag-cbor", "dag-json"):
        node.do("append", payloads=there, codec=codec)
    for id_, raw in node.do("dump")["rows"]:
        outcome = log.insert(bytes.fromhex(raw))
        assert outcome.id == id_
        assert outcome.status in ("stored", "known")
    assert root(log) == node.status()["root"]


def test_a_forged_message_is_refused_by_both(node, log):
    log.append("fine")
    (signed,) = log.iterate()
    forged = signed.raw[:-1] + bytes([signed.raw[-1] ^ 1])
    with pytest.raises(AssertionError, match="signature"):
        node.do("insert", raw=forged.hex())
    with pytest.raises(SigInvalid):
        log.insert(forged)


def test_two_ropewalk_peers_meet_over_a_node_server(node, tmp_path):
    url = node.listen()
    with (
        open_log(TOPIC, tmp_path / "one", signer=key(3)) as one,
        open_log(TOPIC, tmp_path / "two", signer=key(4)) as two,
    ):
        one.append_many(range(40))
        two.append_many(range(30))
        assert asyncio.run(sync_with(one, url)).sent == 40
        report = asyncio.run(sync_with(two, url))
        assert (report.received, report.sent) == (40, 30)
        assert asyncio.run(sync_with(one, url, pull_only=True)).received == 30
        assert root(one) == root(two) == node.status()["root"]


def test_live_peers_with_node_in_the_middle(node, tmp_path):
    """Two ropewalk peers stay connected to a Node server; each sees what the others append, without a sync."""
    url = node.listen()
    with (
        open_log(TOPIC, tmp_path / "one", signer=key(3)) as one,
        open_log(TOPIC, tmp_path / "two", signer=key(4)) as two,
    ):

        async def meet() -> None:
            near, far = gossip.connect(one, url, interval_s=2.0), gossip.connect(two, url, interval_s=2.0)
            async with near, far:
                await asyncio.gather(near.synced(LIMIT_S), far.synced(LIMIT_S))
                await asyncio.to_thread(one.append, {"from": "one"})
                await until(lambda: same(two, node))
                await asyncio.to_thread(node.do, "append", payloads=[{"from": "node"}])
                await soon(lambda: len(one) == len(two) == 2)
                await asyncio.to_thread(two.append, {"from": "two"})
                await soon(lambda: len(one) == 3)
                await until(lambda: same(one, node))

        asyncio.run(meet())
        assert root(one) == root(two) == node.status()["root"]
        assert node.status()["count"] == 3


def test_live_peers_with_node_at_one_end(node, log):
    """Node connects to a ropewalk server that stays connected to another: appends travel over both links."""
    with open_log(TOPIC, signer=key(4)) as far:

        async def meet() -> None:
            async with gossip.serve(far) as upstream, gossip.serve(log, upstreams=[upstream.url]) as server:
                await asyncio.to_thread(node.do, "connect", url=server.url)
                await asyncio.to_thread(node.do, "append", payloads=[{"from": "node"}])
                await soon(lambda: len(far) == 1)
                await asyncio.to_thread(far.append, {"from": "far"})
                await until(lambda: same(far, node))
                assert root(log) == root(far)

        asyncio.run(meet())
