"""A remote channel beside a local one, and beside a bare echo of the same transport (S4 §15).

The server and the echo live in processes of their own; every round appends to a channel that is new. What TLS costs by
itself is the ceiling of any transport, what appending on the spot costs is the ceiling of any server.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from bench.bench_ledger import CHANNEL, NODE, envelope, new_home
from bench.harness import Contestant, Result, compare
from ropewalk.disk.certificate_authority import init_authority
from ropewalk.ledger.channel.channel import open_log
from ropewalk.ledger.channel.settings import create_channel
from ropewalk.ledger.ingest.async_log import ServedLog
from ropewalk.ledger.ingest.ticket import LedgerReceipt
from ropewalk.ledger.remote.client import BATCH_BYTES, BATCH_ENVELOPES, LedgerClient
from ropewalk.ledger.remote.messages import PROTOCOL, RemoteMessage
from ropewalk.net.frames import frame, pack_parts
from ropewalk.net.quic.client import connect_quic
from ropewalk.net.tls import TlsFiles, client_tls

__all__ = ["run"]

SCHEMES = ("tls", "grpc", "quic")
SIZES = (("1 KiB", 300, 8_000), ("64 KiB", 64_800, 400), ("1 MiB", 1_047_800, 24))
SERVE = """
import asyncio, json, sys
from pathlib import Path
from bench.bench_ledger import NODE
from ropewalk.ledger.remote.messages import PROTOCOL
from ropewalk.net.quic.client import connect_quic
from ropewalk.net.tls import TlsFiles, server_tls
from ropewalk.ledger.remote.server import LedgerServer

home = Path(sys.argv[1])
place = home / "pki" / "server"
files = TlsFiles(place / "cert.pem", place / "key.pem", place / "ca.pem")
context = server_tls(files, PROTOCOL)
ANY = ("127.0.0.1", 0)

async def serve():
    options = dict(files=files, grpc=ANY, quic=ANY, linger_s=0.05)
    async with LedgerServer(home, lambda channel: [NODE], **options) as server:
        print(json.dumps(server.urls), flush=True)
        await asyncio.Event().wait()

async def grpc_echo():
    import grpc

    async def echo(requests, context):
        async for each in requests:
            yield each

    handler = grpc.method_handlers_generic_handler("Echo", {"Echo": grpc.stream_stream_rpc_method_handler(echo)})
    limits = (("grpc.max_receive_message_length", 8 << 20), ("grpc.max_send_message_length", 8 << 20))
    server = grpc.aio.server(options=limits)
    server.add_generic_rpc_handlers((handler,))
    pair = (files.key.read_bytes(), files.certificate.read_bytes())
    own = grpc.ssl_server_credentials([pair], files.roots.read_bytes(), True)
    port = server.add_secure_port("127.0.0.1:0", own)
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()

async def quic_echo():
    from ropewalk.net.admission import ConnectionLimits
    from ropewalk.net.quic.listener import QuicListener

    tasks = set()

    async def back(pipe):
        while data := await pipe.receive():
            await pipe.send(data)
        await pipe.close()

    def opened(link, pipe):
        listener.settle(link)
        tasks.add(asyncio.get_running_loop().create_task(back(pipe)))

    listener = QuicListener(opened, files, ConnectionLimits(64), print)
    await listener.open("127.0.0.1", 0, files, PROTOCOL)
    print(listener.port, flush=True)
    await asyncio.Event().wait()

async def echo():
    async def handle(reader, writer):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=context)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

