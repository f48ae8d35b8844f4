"""What became of each proposal: events in, states out. Pure; the caller gives the policies and the time.

A statement is signed with `approve` of the ledger's approvals, so that one function checks both. It names the proposal
by its content id, which covers its ULID, effect and policy: a signature holds for no other proposal. The state does not
depend on how often a signed statement is in the log: a rejection is final, and repeated statements change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from ropewalk.bridge.governance.policy import GovernancePolicy, GovernanceRule
from ropewalk.errors import Invalid, RopewalkError
from ropewalk.gitlog.core.commit import rfc3339
from ropewalk.gitlog.core.envelope import Event
from ropewalk.kernel.digest import ContentId, content_id
from ropewalk.kernel.ulid import Ulid, time_ms
from ropewalk.ledger.keys.approvals import Approval

State = Literal[
    "open", "granted", "executing", "executed", "rejected", "withdrawn", "expired", "stale", "invalid"
]
_MORE: Final = {
    "approved": (),
    "rejected": (),
    "executing": ("before",),
    "executed": ("result",),
}  # signed, too
IGNORED_MAX: Final = 100  # events without effect that are listed with a proposal


@dataclass(slots=True)
class Proposal:
    """One proposal with what counts of its votes. `ignored` lists the events that do not count, and why."""

    ulid: Ulid
    content_id: ContentId
    effect: dict[str, Any]
    reason: str
    policy: str
    proposer: str = ""
    expires_ms: int = 0
    needed: int = 0
    approved: dict[str, dict[str, Any]] = field(default_factory=dict)  # by name, the payload of the event
    rejected: set[str] = field(default_factory=set)
    executing: dict[str, Any] | None = None
    executed: dict[str, Any] | None = None
    state: State = "open"
    fault: str = ""
    replayed: bool = False  # the call found that it was done before
    ignored: list[tuple[str, str]] = field(default_factory=list)

    @property
    def action(self) -> str:
        """The kind of its effect."""
        return str(self.effect.get("kind"))

    def to_json(self) -> dict[str, Any]:
        """Return what `governance show --json` prints."""
        return {
            "proposal": self.ulid,
            "proposal_id": self.content_id,
            "state": self.state,
            "action": self.action,
            "effect": self.effect,
            "reason": self.reason,
            "proposer": self.proposer or None,
            "policy": self.policy,
            "expires": rfc3339(self.expires_ms) if self.expires_ms else None,
            "needed": self.needed,
            "approved_by": sorted(self.approved.keys() - self.rejected),
            "rejected_by": sorted(self.rejected),
            "result": self.executed["result"] if self.executed else None,
            "fault": self.fault or None,
            "ignored": [{"ulid": ulid, "why": why} for ulid, why in self.ignored],
        }


def proposal_statement(ulid: str, effect: Mapping[str, Any], reason: str, policy: str) -> dict[str, Any]:
    """Return what a proposer signs."""
    about = {"ulid": ulid, "effect": dict(effect), "reason": reason, "policy": policy}
    return {"version": 1, "act": "governance.propose", **about}


def statement(verb: str, proposal: str, **more: Any) -> dict[str, Any]:
    """Return what a person signs about a proposal, named by its content id."""
    return {"version": 1, "act": f"governance.{verb}", "proposal": proposal, **more}


def decide(
    events: Iterable[Event], policies: Mapping[str, GovernancePolicy], current: str | None, now_ms: int
) -> dict[str, Proposal]:
    """Return every proposal of the log by ULID, with its state at a time.

    `policies` are the policies that were in force here, by content id; `current` is the one in force now.
    """
    cases: dict[str, Proposal] = {}
    rules: dict[str, GovernanceRule] = {}
    for event in events:
        subject, _, verb = event.type.partition(".")
        if subject != "proposal":
            continue
        if verb == "created":
            case = cases[event.ulid] = _created(event)
            try:
                rules[event.ulid] = _check_created(case, event, policies)
            except RopewalkError as error:
                case.state = "stale" if case.policy not in policies and not case.fault else "invalid"
                case.fault = case.fault or error.detail
            continue
        case_of = cases.get(str(event.payload.get("proposal")))
        if case_of is None or case_of.ulid not in rules:
            continue
        try:
            _apply(case_of, rules[case_of.ulid], verb, event)
        except RopewalkError as error:
            if len(case_of.ignored) < IGNORED_MAX:
                case_of.ignored.append((event.ulid, error.detail))
    for ulid, rule in rules.items():
        cases[ulid].state = _state(cases[ulid], rule, current, now_ms)
    return cases


def _created(event: Event) -> Proposal:
    said = event.payload
    effect, reason, policy = said.get("effect"), said.get("reason"), said.get("policy")
    fault = ""
    if not isinstance(effect, dict) or not isinstance(reason, str) or not isinstance(policy, str):
        fault = "effect, reason and policy are required"
    kept = effect if isinstance(effect, dict) else {}
    return Proposal(event.ulid, content_id(event.raw), kept, str(reason or ""), str(policy), fault=fault)


def _check_created(case: Proposal, event: Event, policies: Mapping[str, GovernancePolicy]) -> GovernanceRule:
    """Return the rule that decides about a proposal; raise unless a proposer of that rule has signed it."""
    if case.fault:
        raise Invalid(case.fault)
    if case.policy not in policies:
        raise Invalid("its policy was never in force in this repository")
    rule = policies[case.policy].rules.get(case.action)
    if rule is None:
        raise Invalid(f"the policy has no rule for {case.action}")
    approval = _signed(event, proposal_statement(event.ulid, case.effect, case.reason, case.policy))
    name = rule.proposers.name_of(approval.approver)
    if name is None:
        raise Invalid(f"{approval.approver.did()} may not propose {case.action}")
    case.proposer, case.needed = name, rule.quorum.count
    case.expires_ms = time_ms(event.ulid) + rule.ttl_ms
    return rule


def _signed(event: Event, said: Mapping[str, Any]) -> Approval:
    """Return the approval of an event; raise unless its signature is valid for the statement."""
    try:
        approval = Approval.from_json(event.payload.get("approval"))
    except RopewalkError as error:
        raise Invalid(f"not signed: {error.detail}") from error
    approval.check(dict(said))
    return approval


def _apply(case: Proposal, rule: GovernanceRule, verb: str, event: Event) -> None:
    """Count one event of a proposal, or raise with the reason why it does not count."""
    if verb not in _MORE:
        raise Invalid(f"unknown type {event.type[:60]!r}")
    more = {name: event.payload.get(name) for name in _MORE[verb]}
    approval = _signed(event, statement(verb, case.content_id, **more))
    if verb == "executed":
        if rule.executors.name_of(approval.approver) is None:
            raise Invalid(f"{approval.approver.did()} may not execute it")
        if case.executing is None:
            raise Invalid("its execution was not begun")
        case.executed = case.executed or dict(event.payload)
        return
    if time_ms(event.ulid) > case.expires_ms:
        raise Invalid("late: the proposal had expired")
    if case.executing is not None:
        raise Invalid("late: its execution had begun")
    if verb == "executing":
        if rule.executors.name_of(approval.approver) is None:
            raise Invalid(f"{approval.approver.did()} may not execute it")
        if _votes(case, rule) != "granted":
            raise Invalid("executed without a quorum")
        case.executing = dict(event.payload)
        return
    name = rule.quorum.name_of(approval.approver)
    withdrawn = verb == "rejected" and rule.proposers.name_of(approval.approver) == case.proposer
    if name is None and not withdrawn:
        raise Invalid(f"{approval.approver.did()} is not an approver")
    if verb == "rejected":
        if withdrawn:
            case.state = "withdrawn"
        case.rejected.add(name or case.proposer)
        return
    assert name is not None
    if name in case.rejected:
        raise Invalid(f"{name} has rejected it; that is final")
    if name in case.approved:
        raise Invalid(f"{name} has approved already")
    case.approved[name] = dict(event.payload)


def _votes(case: Proposal, rule: GovernanceRule) -> State:
    """Return what the votes alone say."""
    if case.state == "withdrawn":
        return "withdrawn"
    everyone = {name for name, _ in rule.quorum.people}
    if not rule.quorum.is_met(everyone - case.rejected):
        return "rejected"
    return "granted" if rule.quorum.is_met(case.approved.keys() - case.rejected) else "open"


def _state(case: Proposal, rule: GovernanceRule, current: str | None, now_ms: int) -> State:
    """Return the state now. What was executed stays so; all else ends with its time or its policy."""
    if case.executed is not None:
        return "executed"
    found: State = "executing" if case.executing is not None else _votes(case, rule)
    if found in ("rejected", "withdrawn", "executing"):
        return found
    if now_ms > case.expires_ms:
        return "expired"
    return found if case.policy == current else "stale"
