"""Live gossip peers beside npm GossipLog 0.13.14: time from an append at one end to its arrival at the other.

Three processes in a line on loopback: the first serves, the second connects to it and serves, the third connects to
the second. Ours are `gossip serve` processes with LMDB stores that sync every message, and the append comes from a
fourth process; npm's logs are in memory and the process that serves appends itself. Both are polled once a millisecond.
"""

from __future__ import annotations

import json
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.bench_gossip import HERE, KEY, NPM, TOPIC
from bench.harness import Result, fixed
from ropewalk.gossip.peer.topics import open_topic

__all__ = ["run"]

LIMIT_S = 60.0
_SERVE = "from ropewalk.cli import main; main()"


def run(quick: bool) -> list[Result]:
    """Measure both lines in turns."""
    count = 10 if quick else 100
    with ExitStack() as stack:
        ours, theirs = _Line(stack), _NodeLine(stack)
        times: tuple[list[float], list[float]] = ([], [])
        for n in range(count + 3):
            for line, into in zip((ours.append, theirs.append), times, strict=True):
                seconds = line(n)
                if n >= 3:  # the first ones warm caches and compilers
                    into.append(seconds)
                time.sleep(0.02)
    mine, peers = (statistics.median(each) for each in times)
    note = f"median {mine * 1000:.1f} ms, p95 {_p95(times[0]):.1f} ms"
    note += f"; npm {peers * 1000:.1f} ms, {_p95(times[1]):.1f} ms"
    return [
        fixed(
            "append to visible over two hops",
            "ropewalk",
            NPM,
            1 / mine,
            1 / peers,
            1.0,
            "messages",
            note,
            count,
        )
    ]


def _p95(times: list[float]) -> float:
    return sorted(times)[int(0.95 * (len(times) - 1))] * 1000


def _wait(holds: Callable[[], bool]) -> None:
    end = time.perf_counter() + LIMIT_S
    while not holds():
        if time.perf_counter() > end:
            raise RuntimeError("a message did not arrive")
        time.sleep(0.001)


class _Line:
    """Three `gossip serve` processes; the bench itself appends to the first store and watches the third."""

    def __init__(self, stack: ExitStack) -> None:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        urls: list[str] = []
        homes = []
        for n in range(3):
            repo = folder / f"{n}.git"
            subprocess.run([*_command("init", str(repo))], check=True, capture_output=True)
            peer = ["--peer", urls[-1]] if urls else []
            words = ("--repo", str(repo), "gossip", "serve", "--topic", TOPIC, "--port", "0", *peer)
            process = subprocess.Popen(
                _command(*words), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            stack.callback(_end, process)
            assert process.stdout is not None
            urls.append(json.loads(process.stdout.readline())["url"])
            homes.append(repo / "ropewalk")
        self._first, _, self._last = (
            stack.enter_context(open_topic(home, TOPIC, create=False, signer=KEY)) for home in homes
        )

    def append(self, n: int) -> float:
        started = time.perf_counter()
        id = self._first.append({"n": n}).id
        _wait(lambda: self._last.has(id))
        return time.perf_counter() - started


class _NodeLine:
    """Three Node processes in a line."""

    def __init__(self, stack: ExitStack) -> None:
        self._peers = [_NodePeer(stack) for _ in range(3)]
        url = ""
        for peer in self._peers:
            if url:
                peer.ask("connect", url=url)
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            peer.ask("listen", port=port)
            url = f"ws://127.0.0.1:{port}"
        time.sleep(1)  # their first sync

    def append(self, n: int) -> float:
        before = self._peers[-1].ask("status")["count"]
        started = time.perf_counter()
        self._peers[0].ask("append", payloads=[{"n": n}])
        _wait(lambda: self._peers[-1].ask("status")["count"] > before)
        return time.perf_counter() - started


class _NodePeer:
    def __init__(self, stack: ExitStack) -> None:
        node = shutil.which("node")
        if node is None:
            raise RuntimeError("bench gossip_live needs Node 20 or newer")
        self._process = subprocess.Popen(
            [node, "peer.mjs", TOPIC],
            cwd=HERE,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        stack.callback(_end, self._process)

    def ask(self, name: str, **given: Any) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": name, **given}) + "\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        if found.get("done") != name:
            raise RuntimeError(f"Node: {found}")
        return found


def _command(*words: str) -> list[str]:
    return [sys.executable, "-c", _SERVE, *words]


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()
