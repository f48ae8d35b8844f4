"""Redis Streams as a peer, spoken to by a raw socket: no client library, no daemon left behind."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

__all__ = ["redis_batches"]


@contextlib.contextmanager
def redis_batches(bodies: Sequence[bytes]) -> Iterator[Callable[[], int] | None]:
    """A function that adds all bodies to a stream in one pipeline, durably; None where there is no redis-server."""
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
            link = _connect(path)
            command = b"".join(_command(b"XADD", b"demo", b"*", b"event", body) for body in bodies)

            def add() -> int:
                link.sendall(command)
                left = len(bodies)
                while left:
                    left -= link.recv(1 << 16).count(b"$")  # each answer is one bulk string: the entry's id
                return len(bodies)

            yield add
            link.close()
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
