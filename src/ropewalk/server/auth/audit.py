"""The audit trail: every administrative act is an envelope in a ledger channel, sealed before the act takes place."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.envelope.envelope import build

DOMAIN: Final = "ropewalk.server"
CHANNEL: Final = "server.audit"


def audit_envelope(key: SigningKey, act: str, actor: str, facts: dict[str, Any], version: str) -> bytes:
    """Return the signed envelope that records an act."""
    made = build(
        key,
        domain=DOMAIN,
        event_class="Observation",
        event_type=act,
        payload={"actor": actor, **facts},
        timestamp=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        protocol_version=version,
    )
    return made.raw
