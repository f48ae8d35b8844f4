"""Redis Streams as a peer; no daemon is left behind.

A batch goes as a Python program sends it, documents through redis-py; or by a raw socket with every byte made ready
beforehand, which no program does, but nothing can be faster. By the socket it goes as a pipeline, in which Redis
answers and syncs as it reads, or as a transaction (`MULTI`), which is all or nothing as a batch of ours is, and syncs
once.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

__all__ = ["Redis", "redis_batches"]


@dataclass(frozen=True, slots=True)
class Redis:
    """A server that syncs always, and one batch to add to a stream as often as wanted."""

    client: redis.Redis
    documents: Sequence[dict[str, Any]]
    link: socket.socket
    commands: bytes
    count: int

    def documents_by_client(self) -> int:
        """Add all as a program does: each document made JSON, all in one pipeline of the client's."""
        pipeline = self.client.pipeline(transaction=False)
        for document in self.documents:
            pipeline.xadd("demo", {"event": json.dumps(document)})
        return len(pipeline.execute())

    def pipeline(self) -> int:
        """Add all at once; return when the last is acknowledged."""
        return self._send(self.commands)

    def transaction(self) -> int:
        """Add all or nothing; return when it is acknowledged."""
        return self._send(_command(b"MULTI") + self.commands + _command(b"EXEC"))

    def _send(self, raw: bytes) -> int:
        self.link.sendall(raw)
        left = self.count
        while left:
            # Each entry's id is a bulk string, and nothing else is.
            left -= self.link.recv(1 << 16).count(b"$")
        return self.count


@contextlib.contextmanager
def redis_batches(documents: Sequence[dict[str, Any]]) -> Iterator[Redis | None]:
    """A Redis server with all documents ready to be added; None where there is no redis-server."""
    if shutil.which("redis-server") is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="ropewalk-redis-") as folder:
        path = Path(folder) / "socket"
        settings = {
            "port": "0",
            "unixsocket": path,
            "dir": folder,
            "appendonly": "yes",
            "appendfsync": "always",
            "save": "",
        }
        words = [str(word) for name, value in settings.items() for word in (f"--{name}", value)]
        server = subprocess.Popen(["redis-server", *words], stdout=subprocess.DEVNULL)
        try:
            with contextlib.closing(_connect(path)) as link:
                bodies = [json.dumps(document).encode() for document in documents]
                commands = b"".join(_command(b"XADD", b"demo", b"*", b"event", body) for body in bodies)
                with redis.Redis(unix_socket_path=str(path)) as client:
                    yield Redis(client, documents, link, commands, len(bodies))
        finally:
            server.terminate()
            server.wait()


def _connect(path: Path) -> socket.socket:
    for _ in range(200):
        link = socket.socket(socket.AF_UNIX)
        try:
            link.connect(str(path))
            return link
        except OSError:
            link.close()
            time.sleep(0.05)
    raise RuntimeError("redis-server did not come up")


def _command(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
