"""The rules of a policy: the members of each kind, and what it checks in an envelope.

    kind             more members        applies when
    signers          allowed             the author is not among them
    domains          allowed             the domain is not among them
    signed_fields    fields | "present"  one of them (or any field) is present but not signed
    correlation                          there is no correlation id
    evidence         formats             there is no evidence in one of these formats that was verified and passed
    evidence_checked                     there is evidence that was not fully checked
    proofs           types               it carries an integrity proof of such a type
    policy_tag                           it does not name this policy
    alert_repeat                         it is an Alert whose correlation id was used before
    confidentiality  level, requires     it has this level; denied if it lacks `detached`, `key_ref` or `enclave_ref`
    schema           schema, detached    the payload does not fit the schema, or is detached: then `detached` decides,
                                         where it is given
    schema_declared                      no rule of the kind schema applies to it

Five kinds apply to the channel, not to envelopes; see `lifetimes`, `approvals`, `Policy.alert_channels` and
`versions.rehearsal_rule`:

    key_lifetime     days, overlap_days  the signing key is older; its successor is due `overlap_days` before
    policy_lifetime  until, overlap_days the policy itself has ended; `since` may name its start
    control          acts, approvals, approvers    too few people approved of an act
    alert_fanout     channels            Alerts are copied to these channels; `when` may narrow them
    rehearsal        followers, rehearsals    too few followers replayed the channel with a new version

A policy tag is enforced without a rule (`ask_tag`): one that names another policy, or denies, is denied.

Rules are data, as the policy's file has them: block headers carry their hash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final, Literal

from ropewalk.errors import Invalid, InvalidName
from ropewalk.kernel import jcs
from ropewalk.kernel.keys import PublicKey
from ropewalk.kernel.report import Status
from ropewalk.kernel.schema.declared import DeclaredSchema, declare
from ropewalk.ledger.block.block import check_channel_name
from ropewalk.ledger.envelope.fields import FIELDS
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.keys.approvals import parse_control
from ropewalk.ledger.keys.lifetimes import lifetime_rule_fault
from ropewalk.ledger.versions.rehearsal_rule import parse_rehearsal_rule

Outcome = Literal["allow", "audit", "deny"]
Rule = dict[str, Any]
OUTCOMES: Final = {"allow": 0, "audit": 1, "deny": 2}
_COMMON: Final[dict[str, type]] = {"id": str, "name": str, "version": int, "kind": str, "decision": str}
_KINDS: Final[dict[str, dict[str, type]]] = {
    "signers": {"allowed": list},
    "domains": {"allowed": list},
    "signed_fields": {},
    "correlation": {},
    "evidence": {"formats": list},
    "evidence_checked": {},
    "proofs": {"types": list},
    "policy_tag": {},
    "alert_repeat": {},
    "confidentiality": {"level": str, "requires": list},
    "schema": {"schema": dict},
    "schema_declared": {},
    "key_lifetime": {"days": int, "overlap_days": int},
    "policy_lifetime": {"until": str, "overlap_days": int},
    "control": {"acts": list, "approvals": int, "approvers": list},
    "alert_fanout": {"channels": list},
    "rehearsal": {"followers": list, "rehearsals": int},
}
_OPTIONAL: Final = {
    "signed_fields": {"fields"},
    "schema": {"detached"},
    "policy_lifetime": {"since"},
    "rehearsal": {"within_blocks", "downgrade"},
}
CHANNEL_KINDS: Final = frozenset(("key_lifetime", "policy_lifetime", "control", "alert_fanout", "rehearsal"))
_TAG: Final = "(policy_tag)"
_IDENTITIES: Final = frozenset(("signers", "control", "rehearsal"))  # their lists are not patterns
_LEVELS: Final = ("public", "internal", "confidential", "restricted")
_NEEDS: Final = ("detached", "key_ref", "enclave_ref")


@dataclass(frozen=True, slots=True)
class Reason:
    """What one rule decided about one envelope."""

    rule: str
    decision: Outcome
    detail: str


def no_policy(what: str) -> Invalid:
    """Return the error for an invalid policy."""
    return Invalid(f"policy: {what}", advice="`ropewalk ledger policy show` prints one that works.")


# --- whether a rule can be read ---


def check_rule(rule: Any) -> None:
    """Raise unless every member of the rule is known: an unknown one might be meant to forbid something."""
    if not isinstance(rule, dict):
        raise no_policy("a rule must be an object")
    for member, kind in _COMMON.items():
        if not isinstance(rule.get(member), kind):
            raise no_policy(f'rule {rule.get("id", "?")!r}: "{member}" is missing or has the wrong type')
    here = f'rule "{rule["id"]}"'
    if rule["kind"] not in _KINDS:
        raise no_policy(f'{here}: kind "{rule["kind"]}" is unknown; must be one of {", ".join(_KINDS)}')
    if rule["decision"] not in OUTCOMES:
        raise no_policy(f"{here}: decision must be allow, audit or deny")
    extra = _KINDS[rule["kind"]]
    for member, kind in extra.items():
        if not isinstance(rule.get(member), kind):
            raise no_policy(f'{here}: "{member}" is missing or has the wrong type')
    unknown = rule.keys() - {*_COMMON, *extra, *_OPTIONAL.get(rule["kind"], ()), "when", "description"}
    if unknown:
        raise no_policy(f'{here}: unknown member "{min(unknown)}"')
    if rule["kind"] in _CHECKS:
        _CHECKS[rule["kind"]](rule, here)
    when = rule.get("when", {})
    if not isinstance(when, dict) or when.keys() - {"domains", "classes", "types"}:
        raise no_policy(f'{here}: "when" may only have domains, classes and types')
    for texts in (
        *when.values(),
        *(rule[m] for m in extra if extra[m] is list and rule["kind"] not in _IDENTITIES),
    ):
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise no_policy(f"{here}: patterns must be lists of strings")


def _check_signers(rule: Rule, _here: str) -> None:
    for identity in rule["allowed"]:
        PublicKey.from_json(identity)


def _check_signed(rule: Rule, here: str) -> None:
    fields = rule.get("fields")
    if fields != "present" and not (isinstance(fields, list) and all(name in FIELDS for name in fields)):
        raise no_policy(f'{here}: fields must be a list of envelope fields, or "present"')


def _check_level(rule: Rule, here: str) -> None:
    if rule["level"] not in _LEVELS or any(need not in _NEEDS for need in rule["requires"]):
        raise no_policy(f"{here}: level or requires is unknown")


def _check_schema(rule: Rule, here: str) -> None:
    if rule.get("detached", "allow") not in tuple(OUTCOMES):
        raise no_policy(f"{here}: detached must be allow, audit or deny")
    try:
        schema_of(rule)
    except Invalid as error:
        raise no_policy(f"{here}: {error.detail}") from error


def _check_lifetime(rule: Rule, here: str) -> None:
    fault = lifetime_rule_fault(rule)
    if fault is not None or rule["decision"] != "deny" or "when" in rule:
        raise no_policy(f"{here}: {fault or 'a channel rule must deny, and must not have when'}")


def _check_control(rule: Rule, here: str) -> None:
    try:
        parse_control(rule) if rule["kind"] == "control" else parse_rehearsal_rule(rule)
    except Invalid as error:
        raise no_policy(f"{here}: {error.detail}") from error
    if rule["decision"] != "deny" or "when" in rule:
        raise no_policy(f"{here}: a channel rule must deny, and must not have when")


def _check_fanout(rule: Rule, here: str) -> None:
    if rule["decision"] != "allow" or not rule["channels"]:
        raise no_policy(f"{here}: alert_fanout must allow, and must name channels")
    for name in rule["channels"]:
        try:
            check_channel_name(str(name))
        except InvalidName as error:
            raise no_policy(f"{here}: {error.detail}") from error


_CHECKS: Final[dict[str, Callable[[Rule, str], None]]] = {
    "signers": _check_signers,
    "signed_fields": _check_signed,
    "confidentiality": _check_level,
    "schema": _check_schema,
    "key_lifetime": _check_lifetime,
    "policy_lifetime": _check_lifetime,
    "control": _check_control,
    "rehearsal": _check_control,
    "alert_fanout": _check_fanout,
}


# --- what a rule says ---


def applies(rule: Rule, domain: str, event_class: str, event_type: str) -> bool:
    """Return whether the rule applies to such envelopes."""
    when = rule.get("when")
    if not when:
        return True
    return (
        _matches(when.get("domains"), domain)
        and _matches(when.get("classes"), event_class)
        and _matches(when.get("types"), event_type)
    )


def _matches(patterns: Iterable[str] | None, text: str) -> bool:
    return patterns is None or any(fnmatchcase(text, pattern) for pattern in patterns)


def _ask_signers(rule: Rule, envelope: Envelope) -> str | None:
    key = envelope.public_key
    if any(PublicKey.from_json(identity) == key for identity in rule["allowed"]):
        return None
    return f"{key.did()} ({key.alg} {key.raw.hex()[:16]}…) is not an allowed signer"


def _ask_domains(rule: Rule, envelope: Envelope) -> str | None:
    return (
        None if _matches(rule["allowed"], envelope.domain) else f'domain "{envelope.domain}" is not allowed'
    )


def _ask_signed(rule: Rule, envelope: Envelope) -> str | None:
    unsigned = envelope.unsigned_fields
    if rule.get("fields") != "present":
        unsigned = tuple(name for name in unsigned if name in rule["fields"])
    return f"not signed: {', '.join(unsigned)}" if unsigned else None


def _ask_correlation(_rule: Rule, envelope: Envelope) -> str | None:
    return None if envelope.correlation_id else "it has no correlation id"


def ask_evidence(rule: Rule, envelope: Envelope, status: Status) -> str | None:
    """Return why required evidence is missing; unverified evidence counts as missing."""
    found = (envelope.value.get("attestation_evidence") or {}).get("format")
    if rule["kind"] == "evidence_checked":
        return None if found is None or status == "passed" else f"its {found} evidence was not verified"
    if found not in rule["formats"]:
        return f"evidence is {found or 'missing'}; one of {', '.join(rule['formats'])} is required"
    return None if status == "passed" else f"its {found} evidence was not verified, which is required"


def ask_tag(envelope: Envelope, policy_hash: bytes | None) -> Reason | None:
    """Return the outcome of the envelope's own policy tag in a channel with this policy, or with none (S4 §10)."""
    tag = envelope.fields.get("policy_tag")
    if tag is None:
        return None
    if tag.get("decision") == "deny":
        return Reason(_TAG, "deny", "its policy tag denies it")
    if policy_hash is not None and tag["policy_hash"] != policy_hash.hex():
        named = tag["policy_hash"][:16]
        return Reason(
            _TAG, "deny", f"its policy tag names policy {named}…, the channel has {policy_hash.hex()[:16]}…"
        )
    if tag.get("decision") == "audit":
        return Reason(_TAG, "audit", "its policy tag asks for audit")
    return None


