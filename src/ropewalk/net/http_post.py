"""POST bytes to a URL that the operator has configured: http or https, no redirects, a bounded answer."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from ropewalk.errors import Unavailable, Usage
from ropewalk.net.refusals import reason

TIMEOUT_S: Final = 10.0
ANSWER_BYTES_MAX: Final = 1 << 18  # a note with a hundred signatures, or a time stamp with its certificates


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """The status, media type and body of an answer."""

    status: int
    media_type: str
    body: bytes


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
    try:
        connection.request("POST", parts.path or "/", body, dict(headers))
        answer = connection.getresponse()
        raw = answer.read(ANSWER_BYTES_MAX + 1)
    except TimeoutError as error:
        raise Unavailable(f"{url[:200]} does not answer within {timeout_s:g} s") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Unavailable(f"{url[:200]}: {reason(error) or type(error).__name__}") from error
    finally:
        connection.close()
    if len(raw) > ANSWER_BYTES_MAX:
        raise Unavailable(f"{url[:200]} answers with more than {ANSWER_BYTES_MAX} bytes")
    return HttpAnswer(answer.status, (answer.getheader("Content-Type") or "").partition(";")[0].strip(), raw)
