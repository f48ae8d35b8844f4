"""Publish a log to NATS JetStream beside plain nats-py: 256 messages in flight, every one acknowledged."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import nats

import ropewalk
from bench.harness import Contestant, Result, compare
from ropewalk.bridge.brokers.loops import BATCH, find_log
from ropewalk.bridge.brokers.nats import NatsBroker
from ropewalk.bridge.brokers.run import Bridge
from ropewalk.gitlog.core.envelope import Draft
from ropewalk.gitlog.core.layout import MESSAGES
from ropewalk.gitlog.repository.opening import open_repository

__all__ = ["run"]

STARTS_S = 10


async def plain(url: str, subject: str, bodies: list[bytes]) -> int:
    client = await nats.connect(url)
    context = client.jetstream()
    await context.add_stream(name=subject, subjects=[subject])
    for start in range(0, len(bodies), BATCH):
        await asyncio.gather(
            *(context.publish(subject, raw, timeout=10) for raw in bodies[start : start + BATCH])
        )
    await client.close()
    return len(bodies)


def run(quick: bool) -> list[Result]:
    """Publish a log of 1 kB events to a fresh subject each round."""
    server = shutil.which("nats-server") or shutil.which("/usr/sbin/nats-server")
    if server is None:
        raise SystemExit("bench bridge needs nats-server (Debian package of that name)")
    count = 1_000 if quick else 10_000
    with tempfile.TemporaryDirectory() as name, socket.socket() as probe:
        folder = Path(name)
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        process = subprocess.Popen(
            [server, "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", name],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            time.sleep(1)
            ropewalk.init(folder / "log").close()
            with open_repository(folder / "log") as log:
                drafts = [
                    Draft({"ns": "", "type": "t", "payload": {"n": n, "x": "y" * 800}}) for n in range(count)
                ]
                log.append_all("jobs", drafts, layout=MESSAGES)
                bodies = [event.raw for event in log.events("jobs", layout=MESSAGES)]
                numbers, url = itertools.count(), f"nats://127.0.0.1:{port}"

                def ours() -> int:
                    subject = f"ours{next(numbers)}"
                    made = Bridge(
                        find_log(log, "messages/jobs"),
                        lambda: NatsBroker.connect(url, subject),
                        address=f"{url}/{subject}",
                        jitter=lambda: 0.5,
                    )
                    return asyncio.run(made.once()).published

                return compare(
                    f"publish {count} events of 1 kB to JetStream, acknowledged",
                    Contestant("ropewalk bridge", ours),
                    [Contestant("nats-py", lambda: asyncio.run(plain(url, f"plain{next(numbers)}", bodies)))],
                    target=0.5,
                    rounds=3,
                    unit="events",
                )
        finally:
            process.terminate()
            process.wait(STARTS_S)
