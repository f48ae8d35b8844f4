"""Lifetimes (S4 §13): how long the key of a channel and its policy are valid, with time to replace them.

    {"kind":"key_lifetime", "days":90, "overlap_days":30}
    {"kind":"policy_lifetime", "since":"<time>", "until":"<time>", "overlap_days":30}

Both are rules of the policy, so every header has their hash. After the end only key
statements are accepted, with which a channel gets its next key. Existing blocks stay valid.
During the overlap, the last days of a lifetime, a successor is due and warnings are shown.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from ropewalk.errors import Denied, Invalid, InvalidEnvelope
from ropewalk.ledger.envelope.fields import format_timestamp, parse_timestamp

DAY_NS: Final = 86_400 * 10**9
DAYS_MAX: Final = 36_525  # a hundred years


@dataclass(frozen=True, slots=True)
class Lifetime:
    """Start, end and renewal date of a key or policy, by `rule` of the policy."""

    what: str
    rule: str
    since_ns: int
    until_ns: int
    due_ns: int
    advice: str

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form that `ledger status` prints."""
        return {
            "what": self.what,
            "rule": self.rule,
            "until": format_timestamp(self.until_ns),
            "due": format_timestamp(self.due_ns),
        }


def lifetimes_of(rules: Iterable[dict[str, Any]], key_since_ns: int) -> tuple[Lifetime, ...]:
    """Return the lifetimes that rules give the policy, and a key in use since a time.

    >>> rule = {"id": "k", "kind": "key_lifetime", "days": 90, "overlap_days": 30}
    >>> lifetimes_of([rule], 0)[0].to_json()["until"]
    '1970-04-01T00:00:00Z'
    """
    found = []
    for rule in rules:
        if rule["kind"] == "key_lifetime":
            until_ns = key_since_ns + rule["days"] * DAY_NS
            advice = "Give the channel its next key: `ropewalk ledger key rotate`."
            found.append(_lifetime("the key", rule, key_since_ns, until_ns, advice))
        elif rule["kind"] == "policy_lifetime":
            since_ns = parse_timestamp(rule["since"]) if "since" in rule else 0
            advice = "Give the channel its next policy: `ropewalk ledger policy rotate`."
            found.append(_lifetime("the policy", rule, since_ns, parse_timestamp(rule["until"]), advice))
    return tuple(found)


def check_lifetimes(lifetimes: Iterable[Lifetime], now_ns: int) -> None:
    """Raise `Denied` if one has ended, or not begun."""
    for each in lifetimes:
        if now_ns >= each.until_ns:
            raise Denied(
                f"{each.what} of this channel ended on {format_timestamp(each.until_ns)} (rule {each.rule}): nothing "
                "new is accepted; existing blocks stay valid",
                advice=each.advice,
            )
        if now_ns < each.since_ns:
            raise Denied(
                f"{each.what} of this channel begins on {format_timestamp(each.since_ns)} (rule {each.rule})",
                advice="Wait for that date.",
            )


def lifetime_notices(lifetimes: Iterable[Lifetime], now_ns: int) -> list[str]:
    """Return warnings, one per lifetime that has ended or ends soon."""
    lines = []
    for each in lifetimes:
        until = format_timestamp(each.until_ns)
        if now_ns >= each.until_ns:
            lines.append(f"{each.what} ended on {until}: nothing new is accepted. {each.advice}")
        elif now_ns >= each.due_ns:
            days = (each.until_ns - now_ns) // DAY_NS
            lines.append(f"{each.what} ends on {until}, in {days} days. {each.advice}")
    return lines


def lifetime_rule_fault(rule: dict[str, Any]) -> str | None:
    """Return what is wrong with a lifetime rule, beyond its form."""
    days, overlap = rule.get("days", DAYS_MAX), rule["overlap_days"]
    if type(days) is not int or type(overlap) is not int or not 0 <= overlap <= days <= DAYS_MAX or not days:
        return f"days must be a number from 1 to {DAYS_MAX}, overlap_days from 0 to days"
    try:
        times = [parse_timestamp(rule[name]) for name in ("since", "until") if name in rule]
    except (InvalidEnvelope, TypeError) as error:
        return error.detail if isinstance(error, Invalid) else "since and until must be RFC 3339 times in UTC"
    return "until must not be before since" if times != sorted(times) else None


def _lifetime(what: str, rule: dict[str, Any], since_ns: int, until_ns: int, advice: str) -> Lifetime:
    return Lifetime(what, rule["id"], since_ns, until_ns, until_ns - rule["overlap_days"] * DAY_NS, advice)