def tag_allows(envelope: Envelope) -> bool:
    """Return whether the policy tag of an Alert allows its repetition (S4 §7.8), regardless of the policy it names."""
    fields = envelope.fields
    return fields["event_class"] == "Alert" and (fields.get("policy_tag") or {}).get("decision") == "allow"


def _ask_proofs(rule: Rule, envelope: Envelope) -> str | None:
    found = (envelope.value.get("integrity_proof") or {}).get("type")
    return f"integrity proof of type {found}" if found in rule["types"] else None


def ask_level(rule: Rule, envelope: Envelope) -> Reason | None:
    """Return the decision of a confidentiality rule: it decides about its level, and denies what that level lacks."""
    if envelope.level != rule["level"]:
        return None
    tag = envelope.value.get("confidentiality_tag") or {}
    for need in rule["requires"]:
        if (need == "detached" and not envelope.is_detached) or (need != "detached" and need not in tag):
            return Reason(rule["id"], "deny", f"{rule['level']} without {need}")
    return Reason(rule["id"], rule["decision"], f"level {rule['level']}")


def schema_of(rule: Rule) -> DeclaredSchema:
    """Return the compiled schema of a rule."""
    return declare(jcs.encode(rule["schema"]))


def ask_schema(rule: Rule, schema: DeclaredSchema, envelope: Envelope) -> Reason | None:
    """Return the decision of a schema rule: a detached payload cannot be checked, but `detached` may allow that."""
    if envelope.is_detached:
        decision: Outcome = rule.get("detached") or rule["decision"]
        return Reason(rule["id"], decision, "the payload is detached and was not checked against the schema")
    fault = schema.fault(envelope.payload, len(envelope.raw) // 2)  # no item takes less than two bytes
    if fault is None:
        return None
    return Reason(rule["id"], rule["decision"], f"payload{'' if fault.where else ':'} {fault}")


ASK: Final[dict[str, Callable[[Rule, Envelope], str | None]]] = {
    "signers": _ask_signers,
    "domains": _ask_domains,
    "signed_fields": _ask_signed,
    "correlation": _ask_correlation,
    "proofs": _ask_proofs,
}
