"""A repository with channels, the server that lets others in, and those others: every one of them a process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ropewalk.disk.certificate_authority import CertificateAuthority, init_authority
from ropewalk.ledger.channel.channel import open_channel, verify_blocks
from ropewalk.ledger.mailbox.client import MailboxClient
from ropewalk.ledger.remote.client import LedgerClient
from ropewalk.ledger.remote.sync_client import RemoteChannel, connect_channel
from ropewalk.net.tls import TlsFiles
from tests.unit.cli.conftest import Answer, living_in
from tests.unit.ledger.certifying import files_of
from tests.waiting import LIMIT_S

__all__ = ["LOG", "TRANSPORTS", "House", "Server"]

TRANSPORTS = ("tcp", "tls", "grpc", "quic", "mailbox")

COMMAND = Path(sys.executable).with_name("ropewalk")
LOG = "log.git"


@dataclass(frozen=True, slots=True)
class Server:
    """`ropewalk ledger serve` as a process."""

    process: subprocess.Popen[str]
    url: str
    journal: Path

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None

    def anonymous_mib(self) -> float:
        """The memory of its own that it holds now."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) / 1024
        return 0.0

    def cpu_s(self) -> float:
        """The processor time it took so far."""
        after_name = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")

    @contextmanager
    def watched(self) -> Iterator[list[float]]:
        """Memory before, then the most of it at once until the block ends."""
        seen = [self.anonymous_mib()] * 2
        done = threading.Event()

        def watch() -> None:
            while not done.wait(0.02) and self.alive:
                seen[1] = max(seen[1], self.anonymous_mib())

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield seen
        finally:
            done.set()
            watcher.join(LIMIT_S)


