"""`ropewalk serve` beside the library: durable appends of 64 clients, pages of 512 messages, frames to subscribers.

The server is a process of its own; its clients are bare sockets in this one, so that little but the server is measured.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import selectors
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.bench_gitlog import event
from bench.harness import Contestant, Result, compare, fixed
from ropewalk.gitlog.core.envelope import Draft
from ropewalk.gitlog.core.layout import MESSAGES
from ropewalk.gitlog.repository.opening import init_repository, open_repository
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.channel.channel import open_log
from ropewalk.ledger.channel.settings import create_channel
from ropewalk.ledger.envelope.envelope import build
from ropewalk.server.watch.config import WatchConfig
from ropewalk.server.watch.rounds import Watch

__all__ = ["run"]

CLIENTS = 64
PAGE = 512
TOPIC = "jobs/pending"
LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


@contextmanager
def served(place: Path) -> Iterator[tuple[int, int]]:
    """A server of the repository: its port and its process id."""
    command = [str(Path(sys.executable).with_name("ropewalk")), "--repo", str(place), "serve", "--port", "0"]
    config = place.parent / "config.json"
    config.write_text('{"version":1,"server":{"requests_per_second":1000000,"burst":1000000}}')
    process = subprocess.Popen([*command, "--config", str(config)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        facts = json.loads(process.stdout.readline())
        yield int(facts["url"].rpartition(":")[2]), process.pid
    finally:
        process.terminate()
        process.wait(60)


async def ask(port: int, requests: list[bytes]) -> None:
    """Send requests over one connection, each after the answer to the one before."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    for request in requests:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        assert b" 20" in head[:12], head
        size = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(int(size.partition(b":")[2]))
    writer.close()


def crowd(port: int, queues: list[list[bytes]]) -> None:
    """Send each list of requests over a connection; one thread and no framework, so that it takes little CPU."""
    with selectors.DefaultSelector() as ready:
        for queue in queues:
            client = socket.create_connection(("127.0.0.1", port))
            left = iter(queue)
            client.sendall(next(left))
            ready.register(client, selectors.EVENT_READ, (left, bytearray()))
        while ready.get_map():
            for key, _ in ready.select():
                peer, (left, answer) = key.fileobj, key.data
                assert isinstance(peer, socket.socket)
                answer += peer.recv(1 << 16)
                head, whole, body = answer.partition(b"\r\n\r\n")
                if not whole or len(body) < int(LENGTH.search(head)[1]):  # type: ignore[index]
                    continue
                assert head.startswith(b"HTTP/1.1 201"), head
                answer.clear()
                request = next(left, None)
                if request is not None:
                    peer.sendall(request)
                else:
                    ready.unregister(peer)
                    peer.close()


