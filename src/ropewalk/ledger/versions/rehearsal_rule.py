"""The rule of a policy that lets followers rehearse a version first (S4 §16).

    {"id","name","version","kind":"rehearsal","decision":"deny", "rehearsals":1,
     "followers":[{"name","identity_type","public_key"}…], "within_blocks":1000, "downgrade":true}

`within_blocks` (default 1,000) is how far behind the head a rehearsal may end; with `downgrade` the way back must be
rehearsed too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from ropewalk.errors import Invalid
from ropewalk.kernel.keys import PublicKey
from ropewalk.ledger.keys.approvals import parse_people

WITHIN_BLOCKS: Final = 1_000


@dataclass(frozen=True, slots=True)
class RehearsalRule:
    """How many of which followers must rehearse a version, and how recently."""

    followers: tuple[tuple[str, PublicKey], ...]
    rehearsals: int
    within_blocks: int = WITHIN_BLOCKS
    downgrade: bool = False


def parse_rehearsal_rule(rule: dict[str, Any]) -> RehearsalRule:
    """Parse a rule of kind rehearsal; raise `Invalid` if it is inconsistent.

    >>> parse_rehearsal_rule({"followers": [], "rehearsals": 1})
    Traceback (most recent call last):
    ropewalk.errors.Invalid: rehearsals must be at most the number of followers (0), got 1
    """
    within, back, count = (
        rule.get("within_blocks", WITHIN_BLOCKS),
        rule.get("downgrade", False),
        rule["rehearsals"],
    )
    if type(within) is not int or within < 0 or type(back) is not bool:
        raise Invalid("within_blocks must be a number of blocks, downgrade must be true or false")
    return RehearsalRule(
        parse_people(rule["followers"], "follower", count, "rehearsals"), count, within, back
    )
