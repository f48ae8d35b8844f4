"""Policies (S4 §3, §7.6, §10): a file of rules that decides allow, audit or deny, and can say why.

    {"version":1, "name", "evaluator_version", "capability_matrix":{…}, "rules":[{rule}…]}

A rule has `id`, `name`, `version`, `kind`, `decision` (what breaking or meeting it leads to), and may be narrowed by
`when` (`domains`, `classes`, `types`; patterns may hold `*`). The severest decision wins: deny, audit, allow.
The hash covers the rules in a fixed order, the evaluator and its capabilities, not the name people give the file.
`capability_matrix.versions`, where it is given, narrows what the version gate lets in, and opts into previews.

    kind             more members        speaks when
    signers          allowed             the author is not among them
    domains          allowed             the domain is not among them
    signed_fields    fields | "present"  one of them (or any field) is present but not signed
    correlation                          there is no correlation id
    evidence         formats             there is no evidence in one of these formats
    evidence_checked                     there is evidence that was not fully checked
    proofs           types               it carries an integrity proof of such a type
    policy_tag                           it does not name this policy
    confidentiality  level, requires     it has this level; denied if it lacks `detached`, `key_ref` or `enclave_ref`
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Final, Literal, cast

from ropewalk.errors import Invalid
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import Tag, tagged
from ropewalk.kernel.keys import PublicKey
from ropewalk.ledger.envelope import FIELDS, Envelope
from ropewalk.ledger.versions import parse_range

__all__ = ["EVALUATOR", "STRICT", "Decision", "Outcome", "Policy", "Reason", "parse_policy"]

Outcome = Literal["allow", "audit", "deny"]
EVALUATOR: Final = "ropewalk/1"
_SEVERITY: Final = {"allow": 0, "audit": 1, "deny": 2}
_KINDS: Final[dict[str, dict[str, type]]] = {
    "signers": {"allowed": list},
    "domains": {"allowed": list},
    "signed_fields": {},
    "correlation": {},
    "evidence": {"formats": list},
    "evidence_checked": {},
    "proofs": {"types": list},
    "policy_tag": {},
    "confidentiality": {"level": str, "requires": list},
}
_LEVELS: Final = ("public", "internal", "confidential", "restricted")
_NEEDS: Final = ("detached", "key_ref", "enclave_ref")


@dataclass(frozen=True, slots=True)
class Reason:
    """What one rule said about one envelope."""

    rule: str
    decision: Outcome
    detail: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What the policy decided, with every rule that spoke."""

    outcome: Outcome
    reasons: tuple[Reason, ...]

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
    rules: tuple[dict[str, Any], ...]
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

    def decide(self, envelope: Envelope, evidence_checked: bool = True) -> Decision:
        """What this policy says about an envelope whose signature holds.

        `evidence_checked` says whether evidence, if there is any, was verified as far as rule 5 asks.
        """
        reasons = [
            reason
            for rule in self.rules
            if _applies(rule, envelope)
            and (reason := self._ask(rule, envelope, evidence_checked)) is not None
        ]
        if envelope.level == "restricted" and not any(
            rule["kind"] == "confidentiality" and rule["level"] == "restricted" and _applies(rule, envelope)
            for rule in self.rules
        ):
            reasons.append(
                Reason("(none)", "deny", "no rule of this policy decides about restricted envelopes")
            )
        outcome = max((r.decision for r in reasons), key=_SEVERITY.__getitem__, default="allow")
        return Decision(cast(Outcome, outcome), tuple(reasons))

    def decide_level(self, envelope: Envelope) -> Decision:
        """Only what the rules about confidentiality say; rule 6 of S4 §7 asks this."""
        rules = tuple(rule for rule in self.rules if rule["kind"] == "confidentiality")
        return Policy(self.name, rules, self.evaluator_version, {}).decide(envelope)

    def _ask(self, rule: dict[str, Any], envelope: Envelope, evidence_checked: bool) -> Reason | None:
        if rule["kind"] == "policy_tag":
            tag = envelope.value.get("policy_tag") or {}
            detail = None if tag.get("policy_hash") == self.hash.hex() else "it does not name this policy"
        elif rule["kind"] == "evidence_checked":
            has = "attestation_evidence" in envelope.value
            detail = "its evidence was not fully checked" if has and not evidence_checked else None
        elif rule["kind"] == "confidentiality":
            return _ask_level(rule, envelope)
        else:
            detail = _ASK[rule["kind"]](rule, envelope)
        return None if detail is None else Reason(rule["id"], rule["decision"], detail)