def post(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def appends(folder: Path, quick: bool) -> list[Result]:
    each = 8 if quick else 25
    bodies = [json.dumps(event(n)).encode() for n in range(CLIENTS * each)]
    with init_repository(folder / "library.git") as log:
        init_repository(folder / "served.git").close()

        def library() -> int:
            def write(start: int) -> None:
                for n in range(start, start + each):
                    log.append("demo", event(n))

            crew = [threading.Thread(target=write, args=(n * each,)) for n in range(CLIENTS)]
            for thread in crew:
                thread.start()
            for thread in crew:
                thread.join()
            return CLIENTS * each

        with served(folder / "served.git") as (port, pid):
            requests = [post("/api/v1/shiplog/demo/events", body) for body in bodies]
            queues = [requests[n * each : (n + 1) * each] for n in range(CLIENTS)]
            cpu = {"server": [0.0], "library": [0.0]}

            def http() -> int:
                before = cpu_s(pid)
                crowd(port, queues)
                cpu["server"].append(cpu_s(pid) - before)
                return CLIENTS * each

            def timed() -> int:
                before = time.process_time()
                count = library()
                cpu["library"].append(time.process_time() - before)
                return count

            job, rounds = "durable append of 1 KB, 64 clients", 2 if quick else 5
            peers = [Contestant("library, 64 threads", timed)]
            found = compare(job, Contestant("HTTP", http), peers, target=0.6, rounds=rounds, unit="events")
            rates = {
                name: CLIENTS * each / min(taken[2:]) for name, taken in cpu.items()
            }  # after the warm-up
            names = "HTTP, server alone", "library, 64 threads"
            row = fixed(job, *names, rates["server"], rates["library"], None, "events", "CPU, best", rounds)
            return [*found, row]


def reads(folder: Path, quick: bool) -> list[Result]:
    pages = 4
    with init_repository(folder / "read.git") as log:
        log.append_all(TOPIC, [Draft(event(n)) for n in range(pages * PAGE)], layout=MESSAGES)
        first = log.read(TOPIC, None, 1, layout=MESSAGES).events[0].ulid
    with open_repository(folder / "read.git") as log, served(folder / "read.git") as (port, _):

        def library() -> int:
            for _ in range(pages):
                assert len(log.read(TOPIC, first, PAGE, layout=MESSAGES).events) == PAGE
            return pages * PAGE

        def http() -> int:
            path = f"/api/v1/messages?topic={TOPIC}&limit={PAGE}&since_ulid={first}"
            asyncio.run(ask(port, [get(path)] * pages))
            return pages * PAGE

        return compare(
            "read 512 messages a page",
            Contestant("HTTP", http),
            [Contestant("library", library)],
            target=0.5,
            rounds=3 if quick else 7,
            unit="messages",
        )


def fan_out(folder: Path, quick: bool) -> Result:
    """CPU of the serving process per frame and subscriber, from commits to sockets, beside `stream serve`."""
    from bench.bench_stream import READERS

    subscribers, count = (20, 200) if quick else (100, 900)
    rates: dict[str, float] = {}
    for name in ("stream", "serve"):
        place = folder / f"fan-{name}.git"
        with init_repository(place) as log:
            log.append(TOPIC, event(0), layout=MESSAGES)
        words = ["stream", "serve"] if name == "stream" else ["serve"]
        command = [
            str(Path(sys.executable).with_name("ropewalk")),
            "--repo",
            str(place),
            *words,
            "--port",
            "0",
        ]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert process.stdout is not None
        facts = json.loads(process.stdout.readline())
        url = facts["url"] if name == "stream" else facts["stream"]
        readers = subprocess.Popen([sys.executable, "-c", READERS, url, str(subscribers)])
        time.sleep(3)
        before = cpu_s(process.pid)
        with open_repository(place) as log:
            log.append_all(TOPIC, [Draft(event(n)) for n in range(count)], layout=MESSAGES)
        last = -1.0
        while (now := cpu_s(process.pid)) - last > 0.05:  # until it has little left to do
            last = now
            time.sleep(1.5)
        rates[name] = subscribers * count / (now - before)
        for each in (readers, process):
            each.terminate()
            each.wait(60)
    job = f"frames to {subscribers} subscribers"
    return fixed(job, "serve", "stream serve", rates["serve"], rates["stream"], 0.9, "frames", "CPU", 1)


def watch_round(folder: Path, quick: bool) -> Result:
    """A round of the watch with nothing new, on a channel of a million envelopes, beside ten rounds a second."""
    count, batch = (20_000 if quick else 1_000_000), 5_000
    key, home = SigningKey.generate("ed25519", bytes(32)), folder / "watched"
    create_channel(home, "ops", "node", key.public)
    with open_log(home, "ops", key) as opened:
        for start in range(0, count, batch):
            opened.log.submit_many([observation(key, n) for n in range(start, start + batch)])
    watch = Watch(
        home, WatchConfig(), channel_keys=lambda _: (key,), signing_key=lambda _: key, now_ns=time.time_ns
    )
    watch.round()  # looks at every block
    rates = []
    for _ in range(9):
        start_s = time.perf_counter()
        watch.round()
        rates.append(1 / (time.perf_counter() - start_s))
    job = f"watch round, nothing new, {count:,} envelopes"
    return fixed(job, "watch", "100 ms", sorted(rates)[4], 10.0, 1.0, "rounds", "wall", len(rates))


def observation(key: SigningKey, number: int) -> bytes:
    return build(
        key, domain="bench", event_class="Observation", event_type="t", payload={"n": number},
        timestamp="2024-11-01T12:00:00Z",
    ).raw  # fmt: skip


def cpu_s(pid: int) -> float:
    """CPU seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run(quick: bool) -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="ropewalk-bench-serve-") as name:
        folder = Path(name)
        return [
            *appends(folder, quick),
            *reads(folder, quick),
            fan_out(folder, quick),
            watch_round(folder, quick),
        ]
