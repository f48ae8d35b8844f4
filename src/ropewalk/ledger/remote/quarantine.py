"""Drift and quarantine (S4 §14): peers with stale evidence, another policy or a revoked certificate get no session.

A session whose evidence becomes stale, whose channel gets another policy, or whose peer's certificate is revoked ends
with `NegotiateAgain`. The peer then negotiates again; unless it shows fresh evidence, the right policy and a valid
certificate, it is quarantined: refused, and so held back from replication, until it does. Other peers go on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ropewalk.errors import NegotiateAgain, Quarantined
from ropewalk.ledger.envelope.fields import NANOS, parse_timestamp
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.evidence.recheck import EvidenceTally
from ropewalk.ledger.proof.trust import Trust
from ropewalk.ledger.remote.negotiate import capabilities_of

FRESHNESS_S: Final = 86_400.0  # S4 §14: how long a report counts as fresh unless it says that it ends earlier
PEERS_MAX: Final = 1_024  # that are remembered; the longest quarantined is forgotten first


@dataclass(frozen=True, slots=True)
class Standing:
    """What a session was opened with: the policy of its channel, and until when the peer's evidence is fresh."""

    peer: str
    policy_hash: str | None
    until_ns: int | None
    channel: str = ""


@dataclass(frozen=True, slots=True)
class Held:
    """Why a peer is refused, which channel it asked for, and since when."""

    reason: str
    channel: str
    since_ns: int


@dataclass(slots=True)
class Quarantine:
    """The peers that are refused, and why. With `trust`, every peer must show evidence that it accepts."""

    trust: Trust | None = None
    freshness_s: float = FRESHNESS_S
    peers: dict[str, Held] = field(default_factory=dict)

    def admit(
        self, peer: str, asked: Envelope, policy_hash: str | None, now_ns: int, channel: str = ""
    ) -> Standing:
        """Judge an advertisement; raise Quarantined for a peer that has drifted."""
        named = capabilities_of(asked).policy_hash
        if named is not None and named != policy_hash:
            reason = f"its policy is {named[:16]}…, and the channel's is {str(policy_hash)[:16]}…"
            raise self.put(peer, reason, channel, now_ns)
        until_ns = None
        if self.trust is not None:
            status, detail = judge_report(asked, self.trust, now_ns)
            until_ns = fresh_until(asked, self.freshness_s)
            if status != "passed" or now_ns > until_ns:
                reason = detail if status != "passed" else "its evidence is stale"
                raise self.put(peer, reason, channel, now_ns)
        self.peers.pop(peer, None)
        return Standing(peer, policy_hash, until_ns, channel)

    def check(self, standing: Standing, policy_hash: str | None, now_ns: int) -> None:
        """Raise NegotiateAgain for a session whose evidence or policy is no longer the one it was opened with."""
        if standing.until_ns is not None and now_ns > standing.until_ns:
            self.put(standing.peer, "its evidence is stale", standing.channel, now_ns)
            raise NegotiateAgain(
                "the evidence of this session is stale", advice="Negotiate with fresh evidence."
            )
        if policy_hash != standing.policy_hash:
            raise NegotiateAgain("the policy of the channel has changed since this session was opened")

    def put(self, peer: str, reason: str, channel: str, now_ns: int) -> Quarantined:
        """Quarantine a peer; return the error that refuses it."""
        before = self.peers.pop(peer, None)
        self.peers[peer] = Held(reason, channel, now_ns if before is None else before.since_ns)
        while len(self.peers) > PEERS_MAX:
            del self.peers[next(iter(self.peers))]
        return Quarantined(f"{peer} is quarantined: {reason}")


def judge_report(envelope: Envelope, trust: Trust | None, now_ns: int) -> tuple[str, str]:
    """Return whether a report of hardware vouches for an envelope; an envelope without one is failed."""
    evidence = envelope.fields.get("attestation_evidence")
    if evidence is None or evidence["format"] != "tee.report":
        return "failed", "it carries no report of hardware"
    return EvidenceTally(trust).judge(envelope, now_ns)


def fresh_until(envelope: Envelope, freshness_s: float = FRESHNESS_S) -> int:
    """Return until when the evidence of an envelope counts as fresh: as its report says, or for a while."""
    report = (envelope.fields.get("attestation_evidence") or {}).get("report") or {}
    ends = (
        report.get("freshness", {}).get("expires_at") if isinstance(report.get("freshness"), dict) else None
    )
    limit = envelope.timestamp_ns + int(freshness_s * NANOS)
    return min(limit, parse_timestamp(str(ends))) if ends is not None else limit
