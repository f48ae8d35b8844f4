"""Requests to configured addresses: one deadline for all of it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.waiting import LIMIT_S

from ropewalk.errors import Unavailable
from ropewalk.net.http_post import HttpAnswer, post_bytes

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
DRIPS = 300


@contextmanager
def answering(first: bytes, slow: bytes, last: bytes, pause_s: float) -> Iterator[str]:
    """A server that answers one request: at once, then byte by byte with pauses, then the rest."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            link, _ = listener.accept()
            with link:
                try:
                    asked = b""
                    while not asked.endswith(b"body"):  # a socket that is closed with bytes unread resets
                        asked += link.recv(1 << 16)
                    link.sendall(first)
                    for place in range(len(slow)):
                        time.sleep(pause_s)
                        link.sendall(slow[place : place + 1])
                    link.sendall(last)
                except OSError:
                    return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/x"
        thread.join(LIMIT_S)


@pytest.mark.parametrize(
    ("first", "slow", "last"),
    [
        (HEAD, b"X-Slow: " + b"x" * DRIPS, b"\r\nContent-Length: 0\r\n\r\n"),
        (HEAD + b"Content-Length: %d\r\n\r\n" % DRIPS, b"x" * DRIPS, b""),
        (HEAD + b"\r\n", b"x" * DRIPS, b""),  # without a length: what has come must not count as the whole
    ],
    ids=["headers", "body", "body_without_length"],
)
def test_slow_answer_ends_at_the_deadline(first, slow, last):
    """Each byte comes long before a timeout of one step."""
    with answering(first, slow, last, 0.01) as url, pytest.raises(Unavailable, match=r"within 0\.5 s"):
        post_bytes(url, b"body", {}, timeout_s=0.5)


def test_answer_before_the_deadline_is_whole():
    with answering(HEAD + b"\r\n", b"slow", b"", 0.01) as url:
        assert post_bytes(url, b"body", {}) == HttpAnswer(200, "text/plain", b"slow")
