"""Redis Streams as a peer, spoken to by a raw socket with bytes made ready: no client library, no daemon left behind.

A batch goes either as a pipeline, in which Redis answers and syncs as it reads, or as a transaction (`MULTI`), which is
all or nothing as a batch of ours is, and for which it syncs once.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Redis", "redis_batches"]


@dataclass(frozen=True, slots=True)
class Redis:
    """A server that syncs always, and one batch to add to a stream as often as wanted."""

    link: socket.socket
    commands: bytes
    count: int

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
            left -= self.link.recv(1 << 16).count(
                b"$"
            )  # each entry's id is a bulk string, and nothing else is
        return self.count


@contextlib.contextmanager
def redis_batches(bodies: Sequence[bytes]) -> Iterator[Redis | None]:
    """A Redis server with all bodies ready to be added; None where there is no redis-server."""
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
                commands = b"".join(_command(b"XADD", b"demo", b"*", b"event", body) for body in bodies)
                yield Redis(link, commands, len(bodies))
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
