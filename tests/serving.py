"""A real `ropewalk serve` in a process of its own, forked as in `tests/forking.py`, and plain HTTP to it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests import forking
from tests.waiting import LIMIT_S, ended

BARE = ("PATH", "PYTHONPATH", "LANG", "HOME")


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        assert self.headers["content-type"] == "application/problem+json", self
        return str(self.json["code"])


class Served:
    """A running server. Every call opens a connection of its own."""

    def __init__(self, process: subprocess.Popen[bytes], facts: dict[str, Any], folder: Path) -> None:
        self.process = process
        self.facts = facts
        self.folder = folder
        found = urlsplit(facts["url"])
        self.host, self.port = str(found.hostname), int(found.port or 0)

    def __call__(
        self,
        method: str,
        path: str,
        document: Any = None,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        sent = dict(headers or {})
        if document is not None:
            body = json.dumps(document).encode()
            sent.setdefault("Content-Type", "application/json")
        target = path if path.startswith(("/metrics", "/healthz", "/readyz", "/openapi", "/docs")) else None
        connection = http.client.HTTPConnection(self.host, self.port, timeout=LIMIT_S)
        try:
            connection.request(method, target or f"/api/v1{path}", body, sent)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read())
        finally:
            connection.close()

    def errors(self) -> str:
        """What the server said on stderr so far."""
        return (self.folder / "stderr.txt").read_text()

    def stop(self) -> int:
        """End it as an operator does, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(LIMIT_S)


def command(*arguments: str) -> list[str]:
    """The command line of `ropewalk`."""
    return [str(Path(sys.executable).with_name("ropewalk")), *arguments]


def environment(folder: Path) -> dict[str, str]:
    """A bare environment with a configuration in the folder."""
    kept = {name: os.environ[name] for name in BARE if name in os.environ}
    return {**kept, "HOME": str(folder), "ROPEWALK_CONFIG": str(folder / "config")}


def call(folder: Path, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run another command in the folder's repository."""
    words = ["--repo", str(folder / "log.git"), *arguments]
    done = forking.run(words, stdin, folder, environment(folder))
    return subprocess.CompletedProcess(words, done.code, done.out, done.err)


def make(folder: Path) -> None:
    """Make the repository `log.git` of a folder."""
    made = call(folder, "init", str(folder / "log.git"))
    assert made.returncode == 0, made.stderr


@contextlib.contextmanager
def serving(
    folder: Path,
    *options: str,
    env: Mapping[str, str] | None = None,
    limit_s: float = LIMIT_S,
    files: int | None = None,
    started: bool = False,
) -> Iterator[Served]:
    """Serve the repository `log.git` of a folder, which is made if it is missing; at most for the limit.

    `files` limits the open files of the server, which is then started and not forked, as where `started` asks for it.
    """

    def limit() -> None:
        if files is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

    words = ["--repo", str(folder / "log.git"), "serve", "--port", "0", *options]
    if not (folder / "log.git").exists():
        make(folder)
    with (folder / "stderr.txt").open("ab") as errors:
        begin: type[subprocess.Popen[bytes]] = forking.Popen
        if started or files is not None:
            begin, words = subprocess.Popen, command(*words)
        process = begin(
            words,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**environment(folder), **(env or {})},
            cwd=folder,
            preexec_fn=limit if files is not None else None,
        )
    with ended(process, limit_s):
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, (folder / "stderr.txt").read_text()
        yield Served(process, json.loads(line), folder)