class House:
    """A folder in which scenes live, and the transport between them. Use it in a `with`: what was started is ended."""

    def __init__(self, folder: Path, transport: str = "tcp") -> None:
        self.folder, self.home = folder, folder / LOG / "ropewalk"
        self.transport = transport
        self._run = living_in(folder)
        self._running: list[subprocess.Popen[str]] = []
        self._servers: dict[str, Server] = {}
        self._pki: CertificateAuthority | None = None
        self._issuing = threading.Lock()
        for repository in (LOG, "empty.git"):
            self.ran("init", repository, repo=None)

    def __enter__(self) -> House:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running:
            with process:  # closes what is still open, and waits
                process.kill()

    # --- commands ---------------------------------------------------------------------------------------------------

    def run(self, *arguments: str, repo: str | None = LOG, stdin: bytes = b"") -> Answer:
        """A command, in a process of its own, to its end."""
        env = {} if repo is None else {"ROPEWALK_REPO": str(self.folder / repo)}
        return self._run(*arguments, env=env, stdin=stdin)

    def ran(self, *arguments: str, repo: str | None = LOG, stdin: bytes = b"") -> Answer:
        """The same, where anything but success is a fault of the scene."""
        answer = self.run(*arguments, repo=repo, stdin=stdin)
        assert answer.code == 0, (arguments, answer)
        return answer

    def start(
        self, *arguments: str, repo: str = LOG, prefix: Sequence[str] = (), **streams: Any
    ) -> subprocess.Popen[str]:
        """A command that goes on beside us, until the house is left at the latest."""
        process = subprocess.Popen(
            [*prefix, str(COMMAND), *arguments],
            cwd=self.folder,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self.folder / "home"),
                "ROPEWALK_CONFIG": str(self.folder / "config"),
                "LANG": "C.UTF-8",
                "ROPEWALK_REPO": str(self.folder / repo),
            },
            text=True,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, **streams},
        )
        self._running.append(process)
        return process

    # --- channels and servers ---------------------------------------------------------------------------------------

    def create(self, channel: str, policy: dict[str, Any] | None = None) -> Path:
        """Make a channel; returns a trust file for it."""
        more: tuple[str, ...] = ()
        if policy is not None:
            (self.folder / f"{channel}.policy.json").write_text(json.dumps(policy))
            more = ("--policy", f"{channel}.policy.json")
        self.ran("ledger", "create", "--channel", channel, *more)
        trust = self.folder / f"{channel}.trust.json"
        self.ran("ledger", "trust", "--channel", channel, "-o", trust.name)
        return trust

    def server(self, transport: str | None = None, *more: str) -> Server:
        """The server of all channels over a transport, started when it is first asked for."""
        transport = transport or self.transport
        name = " ".join((transport, *more))
        if name not in self._servers:
            listens = () if transport in ("tcp", "tls") else (f"--{transport}", "127.0.0.1:0")
            certified = () if transport == "tcp" else ("--tls", str(self.files("server").certificate.parent))
            self._servers[name] = self.serve(*listens, *certified, *more, transport=transport)
        return self._servers[name]

    def serve(
        self, *more: str, repo: str = LOG, transport: str | None = None, prefix: Sequence[str] = ()
    ) -> Server:
        """A server of its own; `prefix` is a command that starts it, as in another network."""
        words = ("ledger", "serve", "--port", "0", *more)
        return self._started(*words, repo=repo, transport=transport, prefix=prefix)

    def _started(
        self, *arguments: str, repo: str = LOG, transport: str | None = None, prefix: Sequence[str] = ()
    ) -> Server:
        journal = self.folder / f"served-{len(self._running)}.txt"
        with journal.open("w") as talk:
            process = self.start(*arguments, repo=repo, prefix=prefix, stderr=talk)
        assert process.stdout is not None
        facts = json.loads(process.stdout.readline())
        return Server(process, facts.get("urls", {}).get(transport) or facts["url"], journal)

    def client(self, transport: str, channel: str) -> LedgerClient:
        """A client in this process, of a server elsewhere."""
        if transport == "mailbox":
            return MailboxClient(self._mailbox(channel).url, channel)
        return self.remote(self.server(transport).url, channel)

    def _mailbox(self, channel: str) -> Server:
        """The host of a mailbox, started when it is first asked for."""
        if channel not in self._servers:
            folder = str(self.folder / "mailbox" / channel)
            room = ("--slots", "64", "--slot-bytes", str(2 << 20))
            self._servers[channel] = self._started(
                "ledger", "mailbox", "serve", folder, "--channel", channel, *room
            )
        return self._servers[channel]

    def connect(self, url: str, channel: str, **options: Any) -> RemoteChannel:
        """A client in this process."""
        return connect_channel(url, channel, files=self._files_for(url), **options)

    def remote(self, url: str, channel: str) -> LedgerClient:
        """The same, asynchronous."""
        return LedgerClient(url, channel, files=self._files_for(url))

    def _files_for(self, url: str) -> TlsFiles | None:
        return None if url.startswith("tcp:") else self.files("client")

    def certified(self, url: str) -> tuple[str, ...]:
        """The options of a command that show our certificate, where the transport asks for one."""
        files = self._files_for(url)
        return () if files is None else ("--tls", str(files.certificate.parent))

    def files(self, name: str) -> TlsFiles:
        """The certificate of a name, of one small authority for all."""
        with self._issuing:  # clients start in several threads
            if self._pki is None:
                self._pki = init_authority(self.folder / "pki", "ropewalk", datetime.now(UTC))
            folder = self._pki.folder / name
            if not folder.exists():
                self._pki.issue(name, ["127.0.0.1"] if name == "server" else [])
            return files_of(folder)

    # --- others -----------------------------------------------------------------------------------------------------

    def send(self, url: str, channel: str, raws: Sequence[bytes], *more: str) -> list[dict[str, Any]]:
        """`ledger send` as a process that has no repository; one answer an envelope."""
        where = ("ledger", "send", url, "--channel", channel, "--file", "-", "--jsonl", "--json")
        answer = self.run(*where, *self.certified(url), *more, repo=None, stdin=b"\n".join(raws))
        return [json.loads(line) for line in answer.text.splitlines()]

    def empty(self, name: str) -> str:
        """A repository with nothing in it, for a copy."""
        shutil.copytree(self.folder / "empty.git", self.folder / name, symlinks=True)
        return name

    def pull(self, url: str, channel: str, repo: str, trust: Path) -> Answer:
        """`ledger pull` as a process."""
        where = ("ledger", "pull", url, "--channel", channel, "--trust", str(trust), "--json")
        return self.run(*where, *self.certified(url), repo=repo)

    # --- what stands ------------------------------------------------------------------------------------------------

    def home_of(self, repo: str) -> Path:
        """Where the channels of a repository lie."""
        return self.folder / repo / "ropewalk"

    def standing(self, channel: str, repo: str = LOG) -> list[bytes]:
        """The envelopes of a channel, as they stand on disk."""
        with open_channel(self.home_of(repo), channel) as reading:
            return [raw for block in reading.blocks() for raw in block.envelopes]

    def block_hashes(self, channel: str, repo: str = LOG) -> list[bytes]:
        """Its blocks, by name."""
        with open_channel(self.home_of(repo), channel) as reading:
            return [block.hash for block in reading.blocks()]

    def holds(self, channel: str, repo: str = LOG) -> bool:
        """Whether everything about a channel verifies."""
        return verify_blocks(self.home_of(repo), channel, deep=True).ok