def parse_policy(raw: bytes) -> Policy:
    """A policy bundle from its file.

    >>> parse_policy(b'{"version":1}')
    Traceback (most recent call last):
    ropewalk.errors.Invalid: policy: "rules" is missing
    """
    value = jcs.parse(raw)
    if not isinstance(value, dict) or value.get("version") != 1:
        raise _wrong("an object with version 1 is expected")
    rules = value.get("rules")
    if not isinstance(rules, list):
        raise _wrong('"rules" is missing')
    unknown = value.keys() - {"version", "name", "evaluator_version", "capability_matrix", "rules"}
    if unknown:
        raise _wrong(f'unknown member "{min(unknown)}"')
    name, evaluator = value.get("name", "policy"), value.get("evaluator_version", EVALUATOR)
    matrix = value.get("capability_matrix", {})
    if not isinstance(name, str) or not isinstance(evaluator, str) or not isinstance(matrix, dict):
        raise _wrong("name and evaluator_version are texts, capability_matrix is an object")
    ranges = matrix.get("versions", [])
    if not isinstance(ranges, list) or not all(isinstance(text, str) for text in ranges):
        raise _wrong("versions in capability_matrix are ranges like 1.0.x")
    for text in ranges:
        parse_range(str(text))
    for rule in rules:
        _check_rule(rule)
    if len({cast(dict[str, Any], rule)["id"] for rule in rules}) != len(rules):
        raise _wrong("two rules share an id")
    return Policy(name, tuple(cast("list[dict[str, Any]]", rules)), evaluator, matrix)


def _check_rule(rule: Any) -> None:
    if not isinstance(rule, dict):
        raise _wrong("a rule is an object")
    known = {"id": str, "name": str, "version": int, "kind": str, "decision": str}
    for member, kind in known.items():
        if not isinstance(rule.get(member), kind):
            raise _wrong(f'rule {rule.get("id", "?")!r}: "{member}" is missing or of another type')
    here = f'rule "{rule["id"]}"'
    if rule["kind"] not in _KINDS:
        raise _wrong(f'{here}: kind "{rule["kind"]}" is not known; one of {", ".join(_KINDS)}')
    if rule["decision"] not in _SEVERITY:
        raise _wrong(f"{here}: decision is allow, audit or deny")
    extra = _KINDS[rule["kind"]]
    for member, kind in extra.items():
        if not isinstance(rule.get(member), kind):
            raise _wrong(f'{here}: "{member}" is missing or of another type')
    allowed = {
        *known,
        *extra,
        "when",
        "description",
        *(["fields"] if rule["kind"] == "signed_fields" else []),
    }
    if rule.keys() - allowed:
        raise _wrong(f'{here}: unknown member "{min(rule.keys() - allowed)}"')
    if rule["kind"] == "signers":
        for identity in rule["allowed"]:
            PublicKey.from_json(identity)
    if rule["kind"] == "signed_fields" and rule.get("fields") != "present":
        fields = rule.get("fields")
        if not isinstance(fields, list) or not all(name in FIELDS for name in fields):
            raise _wrong(f'{here}: fields is a list of envelope fields, or "present"')
    if rule["kind"] == "confidentiality" and (
        rule["level"] not in _LEVELS or any(need not in _NEEDS for need in rule["requires"])
    ):
        raise _wrong(f"{here}: level or requires is not known")
    when = rule.get("when", {})
    if not isinstance(when, dict) or when.keys() - {"domains", "classes", "types"}:
        raise _wrong(f'{here}: "when" has domains, classes, types')
    for texts in (
        *when.values(),
        *(rule[m] for m in extra if extra[m] is list and rule["kind"] != "signers"),
    ):
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise _wrong(f"{here}: patterns are lists of texts")


