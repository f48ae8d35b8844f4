"""Approvals (S4 §13, §16): acts that need several approvers, and their signatures.

An act is a small object that describes it completely: `{"version":1,"act":"rotate","channel":…}`. An approver
signs its canonical bytes, so that all approve the same act. An approval is a file:

    {"version":1, "kind":"approval", "act":{…}, "approver":{identity}, "signature":{"alg","sig"}}

A rule of the channel's policy names the approvers and how many are needed:

    {"id","name","version","kind":"control","decision":"deny", "acts":["rotate",…], "approvals":2,
     "approvers":[{"name","identity_type","public_key"}…]}

People are identified by the names in that rule: two keys of one person count as one approval.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ropewalk.errors import Denied, Invalid, InvalidKey, RopewalkError, SigInvalid
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import Tag
from ropewalk.kernel.keys import PublicKey, Signature, SigningKey
from ropewalk.kernel.schema.form import StrictForm

if TYPE_CHECKING:
    from ropewalk.ledger.rules.policy import Policy

ACTS: Final = ("rotate", "retire", "revoke", "destroy", "promote", "policy", "evidence", "version")
APPROVALS_MAX: Final = 32
APPROVALS_BYTES_MAX: Final = 1 << 20
_WORDS: Final = {
    "version": "change a version",
    "promote": "promote a replica",
    "policy": "rotate the policy",
    "evidence": "change the trusted evidence",
}
_MEMBERS: Final = frozenset(("kind", "act", "approver", "signature"))
_FORM: Final = StrictForm("approval", "Make one with `ropewalk ledger key approve PROPOSAL --key NAME`.")
_wrong = _FORM.wrong


@dataclass(frozen=True, slots=True)
class Approval:
    """An approver's signature under an act."""

    approver: PublicKey
    signature: Signature

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form stored with the act."""
        return {"approver": self.approver.to_json(), "signature": self.signature.to_json()}

    @classmethod
    def from_json(cls, value: Any) -> Approval:
        """Parse the JSON form; only the form is checked."""
        if not isinstance(value, dict) or value.keys() != {"approver", "signature"}:
            raise Invalid("an approval must have approver and signature")
        return cls(PublicKey.from_json(value["approver"]), Signature.from_json(value["signature"]))

    def to_bytes(self, act: dict[str, Any]) -> bytes:
        """Return the approval file, which includes the act so that people can read it."""
        return jcs.encode({"version": 1, "kind": "approval", "act": act, **self.to_json()})

    def check(self, act: dict[str, Any]) -> None:
        """Raise unless the signature is valid for that act."""
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
    """Parse an approval file; return the act and the approval. The signature is checked.

    >>> parse_approval(b"{}")
    Traceback (most recent call last):
    ropewalk.errors.Invalid: approval: expected version, kind, act, approver and signature
    """
    expected = "version, kind, act, approver and signature"
    value = _FORM.members(jcs.parse(raw, bytes_max=APPROVALS_BYTES_MAX), _MEMBERS, expected)
    if value["kind"] != "approval":
        raise _wrong(f"expected {expected}")
    act: Any = value["act"]
    if not isinstance(act, dict):
        raise _wrong("the act must be an object")
    found = Approval.from_json({"approver": value["approver"], "signature": value["signature"]})
    found.check(act)
    return act, found


@dataclass(frozen=True, slots=True)
class Quorum:
    """People with their keys, and how many of them must approve. Two keys of one person count once."""

    count: int
    people: tuple[tuple[str, PublicKey], ...]

    def name_of(self, key: PublicKey) -> str | None:
        """Return the person who has the key; None for a key that is not listed."""
        return next((name for name, known in self.people if known == key), None)

    def approved_by(self, approvals: Iterable[Approval]) -> set[str]:
        """Return the people among those who approved. The signatures must have been checked."""
        names = {self.name_of(each.approver) for each in approvals}
        return {name for name in names if name is not None}

    def is_met(self, names: Collection[str]) -> bool:
        """Return whether so many people are enough."""
        return len(names) >= self.count


@dataclass(frozen=True, slots=True)
class Control:
    """Which acts need which quorum."""

    acts: frozenset[str]
    quorum: Quorum


def parse_control(rule: dict[str, Any]) -> Control:
    """Parse a rule of kind control; raise `Invalid` if it is inconsistent.

    >>> parse_control({"acts": ["rotate"], "approvals": 2, "approvers": []})
    Traceback (most recent call last):
    ropewalk.errors.Invalid: approvals must be at most the number of approvers (0), got 2
    """
    acts, count = rule["acts"], rule["approvals"]
    if not acts or not all(each in ACTS for each in acts):
        raise Invalid(f"acts must be a list of {', '.join(ACTS)}")
    people = parse_people(rule["approvers"], "approver", count, "approvals")
    names = {name for name, _ in people}
    if "promote" in acts and (count < 2 or 2 * count <= len(names)):
        # Any two sets of approvers then share a person, who approves one promotion of an epoch only.
        raise Invalid(
            f"approvals must be at least 2 and more than half of the approvers to promote, got {count} of {len(names)}"
        )
    return Control(frozenset(acts), Quorum(count, people))


def parse_people(value: list[Any], one: str, count: Any, counted: str) -> tuple[tuple[str, PublicKey], ...]:
    """Return names and keys of the approvers or followers of a rule that asks for so many of them."""
    people: list[tuple[str, PublicKey]] = []
    for each in value:
        name = each.get("name") if isinstance(each, dict) else None
        if not isinstance(name, str) or not name:
            raise Invalid(f"{one}s must have name, identity_type and public_key")
        try:
            people.append((name, PublicKey.from_json({k: v for k, v in each.items() if k != "name"})))
        except InvalidKey as error:
            raise Invalid(f"{one} {name}: {error.detail}") from error
    if len({key for _, key in people}) != len(people):
        raise Invalid(f"a key of the {one}s is listed twice")
    if type(count) is not int or not 1 <= count <= APPROVALS_MAX:
        raise Invalid(f"{counted} must be a number from 1 to {APPROVALS_MAX}")
    names = {name for name, _ in people}
    if count > len(names):
        raise Invalid(f"{counted} must be at most the number of {one}s ({len(names)}), got {count}")
    return tuple(people)


def is_controlled(policy: Policy | None, act: str) -> bool:
    """Return whether a rule of the policy asks for approvals of such acts."""
    return policy is not None and any(act in each.acts for each in policy.controls)


def require_approvals(
    act: dict[str, Any], approvals: Iterable[Approval], controls: Iterable[Control]
) -> tuple[str, ...]:
    """Return the names of the approvers; raise `Denied` if the policy requires more. Every signature must be valid."""
    given = tuple(approvals)
    if len(given) > APPROVALS_MAX:
        raise Invalid(f"at most {APPROVALS_MAX} approvals are allowed, got {len(given)}")
    for each in given:
        each.check(act)
    names: set[str] = set()
    for control in controls:
        if act.get("act") not in control.acts:
            continue
        people = control.quorum.approved_by(given)
        if not control.quorum.is_met(people):
            who = f"only from {', '.join(sorted(people))}" if people else "none from an approver"
            raise Denied(
                f"to {_WORDS.get(act['act'], act['act'])} needs {control.quorum.count} approvals, got {who}",
                advice="Collect approvals with `ropewalk ledger key approve`: the policy names the approvers.",
            )
        names |= people
    return tuple(sorted(names))
