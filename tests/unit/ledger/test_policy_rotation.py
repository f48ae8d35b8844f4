"""A channel gets another policy by a block of its own; every block is judged by the policy in force."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.ledger.making import ADA, NODE, NOON_NS, SECP, observed
from tests.unit.ledger.rotating import CHANNEL, NEXT, STRANGER, Chain, act_of, at, make_channel, opened_with
from tests.unit.ledger.test_failover import copied, promoted

from ropewalk.errors import Conflict, Denied, RopewalkError
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.archive.restore import restore_channel
from ropewalk.ledger.archive.write import archive_channel
from ropewalk.ledger.bundle.files import export_bundle, verify_bundle
from ropewalk.ledger.channel.channel import open_channel
from ropewalk.ledger.channel.maintenance import verify_stored
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.keys.approvals import approve
from ropewalk.ledger.keys.failover import propose_policy, rotate_policy
from ropewalk.ledger.keys.history import KeyHistory, KeyProof
from ropewalk.ledger.keys.policies import policy_basis
from ropewalk.ledger.keys.statements import KeyAct, key_envelope
from ropewalk.ledger.proof.proof import Proof, verify_proof
from ropewalk.ledger.proof.trust import Trust
from ropewalk.ledger.proof.verify import check_channel
from ropewalk.ledger.replay.channel_replay import replay_channel
from ropewalk.ledger.replay.reducers import REDUCERS
from ropewalk.ledger.rules.policy import EVALUATOR, Policy, parse_policy


def policy_of(name: str, *rules: dict[str, Any]) -> Policy:
    return parse_policy(Policy(name, rules, EVALUATOR, {}).to_bytes())


def rule(kind: str, **members: Any) -> dict[str, Any]:
    return {"id": kind, "name": kind, "version": 1, "kind": kind, "decision": "deny", **members}


PEOPLE = [{"name": "ada", **ADA.public.to_json()}, {"name": "bob", **SECP.public.to_json()}]
TWO = rule("control", acts=["promote"], approvals=2, approvers=PEOPLE)
OLD = policy_of("old", TWO, rule("domains", allowed=["ea.*"]))
NEW = policy_of("new", TWO, rule("domains", allowed=["ops.*"]))
FIRST = Trust((NODE.public,), (NODE.public,), OLD.hash)


def rotated(
    chain: Chain,
    *approvers: SigningKey,
    old: Policy | None = OLD,
    new: Policy = NEW,
    signer: SigningKey = NODE,
    basis: dict[str, Any] | None = None,
    approved: dict[str, Any] | None = None,
    **lies: Any,
) -> Envelope:
    """A policy rotation; `lies` make one that is forged."""
    act = KeyAct("policy", CHANNEL, signer.public.identity(), at(0), old_hash=OLD.hash, new_hash=NEW.hash)
    act = replace(act, **lies)
    signed = [approve(replace(act, **(approved or {})).to_json(), key) for key in approvers or (ADA, SECP)]
    return key_envelope(act, signer, at(0), approvals=signed, basis=basis or policy_basis(old, new))


def chain_of(*steps: Any) -> Chain:
    """Blocks under the old policy, the rotation, then blocks under the new one."""
    chain = Chain(policy_hash=OLD.hash)
    chain.add(NODE)
    return chain


def fault(chain: Chain, trust: Trust | None = FIRST, policy: Policy | None = OLD) -> str:
    found = check_channel(chain.found(), trust=trust, policy=policy).fault
    return found.detail if found is not None else ""


def under(chain: Chain, policy: Policy | None, *envelopes: Envelope, key: SigningKey = NODE) -> None:
    chain._policy_hash = None if policy is None else policy.hash
    chain.add(key, *envelopes)


def test_blocks_are_judged_by_the_policy_in_force():
    chain = chain_of()
    chain.add(NODE, rotated(chain))
    under(chain, NEW, observed(5, domain="ops.core"))
    assert fault(chain) == ""
    assert fault(chain, policy=None) == ""  # the statement carries both policies
    under(chain, NEW, observed(6, domain="ea.core"))
    assert "domain" in fault(chain, policy=None)


@pytest.mark.parametrize("wrong", [OLD, None, policy_of("third")])
def test_block_under_another_policy_is_refused(wrong):
    chain = chain_of()
    chain.add(NODE, rotated(chain))
    under(chain, wrong, observed(5, domain="ops.core"))
    for trust in (FIRST, Trust((NODE.public,), ())):
        assert "policy_hash must be" in fault(chain, trust)


def test_new_policy_before_its_rotation_is_refused():
    chain = chain_of()
    under(chain, NEW, observed(5, domain="ops.core"))
    assert "policy_hash must be" in fault(chain)


def test_pinned_policy_must_be_one_of_the_channel():
    chain = chain_of()
    chain.add(NODE, rotated(chain))
    other = Trust((NODE.public,), (), policy_of("third").hash)
    assert "policy_hash must be" in fault(chain, other)


WEAK = policy_of("weak")
FORGED: dict[str, tuple[dict[str, Any], str]] = {
    "one approval": ({"people": (ADA,)}, "got only from ada"),
    "strangers": ({"people": (STRANGER, NEXT)}, "got none"),
    "approved otherwise": ({"approved": {"new_hash": WEAK.hash}}, "the approval of"),
    "another new policy": ({"new": WEAK}, "must be the one that the act names"),
    "another old policy": ({"old": WEAK}, "old policy must be that of the block"),
    "no old policy": ({"old": None}, "old policy must be that of the block"),
    "another old hash": ({"old_hash": WEAK.hash, "old": WEAK}, "old policy must be that of the block"),
    "the same policy": ({"new_hash": OLD.hash, "new": OLD}, "another than the old one"),
    "another key": ({"key": STRANGER.public.identity()}, "is not the key that signed it"),
    "another channel": ({"channel": "ea.other"}, "belongs to channel"),
}


@pytest.mark.parametrize("case", FORGED)
def test_forged_policy_rotation_is_refused(case):
    lies, why = FORGED[case]
    chain = chain_of()
    chain.add(
        NODE, rotated(chain, *lies.get("people", ()), **{k: v for k, v in lies.items() if k != "people"})
    )
    for policy in (OLD, None):
        assert why in fault(chain, policy=policy)


def test_policy_rotation_cannot_be_replayed():
    """The key alone must not bring a policy back that two people approved once, and took back since."""
    chain = chain_of()
    chain.add(NODE, rotated(chain))
    under(chain, NEW, rotated(chain, old=NEW, new=OLD, old_hash=NEW.hash, new_hash=OLD.hash, since=at(2)))
    assert fault(chain) == ""
    for again in (rotated(chain), rotated(chain, new=WEAK, new_hash=WEAK.hash, since=at(1))):
        under(chain, OLD, again)
        assert "was made before, or is older than the last one" in fault(chain)
        chain.blocks.pop()
    under(chain, OLD, rotated(chain, since=at(2)))
    assert fault(chain) == ""


def test_policy_rotation_approved_by_a_revoked_key_is_refused():
    chain = chain_of()
    chain.add(NODE, act_of("revoke", SECP, signer=NODE, approvals=()))
    chain.add(NODE, rotated(chain))
    assert "which was revoked (a test)" in fault(chain)


def test_rotation_of_another_channel_proves_no_policy():
    """The key that seals two channels must not carry an approved policy from one to the other."""
    other = Chain("ea.other", policy_hash=OLD.hash)
    said = KeyProof.of(other.add(NODE, rotated(other, channel="ea.other")))
    assert said is not None
    chain = chain_of()
    under(chain, NEW, made := observed(9, domain="ops.core"))
    proof = Proof(made, 0, (), chain.blocks[-1].record, 1, made.hex_id, (said,))
    step = next(step for step in verify_proof(proof, FIRST).steps if step.name == "policy_hash")
    assert step.status == "failed"


def test_proposal_is_dated_no_earlier_than_the_last_change(tmp_path):
    """Clocks of proposers differ; an honest proposal must not be refused for that."""
    make_channel(tmp_path, OLD)
    rotate(tmp_path)
    late = propose_policy(tmp_path, CHANNEL, OLD, now_ns=lambda: NOON_NS - 10**9)
    assert late.since == at(0)


def test_policy_rotation_by_an_unnamed_key_changes_no_pin():
    """Statements of a key that only leads to a trusted one must not say which policy counts."""
    chain = chain_of()
    proof = KeyProof.of(chain.add(NODE, rotated(chain)))
    assert proof is not None
    for named, expected in ((NODE, NEW), (NEXT, OLD)):
        key_history = KeyHistory(Trust((named.public,), ()), lenient=True)
        key_history.follow((proof,))
        assert key_history.policies.fits(9, expected.hash, OLD.hash)
        assert not key_history.policies.fits(9, (OLD if expected is NEW else NEW).hash, OLD.hash)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A stored channel: a block, the rotation, a block under the new policy."""
    home = tmp_path / "home"
    make_channel(home, OLD)
    with opened_with(home, NODE) as opened:
        opened.log.submit(observed(1).raw)
    rotate(home)
    with opened_with(home, NODE, hours=1) as opened:
        opened.log.submit(observed(2, domain="ops.core").raw)
    return home


