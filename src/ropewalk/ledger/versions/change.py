"""Change the lifecycle of a version with approvals, if a policy requires them, and record it in a channel."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ropewalk.errors import Denied, Replayed, RopewalkError
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.block.index_keys import claim_key
from ropewalk.ledger.channel.channel import current_policy, open_log
from ropewalk.ledger.channel.settings import channels
from ropewalk.ledger.envelope.fields import format_timestamp
from ropewalk.ledger.keys.approvals import Approval, is_controlled, require_approvals
from ropewalk.ledger.replay.reducers import Reducer
from ropewalk.ledger.rules.policy import Policy
from ropewalk.ledger.versions.lifecycle import check_move, move_version, version_to_write
from ropewalk.ledger.versions.rehearse import ShippedCheck
from ropewalk.ledger.versions.statements import VersionAct, act_name, version_envelopes
from ropewalk.ledger.versions.versions import Lifecycle


def _asking(home: Path) -> list[str]:
    """Return the channels whose policy requires approvals or rehearsals for a version change."""
    found = []
    for each in channels(home):
        policy = current_policy(home, each)
        if policy is not None and (policy.rehearsals or is_controlled(policy, "version")):
            found.append(each)
    return found


def check_change(
    home: Path,
    act: VersionAct,
    approvals: Sequence[Approval],
    *,
    reducer: Reducer | None = None,
    now_ns: Callable[[], int] = time.time_ns,
) -> Policy | None:
    """Return the policy of the channel that records a change; raise unless every asking channel accepts it."""
    asking = [each for each in _asking(home) if each != act.channel]
    policies = [current_policy(home, each) for each in (act.channel, *asking)]
    for policy in policies:
        if policy is not None:
            require_approvals(act.to_json(), approvals, policy.controls)
    check_move(home, act.protocol_version, act.stage, sunset=act.sunset, grace_days=act.grace_days)
    ShippedCheck(home, act, reducer, now_ns()).require((act.channel, *asking))
    return policies[0]


def change_version(
    home: Path,
    act: VersionAct,
    keys: Sequence[SigningKey],
    approvals: Sequence[Approval] = (),
    *,
    reducer: Reducer | None = None,
    now_ns: Callable[[], int] = time.time_ns,
    wait_s: float = 0.0,
) -> tuple[Lifecycle, int]:
    """Move a version as approved; return its new state, and the height at which the channel records it.

    It is recorded first: after a crash the same change can be made again, and is not recorded twice. Every local
    channel that requires approvals or rehearsals must accept it. `reducer` is that of the rehearsals, if it is not
    built in.
    """
    policy = check_change(home, act, approvals, reducer=reducer, now_ns=now_ns)
    with open_log(home, act.channel, keys[0], also=keys[1:], now_ns=now_ns, wait_s=wait_s) as opened:
        version = version_to_write(home, policy, now_ns())
        key = next((key for key in keys if key.public == opened.log.key_history.current.key), keys[0])
        pair = version_envelopes(act, approvals, key, format_timestamp(now_ns()), version)
        outcomes = opened.log.submit_many(each.raw for each in pair)
        for outcome in outcomes:
            if isinstance(outcome, RopewalkError) and not isinstance(outcome, Replayed):
                raise outcome
        place = opened.index.claim(claim_key("Result", act_name(act)))
        assert place is not None  # sealed just now, or before an interruption
    moved = move_version(
        home,
        act.protocol_version,
        act.stage,
        sunset=act.sunset,
        grace_days=act.grace_days,
        recorded=(act.channel, place[0]),
    )
    return moved, place[0]


def require_no_approvals(home: Path) -> None:
    """Raise if a change without approvals is not allowed here."""
    asking = _asking(home)
    if asking:
        raise Denied(
            f"channel {asking[0]} requires approvals or rehearsals for a version change",
            advice="Name the channel with --channel; --propose writes the change for approvers.",
        )
