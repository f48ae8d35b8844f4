"""A mailbox beside a Unix socket that carries the same bytes, and a channel behind a mailbox beside one behind TCP.

The other side lives in a process of its own. The first two jobs carry and judge nothing: the ring checks a digest for
every envelope and the socket checks nothing, both are told once a batch. The third is the whole way into a channel.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench.bench_ledger import CHANNEL, envelope, new_home
from bench.harness import Contestant, Result, compare
from ropewalk.ledger.envelope.envelope import to_cbor
from ropewalk.ledger.ingest.ticket import LedgerReceipt
from ropewalk.ledger.mailbox.client import MailboxClient
from ropewalk.ledger.mailbox.ring import RingWriter
from ropewalk.ledger.mailbox.shared_memory import make_ring
from ropewalk.ledger.remote.client import LedgerClient

__all__ = ["run"]

SHARED = Path("/dev/shm")
SIZES = (("1 KiB", 300, 20_000), ("64 KiB", 64_800, 2_000))
BATCH, SLOTS, SLOT_BYTES = 64, 128, 68 << 10
OTHER = """
import asyncio, socket, sys
from pathlib import Path
from bench.bench_ledger import CHANNEL, NODE
from ropewalk.ledger.mailbox.shared_memory import map_ring
from ropewalk.ledger.mailbox.ring import RingReader
from ropewalk.ledger.remote.server import LedgerServer
from ropewalk.ledger.mailbox.server import MailboxServer

folder = Path(sys.argv[1])

def listen(name):
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(folder / name))
    server.listen(1)
    print("ready", flush=True)
    return server.accept()[0]

def ring():
    peer = listen("bell")
    reader = RingReader(map_ring(folder / "ring").ring)
    while count := peer.recv(1):
        assert all(isinstance(each, tuple) for each in reader.take(count[0]))
        reader.acknowledge(count[0])
        peer.sendall(count)

def stream():
    peer = listen("stream")
    with peer.makefile("rb") as source:
        while count := source.read(1):
            for _ in range(count[0]):
                source.read(int.from_bytes(source.read(4), "big"))
            peer.sendall(count)

async def serve(server):
    async with server:
        print(server.url, flush=True)
        await asyncio.Event().wait()

def mailbox():
    asyncio.run(serve(MailboxServer(folder, lambda channel: [NODE], folder / "box", CHANNEL, linger_s=0.05)))

def tcp():
    asyncio.run(serve(LedgerServer(folder, lambda channel: [NODE], linger_s=0.05)))

globals()[sys.argv[2]]()
"""


@contextmanager
def beside(folder: Path, what: str) -> Iterator[str]:
    """What a process says that is the other side."""
    command = [sys.executable, "-c", OTHER, str(folder), what]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]
    ) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def through_ring(writer: RingWriter, bell: socket.socket, raws: list[bytes]) -> int:
    """Two batches at most are on their way."""
    rung = 0
    for at in range(0, len(raws), BATCH):
        batch = raws[at : at + BATCH]
        if rung == SLOTS // BATCH:
            bell.recv(1)
            rung -= 1
        for raw in batch:
            writer.put(raw)
        bell.sendall(bytes([len(batch)]))
        rung += 1
    for _ in range(rung):
        bell.recv(1)
    return len(raws)


def through_stream(peer: socket.socket, raws: list[bytes]) -> int:
    """The same, each after its length."""
    sent = 0
    for at in range(0, len(raws), BATCH):
        batch = raws[at : at + BATCH]
        if sent == SLOTS // BATCH:
            peer.recv(1)
            sent -= 1
        pieces = [piece for raw in batch for piece in (len(raw).to_bytes(4, "big"), raw)]
        peer.sendall(b"".join([bytes([len(batch)]), *pieces]))
        sent += 1
    for _ in range(sent):
        peer.recv(1)
    return len(raws)


async def into_channel(client: LedgerClient, raws: list[bytes]) -> int:
    async with client as remote:
        outcomes = await remote.submit_many(raws)
        assert not any(not isinstance(each, LedgerReceipt) or each.replayed for each in outcomes)
    return len(raws)


@contextmanager
def connected(folder: Path, name: str) -> Iterator[socket.socket]:
    with beside(folder, name) as said, socket.socket(socket.AF_UNIX) as peer:
        assert said == "ready"
        peer.connect(str(folder / ("bell" if name == "ring" else name)))
        yield peer


def carry(size: str, raws: list[bytes], rounds: int) -> list[Result]:
    with tempfile.TemporaryDirectory(dir=SHARED if SHARED.is_dir() else None) as name:
        folder = Path(name)
        mapped = make_ring(folder / "ring", SLOTS, SLOT_BYTES, bytes(16))
        writer = RingWriter(mapped.ring)
        with connected(folder, "ring") as bell, connected(folder, "stream") as peer:
            result = compare(
                f"carry envelopes of {size} as CBOR to another process",
                Contestant("ring in shared memory, with digests", partial(through_ring, writer, bell, raws)),
                [Contestant("Unix socket", partial(through_stream, peer, raws))],
                target=None,
                rounds=rounds,
                unit="envelopes",
            )
        mapped.close()
    return result


def whole(count: int, rounds: int) -> list[Result]:
    """Each round has a channel's worth of envelopes that no round had before."""
    turns = 2 * (rounds + 1)
    fresh = iter([[envelope(turn * count + i).raw for i in range(count)] for turn in range(turns)])
    with new_home() as one, new_home() as other, beside(one, "mailbox") as box, beside(other, "tcp") as tcp:
        return compare(
            f"append {count} envelopes of 1 KiB to a channel of another process",
            Contestant(
                "mailbox", lambda: asyncio.run(into_channel(MailboxClient(box, CHANNEL), next(fresh)))
            ),
            [Contestant("TCP", lambda: asyncio.run(into_channel(LedgerClient(tcp, CHANNEL), next(fresh))))],
            target=None,
            rounds=rounds,
            unit="envelopes",
        )


def run(quick: bool) -> list[Result]:
    """The ring beside a socket at two sizes, and the whole way beside TCP."""
    results: list[Result] = []
    for size, text, count in SIZES:
        batch = [to_cbor(envelope(number, "x" * text)) for number in range(BATCH)]
        results += carry(size, batch * ((count // 10 if quick else count) // BATCH), 3 if quick else 9)
    return [*results, *whole(500 if quick else 3_000, 3 if quick else 5)]
