"""The governance rules of a repository's policy: who may propose, approve and execute which action. Pure.

    {"groups": {"owners": [{"name", "identity_type", "public_key"}…]},
     "governance": {"consumer.reset": {"quorum": {"at_least": 2, "group": "owners"}, "ttl": "P2D",
                                       "propose": "owners", "execute": "owners"}}}

`{"all_of": [GROUP…]}` asks for every member of these groups. An action without a rule cannot be proposed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ropewalk.errors import Invalid
from ropewalk.gitlog.privacy.rules import SCHEMA
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import ContentId, content_id
from ropewalk.kernel.schema import shipped as schema
from ropewalk.ledger.keys.approvals import Quorum, parse_people

ACTIONS: Final = ("consumer.reset", "key.rotate", "lifecycle.change", "policy.change", "policy.rotate")
TTL_DEFAULT_MS: Final = 7 * 86_400_000
TTL_MS_MAX: Final = 100 * 365 * 86_400_000
POLICY_BYTES_MAX: Final = 512 << 10  # a policy change carries the whole document in an event
_UNITS: Final = {
    "Y": 365 * 86_400,
    "M": 30 * 86_400,
    "W": 7 * 86_400,
    "D": 86_400,
    "h": 3_600,
    "m": 60,
    "s": 1,
}


@dataclass(frozen=True, slots=True)
class GovernanceRule:
    """Who decides about one action, and for how long a proposal is open."""

    quorum: Quorum
    proposers: Quorum
    executors: Quorum
    ttl_ms: int


@dataclass(frozen=True, slots=True)
class GovernancePolicy:
    """The rules of one policy document; `version` is its content id."""

    version: ContentId
    rules: Mapping[str, GovernanceRule]


def parse_governance(raw: bytes) -> GovernancePolicy:
    """Parse the governance rules of a policy document; raise `Invalid` if one of them could never be met.

    >>> parse_governance(b'{"governance": {"policy.change": {"quorum": {"at_least": 1, "group": "owners"}}}}')
    Traceback (most recent call last):
    ropewalk.errors.Invalid: governance.policy.change: there is no group "owners"
    """
    document: Any = jcs.parse(raw, bytes_max=POLICY_BYTES_MAX)
    schema.validate(SCHEMA, document)
    rules: dict[str, GovernanceRule] = {}
    for action, said in document.get("governance", {}).items():
        if action not in ACTIONS:
            continue  # a rule of other software
        try:
            rules[action] = _rule(said, document.get("groups", {}))
        except Invalid as error:
            raise Invalid(f"governance.{action}: {error.detail}") from error
    return GovernancePolicy(content_id(jcs.encode(document)), rules)


def _rule(said: Mapping[str, Any], groups: Mapping[str, Any]) -> GovernanceRule:
    if "quorum" not in said:
        raise Invalid("a quorum is required")
    asked = said["quorum"]
    quorum = _quorum(asked.get("all_of") or [asked["group"]], groups, asked.get("at_least"))
    roles = [_quorum([said[role]], groups, 1) if role in said else quorum for role in ("propose", "execute")]
    ttl_ms = _ttl_ms(said.get("ttl"))
    if ttl_ms > TTL_MS_MAX:
        raise Invalid("ttl must be at most 100 years")
    return GovernanceRule(quorum, roles[0], roles[1], ttl_ms)


def _quorum(names: list[str], groups: Mapping[str, Any], count: int | None) -> Quorum:
    """Return so many people of some groups, None for all; the same entry in two groups counts once."""
    entries: list[Any] = []
    for name in names:
        if name not in groups:
            raise Invalid(f'there is no group "{name[:100]}"')
        entries += [each for each in groups[name] if each not in entries]
    needed = len({each["name"] for each in entries}) if count is None else count
    return Quorum(needed, parse_people(entries, "approver", needed, "approvals"))


def _ttl_ms(said: int | str | None) -> int:
    """Return a time to live, given in seconds or as an ISO 8601 duration (a month has 30 days, a year 365).

    >>> _ttl_ms("P1DT2H"), _ttl_ms(60)
    (93600000, 60000)
    """
    if said is None:
        return TTL_DEFAULT_MS
    if isinstance(said, int):
        return said * 1000
    date, _, clock = said.removeprefix("P").partition("T")
    parts = re.findall(r"([0-9.]+)([A-Za-z])", date + clock.lower())
    ms = sum(float(number) * _UNITS[unit] for number, unit in parts) * 1000
    return round(min(ms, TTL_MS_MAX + 1))  # enough digits are infinity
