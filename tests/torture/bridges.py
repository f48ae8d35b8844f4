"""Bridges under kills: SIGKILL of publisher, subscriber, mirror or NATS server while events flow between logs.

One thread appends to a log, one bridge publishes it to a JetStream stream, one records the stream in a second log, and
a mirror copies that to a third. A victim is killed at a random moment after it was seen at work, and started again. In
the end the stream and both logs must hold every event once and in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ropewalk
from ropewalk.bridge.brokers.nats import NatsBroker
from ropewalk.bridge.brokers.port import START
from tests.waiting import LIMIT_S, until

KILLS, KILLS_QUICK, SEED = 200, 10, 22
SUBJECT = "torture.jobs"
COMMAND = [sys.executable, "-c", "import sys; from ropewalk.cli import main; sys.exit(main())"]
# The server less often: both bridges wait out their backoff then.
VICTIMS = ("out", "in", "mirror", "out", "in", "mirror", "server")
COPIES = "copies"


def run(quick: bool) -> dict[str, Any]:
    """The run `make torture` does."""
    program = shutil.which("nats-server") or shutil.which("/usr/sbin/nats-server")
    what = "events over NATS and a mirror while bridges and server are killed: nothing lost or doubled, order kept"
    if program is None:
        return {"ok": False, "what": what, "why": "nats-server is not installed (Debian package nats-server)"}
    with tempfile.TemporaryDirectory(prefix="ropewalk-bridges-") as folder:
        return {
            "what": what,
            "seed": SEED,
            **_World(Path(folder), program).play(KILLS_QUICK if quick else KILLS),
        }


class _World:
    """Three logs, a server, two bridges and a mirror between them."""

    def __init__(self, folder: Path, program: str) -> None:
        self._folder, self._port = folder, _free_port()
        self._logs = {"out": folder / "there", "in": folder / "here"}
        for path in self._logs.values():
            ropewalk.init(path).close()
        (folder / "streams").mkdir()
        self.url = f"nats://127.0.0.1:{self._port}"
        self._commands = {
            "server": [
                program,
                "-a",
                "127.0.0.1",
                "-p",
                str(self._port),
                "-js",
                "-sd",
                str(folder / "streams"),
            ]
        }
        for side, path in self._logs.items():
            options = ["--url", self.url, "--log", "messages/jobs", "--subject", SUBJECT, "--direction", side]
            self._commands[side] = [*COMMAND, "--repo", str(path), "bridge", "nats", *options]
        there = ["--from", "topic:jobs", "--to", f"topic:{COPIES}", "--follow"]
        self._commands["mirror"] = [*COMMAND, "--repo", str(self._logs["in"]), "mirror", *there]
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.appended = 0
        self.pause_s, self.pause_of = 0.0, ""  # the longest time a victim took to be at work again

    def play(self, kills: int) -> dict[str, Any]:
        """Kill so many times; return the counts and whether all held."""
        chance, killed = random.Random(SEED), dict.fromkeys(("out", "in", "mirror", "server"), 0)
        with self._writer(), self._started():
            for count in range(kills):
                victim = chance.choice(VICTIMS)
                self._seen_at_work(victim)
                time.sleep(chance.uniform(0.0, 0.25))
                self._kill(victim)
                killed[victim] += 1
                self._start(victim)
                if (count + 1) % 20 == 0:
                    said = f"{count + 1} kills, {self.appended} events, longest pause {self.pause_s:.1f} s"
                    print(said, file=sys.stderr, flush=True)
        self._start("server")
        try:
            for side in ("out", "in"):
                done = subprocess.run(
                    [*self._commands[side], "--once"], capture_output=True, timeout=600, check=False
                )
                assert done.returncode == 0, done.stderr.decode()
            done = subprocess.run(
                self._commands["mirror"][:-1], capture_output=True, timeout=600, check=False
            )
            assert done.returncode == 0, done.stderr.decode()
            streamed = asyncio.run(self._streamed())
        finally:
            self._kill("server")
        with ropewalk.open(self._logs["in"]) as here:
            recorded, copied = (
                [event.payload["payload"]["n"] for event in here.messages(name)] for name in ("jobs", COPIES)
            )
            verdict = here.verify().verdict
        wanted = list(range(self.appended))
        return {
            "ok": streamed == recorded == copied == wanted and verdict == "passed",
            "kills": sum(killed.values()),
            "killed": killed,
            "events": self.appended,
            "stream": _compared(streamed, wanted),
            "log": _compared(recorded, wanted),
            "mirror": _compared(copied, wanted),
            "verify": verdict,
            "longest_pause": {"seconds": round(self.pause_s, 1), "side": self.pause_of},
        }

    @contextlib.contextmanager
    def _started(self) -> Iterator[None]:
        self._start("server")
        self._start("out")
        self._start("in")
        until(lambda: self._head("jobs") is not None)
        self._start("mirror")
        try:
            yield
        finally:
            for name in list(self._running):
                self._kill(name)

    @contextlib.contextmanager
    def _writer(self) -> Iterator[None]:
        """Append to the first log until the block ends."""
        stop = threading.Event()

        def write() -> None:
            with ropewalk.open(self._logs["out"]) as there:
                log = there.messages("jobs")
                while not stop.is_set():
                    batch = range(self.appended, self.appended + 20)
                    outcomes = log.append_all(
                        {"ns": "", "type": "job.made", "payload": {"n": n}} for n in batch
                    )
                    assert not any(isinstance(each, Exception) for each in outcomes), outcomes
                    self.appended = batch.stop
                    stop.wait(0.1)

        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(LIMIT_S)

    def _start(self, name: str) -> None:
        quiet = subprocess.DEVNULL
        self._running[name] = subprocess.Popen(self._commands[name], stdout=quiet, stderr=quiet)
        if name == "server":
            until(lambda: _listens(self._port))

    def _kill(self, name: str) -> None:
        process = self._running.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait(LIMIT_S)

    def _seen_at_work(self, victim: str) -> None:
        """Wait until the victim has moved something since now; of the server, what either side moved."""
        marks: dict[str, Callable[[], object]] = {
            "out": self._stream_size,
            "in": lambda: self._head("jobs"),
            "mirror": lambda: self._head(COPIES),
        }
        mark = marks.get(victim, self._stream_size)
        before, begun = mark(), time.monotonic()
        until(lambda: mark() != before)
        waited = time.monotonic() - begun
        if waited > self.pause_s:
            self.pause_s, self.pause_of = waited, victim

    def _stream_size(self) -> int:
        """Return the size of the files of the stream: a look that does not disturb the server."""
        size = 0
        for each in self._folder.glob("streams/jetstream/*/streams/*/msgs/*.blk"):
            with contextlib.suppress(FileNotFoundError):
                size += each.stat().st_size
        return size

    def _head(self, topic: str) -> bytes | None:
        ref = self._logs["in"] / f"refs/gatos/messages/{topic}/head"
        with contextlib.suppress(FileNotFoundError):
            return ref.read_bytes()
        return None

    async def _streamed(self) -> list[int]:
        broker, at = await NatsBroker.connect(self.url, SUBJECT), START
        found: list[int] = []
        while batch := await broker.fetch(at, 256, 2.0):
            at = batch[-1].position
            found += [json.loads(each.body)["payload"]["n"] for each in batch]
        await broker.close()
        return found


def _compared(found: list[int], wanted: list[int]) -> dict[str, Any]:
    return {
        "held": len(found),
        "lost": len(set(wanted) - set(found)),
        "doubled": len(found) - len(set(found)),
        "in_order": found == sorted(found),
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
