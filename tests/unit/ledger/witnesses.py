"""Witnesses that answer over HTTP on loopback, in this process, each in its own folder."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tests.waiting import LIMIT_S

from ropewalk.kernel.keys import SigningKey
from ropewalk.kernel.note.key import Verifier
from ropewalk.kernel.note.ml_dsa import MlDsaSigningKey
from ropewalk.ledger.transparency.witness_folder import Witness, make_witness
from ropewalk.server.witness import WitnessApp, serve_witness

__all__ = ["LiveWitness", "live_witness", "post"]


@dataclass(frozen=True, slots=True)
class LiveWitness:
    """A witness and where it listens."""

    url: str
    witness: Witness

    @property
    def vkey(self) -> Verifier:
        return self.witness.vkey

    @property
    def option(self) -> str:
        """The value of `ledger witness set --witness`."""
        return f"{self.url}={self.vkey.to_text()}"


@contextlib.contextmanager
def live_witness(
    folder: Path,
    name: str,
    *,
    rate: float = 1_000,
    now_s: int | None = None,
    secret: SigningKey | MlDsaSigningKey | None = None,
    tls: tuple[Path, Path] | None = None,
) -> Iterator[LiveWitness]:
    secret = secret or SigningKey.generate("ed25519", name.encode().ljust(32, b"."))
    witness = make_witness(folder, name, "unused", secret)
    clock = (lambda: now_s) if now_s is not None else (lambda: int(time.time()))
    app = WitnessApp(witness, secret, rate=rate, now_s=clock)
    ready, found, stop = threading.Event(), [], []

    async def run() -> None:
        end = asyncio.Event()
        stop.append((asyncio.get_running_loop(), end))
        async with serve_witness(app, "127.0.0.1", 0, tls) as url:
            found.append(url)
            ready.set()
            await end.wait()

    thread = threading.Thread(target=asyncio.run, args=(run(),), daemon=True)
    thread.start()
    assert ready.wait(LIMIT_S)
    try:
        yield LiveWitness(found[0], witness)
    finally:
        loop, end = stop[0]
        loop.call_soon_threadsafe(end.set)
        thread.join(LIMIT_S)


def post(
    url: str, body: bytes, path: str = "/add-checkpoint", method: str = "POST"
) -> tuple[int, str, bytes]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=LIMIT_S)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Type") or "", answer.read()
    finally:
        connection.close()
