"""Approvals (S4 §13, §16): acts that take two people, and the signatures that show there were two.

An act is a small object that says all there is to say about it: `{"version":1,"act":"rotate","channel":…}`. Whoever
approves signs its canonical bytes, so that all approve of the same. An approval is a file:

    {"version":1, "kind":"approval", "act":{…}, "approver":{identity}, "signature":{"alg","sig"}}

Who may approve, and how many must, a rule of the channel's policy says:

    {"id","name","version","kind":"control","decision":"deny", "acts":["rotate",…], "approvals":2,
     "approvers":[{"name","identity_type","public_key"}…]}

People are told apart by the names in that rule: two keys of one person are one approval.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from ropewalk.errors import Denied, Invalid, InvalidKey, RopewalkError, SigInvalid
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import Tag
from ropewalk.kernel.keys import PublicKey, Signature, SigningKey

ACTS: Final = ("rotate", "retire", "revoke", "destroy", "version")
APPROVALS_MAX: Final = 32
APPROVALS_BYTES_MAX: Final = 1 << 20
_WORDS: Final = {"version": "change a version"}
_MEMBERS: Final = frozenset(("version", "kind", "act", "approver", "signature"))


@dataclass(frozen=True, slots=True)
class Approval:
    """Somebody's signature under an act."""

    approver: PublicKey
    signature: Signature

    def to_json(self) -> dict[str, Any]:
        """As it stands beside the act it approves of."""
        return {"approver": self.approver.to_json(), "signature": self.signature.to_json()}

    @classmethod
    def from_json(cls, value: Any) -> Approval:
        """From where it stands beside its act; form only."""
        if not isinstance(value, dict) or value.keys() != {"approver", "signature"}:
            raise Invalid("an approval has approver and signature")
        return cls(PublicKey.from_json(value["approver"]), Signature.from_json(value["signature"]))

    def to_bytes(self, act: dict[str, Any]) -> bytes:
        """The approval as a file, with the act it is about, so that a person can read what was approved."""
        return jcs.encode({"version": 1, "kind": "approval", "act": act, **self.to_json()})

    def check(self, act: dict[str, Any]) -> None:
        """Raise unless the signature holds for that act."""
        try:
            if self.signature.alg != self.approver.alg:
                raise Invalid(f"{self.signature.alg} signature of a {self.approver.alg} key")
            self.approver.verify(Tag.APPROVAL + jcs.encode(act), self.signature.raw)
        except RopewalkError as error:
            raise SigInvalid(f"the approval of {self.approver.did()}: {error.detail}") from error


def approve(act: dict[str, Any], key: SigningKey) -> Approval:
    """Sign an act.

    >>> key = SigningKey.generate("ed25519", bytes(32))
    >>> made = approve({"version": 1, "act": "retire"}, key)
    >>> parse_approval(made.to_bytes({"version": 1, "act": "retire"})) == ({"version": 1, "act": "retire"}, made)
    True
    """
    return Approval(key.public, Signature(key.alg, key.sign(Tag.APPROVAL + jcs.encode(act))))


def parse_approval(raw: bytes) -> tuple[dict[str, Any], Approval]:
    """The act and the approval in a file; the signature is checked.

    >>> parse_approval(b"{}")
    Traceback (most recent call last):
    ropewalk.errors.Invalid: approval: expected version, kind, act, approver and signature
    """
    value = jcs.parse(raw, bytes_max=APPROVALS_BYTES_MAX)
    if not isinstance(value, dict) or value.keys() != _MEMBERS or value["kind"] != "approval":
        raise _wrong("expected version, kind, act, approver and signature")
    if value["version"] != 1 or value["version"] is True:
        raise _wrong(f"version {value['version']!r:.20} is not known; 1 is")
    act: Any = value["act"]
    if not isinstance(act, dict):
        raise _wrong("the act is an object")
    found = Approval.from_json({"approver": value["approver"], "signature": value["signature"]})
    found.check(act)
    return act, found


@dataclass(frozen=True, slots=True)
class Control:
    """Which acts take how many people, and who they are."""

    acts: frozenset[str]
    approvals: int
    approvers: tuple[tuple[str, PublicKey], ...]


def parse_control(rule: dict[str, Any]) -> Control:
    """What a rule of the kind control says; raises `Invalid` where it makes no sense.

    >>> parse_control({"acts": ["rotate"], "approvals": 2, "approvers": []})
    Traceback (most recent call last):
    ropewalk.errors.Invalid: 2 approvals are demanded of 0 people
    """
    acts, count = rule["acts"], rule["approvals"]
    if not acts or not all(each in ACTS for each in acts):
        raise Invalid(f"acts are some of {', '.join(ACTS)}")
    people: list[tuple[str, PublicKey]] = []
    for each in rule["approvers"]:
        name = each.get("name") if isinstance(each, dict) else None
        if not isinstance(name, str) or not name:
            raise Invalid("approvers have name, identity_type and public_key")
        try:
            people.append((name, PublicKey.from_json({k: v for k, v in each.items() if k != "name"})))
        except InvalidKey as error:
            raise Invalid(f"approver {name}: {error.detail}") from error
    if len({key for _, key in people}) != len(people):
        raise Invalid("a key of the approvers is listed twice")
    if type(count) is not int or not 1 <= count <= APPROVALS_MAX:
        raise Invalid(f"approvals is a number from 1 to {APPROVALS_MAX}")
    names = {name for name, _ in people}
    if count > len(names):
        raise Invalid(f"{count} approvals are demanded of {len(names)} people")
    return Control(frozenset(acts), count, tuple(people))


def require_approvals(
    act: dict[str, Any], approvals: Iterable[Approval], controls: Iterable[Control]
) -> tuple[str, ...]:
    """Who has approved, by name; raises `Denied` where the policy demands more people. Every signature must hold."""
    given = tuple(approvals)
    if len(given) > APPROVALS_MAX:
        raise Invalid(f"{len(given)} approvals; at most {APPROVALS_MAX}")
    for each in given:
        each.check(act)
    names: set[str] = set()
    for control in controls:
        if act.get("act") not in control.acts:
            continue
        people = {name for name, key in control.approvers if any(each.approver == key for each in given)}
        if len(people) < control.approvals:
            who = f"{', '.join(sorted(people))} alone" if people else "nobody who may"
            raise Denied(
                f"to {_WORDS.get(act['act'], act['act'])} takes {control.approvals} people, and {who} has approved",
                advice="Collect approvals with `ropewalk ledger key approve`: the policy names who may give them.",
            )
        names |= people
    return tuple(sorted(names))


def _wrong(what: str) -> Invalid:
    return Invalid(
        f"approval: {what}", advice="Make one with `ropewalk ledger key approve PROPOSAL --key NAME`."
    )
