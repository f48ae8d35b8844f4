"""Send one delivery: the name is resolved once, the address is checked, and no redirect is followed."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from ropewalk.net.http_post import RequestDeadline
from ropewalk.net.public_address import is_public

TIMEOUT_S: Final = 10.0  # for one step: connect, send, receive
ATTEMPT_S: Final = 20.0  # for the whole attempt, however slowly the other side answers
ANSWER_BYTES_MAX: Final = 4096  # of the answer's body; only its status matters


@dataclass(frozen=True, slots=True)
class PostResult:
    """How one attempt ended. `status` is None if there was no answer."""

    status: int | None
    detail: str

    @property
    def ok(self) -> bool:
        """Whether the endpoint took it."""
        return self.status is not None and 200 <= self.status < 300


def post(
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    *,
    allow_private: bool,
    timeout_s: float = TIMEOUT_S,
    attempt_s: float = ATTEMPT_S,
) -> PostResult:
    """POST a body to a URL and return how it ended; nothing is raised for what the other side does."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        address = _resolve(host, port, allow_private)
    except (OSError, UnicodeError) as error:
        return PostResult(None, f"{host}: {error}"[:200])
    if address is None:
        return PostResult(
            None, f"{host} has no public address; --allow-private permits loopback and private ones"
        )
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    connection = _Pinned(host, port, address, parts.scheme == "https", timeout_s)
    deadline = RequestDeadline(connection, attempt_s)
    try:
        with deadline:
            deadline.connect()
            connection.request("POST", path, body=body, headers=dict(headers))
            answer = connection.getresponse()
            answer.read(ANSWER_BYTES_MAX)
        detail = "redirects are not followed" if 300 <= answer.status < 400 else answer.reason[:100]
        return PostResult(answer.status, detail)
    except (OSError, http.client.HTTPException, ValueError) as error:
        if deadline.passed:
            return PostResult(None, f"no whole answer within {attempt_s:g} s")
        return PostResult(None, f"{type(error).__name__}: {error}"[:200])
    finally:
        connection.close()


def _resolve(host: str, port: int, allow_private: bool) -> str | None:
    """Return one address of a host that may be called; the connection goes to this address and no other."""
    for *_, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        text = str(place[0])
        if allow_private or is_public(text):
            return text
    return None


class _Pinned(http.client.HTTPConnection):
    """A connection to one address, with the name of the host in the request and in the TLS handshake."""

    def __init__(self, host: str, port: int, address: str, tls: bool, timeout_s: float) -> None:
        super().__init__(host, port, timeout=timeout_s)
        self._address, self._tls = address, tls
        self.default_port = 443 if tls else 80

    def connect(self) -> None:
        raw = socket.create_connection((self._address, self.port), self.timeout)
        if self._tls:
            self.sock = ssl.create_default_context().wrap_socket(raw, server_hostname=self.host)
        else:
            self.sock = raw
