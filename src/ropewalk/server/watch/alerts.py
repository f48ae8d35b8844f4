"""Alerts from signals: which fire, how they read, and how they travel to Alertmanager, webhooks and channels."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from ropewalk.bridge.webhooks.post import post as send
from ropewalk.errors import Unavailable
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.envelope.envelope import build
from ropewalk.server.watch.signals import Signal

Severity = Literal["page", "ticket"]
DOMAIN = "ropewalk.watch"


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert; its name and labels say which."""

    name: str
    severity: Severity
    labels: tuple[tuple[str, str], ...]
    summary: str

    @property
    def fingerprint(self) -> str:
        """What makes two alerts the same one."""
        text = json.dumps([self.name, self.labels])
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def alerts_of(signals: Iterable[Signal]) -> list[Alert]:
    """Return the alerts that fire (S4 §14): page for drift and invalid evidence, a ticket at 80 % of its time.

    >>> [alert.name for alert in alerts_of([Signal("c", "d", "1.0.0", 5.0, True, True, 0, 0, 1)])]
    ['PolicyDrift', 'EvidenceStale']
    """
    found = []
    for signal in signals:
        labels = tuple(zip(("channel", "domain", "protocol_version"), signal.labels, strict=True))
        where = f"{signal.channel}, domain {signal.domain}"
        detail = f": {signal.detail}" if signal.detail else ""
        if signal.policy_hash_mismatch:
            found.append(Alert("PolicyDrift", "page", labels, f"{where} names another policy{detail}"))
        if signal.evidence_failed:
            found.append(Alert("EvidenceInvalid", "page", labels, f"{where}: evidence does not hold{detail}"))
        if signal.evidence_unknown:
            found.append(
                Alert("EvidenceUnknown", "ticket", labels, f"{where}: evidence cannot be judged{detail}")
            )
        if signal.attestation_stale:
            found.append(Alert("EvidenceStale", "ticket", labels, f"{where}: evidence is near its end"))
    return found


def channel_alert(name: str, severity: Severity, channel: str, summary: str) -> Alert:
    """Return an alert about a whole channel."""
    return Alert(name, severity, (("channel", channel),), f"{channel}: {summary}")


def moment(ns: int) -> str:
    """Return a time as RFC 3339."""
    return datetime.fromtimestamp(ns / 1e9, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def for_alertmanager(state: dict[str, Any]) -> dict[str, Any]:
    """Return an alert as `POST /api/v2/alerts` takes it; `state` is what the watch keeps of it."""
    found = {
        "labels": {"alertname": state["name"], "severity": state["severity"], **dict(state["labels"])},
        "annotations": {"summary": state["summary"]},
        "startsAt": moment(state["since_ns"]),
    }
    if state.get("until_ns") is not None:
        found["endsAt"] = moment(state["until_ns"])
    return found


def alert_envelope(state: dict[str, Any], key: SigningKey, now_ns: int, version: str) -> bytes:
    """Return an `Alert` envelope; sent again after a crash it has the same correlation id and is accepted once."""
    ended = state.get("until_ns") is not None
    made = build(
        key,
        domain=DOMAIN,
        event_class="Alert",
        event_type="alert.resolved" if ended else "alert.firing",
        payload=for_alertmanager(state),
        timestamp=moment(now_ns),
        correlation_id=f"{state['fingerprint']}:{state['since_ns']}:{'resolved' if ended else 'firing'}",
        protocol_version=version,
    )
    return made.raw


def observation_envelope(signals: Iterable[Signal], key: SigningKey, now_ns: int, version: str) -> bytes:
    """Return the signals as one `Observation` envelope."""
    made = build(
        key,
        domain=DOMAIN,
        event_class="Observation",
        event_type="ledger.signals",
        payload={"signals": [signal.to_json() for signal in signals]},
        timestamp=moment(now_ns),
        protocol_version=version,
    )
    return made.raw


def post(url: str, document: Any) -> None:
    """Send a document; a refusal or no answer is `Unavailable`. The URL comes from the operator's configuration."""
    if not url.startswith(("http://", "https://")):
        raise Unavailable(f"{url[:80]} must be an http or https address")
    done = send(url, json.dumps(document).encode(), {"Content-Type": "application/json"}, allow_private=True)
    if not done.ok:
        raise Unavailable(f"{url[:80]}: {done.status or 'no answer'} {done.detail}")
