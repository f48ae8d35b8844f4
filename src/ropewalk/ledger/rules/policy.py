"""Policies (S4 §3, §7.6, §10): a file of rules that decides allow, audit or deny, with reasons.

    {"version":1, "name", "evaluator_version", "capability_matrix":{…}, "rules":[{rule}…]}

A rule has `id`, `name`, `version`, `kind`, `decision` (the outcome if the rule applies), and may be narrowed by
`when` (`domains`, `classes`, `types`; patterns may hold `*`). The severest decision wins: deny, audit, allow.
The hash covers the rules in a fixed order, the evaluator and its capabilities, not the name people give the file.
`capability_matrix.versions`, where it is given, narrows the accepted versions and opts into previews.
`policy_rules` defines the kinds of rules.
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
from ropewalk.ledger.versions.rehearsal_rule import RehearsalRule, parse_rehearsal_rule
from ropewalk.ledger.versions.versions import parse_range

EVALUATOR: Final = "ropewalk/1"
POLICY_BYTES_MAX: Final = 4 << 20  # thousands of rules
_KINDS_MAX: Final = 1024  # domains times classes times types; more only cost time
_KIND_CHARS_MAX: Final = 512  # long names must not fill the memory


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome of a policy, with every rule that applied."""

    outcome: Outcome
    reasons: tuple[Reason, ...]

    @property
    def audits(self) -> tuple[str, ...]:
        """Reasons for an audit, one per rule; empty if the outcome is allow or deny."""
        if self.outcome != "audit":
            return ()
        return tuple(f"{each.rule}: {each.detail}" for each in self.reasons if each.decision == "audit")

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form that `policy check` prints."""
        return {
            "decision": self.outcome,
            "reasons": [{"rule": r.rule, "decision": r.decision, "detail": r.detail} for r in self.reasons],
        }

    def explain(self) -> str:
        """Return a one-line explanation."""
        if not self.reasons:
            return f"{self.outcome}: no rule applies"
        return f"{self.outcome}: " + "; ".join(f"{r.rule} → {r.decision} ({r.detail})" for r in self.reasons)


@dataclass(frozen=True)
class Policy:
    """A policy bundle: rules as data, identified by their hash.

    >>> STRICT.hash.hex()[:8] == parse_policy(STRICT.to_bytes()).hash.hex()[:8]
    True
    """

    name: str
    rules: tuple[Rule, ...]
    evaluator_version: str
    capability_matrix: dict[str, Any]

    @property
    def versions(self) -> tuple[str, ...] | None:
        """The accepted versions as ranges; None if the policy does not restrict them."""
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
        """Return the bytes of the policy file."""
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
        """Return the decision about an envelope whose signature is valid.

        `evidence` is the result of verifying its evidence, if any. An envelope in a `sealed` block was accepted
        before: its evidence and its policy tag were checked at ingest, with the configuration of that time.
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
        """Return the decision of the confidentiality rules only, for rule 6 of S4 §7."""
        rules = tuple(rule for rule in self._rules_for(envelope) if rule["kind"] == "confidentiality")
        reasons = [reason for rule in rules if (reason := ask_level(rule, envelope)) is not None]
        return self._severest(envelope, rules, reasons)

    def may_repeat(self, alert: Envelope) -> bool:
        """Return whether an Alert with a used correlation id may be appended again, for rule 8 of S4 §7.

        Its tag must name this policy and allow it, and no rule `alert_repeat` may decide otherwise.
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
    def fans_out(self) -> bool:
        """Whether any rule copies Alerts to other channels."""
        return any(rule["kind"] == "alert_fanout" for rule in self.rules)

    def alert_channels(self, envelope: Envelope) -> tuple[str, ...]:
        """Return the channels that an Alert of this channel is copied to (S4 §3.2); none for other classes."""
        if envelope.event_class != "Alert":
            return ()
        kind = envelope.domain, envelope.event_class, envelope.event_type
        rules = (rule for rule in self.rules if rule["kind"] == "alert_fanout" and applies(rule, *kind))
        return tuple(dict.fromkeys(name for rule in rules for name in rule["channels"]))

    @cached_property
    def _schemas(self) -> dict[str, DeclaredSchema]:
        """Compiled payload schemas by rule id."""
        return {rule["id"]: schema_of(rule) for rule in self.rules if rule["kind"] == "schema"}

    @cached_property
    def controls(self) -> tuple[Control, ...]:
        """The acts that need more than one approval."""
        return tuple(parse_control(rule) for rule in self.rules if rule["kind"] == "control")

    @cached_property
    def rehearsals(self) -> tuple[RehearsalRule, ...]:
        """Which followers must rehearse a version before the channel accepts it."""
        return tuple(parse_rehearsal_rule(rule) for rule in self.rules if rule["kind"] == "rehearsal")

    def lifetimes(self, key_since_ns: int) -> tuple[Lifetime, ...]:
        """Return the lifetimes of this policy and of a key in use since a time."""
        return lifetimes_of(self.rules, key_since_ns)

    @cached_property
    def _applying(self) -> dict[tuple[str, str, str], tuple[Rule, ...]]:
        return {}

    def _rules_for(self, envelope: Envelope) -> tuple[Rule, ...]:
        """Return the rules that apply to such an envelope; patterns are matched once per kind of event."""
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
    """Parse a policy bundle from its file.

    >>> parse_policy(b'{"version":1}')
    Traceback (most recent call last):
    ropewalk.errors.Invalid: policy: "rules" is missing
    """
    value = jcs.parse(raw, bytes_max=POLICY_BYTES_MAX)
    if not isinstance(value, dict) or value.get("version") != 1 or value["version"] is True:
        raise no_policy("a policy must be an object with version 1")
    rules = value.get("rules")
    if not isinstance(rules, list):
        raise no_policy('"rules" is missing')
    unknown = value.keys() - {"version", "name", "evaluator_version", "capability_matrix", "rules"}
    if unknown:
        raise no_policy(f'unknown member "{min(unknown)}"')
    name, evaluator = value.get("name", "policy"), value.get("evaluator_version", EVALUATOR)
    matrix = value.get("capability_matrix", {})
    if not isinstance(name, str) or not isinstance(evaluator, str) or not isinstance(matrix, dict):
        raise no_policy("name and evaluator_version must be strings, capability_matrix an object")
    ranges = matrix.get("versions", [])
    if not isinstance(ranges, list) or not all(isinstance(text, str) for text in ranges):
        raise no_policy("versions in capability_matrix must be ranges like 1.0.x")
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
"""The default policy: every present field must be signed, erasable payloads must be detached, unverified evidence is
denied. Restricted envelopes are accepted under audit, and their receipts say so.
"""
