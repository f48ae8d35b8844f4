"""Input and output of the rules: the channel's history, the context, findings, and the verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, NoReturn, Protocol

from ropewalk.errors import (
    BrokenLink,
    Denied,
    DigestMismatch,
    ProofRefused,
    Replayed,
    RopewalkError,
    SigInvalid,
    Unverified,
)
from ropewalk.kernel.report import Status
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.rules.policy import Decision, Policy

NAMES: Final = (
    "canonical_hash",
    "signature_scope",
    "causality",
    "version_gate",
    "attestation_binding",
    "confidentiality",
    "integrity_proof",
    "replay_protection",
)
SUPPORTED_MINORS: Final = frozenset({"1.0", "1.1"})


class Position(NamedTuple):
    """A place in a channel: the block's height and the leaf in its tree."""

    height: int
    leaf: int


class EnvelopeHistory(Protocol):
    """What rules 3, 7 and 8 look up in the channel."""

    def position(self, envelope_id: bytes) -> Position | None:
        """Return the position of an envelope."""

    def chain(self, envelope_id: bytes) -> tuple[str, ...] | None:
        """Return the causality chain of an envelope in the channel."""

    def claim(self, event_class: str, correlation_id: str) -> Position | None:
        """Return the position of the first envelope of that class with that correlation id."""

    def intent(self, intent: bytes) -> Position | None:
        """Return the position of the same signed statement."""

    def leaves(self, root: bytes) -> int | None:
        """Return the number of envelopes of the block with that root."""


@dataclass(frozen=True, slots=True)
class Context:
    """The input of the rules. Without a history, rules about the channel are not checked.

    `policy_hash` names the policy of a sealed block, for a verifier that does not have its text.
    """

    history: EnvelopeHistory | None = None
    policy: Policy | None = None
    supported_minors: frozenset[str] = field(default_factory=lambda: SUPPORTED_MINORS)
    policy_hash: bytes | None = None
    sealed: bool = False  # the envelope is in a sealed block; this is not ingest
    # Verifies evidence, if the caller can.
    evidence: Callable[[Envelope], tuple[Status, str]] | None = None


@dataclass(frozen=True, slots=True)
class RuleFinding:
    """The finding of one rule."""

    rule: int
    status: Status
    detail: str = ""

    @property
    def name(self) -> str:
        return NAMES[self.rule - 1]

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form that error reports print."""
        return {"rule": self.rule, "name": self.name, "status": self.status, "detail": self.detail}


# Almost every finding is one of these; the hot path makes no new objects.
PASSED: Final = tuple(RuleFinding(number, "passed") for number in range(1, 9))


@dataclass(frozen=True, slots=True)
class Verdict:
    """All eight findings, the unsigned fields, and the policy's decision."""

    envelope: Envelope
    findings: tuple[RuleFinding, ...]
    decision: Decision | None = None

    @property
    def unsigned_fields(self) -> tuple[str, ...]:
        """Fields that are present but not signed."""
        return self.envelope.unsigned_fields

    @property
    def ok(self) -> bool:
        """Whether no rule failed and the policy did not deny."""
        return self.all_passed or (
            all(finding.status != "failed" for finding in self.findings)
            and (self.decision is None or self.decision.outcome != "deny")
        )

    @property
    def all_passed(self) -> bool:
        """Whether every rule passed and no policy had to decide."""
        return self.findings == PASSED and self.decision is None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form that error reports and `policy check` print."""
        out: dict[str, Any] = {
            "envelope_id": self.envelope.hex_id,
            "rules": [finding.to_json() for finding in self.findings],
            "unsigned_fields": list(self.unsigned_fields),
        }
        return out if self.decision is None else {**out, **self.decision.to_json()}

    def require(self) -> None:
        """Raise the error for the first failed rule, or else for the policy's denial."""
        if not self.ok:
            _refuse(self)


_REFUSALS: Final[dict[int, type[RopewalkError]]] = {
    1: DigestMismatch,
    2: SigInvalid,
    3: BrokenLink,
    4: Unverified,
    5: Unverified,
    6: Denied,
    7: ProofRefused,
    8: Replayed,
}


# Advice for the author, because the error's own advice is about damaged data.
_ADVICE = {
    1: "Hash the payload that is sent, and sign again.",
    3: "Name its causes: the Command it answers, its correlation id, its parents in this channel.",
    4: "Use an accepted version (`ledger lifecycle show`), or adapt it (`ledger adapt`).",
    5: "Attach evidence for this payload.",
    7: "Prove against a root of this channel, or leave the proof out.",
}


def _refuse(verdict: Verdict) -> NoReturn:
    for finding in verdict.findings:
        if finding.status == "failed":
            raise _REFUSALS[finding.rule](
                f"rule {finding.rule}, {finding.name}: {finding.detail}",
                advice=_ADVICE.get(finding.rule),
                **verdict.to_json(),
            )
    assert verdict.decision is not None
    raise Denied(f"policy: {verdict.decision.explain()}", **verdict.to_json())
