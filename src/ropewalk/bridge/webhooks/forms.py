"""What a webhook sends, and when it tries again. Pure."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Any, Final

from ropewalk.bridge import cloudevents
from ropewalk.errors import Usage
from ropewalk.gitlog.core.envelope import Event
from ropewalk.kernel import jcs

RETRY_S: Final = (1.0, 5.0, 30.0, 300.0)  # after each failed attempt; then the event is a dead letter
JITTER: Final = 0.2  # of a pause, so that many hooks do not come back at one moment
ATTEMPTS_MAX: Final = len(RETRY_S) + 1
HEADERS: Final = (  # of every delivery; the last one only while a secret is rotated
    "X-GATOS-Event",
    "X-GATOS-Delivery",
    "X-GATOS-Attempt",
    "X-GATOS-Timestamp",
    "X-GATOS-Signature",
    "X-GATOS-Signature-Previous",
)
SECRET_BYTES_MIN: Final = 16
SECRET_BYTES_MAX: Final = 1024


def body_of(event: Event, log: str, form: str = "envelope") -> tuple[bytes, str]:
    """Return the body of a delivery and its media type. It is the same at every attempt."""
    if form == "cloudevents":
        return cloudevents.to_json(cloudevents.from_event(event, log)), cloudevents.STRUCTURED
    value: dict[str, Any] = {
        "id": event.ulid,
        "event": event.type,
        "ts": cloudevents.time_of(event),
        "payload": {
            "log": log,
            "ulid": event.ulid,
            "content_id": event.content_id,
            "commit": event.commit,
            "payload": event.payload,
        },
    }
    return jcs.encode(value), "application/json"


def sign(secret: bytes, timestamp: int, body: bytes) -> str:
    """Return the value of `X-GATOS-Signature`.

    >>> sign(b"0123456789abcdef", 1, b"{}")[:20]
    'sha256=2af693cb56b22'
    """
    return "sha256=" + hmac.new(secret, b"%d." % timestamp + body, hashlib.sha256).hexdigest()


def check_signature(
    secret: bytes, headers: Mapping[str, str], body: bytes, now_s: int, tolerance_s: int = 300
) -> bool:
    """Return whether a received delivery is signed with the secret and not older than the tolerance; for receivers."""
    said = {name.lower(): value for name, value in headers.items()}
    stamp = said.get("x-gatos-timestamp", "")
    if not stamp.isdecimal() or len(stamp) > 12 or abs(now_s - int(stamp)) > tolerance_s:
        return False
    expected = sign(secret, int(stamp), body)
    names = ("x-gatos-signature", "x-gatos-signature-previous")
    return any(hmac.compare_digest(expected, said.get(name, "")) for name in names)


def pause_ms(failed: int, chance: float) -> int | None:
    """Return how long to wait after `failed` attempts; None if there is no further one.

    >>> [pause_ms(failed, 0.5) for failed in (1, 2, 3, 4, 5)]
    [1000, 5000, 30000, 300000, None]
    """
    if failed > len(RETRY_S):
        return None
    return round(RETRY_S[failed - 1] * 1000 * (1 + JITTER * (2 * chance - 1)))


def check_secret(secret: bytes) -> bytes:
    """Return the secret. Raises `Usage` if it is too short to be one."""
    if not SECRET_BYTES_MIN <= len(secret) <= SECRET_BYTES_MAX:
        raise Usage(
            f"secret must be {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes, got {len(secret)}",
            advice="openssl rand -hex 32 > hook.secret makes one.",
        )
    return secret
