"""A real `ropewalk serve` in a process of its own, and plain HTTP to it."""

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
    return subprocess.run(
        command("--repo", str(folder / "log.git"), *arguments),
        input=stdin,
        capture_output=True,
        env=environment(folder),
        cwd=folder,
        timeout=LIMIT_S,
        check=False,
    )


@contextlib.contextmanager
def serving(
    folder: Path,
    *options: str,
    env: Mapping[str, str] | None = None,
    limit_s: float = LIMIT_S,
    files: int | None = None,
) -> Iterator[Served]:
    """Serve the repository `log.git` of a folder, which is made if it is missing; at most for the limit.

    `files` limits the open files of the server.
    """

    def limit() -> None:
        if files is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

    if not (folder / "log.git").exists():
        made = subprocess.run(
            command("init", str(folder / "log.git")),
            capture_output=True,
            env=environment(folder),
            timeout=LIMIT_S,
            check=False,
        )
        assert made.returncode == 0, made.stderr
    with (folder / "stderr.txt").open("ab") as errors:
        process = subprocess.Popen(
            command("--repo", str(folder / "log.git"), "serve", "--port", "0", *options),
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
