"""A channel elsewhere beside one on the spot, and beside bare TLS that carries the same bytes (S4 §15).

The server and the echo live in processes of their own; every round appends to a channel that is new. What TLS costs by
itself is the ceiling of any transport, what appending on the spot costs is the ceiling of any server.
"""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from bench.bench_ledger import CHANNEL, NODE, envelope, new_home
from bench.harness import Contestant, Result, compare
from ropewalk.ledger.channel.channel import open_log
from ropewalk.ledger.channel.settings import create_channel
from ropewalk.ledger.ingest.ticket import LedgerReceipt
from ropewalk.ledger.remote.client import BATCH_BYTES, BATCH_ENVELOPES, LedgerClient
from ropewalk.ledger.remote.messages import PROTOCOL, RemoteMessage
from ropewalk.net.frames import frame, pack_parts
from ropewalk.net.tls import TlsFiles, client_tls

__all__ = ["run"]

SIZES = (("1 KiB", 300, 8_000), ("64 KiB", 64_800, 400), ("1 MiB", 1_047_800, 24))
SERVE = """
import asyncio, sys
from pathlib import Path
from bench.bench_ledger import NODE
from ropewalk.ledger.remote.messages import PROTOCOL
from ropewalk.net.tls import TlsFiles, server_tls
from ropewalk.ledger.remote.server import LedgerServer

home, tls = Path(sys.argv[1]), Path(sys.argv[1]) / "tls.pem"
context = server_tls(TlsFiles(tls, tls, tls), PROTOCOL)

async def serve():
    async with LedgerServer(home, lambda channel: [NODE], tls=context, linger_s=0.05) as server:
        print(server.port, flush=True)
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

asyncio.run({"serve": serve, "echo": echo}[sys.argv[2]]())
"""


def certificate(path: Path) -> None:
    """One that vouches for itself, with its key, for both sides."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bench")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path.write_bytes(
        made.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )


@contextmanager
def beside(home: Path, what: str) -> Iterator[int]:
    """The port of a process that serves, or echoes."""
    command = [sys.executable, "-c", SERVE, str(home), what]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1]) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.kill()


def on_the_spot(raws: list[bytes]) -> int:
    with new_home() as home, open_log(home, CHANNEL, NODE) as opened:
        assert all(isinstance(each, LedgerReceipt) for each in opened.log.submit_many(raws))
    return len(raws)


async def send(port: int, tls: ssl.SSLContext, channel: str, raws: list[bytes]) -> int:
    async with LedgerClient(f"tls://127.0.0.1:{port}", channel, tls=tls) as remote:
        outcomes = await remote.submit_many(raws)
        assert not any(not isinstance(each, LedgerReceipt) or each.replayed for each in outcomes)
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
    """Every size."""
    rows: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="ropewalk-bench-transport-") as folder:
        home = Path(folder)
        file = home / "tls.pem"
        certificate(file)
        tls = client_tls(TlsFiles(file, file, file), PROTOCOL)
        rounds = 3 if quick else 7
        names = [f"bench-{number}" for number in range(len(SIZES) * (rounds + 1))]
        for name in names:
            create_channel(home, name, "node", NODE.public)
        fresh = iter(names)
        with beside(home, "serve") as port, beside(home, "echo") as echoing:
            for size, text, most in SIZES:
                count = most // 8 if quick else most
                raws = [envelope(number, "x" * text).raw for number in range(count)]
                ours = Contestant("TLS, all rules, fsync", partial(_sent, port, tls, fresh, raws))
                peers = [
                    Contestant("on the spot", partial(on_the_spot, raws)),
                    Contestant("bare TLS echo", partial(_echoed, echoing, tls, raws)),
                ]
                rows += compare(
                    f"append {size} envelopes elsewhere",
                    ours,
                    peers,
                    target=None,
                    rounds=rounds,
                    unit="envelopes",
                    note="server and echo are other processes; batches of 512 envelopes or 1 MiB",
                )
    return rows


def _sent(port: int, tls: ssl.SSLContext, fresh: Iterator[str], raws: list[bytes]) -> int:
    return asyncio.run(send(port, tls, next(fresh), raws))


def _echoed(port: int, tls: ssl.SSLContext, raws: list[bytes]) -> int:
    return asyncio.run(echo(port, tls, raws))