def _wrong(what: str) -> Invalid:
    return Invalid(f"policy: {what}", advice="`ropewalk ledger policy show` prints one that works.")


def _applies(rule: dict[str, Any], envelope: Envelope) -> bool:
    when = rule.get("when")
    if not when:
        return True
    return (
        _matches(when.get("domains"), envelope.domain)
        and _matches(when.get("classes"), envelope.event_class)
        and _matches(when.get("types"), envelope.event_type)
    )


def _matches(patterns: Iterable[str] | None, text: str) -> bool:
    return patterns is None or any(fnmatchcase(text, pattern) for pattern in patterns)


def _ask_signers(rule: dict[str, Any], envelope: Envelope) -> str | None:
    key = envelope.public_key
    if any(PublicKey.from_json(identity) == key for identity in rule["allowed"]):
        return None
    return f"{key.alg} key {key.raw.hex()[:16]}… is not an allowed signer"


def _ask_domains(rule: dict[str, Any], envelope: Envelope) -> str | None:
    return (
        None if _matches(rule["allowed"], envelope.domain) else f'domain "{envelope.domain}" is not allowed'
    )


def _ask_signed(rule: dict[str, Any], envelope: Envelope) -> str | None:
    unsigned = envelope.unsigned_fields
    if rule.get("fields") != "present":
        unsigned = tuple(name for name in unsigned if name in rule["fields"])
    return f"not signed: {', '.join(unsigned)}" if unsigned else None


def _ask_correlation(_rule: dict[str, Any], envelope: Envelope) -> str | None:
    return None if envelope.correlation_id else "it has no correlation id"


def _ask_evidence(rule: dict[str, Any], envelope: Envelope) -> str | None:
    found = (envelope.value.get("attestation_evidence") or {}).get("format")
    if found in rule["formats"]:
        return None
    return f"evidence is {found or 'missing'}; one of {', '.join(rule['formats'])} is demanded"


def _ask_proofs(rule: dict[str, Any], envelope: Envelope) -> str | None:
    found = (envelope.value.get("integrity_proof") or {}).get("type")
    return f"integrity proof of type {found}" if found in rule["types"] else None


def _ask_level(rule: dict[str, Any], envelope: Envelope) -> Reason | None:
    if envelope.level != rule["level"]:
        return None
    tag = envelope.value.get("confidentiality_tag") or {}
    for need in rule["requires"]:
        if (need == "detached" and not envelope.is_detached) or (need != "detached" and need not in tag):
            return Reason(rule["id"], "deny", f"{rule['level']} without {need}")
    return Reason(rule["id"], rule["decision"], f"level {rule['level']}")


_ASK: Final = {
    "signers": _ask_signers,
    "domains": _ask_domains,
    "signed_fields": _ask_signed,
    "correlation": _ask_correlation,
    "evidence": _ask_evidence,
    "proofs": _ask_proofs,
}


def _rule(id_: str, name: str, kind: str, decision: str, **members: Any) -> dict[str, Any]:
    return {"id": id_, "name": name, "version": 1, "kind": kind, "decision": decision, **members}


STRICT: Final = Policy(
    "strict",
    (
        _rule("sign-all", "signatures", "signed_fields", "deny", fields="present"),
        _rule("correlate", "causality", "correlation", "deny", when={"classes": ["Command", "Result"]}),
        _rule("no-lattice", "proofs", "proofs", "deny", types=["lattice"]),
        _rule("look-at-snark", "proofs", "proofs", "audit", types=["snark"]),
        _rule("look-at-evidence", "evidence", "evidence_checked", "audit"),
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
"""The policy that ships: all that is present is signed, what may have to be erased is detached, doubts are seen."""
