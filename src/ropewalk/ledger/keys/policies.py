"""The policies of a channel over time (S4 §13): which one is in force at which height.

A rotation is a statement like those about keys, signed by the key that seals its block, and carries both policies:

    ledger.policy_rotation   {"version":1, "act":"policy", "channel", "key", "since", "reason",
                              "policy_hash":"<hex>"|null, "new_policy_hash":"<hex>",
                              "policy":{policy}|null, "new_policy":{policy}, "approvals":[…]}

Its block is made under the old policy; every block above names the new one. The approvals that any `control` rule of
the old policy asks for are needed, whatever acts that rule names: a policy must not be a way around its own rules.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ropewalk.errors import Unverified
from ropewalk.kernel import jcs
from ropewalk.ledger.block.block import BlockRecord
from ropewalk.ledger.keys.approvals import Approval, require_approvals
from ropewalk.ledger.keys.statements import KeyAct, KeyStatement

if TYPE_CHECKING:
    from ropewalk.ledger.rules.policy import Policy


class PolicyHistory:
    """The first policy of a channel, if it is known, and its rotations so far."""

    def __init__(self, first: Policy | None) -> None:
        self._first = first
        self._rotations: list[tuple[int, bytes | None, Policy]] = []

    @property
    def current(self) -> Policy | None:
        """The newest policy."""
        return self._rotations[-1][2] if self._rotations else self._first

    def at(self, height: int) -> Policy | None:
        """Return the policy in force for a block of that height, if it is known."""
        return next((each for above, _, each in reversed(self._rotations) if above < height), self._first)

    def find(self, policy_hash: bytes | None) -> Policy | None:
        """Return a policy of this channel by its hash."""
        known = [self._first, *(each for _, _, each in self._rotations)]
        return next((each for each in known if each is not None and each.hash == policy_hash), None)

    def height_of(self, policy_hash: bytes) -> int | None:
        """Return the height of the newest rotation to a policy; None if there was none."""
        return next((at for at, _, each in reversed(self._rotations) if each.hash == policy_hash), None)

    def rotated(self, height: int, old: bytes | None, new: Policy) -> None:
        """Add a rotation that was checked."""
        self._rotations.append((height, old, new))

    def fits(self, height: int, found: bytes | None, pinned: bytes | None) -> bool:
        """Return whether a block of that height may have that policy.

        `pinned` is the policy that a trust file names: the first one, or one of those that followed it.
        """
        if not self._rotations:
            return pinned is None or found == pinned
        hashes = [self._rotations[0][1], *(each.hash for _, _, each in self._rotations)]
        passed = sum(above < height for above, _, _ in self._rotations)
        return found == hashes[passed] and (pinned is None or pinned in hashes)


def policy_basis(old: Policy | None, new: Policy) -> dict[str, Any]:
    """Return what a policy rotation carries: both policies."""
    return {
        "policy": None if old is None else jcs.parse(old.to_bytes()),
        "new_policy": jcs.parse(new.to_bytes()),
    }


def check_policy_rotation(said: KeyStatement, record: BlockRecord) -> Policy:
    """Return the new policy of a rotation; raise unless it is valid in its block."""
    from ropewalk.ledger.rules.policy import parse_policy

    act, old = said.act, None
    if said.basis["policy"] is not None:
        old = parse_policy(jcs.encode(said.basis["policy"]))
    new = parse_policy(jcs.encode(said.basis["new_policy"]))
    if not record.header.policy_hash == act.old_hash == (old.hash if old is not None else None):
        raise Unverified("the old policy must be that of the block")
    if act.new_hash != new.hash or new.hash == act.old_hash:
        raise Unverified("the new policy must be the one that the act names, and another than the old one")
    require_policy_approvals(act, old, said.approvals)
    return new


def check_newer(act: KeyAct, changes: Iterable[KeyAct]) -> None:
    """Raise if a change of settings is one of the former ones, or older: its approvals would count twice, or too late.

    >>> act = KeyAct("policy", "ops", bytes(32), "2024-11-01T12:00:00Z")
    >>> check_newer(act, [act])
    Traceback (most recent call last):
    ropewalk.errors.Unverified: the policy change of 2024-11-01T12:00:00Z was made before, or is older than the last one
    """
    if any(each.act == act.act and (each == act or act.since_ns < each.since_ns) for each in changes):
        raise Unverified(
            f"the {act.act} change of {act.since} was made before, or is older than the last one"
        )


def changed_ns(act: str, changes: Iterable[KeyAct]) -> int:
    """Return the date of the last change of these settings, 0 if there was none: the next one must not be older."""
    return max((each.since_ns for each in changes if each.act == act), default=0)


def require_policy_approvals(act: KeyAct, old: Policy | None, approvals: Iterable[Approval]) -> None:
    """Raise `Denied` unless every control rule of the old policy is satisfied, whatever acts it names."""
    if old is not None:
        controls = [replace(each, acts=frozenset((act.act,))) for each in old.controls]
        require_approvals(act.to_json(), approvals, controls)
