"""What the rules are asked and what they answer: the channel so far, the context, findings, and the verdict of all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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
    """What rules 3, 7 and 8 need to know about the channel so far."""

    def position(self, envelope_id: bytes) -> Position | None:
        """Where an envelope stands."""

    def chain(self, envelope_id: bytes) -> tuple[str, ...] | None:
        """The causality chain of an envelope that stands in the channel."""

    def claim(self, event_class: str, correlation_id: str) -> Position | None:
        """Where the first envelope of that class with that correlation id stands."""

    def intent(self, intent: bytes) -> Position | None:
        """Where the same signed statement stands."""

    def leaves(self, root: bytes) -> int | None:
        """How many envelopes the block with that root has."""


@dataclass(frozen=True, slots=True)
class Context:
    """What an envelope is judged against. Without a history, rules about the channel are not checked.

    `policy_hash` names the policy a sealed block was made under, for a verifier that does not have its text.
    """

    history: EnvelopeHistory | None = None
    policy: Policy | None = None
    supported_minors: frozenset[str] = SUPPORTED_MINORS
    policy_hash: bytes | None = None
    sealed: bool = False  # judged again, in a block that stands; not at the door
    # Whether evidence holds, where somebody can say.
    evidence: Callable[[Envelope], tuple[Status, str]] | None = None


@dataclass(frozen=True, slots=True)
class RuleFinding:
    """What one rule found."""

    rule: int
    status: Status
    detail: str = ""

    @property
    def name(self) -> str:
        """The rule's name."""
        return NAMES[self.rule - 1]

    def to_json(self) -> dict[str, Any]:
        """As refusals print it."""
        return {"rule": self.rule, "name": self.name, "status": self.status, "detail": self.detail}


# Almost every finding is one of these; the hot path makes no new objects.
PASSED: Final = tuple(RuleFinding(number, "passed") for number in range(1, 9))


@dataclass(frozen=True, slots=True)
class Verdict:
    """All eight findings, the fields nobody signed, and what the policy decided."""

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
        """Whether every rule was judged and passed, and no policy had a say."""
        return self.findings == PASSED and self.decision is None

    def to_json(self) -> dict[str, Any]:
        """As refusals and `policy check` print it."""
        out: dict[str, Any] = {
            "envelope_id": self.envelope.hex_id,
            "rules": [finding.to_json() for finding in self.findings],
            "unsigned_fields": list(self.unsigned_fields),
        }
        return out if self.decision is None else {**out, **self.decision.to_json()}

    def require(self) -> None:
        """Raise what the first failed rule, or else the policy, calls for."""
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


# What its author can do about an envelope, where the error alone would speak of damaged data.
_ADVICE = {
    1: "Hash the payload as it is sent, and sign again.",
    3: "Name what it follows from: the Command it answers, its correlation id, its parents in this channel.",
    4: "Write it in a version that is let in (`ledger lifecycle show`), or adapt it (`ledger adapt`).",
    5: "Attach evidence about this very payload.",
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
