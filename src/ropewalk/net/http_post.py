"""POST bytes to a URL that the operator has configured: http or https, no redirects, a bounded answer."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Final
from urllib.parse import urlsplit

from ropewalk.errors import Unavailable, Usage
from ropewalk.net.refusals import reason

TIMEOUT_S: Final = 10.0  # for the whole request, however slowly the other side answers
ANSWER_BYTES_MAX: Final = 1 << 18  # a note with a hundred signatures, or a time stamp with its certificates


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """The status, media type and body of an answer."""

    status: int
    media_type: str
    body: bytes


class RequestDeadline:
    """Ends one request on a connection after some seconds, whatever it waits for. Use it in a `with`."""

    def __init__(self, connection: http.client.HTTPConnection, limit_s: float) -> None:
        self._connection = connection
        self._timer = threading.Timer(limit_s, self._end)
        self._timer.daemon = True
        self.passed = False

    def __enter__(self) -> RequestDeadline:
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()

    def connect(self) -> None:
        """Connect; raise TimeoutError if that took too long."""
        self._connection.connect()
        if self.passed:
            raise TimeoutError

    def _end(self) -> None:
        self.passed = True
        with contextlib.suppress(OSError):
            if self._connection.sock is not None:
                # Not the method of a TLS socket, which changes the state that the other thread uses.
                socket.socket.shutdown(self._connection.sock, socket.SHUT_RDWR)


def check_url(url: str) -> str:
    """Return an http or https URL without a trailing slash; raise Usage otherwise.

    >>> check_url("https://witness.example/w1/")
    'https://witness.example/w1'
    """
    try:
        parts = urlsplit(url)
        found = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1)
    except ValueError:
        found = None
    if not found or parts.query or parts.fragment:
        raise Usage(f"URL must be http://HOST[:PORT][/PATH] or https://…, got {url[:80]!r}")
    return url.rstrip("/")


def post_bytes(
    url: str, body: bytes, headers: Mapping[str, str], *, timeout_s: float = TIMEOUT_S
) -> HttpAnswer:
    """POST a body and return the answer, whatever its status; raise `Unavailable` without a complete one."""
    parts = urlsplit(url)
    host, tls = parts.hostname or "", parts.scheme == "https"
    connection: http.client.HTTPConnection = (
        http.client.HTTPSConnection(host, parts.port, timeout=timeout_s, context=ssl.create_default_context())
        if tls
        else http.client.HTTPConnection(host, parts.port, timeout=timeout_s)
    )
    deadline = RequestDeadline(connection, timeout_s)
    try:
        with deadline:
            deadline.connect()
            connection.request("POST", parts.path or "/", body, dict(headers))
            answer = connection.getresponse()
            raw = answer.read(ANSWER_BYTES_MAX + 1)
        if deadline.passed:  # without a length in the answer, a socket that is shut down looks like its end
            raise TimeoutError
    except (OSError, http.client.HTTPException, ValueError) as error:
        if deadline.passed or isinstance(error, TimeoutError):
            raise Unavailable(f"{url[:200]} does not answer within {timeout_s:g} s") from error
        raise Unavailable(f"{url[:200]}: {reason(error) or type(error).__name__}") from error
    finally:
        connection.close()
    if len(raw) > ANSWER_BYTES_MAX:
        raise Unavailable(f"{url[:200]} answers with more than {ANSWER_BYTES_MAX} bytes")
    return HttpAnswer(answer.status, (answer.getheader("Content-Type") or "").partition(";")[0].strip(), raw)