def rotate(home: Path, *people: SigningKey, new: Policy = NEW) -> KeyAct:
    act = propose_policy(home, CHANNEL, new, now_ns=lambda: NOON_NS)
    signed = [approve(act.to_json(), key) for key in people or (ADA, SECP)]
    rotate_policy(home, act, new, (NODE,), approvals=signed, now_ns=lambda: NOON_NS)
    return act


def test_writer_takes_up_the_new_policy(home):
    with opened_with(home, NODE, hours=2) as opened:
        assert opened.log.policy.hash == NEW.hash
        with pytest.raises(Denied):
            opened.log.submit(observed(3, domain="ea.core").raw)
        opened.log.submit(observed(3, domain="ops.more").raw)
        with pytest.raises(RopewalkError, match="is not submitted"):
            opened.log.submit(rotated(Chain(), new=WEAK, new_hash=WEAK.hash).raw)
    assert verify_stored(home, CHANNEL, deep=True, trust=FIRST).ok


def test_policy_rotation_needs_every_control(tmp_path):
    """Also those of rules that name other acts: else one person could drop the rule."""
    make_channel(tmp_path, OLD)
    with pytest.raises(RopewalkError, match="needs 2 approvals"):
        rotate(tmp_path, ADA)
    with open_channel(tmp_path, CHANNEL) as reading:
        assert reading.head().height == 0


