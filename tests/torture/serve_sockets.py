"""Bad clients of `ropewalk serve` in number: its memory stays bounded, and a healthy client is answered meanwhile.

idle        connections that send nothing
few_files   more connections than a limit of 1,024 open files allows
halves      requests that stop in the middle of a large body
headers     heads that never end
sleepers    subscribers that read nothing while events are appended
"""

from __future__ import annotations

import contextlib
import http.client
import json
import resource
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.serving import Served, serving

RSS_MAX_MIB = {
    "idle": 300,
    "few_files": 120,
    "halves": 400,
    "headers": 120,
    "sleepers": 300,
}  # above the start
HEALTHY_S_MAX = 60.0
EVENT = {"type": "t", "payload": {"text": "x" * 500}}


def run(quick: bool) -> dict[str, Any]:
    """The run `make torture` does."""
    scenes: dict[str, Callable[[bool], dict[str, Any]]] = {
        "idle": idle, "few_files": few_files, "halves": halves, "headers": headers, "sleepers": sleepers,
    }  # fmt: skip
    runs = {name: scene(quick) for name, scene in scenes.items()}
    for name, found in runs.items():
        found["ok"] = found["healthy"] and found["grown_mib"] <= RSS_MAX_MIB[name]
        found["grown_mib_max"] = RSS_MAX_MIB[name]
    what = "memory of `ropewalk serve` under bad clients, and whether a healthy client was answered"
    return {"ok": all(each["ok"] for each in runs.values()), "what": what, "runs": runs}


@contextlib.contextmanager
def measured(found: dict[str, Any], *, files: int | None = None, **settings: Any) -> Iterator[Served]:
    """A server with these settings; `found` gets its growth and whether a healthy client is answered at the end."""
    with tempfile.TemporaryDirectory(prefix="ropewalk-sockets-") as name:
        folder = Path(name)
        config = folder / "config.json"
        config.write_text(json.dumps({"version": 1, "server": settings}))
        with serving(folder, "--config", str(config), files=files) as server:
            assert server("POST", "/shiplog/warm/events", EVENT).status == 201
            start = rss_mib(server)
            yield server
            found["grown_mib"] = round(rss_mib(server) - start, 1)
            found["started_mib"] = round(start, 1)
            begun, found["healthy"], found["healthy_tries"] = time.monotonic(), False, 0
            # It may be refused while the server still drops bad ones, as any client does it tries again.
            while not found["healthy"] and time.monotonic() - begun < HEALTHY_S_MAX:
                found["healthy_tries"] += 1
                with contextlib.suppress(OSError, http.client.HTTPException):
                    found["healthy"] = server("POST", "/shiplog/x/events", EVENT).status == 201
                time.sleep(0 if found["healthy"] else 0.1)
            found["healthy_answer_s"] = round(time.monotonic() - begun, 3)
            bad = ("Traceback", "Too many open files")
            found["healthy"] &= not any(text in server.errors() for text in bad)


def rss_mib(server: Served, kind: str = "VmRSS") -> float:
    """Return the resident memory of a server: all, or the pages of one kind that proc(5) names."""
    text = Path(f"/proc/{server.process.pid}/status").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith(f"{kind}:")) / 1024


def crowd(server: Served, count: int, say: bytes = b"") -> list[socket.socket]:
    """Connect so many clients, each sending the same; those that the server closes are counted as connected."""
    links = []
    for _ in range(count):
        with contextlib.suppress(OSError):
            links.append(socket.create_connection((server.host, server.port), timeout=30))
            links[-1].sendall(say)
    return links


def close(links: list[socket.socket]) -> None:
    for link in links:
        link.close()


def idle(quick: bool) -> dict[str, Any]:
    count = 1_000 if quick else 10_000
    found: dict[str, Any] = {"connections": count}
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    try:
        with measured(found, connections_max=count + 100, request_seconds=600) as server:
            links = crowd(server, count)
            time.sleep(1)
        close(links)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    return found


def few_files(quick: bool) -> dict[str, Any]:
    count = 1_500 if quick else 5_000
    found: dict[str, Any] = {"connections": count}
    with measured(found, files=1_024, request_seconds=2) as server:
        links = []
        for _ in range(count):
            with contextlib.suppress(OSError):
                links.append(socket.create_connection((server.host, server.port), timeout=5))
        time.sleep(4)  # the silent ones are dropped
    close(links)
    return found


def halves(quick: bool) -> dict[str, Any]:
    count = 50 if quick else 400
    found: dict[str, Any] = {"connections": count}
    head = b"POST /api/v1/shiplog/x/events HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with measured(found, request_seconds=600) as server:
        links = crowd(server, count, head + b"Content-Length: 16000000\r\n\r\n[" + b" " * 4_000_000)
        time.sleep(1)
    close(links)
    return found


def headers(quick: bool) -> dict[str, Any]:
    count = 100 if quick else 1_000
    found: dict[str, Any] = {"connections": count}
    with measured(found, request_seconds=600) as server:
        links = crowd(server, count, b"GET / HTTP/1.1\r\nHost: localhost\r\nX-A: " + b"a" * 1_000_000)
        answers = [_first(link) for link in links]
        found["refused_431"] = sum(answer.startswith(b"HTTP/1.1 431") for answer in answers)
    close(links)
    return found


def _first(link: socket.socket) -> bytes:
    try:
        return link.recv(64)
    except OSError:  # reset: the answer was lost with what the server had not read
        return b""


def sleepers(quick: bool) -> dict[str, Any]:
    count, events = (50, 500) if quick else (500, 5_000)
    found: dict[str, Any] = {"connections": count, "events": events}
    with measured(found) as server:
        links = crowd(server, count, b"GET /api/v1/events?ns=x HTTP/1.1\r\nHost: localhost\r\n\r\n")
        times = []
        for _ in range(events // 250):
            begun = time.monotonic()
            assert server("POST", "/shiplog/x/events", [EVENT] * 250).status == 201
            times.append(time.monotonic() - begun)
        found["append_s_max"] = round(max(times), 2)
        time.sleep(2)
    close(links)
    return found