asyncio.run({"serve": serve, "echo": echo, "grpc": grpc_echo, "quic": quic_echo}[sys.argv[2]]())
"""


def certificates(home: Path) -> TlsFiles:
    """One of the server, and the files of the client."""
    authority = init_authority(home / "pki", "bench", datetime.now(UTC))
    authority.issue("server", ["127.0.0.1"])
    place = authority.issue("client", []).folder
    return TlsFiles(place / "cert.pem", place / "key.pem", place / "ca.pem")


@contextmanager
def beside(home: Path, what: str) -> Iterator[Any]:
    """What a process prints that serves, or echoes: addresses, or a port."""
    command = [sys.executable, "-c", SERVE, str(home), what]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1]) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())
        finally:
            process.kill()


def on_the_spot(raws: list[bytes]) -> int:
    with new_home() as home, open_log(home, CHANNEL, NODE) as opened:
        assert all(isinstance(each, LedgerReceipt) for each in opened.log.submit_many(raws))
    return len(raws)


async def send(url: str, files: TlsFiles, channel: str, raws: list[bytes], callers: int) -> int:
    """Submit all at once, or by so many callers that each wait for their receipt."""
    async with LedgerClient(url, channel, files=files) as remote:
        if callers == 1:
            outcomes = list(await remote.submit_many(raws))
        else:
            left = iter(raws)

            async def call() -> list[Any]:
                return [await remote.submit(raw) for raw in left]

            outcomes = [
                each for found in await asyncio.gather(*(call() for _ in range(callers))) for each in found
            ]
        assert not any(not isinstance(each, LedgerReceipt) or each.replayed for each in outcomes)
    return len(raws)


async def spot(home: Path, raws: list[bytes], callers: int) -> int:
    """The same callers without a network."""
    with open_log(home, CHANNEL, NODE) as opened:
        async with ServedLog(opened.log) as served:
            left = iter(raws)

            async def call() -> None:
                for raw in left:
                    await served.submit(raw)

            await asyncio.gather(*(call() for _ in range(callers)))
    return len(raws)


async def grpc_echo(port: int, files: TlsFiles, raws: list[bytes]) -> int:
    """The same batches as gRPC messages, back as they are."""
    import grpc

    batch = max(1, min(BATCH_ENVELOPES, BATCH_BYTES // (len(raws[0]) + 4)))
    joined = [b"".join(raws[at : at + batch]) for at in range(0, len(raws), batch)]
    own = grpc.ssl_channel_credentials(
        files.roots.read_bytes(), files.key.read_bytes(), files.certificate.read_bytes()
    )
    limits = (("grpc.max_receive_message_length", 8 << 20), ("grpc.max_send_message_length", 8 << 20))
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", own, options=limits) as channel:
        call = channel.stream_stream("/Echo/Echo")()

        async def write() -> None:
            for each in joined:
                await call.write(each)
            await call.done_writing()

        writing = asyncio.create_task(write())
        count = 0
        async for _ in call:
            count += 1
        await writing
        assert count == len(joined)
    return len(raws)


async def quic_echo(port: int, files: TlsFiles, raws: list[bytes]) -> int:
    """The same bytes over one QUIC stream, back as they are."""
    link, close = await connect_quic("127.0.0.1", port, files, PROTOCOL, timeout_s=10)
    pipe = link.open_stream()

    async def write() -> None:
        for each in raws:
            await pipe.send(each)

    writing = asyncio.create_task(write())
    left = sum(map(len, raws))
    while left:
        left -= len(await pipe.receive())
    await writing
    await close()
    return len(raws)


async def echo(port: int, tls: ssl.SSLContext, raws: list[bytes]) -> int:
    """The same frames, back as they are."""
    batch = max(1, min(BATCH_ENVELOPES, BATCH_BYTES // (len(raws[0]) + 4)))
    frames = [
        frame(pack_parts(RemoteMessage("append", 1, {}, tuple(raws[at : at + batch])).parts_out()))
        for at in range(0, len(raws), batch)
    ]
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname="127.0.0.1")

    async def write() -> None:
        for each in frames:
            writer.write(each)
            await writer.drain()

    writing = asyncio.create_task(write())
    left = sum(map(len, frames))
    while left:
        left -= len(await reader.read(1 << 16))
    await writing
    writer.close()
    return len(raws)


def run(quick: bool) -> list[Result]:
    """Every transport and size, for one caller and for 64."""
    rows: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="ropewalk-bench-transport-") as folder:
        home = Path(folder)
        files = certificates(home)
        rounds = 3 if quick else 7
        names = [f"bench-{number}" for number in range(2 * len(SCHEMES) * 2 * len(SIZES) * (rounds + 1))]
        for name in names:
            create_channel(home, name, "node", NODE.public)
        fresh = iter(names)
        tls = client_tls(files, PROTOCOL)
        with (
            beside(home, "serve") as urls,
            beside(home, "echo") as echoing,
            beside(home, "grpc") as grpc_port,
            beside(home, "quic") as quic_port,
        ):
            echoes: dict[str, Callable[[list[bytes]], int]] = {
                "tls": lambda raws: asyncio.run(echo(echoing, tls, raws)),
                "grpc": lambda raws: asyncio.run(grpc_echo(grpc_port, files, raws)),
                "quic": lambda raws: asyncio.run(quic_echo(quic_port, files, raws)),
            }
            for scheme, (size, text, most), callers in cells():
                few = most // (8 if quick else 1)
                raws = [envelope(number, "x" * text).raw for number in range(max(8, callers, few))]
                ours = Contestant(
                    f"{scheme}, all rules, fsync", partial(_sent, urls[scheme], files, fresh, raws, callers)
                )
                goal = {"grpc64 1 KiB": 0.7, "quic64 1 KiB": 0.5}.get(f"{scheme}{callers} {size}")
                for peer, target in (
                    (Contestant("on the spot", partial(_on_the_spot, raws, callers)), goal),
                    (Contestant(f"bare {scheme} echo", partial(echoes[scheme], raws)), None),
                ):
                    rows += compare(
                        f"append {size} envelopes over {scheme}, {callers} callers",
                        ours,
                        [peer],
                        target=target,
                        rounds=rounds,
                        unit="envelopes",
                        note="server and echo are other processes; one caller sends batches of 512 or 1 MiB",
                    )
    return rows


def cells() -> Iterator[tuple[str, tuple[str, int, int], int]]:
    """Which transport, size and number of callers."""
    for scheme in SCHEMES:
        for size, text, most in SIZES:
            yield scheme, (size, text, most), 1
            yield scheme, (size, text, max(64, most // 2)), 64


def _sent(url: str, files: TlsFiles, fresh: Iterator[str], raws: list[bytes], callers: int) -> int:
    return asyncio.run(send(url, files, next(fresh), raws, callers))


def _on_the_spot(raws: list[bytes], callers: int) -> int:
    if callers == 1:
        return on_the_spot(raws)
    with new_home() as home:
        return asyncio.run(spot(home, raws, callers))
