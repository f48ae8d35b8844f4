"""Key statements in a channel (S4 §13): rotation, retirement, revocation, destruction.

An `Alert` of one of these types, alone in its block, signed by the key that seals it:

    ledger.key_rotation      "rotate"   `key` is valid until `until`; `new_key` is valid since `since`
    ledger.key_retirement    "retire"   `key` was replaced, and already ends at `since`
    ledger.key_revocation    "revoke"   signatures of `key`, an author's or the channel's, are rejected since `since`
    ledger.key_destruction   "destroy"  the secret of `key` was destroyed; it ends at `since`
    ledger.policy_rotation   "policy"   the channel has another policy above this block; see `policies`
    ledger.evidence_rotation "evidence" the channel trusts other evidence above this block; see `evidence.rotation`
    ledger.key_promotion     "promote"  `new_key` seals from this block on, in a new epoch; see `promotion`

    {"version":1, "act", "channel", "key":"<fingerprint>", "since":"<time>",
     "until":"<time>", "new_key":{identity}, "new_fingerprint":"<hex>",      with rotate
     "new_key", "new_fingerprint", "epoch", "height", "prev_block_hash",    with promote
     "reason":"<text>",                                                     with all but rotate
     "evidence_hash", "new_evidence_hash", "roots", "keys",                 with evidence
     "acceptance":{"alg","sig"},                                            with a new key: it signs the act
     "below":{block record}, "policy":{policy},                             with promote
     "approvals":[{"approver":{identity},"signature":{"alg","sig"}}…]}

A fingerprint is the identity digest that headers carry. The act is everything up to the acceptance; the new key and
the approvers sign its canonical bytes. `history` applies an act.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, cast

from ropewalk.errors import Invalid, InvalidEnvelope, RopewalkError, SigInvalid
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import Tag, hash_from_hex
from ropewalk.kernel.keys import PublicKey, Signature, SigningKey
from ropewalk.kernel.schema.form import StrictForm
from ropewalk.ledger.envelope.envelope import build
from ropewalk.ledger.envelope.fields import parse_timestamp
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.json_form import members_of
from ropewalk.ledger.keys.approvals import Approval

Act = Literal["rotate", "retire", "revoke", "destroy", "promote", "policy", "evidence"]
DOMAIN: Final = "ropewalk.keys"
TYPES: Final[dict[str, Act]] = {
    "ledger.key_rotation": "rotate",
    "ledger.key_retirement": "retire",
    "ledger.key_revocation": "revoke",
    "ledger.key_destruction": "destroy",
    "ledger.key_promotion": "promote",
    "ledger.policy_rotation": "policy",
    "ledger.evidence_rotation": "evidence",
}
_TYPE_OF: Final = {act: name for name, act in TYPES.items()}
_PREFIXES: Final = ("ledger.key_", "ledger.policy_rotation", "ledger.evidence_rotation")
# Canonical JSON has no other encoding of the member.
_HINTS: Final = tuple(f'"event_type":"{each}'.encode() for each in _PREFIXES)
_ANY_HINT: Final = b'"event_type":"ledger.'
# The members of each act, in their order.
_COMMON: Final = ("act", "channel", "key", "since")
_ENDS_KEY: Final = (*_COMMON, "reason")
_MEMBERS: Final[dict[Act, tuple[str, ...]]] = {
    "rotate": (*_COMMON, "new_key", "new_fingerprint", "until"),
    "promote": (*_COMMON, "new_key", "new_fingerprint", "epoch", "height", "prev_block_hash", "reason"),
    "policy": (*_COMMON, "policy_hash", "new_policy_hash", "reason"),
    "evidence": (*_COMMON, "evidence_hash", "new_evidence_hash", "roots", "keys", "reason"),
    "retire": _ENDS_KEY,
    "revoke": _ENDS_KEY,
    "destroy": _ENDS_KEY,
}
_NATURAL_MAX: Final = (1 << 53) - 1
# What a statement carries besides the act.
BASIS: Final[dict[str, tuple[str, ...]]] = {
    "promote": ("below", "policy"),
    "policy": ("policy", "new_policy"),
}
REASON_MAX: Final = 1_000
_FORM: Final = StrictForm("key statement", "`ropewalk ledger key` makes them; see docs/guide/keys.md.")
_wrong = _FORM.wrong


@dataclass(frozen=True, slots=True)
class KeyAct:
    """An act on a key of a channel, and its date. Times are kept as written."""

    act: Act
    channel: str
    key: bytes
    since: str
    until: str | None = None
    new_key: PublicKey | None = None
    reason: str = ""
    epoch: int = 0
    height: int = 0
    prev_block_hash: bytes = b""
    old_hash: bytes | None = None  # of the policy or the evidence settings that are replaced
    new_hash: bytes = b""
    roots: tuple[bytes, ...] = ()  # of trusted evidence: SHA-256 of each certificate
    keys: tuple[bytes, ...] = ()

    @property
    def since_ns(self) -> int:
        """When it takes effect."""
        return parse_timestamp(self.since)

    @property
    def until_ns(self) -> int:
        """When a rotated key ends; for other acts the time they take effect."""
        return parse_timestamp(self.until) if self.until is not None else self.since_ns

    def to_json(self) -> dict[str, Any]:
        """Return the object that the new key and approvers sign."""
        value = members_of(self)
        value[f"{self.act}_hash"], value[f"new_{self.act}_hash"] = value["old_hash"], value["new_hash"]
        if self.new_key is not None:
            value["new_fingerprint"] = self.new_key.identity().hex()
        return {"version": 1, **{name: value[name] for name in _MEMBERS[self.act]}}


def parse_act(value: Any) -> KeyAct:
    """Parse an act from a JSON value; reject unknown members.

    >>> key = SigningKey.generate("ed25519", bytes(32)).public
    >>> act = KeyAct("retire", "ea.core", key.identity(), "2024-11-01T12:00:00Z", reason="lost")
    >>> parse_act(act.to_json()) == act
    True
    """
    act = value.get("act") if isinstance(value, dict) else None
    expected = "version, act, channel, key, since and the members of the act"
    if not isinstance(act, str) or act not in _TYPE_OF:
        raise _wrong(f"expected {expected}")
    _FORM.members(value, _MEMBERS[act], expected)
    key = hash_from_hex(value["key"])
    if key is None or not isinstance(value["channel"], str):
        raise _wrong("channel must be a string, key 64 lowercase hex digits")
    for name in ("since", "until") if act == "rotate" else ("since",):
        try:
            parse_timestamp(value[name] if isinstance(value[name], str) else "")
        except InvalidEnvelope as error:
            raise _wrong(f"{name}: {error.detail}") from error
    if act != "rotate" and (not isinstance(value["reason"], str) or len(value["reason"]) > REASON_MAX):
        raise _wrong(f"reason must be a string of at most {REASON_MAX} characters")
    found = KeyAct(act, value["channel"], key, value["since"], reason=value.get("reason", ""))
    if act in ("policy", "evidence"):
        hashed = f"{act}_hash"
        old, new = hash_from_hex(value[hashed]), hash_from_hex(value[f"new_{hashed}"])
        if new is None or (old is None and value[hashed] is not None):
            raise _wrong(f"{hashed} and new_{hashed} must be 64 lowercase hex digits")
        roots, keys = (_hashes(each, value.get(each, [])) for each in ("roots", "keys"))
        return replace(found, old_hash=old, new_hash=new, roots=roots, keys=keys)
    if "new_key" not in value:
        return found
    new_key = PublicKey.from_json(value["new_key"])
    if value["new_fingerprint"] != new_key.identity().hex():
        raise _wrong("new_fingerprint must be that of new_key")
    if act == "rotate":
        return replace(found, until=value["until"], new_key=new_key)
    below, epoch, height = hash_from_hex(value["prev_block_hash"]), value["epoch"], value["height"]
    if below is None or not all(type(each) is int and 0 < each <= _NATURAL_MAX for each in (epoch, height)):
        raise _wrong("epoch and height must be positive integers, prev_block_hash 64 lowercase hex digits")
    return replace(found, new_key=new_key, epoch=epoch, height=height, prev_block_hash=below)


def _hashes(name: str, value: Any) -> tuple[bytes, ...]:
    found = [hash_from_hex(each) for each in value] if isinstance(value, list) else [None]
    if any(each is None for each in found):
        raise _wrong(f"{name} must be a list of 64 lowercase hex digits each")
    return cast("tuple[bytes, ...]", tuple(found))


@dataclass(frozen=True, slots=True)
class KeyStatement:
    """An act with its signatures."""

    act: KeyAct
    acceptance: Signature | None
    approvals: tuple[Approval, ...] = ()
    basis: dict[str, Any] = field(default_factory=dict)  # of a promotion: the block below and the policy

    def to_json(self) -> dict[str, Any]:
        value = self.act.to_json() | self.basis
        if self.acceptance is not None:
            value["acceptance"] = self.acceptance.to_json()
        return {**value, "approvals": [each.to_json() for each in self.approvals]}

    def check_acceptance(self) -> None:
        """Raise unless the new key, if any, accepted the act."""
        new_key, found = self.act.new_key, self.acceptance
        if new_key is None:
            return
        try:
            if found is None or found.alg != new_key.alg:
                raise Invalid("its algorithm is not that of the key")
            new_key.verify(Tag.KEY_ACCEPTANCE + jcs.encode(self.act.to_json()), found.raw)
        except RopewalkError as error:
            raise SigInvalid(f"the new key has not accepted: {error.detail}") from error


def maybe_key_statement(raw: bytes) -> bool:
    """Return whether canonical bytes could be a key statement: cheap, with no false negatives.

    >>> maybe_key_statement(b'{"event_type":"disk.full"}')
    False
    """
    return _ANY_HINT in raw and any(hint in raw for hint in _HINTS)


def is_key_statement(envelope: Envelope) -> bool:
    """Return whether an envelope is a key statement."""
    return str(envelope.fields["event_type"]).startswith(_PREFIXES)


def parse_key_statement(envelope: Envelope) -> KeyStatement:
    """Parse the key statement of an envelope; only the form is checked."""
    act = TYPES.get(envelope.event_type)
    payload = envelope.payload
    if act is None:
        raise _wrong(f"type {envelope.event_type[:80]!r} is not one of {', '.join(TYPES)}")
    if envelope.event_class != "Alert" or not isinstance(payload, dict):
        raise _wrong("it must be an Alert with an inline payload")
    value = cast("dict[str, Any]", payload)
    approvals, acceptance = value.get("approvals"), value.get("acceptance")
    if not isinstance(approvals, list) or ("acceptance" in value) != (act in ("rotate", "promote")):
        raise _wrong("approvals must be a list, and a new key must accept")
    basis = {name: value[name] for name in BASIS.get(act, ()) if name in value}
    if len(basis) != len(BASIS.get(act, ())):
        raise _wrong(f"{act} must have {' and '.join(BASIS[act])}")
    found = parse_act({k: v for k, v in value.items() if k not in {"approvals", "acceptance", *basis}})
    if found.act != act:
        raise _wrong(f"type {envelope.event_type} does not match the act {found.act}")
    return KeyStatement(
        found,
        Signature.from_json(acceptance) if acceptance is not None else None,
        tuple(map(Approval.from_json, approvals)),
        basis,
    )


def key_envelope(
    act: KeyAct,
    key: SigningKey,
    timestamp: str,
    *,
    new_key: SigningKey | None = None,
    approvals: Iterable[Approval] = (),
    protocol_version: str = "1.0.0",
    basis: dict[str, Any] | None = None,
) -> Envelope:
    """Return the act as an envelope, signed by the channel's key and accepted by the new one, if any.

    >>> old, new = (SigningKey.generate("ed25519", bytes([n]) * 32) for n in (1, 2))
    >>> noon = "2024-11-01T12:00:00Z"
    >>> act = KeyAct("rotate", "ea.core", old.public.identity(), noon, noon, new.public)
    >>> said = key_envelope(act, old, noon, new_key=new)
    >>> said.event_type, parse_key_statement(said).act == act
    ('ledger.key_rotation', True)
    """
    acceptance = None
    if new_key is not None:
        signed = new_key.sign(Tag.KEY_ACCEPTANCE + jcs.encode(act.to_json()))
        acceptance = Signature(new_key.alg, signed)
    return build(
        key,
        domain=DOMAIN,
        event_class="Alert",
        event_type=_TYPE_OF[act.act],
        payload=cast(jcs.Json, KeyStatement(act, acceptance, tuple(approvals), basis or {}).to_json()),
        timestamp=timestamp,
        protocol_version=protocol_version,
    )