def test_policy_can_be_given_and_rotated_again(tmp_path):
    make_channel(tmp_path)
    act = propose_policy(tmp_path, CHANNEL, OLD, now_ns=lambda: NOON_NS)
    rotate_policy(tmp_path, act, OLD, (NODE,), now_ns=lambda: NOON_NS)
    with pytest.raises(Conflict, match="has that policy already"):
        propose_policy(tmp_path, CHANNEL, OLD)
    old = rotate(tmp_path)
    with pytest.raises(Conflict, match="has changed since"):
        rotate_policy(tmp_path, old, NEW, (NODE,), now_ns=lambda: NOON_NS)
    assert verify_stored(tmp_path, CHANNEL, deep=True).ok


def test_proofs_bundles_and_copies_follow_the_policy(home, tmp_path):
    with open_channel(home, CHANNEL) as reading:
        proofs = [reading.prove(each.id) for each in (observed(1), observed(2, domain="ops.core"))]
        for start, end in ((0, 2), (0, 0), (1, 1), (2, 2)):
            path = tmp_path / f"{start}-{end}.tar.zst"
            export_bundle(reading, NODE, start, end, path)
            assert verify_bundle(path, FIRST, deep=True).report.ok, (start, end)
            assert not verify_bundle(path, replace(FIRST, policy_hash=WEAK.hash)).report.ok
        assert reading.trust().policy_hash == OLD.hash
    assert all(verify_proof(each, FIRST).ok for each in proofs)
    assert not verify_proof(replace(proofs[1], keys=()), FIRST).ok
    copied(home, tmp_path / "copy")
    assert verify_stored(tmp_path / "copy", CHANNEL, deep=True, trust=FIRST).ok
    promoted(tmp_path / "copy", NEXT, seconds=7200)  # by the people of the new policy
    assert verify_stored(tmp_path / "copy", CHANNEL, deep=True, trust=FIRST).ok


def test_replay_and_archives_follow_the_policy(home, tmp_path):
    found = replay_channel(home, CHANNEL, REDUCERS["counts"], key=NODE, snapshot_every=1)
    again = replay_channel(home, CHANNEL, REDUCERS["counts"], from_snapshot=True)
    assert found.state_root == again.state_root
    archive_channel(home, CHANNEL, NODE, tmp_path / "archives", keep_blocks=0)
    restore_channel(tmp_path / "archives", CHANNEL, tmp_path / "back", trust=FIRST, deep=True)
    assert verify_stored(tmp_path / "back", CHANNEL, deep=True, trust=FIRST).ok
