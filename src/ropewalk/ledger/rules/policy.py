"""Policies (S4 §3, §7.6, §10): a file of rules that decides allow, audit or deny, and can say why.

    {"version":1, "name", "evaluator_version", "capability_matrix":{…}, "rules":[{rule}…]}

A rule has `id`, `name`, `version`, `kind`, `decision` (what breaking or meeting it leads to), and may be narrowed by
`when` (`domains`, `classes`, `types`; patterns may hold `*`). The severest decision wins: deny, audit, allow.
The hash covers the rules in a fixed order, the evaluator and its capabilities, not the name people give the file.
`capability_matrix.versions`, where it is given, narrows what the version gate lets in, and opts into previews.
What the rules are, `policyrules` says.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, cast

from ropewalk.kernel import jcs
from ropewalk.kernel.digest import Tag, tagged
from ropewalk.kernel.report import Status
from ropewalk.kernel.schema.declared import DeclaredSchema
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.keys.approvals import Control, parse_control
from ropewalk.ledger.keys.lifetimes import Lifetime, lifetimes_of
from ropewalk.ledger.rules.policy_rules import (
    ASK,
    CHANNEL_KINDS,
    OUTCOMES,
    Outcome,
    Reason,
    Rule,
    applies,
    ask_evidence,
    ask_level,
    ask_schema,
    ask_tag,
    check_rule,
    no_policy,
    schema_of,
    tag_allows,
)
from ropewalk.ledger.versions.versions import parse_range

EVALUATOR: Final = "ropewalk/1"
POLICY_BYTES_MAX: Final = 4 << 20  # thousands of rules
_KINDS_MAX: Final = 1024  # domains times classes times types; a flood of new ones only costs time
_KIND_CHARS_MAX: Final = 512  # nor may long ones fill the memory


@dataclass(frozen=True, slots=True)
class Decision:
    """What the policy decided, with every rule that spoke."""

    outcome: Outcome
    reasons: tuple[Reason, ...]

    @property
    def audits(self) -> tuple[str, ...]:
        """Why it passes only under audit, one text for each rule; empty where it is allowed or denied."""
        if self.outcome != "audit":
            return ()
        return tuple(f"{each.rule}: {each.detail}" for each in self.reasons if each.decision == "audit")

    def to_json(self) -> dict[str, Any]:
        """As `policy check` prints it."""
        return {
            "decision": self.outcome,
            "reasons": [{"rule": r.rule, "decision": r.decision, "detail": r.detail} for r in self.reasons],
        }

    def explain(self) -> str:
        """One line a person can read."""
        if not self.reasons:
            return f"{self.outcome}: no rule speaks against it"
        return f"{self.outcome}: " + "; ".join(f"{r.rule} → {r.decision} ({r.detail})" for r in self.reasons)


@dataclass(frozen=True)
class Policy:
    """A policy bundle: rules as data, frozen by their hash.

    >>> STRICT.hash.hex()[:8] == parse_policy(STRICT.to_bytes()).hash.hex()[:8]
    True
    """

    name: str
    rules: tuple[Rule, ...]
    evaluator_version: str
    capability_matrix: dict[str, Any]

    @property
    def versions(self) -> tuple[str, ...] | None:
        """The versions it lets in, as ranges; None if it says nothing about them."""
        found = self.capability_matrix.get("versions")
        return None if found is None else tuple(found)

    @cached_property
    def hash(self) -> bytes:
        """The policy hash of S4 §3 and §11."""
        rules: list[Any] = sorted(self.rules, key=lambda r: (r["name"], r["version"], r["id"]))
        frozen: dict[str, Any] = {
            "rules": rules,
            "evaluator_version": self.evaluator_version,
            "capability_matrix": self.capability_matrix,
        }
        return tagged(Tag.POLICY, jcs.encode(frozen))

    def to_bytes(self) -> bytes:
        """The bundle as its file holds it."""
        value: dict[str, Any] = {
            "version": 1,
            "name": self.name,
            "evaluator_version": self.evaluator_version,
            "capability_matrix": self.capability_matrix,
            "rules": list(self.rules),
        }
        return jcs.encode(value)

    def decide(
        self, envelope: Envelope, evidence: Status = "not_checked", *, sealed: bool = False
    ) -> Decision:
        """Return what this policy says about an envelope whose signature holds.

        `evidence` is what the verification of its evidence, if it has any, came to. An envelope in a `sealed` block
        passed the door: its evidence and its policy tag were judged there, with what was configured at that time.
        """
        rules = self._rules_for(envelope)
        status: Status = "passed" if sealed else evidence
        reasons = [reason for rule in rules if (reason := self._ask(rule, envelope, status)) is not None]
        if not sealed and (tagged_as := ask_tag(envelope, self.hash)) is not None:
            reasons.append(tagged_as)
        return self._severest(envelope, rules, reasons)

    def _severest(self, envelope: Envelope, rules: tuple[Rule, ...], reasons: list[Reason]) -> Decision:
        if envelope.level == "restricted" and not any(
            rule["kind"] == "confidentiality" and rule["level"] == "restricted" for rule in rules
        ):
            reasons.append(
                Reason("(none)", "deny", "no rule of this policy decides about restricted envelopes")
            )
        outcome = max((r.decision for r in reasons), key=OUTCOMES.__getitem__, default="allow")
        return Decision(cast(Outcome, outcome), tuple(reasons))

    def decide_level(self, envelope: Envelope) -> Decision:
        """Only what the rules about confidentiality say; rule 6 of S4 §7 asks this."""
        rules = tuple(rule for rule in self._rules_for(envelope) if rule["kind"] == "confidentiality")
        reasons = [reason for rule in rules if (reason := ask_level(rule, envelope)) is not None]
        return self._severest(envelope, rules, reasons)

    def may_repeat(self, alert: Envelope) -> bool:
        """Return whether an Alert with a used correlation id may be appended again; rule 8 of S4 §7 asks this.

        Its tag must name this policy and say allow, and no rule `alert_repeat` may decide otherwise.
        """
        return (
            tag_allows(alert)
            and alert.value["policy_tag"]["policy_hash"] == self.hash.hex()
            and all(
                rule["decision"] == "allow"
                for rule in self._rules_for(alert)
                if rule["kind"] == "alert_repeat"
            )
        )

    @cached_property
    def _schemas(self) -> dict[str, DeclaredSchema]:
        """What payloads are held against, compiled, by the ids of the rules."""
        return {rule["id"]: schema_of(rule) for rule in self.rules if rule["kind"] == "schema"}

    @cached_property
    def controls(self) -> tuple[Control, ...]:
        """Which acts take more than one person."""
        return tuple(parse_control(rule) for rule in self.rules if rule["kind"] == "control")

    def lifetimes(self, key_since_ns: int) -> tuple[Lifetime, ...]:
        """When it ends itself, and a key that has sealed since a time."""
        return lifetimes_of(self.rules, key_since_ns)

    @cached_property
    def _applying(self) -> dict[tuple[str, str, str], tuple[Rule, ...]]:
        return {}

    def _rules_for(self, envelope: Envelope) -> tuple[Rule, ...]:
        """The rules meant for such an envelope: patterns are matched once for each kind of event, not for each."""
        kind = envelope.domain, envelope.event_class, envelope.event_type
        found = self._applying.get(kind)
        if found is None:
            found = tuple(
                rule for rule in self.rules if rule["kind"] not in CHANNEL_KINDS and applies(rule, *kind)
            )
            if len(self._applying) >= _KINDS_MAX:
                self._applying.clear()
            if sum(map(len, kind)) <= _KIND_CHARS_MAX:
                self._applying[kind] = found
        return found

    def _ask(self, rule: Rule, envelope: Envelope, evidence: Status) -> Reason | None:
        kind = rule["kind"]
        if kind == "alert_repeat":
            return None  # only rule 8 knows whether this is a repetition: `may_repeat`
        if kind == "confidentiality":
            return ask_level(rule, envelope)
        if kind == "schema":
            return ask_schema(rule, self._schemas[rule["id"]], envelope)
        detail: str | None = None
        if kind == "policy_tag":
            tag = envelope.value.get("policy_tag") or {}
            detail = None if tag.get("policy_hash") == self.hash.hex() else "it does not name this policy"
        elif kind in ("evidence", "evidence_checked"):
            detail = ask_evidence(rule, envelope, evidence)
        elif kind == "schema_declared":
            if not any(each["kind"] == "schema" for each in self._rules_for(envelope)):
                detail = f'no schema is declared for "{envelope.event_type}"'
        else:
            detail = ASK[kind](rule, envelope)
        return None if detail is None else Reason(rule["id"], rule["decision"], detail)


def parse_policy(raw: bytes) -> Policy:
    """A policy bundle from its file.

    >>> parse_policy(b'{"version":1}')
    Traceback (most recent call last):
    ropewalk.errors.Invalid: policy: "rules" is missing
    """
    value = jcs.parse(raw, bytes_max=POLICY_BYTES_MAX)
    if not isinstance(value, dict) or value.get("version") != 1 or value["version"] is True:
        raise no_policy("an object with version 1 is expected")
    rules = value.get("rules")
    if not isinstance(rules, list):
        raise no_policy('"rules" is missing')
    unknown = value.keys() - {"version", "name", "evaluator_version", "capability_matrix", "rules"}
    if unknown:
        raise no_policy(f'unknown member "{min(unknown)}"')
    name, evaluator = value.get("name", "policy"), value.get("evaluator_version", EVALUATOR)
    matrix = value.get("capability_matrix", {})
    if not isinstance(name, str) or not isinstance(evaluator, str) or not isinstance(matrix, dict):
        raise no_policy("name and evaluator_version are texts, capability_matrix is an object")
    ranges = matrix.get("versions", [])
    if not isinstance(ranges, list) or not all(isinstance(text, str) for text in ranges):
        raise no_policy("versions in capability_matrix are ranges like 1.0.x")
    for text in ranges:
        parse_range(str(text))
    for rule in rules:
        check_rule(rule)
    if len({cast(Rule, rule)["id"] for rule in rules}) != len(rules):
        raise no_policy("two rules share an id")
    return Policy(name, tuple(cast("list[Rule]", rules)), evaluator, matrix)


def _rule(id_: str, name: str, kind: str, decision: str, **members: Any) -> Rule:
    return {"id": id_, "name": name, "version": 1, "kind": kind, "decision": decision, **members}


STRICT: Final = Policy(
    "strict",
    (
        _rule("sign-all", "signatures", "signed_fields", "deny", fields="present"),
        _rule("correlate", "causality", "correlation", "deny", when={"classes": ["Command", "Result"]}),
        _rule("no-lattice", "proofs", "proofs", "deny", types=["lattice"]),
        _rule("no-snark", "proofs", "proofs", "deny", types=["snark"]),
        _rule("evidence-verified", "evidence", "evidence_checked", "deny"),
        _rule(
            "confidential", "levels", "confidentiality", "allow", level="confidential", requires=["detached"]
        ),
        _rule(
            "restricted",
            "levels",
            "confidentiality",
            "audit",
            level="restricted",
            requires=["detached", "key_ref"],
        ),
    ),
    EVALUATOR,
    {"versions": ["1.0.x", "1.1.x"], "evidence": ["slsa.v1", "tee.report"]},
)
"""The policy that ships: what is present is signed, what may have to be erased is detached, what was not verified is
denied. Only restricted envelopes are audited: they are sealed, and their receipts say so."""
