"""Propose, vote and execute: every step is an event in namespace `governance`, copied to the topic of that name."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from ropewalk.bridge.governance.decision import Proposal, decide, proposal_statement, statement
from ropewalk.bridge.governance.effects import (
    Effect,
    keep_policy,
    kept_policies,
    ledger_approvals,
    parse_effect,
)
from ropewalk.bridge.governance.guard import read_governance
from ropewalk.bridge.governance.policy import (
    POLICY_BYTES_MAX,
    GovernancePolicy,
    GovernanceRule,
    parse_governance,
)
from ropewalk.bridge.mirror import mirror
from ropewalk.disk.durable import read_file
from ropewalk.disk.folder_lock import hold_folder
from ropewalk.errors import Conflict, Denied, Invalid, NotFound, RopewalkError
from ropewalk.gitlog.core.layout import SHIPLOG
from ropewalk.gitlog.repository.repository import GitRepository
from ropewalk.kernel.digest import ContentId
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.keys.approvals import Quorum, approve

NAME = "governance"  # of the namespace and of the topic
LOCK_WAIT_S = 30.0
REASON_MAX = 1_000
_journal = logging.getLogger("ropewalk.governance")


class Governance:
    """Proposals of a repository. One process at a time changes them; any number may read."""

    def __init__(self, git: GitRepository) -> None:
        self._git, self._place = git, git.store.place

    def proposals(self) -> list[Proposal]:
        """Return every proposal with its state now, oldest first."""
        return list(self._decided(self._policies()).values())

    def get(self, proposal: str) -> Proposal:
        """Return one proposal, by its ULID."""
        return self._find(proposal, self._policies())

    def propose(self, effect: Mapping[str, Any], key: SigningKey, *, reason: str = "") -> Proposal:
        """Record a proposal, signed by a key that the policy lets propose such an effect."""
        if len(reason) > REASON_MAX:
            raise Invalid(f"reason must be at most {REASON_MAX} characters, got {len(reason)}")
        change = parse_effect(self._git, effect)
        with self._held():
            policies = self._policies()
            rule = _rule(policies, str(effect["kind"]))
            _person(rule.proposers, key, f"propose {effect['kind']}")
            change.check()
            line = self._git.lines.line(SHIPLOG, NAME, must_exist=False)
            newest = line.span(line.count - 1, line.count)[0].ulid if line.count else None
            ulid = self._git.new_ulid(newest)
            keep_policy(self._git.store)
            said = proposal_statement(ulid, effect, reason, policies[0].version)
            payload = {name: said[name] for name in ("effect", "reason", "policy")}
            self._append("created", {**payload, "approval": approve(said, key).to_json()}, ulid)
            made = self._find(ulid, policies)
        if made.state == "invalid":
            raise Denied(f"the proposal was recorded in another form than it was signed: {made.fault}")
        return made

    def approve(self, proposal: str, key: SigningKey) -> Proposal:
        """Approve a proposal; the same person's second approval changes nothing."""
        with self._held():
            policies = self._policies()
            found, rule = self._votable(proposal, policies)
            name = _person(rule.quorum, key, f"approve {found.action}")
            if name in found.rejected:
                raise Conflict(
                    f"{name} has rejected proposal {proposal}", advice="A rejection is final; propose again."
                )
            if name in found.approved:
                found.replayed = True
                return found
            said = approve(statement("approved", found.content_id), key).to_json()
            votes = {"approvals": len(found.approved.keys() - found.rejected) + 1, "needed": found.needed}
            act = parse_effect(self._git, found.effect).act
            more = {} if act is None else {"act_approval": approve(act, key).to_json()}
            self._append("approved", {"proposal": found.ulid, "approval": said, **more, **votes})
            return self._find(proposal, policies)

    def reject(self, proposal: str, key: SigningKey) -> Proposal:
        """Reject a proposal, which also withdraws an approval; its proposer withdraws it as a whole."""
        with self._held():
            policies = self._policies()
            found, rule = self._votable(proposal, policies)
            if rule.proposers.name_of(key.public) != found.proposer:
                name = _person(rule.quorum, key, f"reject {found.action}")
                if name in found.rejected:
                    found.replayed = True
                    return found
            said = approve(statement("rejected", found.content_id), key).to_json()
            self._append("rejected", {"proposal": found.ulid, "approval": said})
            return self._find(proposal, policies)

    def execute(self, proposal: str, key: SigningKey, keys: Sequence[SigningKey] = ()) -> Proposal:
        """Carry out a granted proposal, once. An interrupted execution is completed; `keys` sign for the ledger."""
        with self._held():
            policies = self._policies()
            found = self._find(proposal, policies)
            if found.state == "executed":
                found.replayed = True
                return found
            rule = _rule([each for each in policies if each.version == found.policy], found.action)
            _person(rule.executors, key, f"execute {found.action}")
            effect = parse_effect(self._git, found.effect)
            votes = [each for name, each in found.approved.items() if name not in found.rejected]
            approvals = ledger_approvals(effect.act, votes)
            if found.state == "executing":
                result = self._resumed(found, effect, policies)
            elif found.state == "granted":
                result = None
                effect.check_ready(approvals, keys)
                before = effect.before()
                said = approve(statement("executing", found.content_id, before=before), key).to_json()
                self._append("executing", {"proposal": found.ulid, "before": before, "approval": said})
                if self._find(proposal, policies).state != "executing":
                    raise Denied("the log does not show that the execution has begun")
            else:
                raise Conflict(
                    f"proposal {proposal} must be granted to be executed, it is {found.state}",
                    advice=f"`ropewalk governance show {proposal}` says what is missing.",
                )
            if result is None:
                result = effect.carry_out(approvals, keys)
            said = approve(statement("executed", found.content_id, result=result), key).to_json()
            self._append("executed", {"proposal": found.ulid, "result": result, "approval": said})
            return self._find(proposal, self._policies())

    # --- inside ---

    def _resumed(
        self, found: Proposal, effect: Effect, policies: Sequence[GovernancePolicy]
    ) -> dict[str, Any] | None:
        """Return the result of an execution that was interrupted before it was recorded; None: carry it out."""
        assert found.executing is not None
        result = effect.done(found.executing.get("before"))
        ended = self._git.now_ms() > found.expires_ms or found.policy != policies[0].version
        if result is None and ended:
            raise Conflict(
                f"proposal {found.ulid} was not carried out in time, or its policy is no longer in force",
                advice="Propose it again.",
            )
        return result

    def _held(self) -> AbstractContextManager[None]:
        return hold_folder(self._place.home / NAME, LOCK_WAIT_S, self._git.store.disk)

    def _policies(self) -> list[GovernancePolicy]:
        """Return the policy in force (one without rules if there is none), then those that it replaced."""
        current = read_governance(self._place) or GovernancePolicy(ContentId(""), {})
        kept = sorted(kept_policies(self._place.home).glob("*.json"))
        return [current, *(parse_governance(read_file(path, POLICY_BYTES_MAX)) for path in kept)]

    def _decided(self, policies: Sequence[GovernancePolicy]) -> dict[str, Proposal]:
        if NAME not in self._git.topics(SHIPLOG):
            return {}
        known: dict[str, GovernancePolicy] = {each.version: each for each in policies}
        return decide(self._git.events(NAME), known, policies[0].version, self._git.now_ms())

    def _find(self, proposal: str, policies: Sequence[GovernancePolicy]) -> Proposal:
        found = self._decided(policies).get(proposal)
        if found is None:
            raise NotFound(
                f"there is no proposal {proposal[:40]!r}", advice="`ropewalk governance ls` lists them."
            )
        return found

    def _votable(
        self, proposal: str, policies: Sequence[GovernancePolicy]
    ) -> tuple[Proposal, GovernanceRule]:
        found = self._find(proposal, policies)
        if found.state not in ("open", "granted"):
            raise Conflict(
                f"proposal {proposal} takes no more votes: it is {found.state}",
                advice=f"`ropewalk governance show {proposal}` says why.",
            )
        return found, _rule(policies, found.action)

    def _append(self, verb: str, payload: Mapping[str, Any], ulid: str | None = None) -> None:
        document = {"ns": NAME, "type": f"proposal.{verb}", "payload": dict(payload)}
        self._git.append(NAME, document if ulid is None else {**document, "ulid": ulid})
        try:
            mirror(self._git, f"ns:{NAME}", f"topic:{NAME}")
        except RopewalkError as error:  # the event is recorded; the next step publishes it, too
            _journal.warning("topic %s lacks the newest events: %s", NAME, error.detail)


def _rule(policies: Sequence[GovernancePolicy], action: str) -> GovernanceRule:
    rule = policies[0].rules.get(action) if policies else None
    if rule is None:
        raise Denied(
            f"the repository's policy has no governance rule for {action}",
            advice="Write one into ropewalk/policy.json of the git directory; the guide on governance shows how.",
        )
    return rule


def _person(role: Quorum, key: SigningKey, act: str) -> str:
    name = role.name_of(key.public)
    if name is None:
        people = ", ".join(sorted({name for name, _ in role.people})) or "no person"
        raise Denied(f"{key.public.did()} may not {act}; the policy names {people}")
    return name
