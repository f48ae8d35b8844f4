"""Clients that connect to a server and say nothing: others are still served, and memory stays bounded."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.tools import needs_that
from tests.unit.cli.conftest import living_in
from tests.unit.gossip.conftest import memory_log
from tests.unit.ledger.certifying import Authority
from tests.unit.ledger.making import observed
from tests.waiting import LIMIT_S, ended, until

from ropewalk.cli.gossip import net
from ropewalk.cli.ledger.remote import remote
from ropewalk.cli.stream import serve
from ropewalk.gossip.peer.client import sync_with
from ropewalk.gossip.peer.server import PEERS_MAX, GossipServer
from ropewalk.ledger.remote.server import SESSIONS_MAX
from ropewalk.net.admission import HANDSHAKES_MAX
from ropewalk.net.websocket import connect_websocket
from ropewalk.stream.serve.server import CONNECTIONS_MAX

COMMAND = Path(sys.executable).with_name("ropewalk")
SILENT = 1_000
RSS_MAX = 100 << 20  # more than before; all servers start with about 60 MiB
pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def house(tmp_path: Path) -> Path:
    run = living_in(tmp_path)
    assert run("init", "log.git").code == 0
    assert run("--repo", "log.git", "ledger", "create", "--channel", "audit").code == 0
    return tmp_path


@contextlib.contextmanager
def served(
    folder: Path, *arguments: str, files: int | None = None
) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A server process with a limit on open files; its stderr goes to a file beside the repository."""

    def limit() -> None:
        if files is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "LANG": "C.UTF-8"}
    with (folder / "said").open("w") as said:
        process = subprocess.Popen(
            [COMMAND, *arguments],
            cwd=folder,
            env={**environment, "ROPEWALK_REPO": "log.git"},
            text=True,
            stdout=subprocess.PIPE,
            stderr=said,
            preexec_fn=limit,
        )
        with ended(process, 300):
            assert process.stdout is not None
            yield process, json.loads(process.stdout.readline())


@contextlib.contextmanager
def silent_clients(port: int, count: int) -> Iterator[list[socket.socket]]:
    """Connect so many clients that send nothing."""
    with contextlib.ExitStack() as stack:
        clients = []
        for _ in range(count):
            client = stack.enter_context(socket.socket())
            client.settimeout(LIMIT_S)
            client.connect(("127.0.0.1", port))
            clients.append(client)
        yield clients


def rss(process: subprocess.Popen[str]) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmRSS"))


def open_files(process: subprocess.Popen[str]) -> int:
    return sum(1 for _ in Path(f"/proc/{process.pid}/fd").iterdir())


def test_command_defaults_match_the_servers():
    assert net.PEERS_MAX == PEERS_MAX
    assert remote.SESSIONS_MAX == SESSIONS_MAX
    assert serve.CONNECTIONS_MAX == CONNECTIONS_MAX


def test_silent_sockets_do_not_lock_gossip_peers_out():
    async def main() -> None:
        log = memory_log()
        log.append({"n": 1})
        async with GossipServer(log) as server:
            pipes = [await connect_websocket(server.url, timeout_s=LIMIT_S) for _ in range(PEERS_MAX + 8)]
            other = memory_log()
            report = await sync_with(other, server.url, idle_s=LIMIT_S)
            assert report.received == 1
            for pipe in pipes:
                await pipe.close()

    asyncio.run(main())


def test_silent_sockets_do_not_lock_v06_peers_out():
    async def main() -> None:
        log = memory_log(profile="v0.6")
        log.append({"n": 1})
        async with GossipServer(log) as server:
            with silent_clients(server.port, PEERS_MAX + 8):
                report = await sync_with(memory_log(profile="v0.6"), server.url, idle_s=LIMIT_S)
            assert report.received == 1

    asyncio.run(main())


def test_silent_sockets_do_not_lock_a_plain_ledger(house):
    (house / "one.json").write_bytes(observed(1).raw)
    with (
        served(house, "ledger", "serve", "--port", "0") as (_, said),
        silent_clients(said["port"], HANDSHAKES_MAX + 8),
    ):
        sent = living_in(house)(
            *("ledger", "send", f"tcp://127.0.0.1:{said['port']}", "--channel", "audit"),
            *("--file", "one.json", "--retry", "0"),
        )
        assert sent.code == 0, sent


@needs_that(Path("/proc/self/status").exists(), "memory of a process is read from /proc")
@pytest.mark.slow
def test_silent_tls_sockets_take_bounded_memory(house):
    authority = Authority(house)
    own, mine = authority.files("server"), authority.files("client")
    tls = ("--tls-cert", str(own.certificate), "--tls-key", str(own.key), "--client-ca", str(own.roots))
    (house / "one.json").write_bytes(observed(1).raw)
    with served(house, "ledger", "serve", "--port", "0", *tls) as (process, said):
        before, files = rss(process), open_files(process)
        with silent_clients(said["port"], SILENT):
            until(
                lambda: open_files(process) <= files + HANDSHAKES_MAX
            )  # all were accepted, and most dropped
            assert rss(process) - before < RSS_MAX
            sent = living_in(house)(
                *("ledger", "send", f"tls://127.0.0.1:{said['port']}", "--channel", "audit"),
                *("--file", "one.json", "--retry", "0", "--server-ca", str(mine.roots)),
                *("--tls-cert", str(mine.certificate), "--tls-key", str(mine.key)),
            )
            assert sent.code == 0, sent
    assert len((house / "said").read_text().splitlines()) < 100


@pytest.mark.slow
def test_idle_sockets_leave_the_stream_ready(house):
    with (
        served(house, "stream", "serve", "--port", "0", files=1_024) as (_, said),
        silent_clients(said["port"], 1_100),
    ):
        probe = http.client.HTTPConnection("127.0.0.1", said["port"], timeout=LIMIT_S)
        probe.request("GET", "/readyz")
        answer = probe.getresponse()
        assert (answer.status, json.loads(answer.read())["status"]) == (200, "ok")
        probe.close()
    text = (house / "said").read_text()
    assert "Traceback" not in text
    assert len(text.splitlines()) < 100
