"""Keys have lives (S4 §13, §14): they end, take two people to change, and are not believed once revoked."""

from __future__ import annotations

import hashlib
import json
import ssl
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.unit.ledger.attesting import Authority, attested, dsse
from tests.unit.ledger.calling import Ropewalk, make
from tests.unit.ledger.making import ADA, NODE, NOON_NS, P256, SECP, observed, payload_resigned, shipped
from tests.unit.ledger.rotating import (
    CHANNEL,
    DAY_NS,
    HOUR_NS,
    NEXT,
    STRANGER,
    THIRD,
    Chain,
    act_of,
    at,
    make_channel,
    opened_with,
    rotated_chain,
    rotated_channel,
    rotation,
)

from ropewalk.disk import key_files
from ropewalk.errors import Conflict, Denied, Invalid, NotFound, RopewalkError, SigInvalid, Unverified
from ropewalk.kernel.digest import blake3
from ropewalk.kernel.keys import SigningKey
from ropewalk.kernel.report import Report
from ropewalk.ledger.bundle.files import export_bundle, verify_bundle
from ropewalk.ledger.channel.channel import open_channel
from ropewalk.ledger.channel.maintenance import verify_stored
from ropewalk.ledger.channel.settings import create_channel
from ropewalk.ledger.evidence.allowed import EvidenceAllowList
from ropewalk.ledger.evidence.rotation import rotate_evidence
from ropewalk.ledger.evidence.settings import write_evidence
from ropewalk.ledger.evidence.trust import EvidenceSettings
from ropewalk.ledger.keys.approvals import approve, parse_approval, require_approvals
from ropewalk.ledger.keys.history import KeyHistory
from ropewalk.ledger.keys.revocations import Revocation
from ropewalk.ledger.keys.rotate import (
    destroy_key,
    execute_act,
    key_notices,
    key_rows,
    propose,
    revoked_rows,
    rotate_key,
)
from ropewalk.ledger.keys.statements import Act, KeyAct, key_envelope
from ropewalk.ledger.proof.proof import verify_proof
from ropewalk.ledger.proof.trust import Trust, parse_trust
from ropewalk.ledger.proof.verify import check_channel, to_report
from ropewalk.ledger.rules.policy import EVALUATOR, Policy, parse_policy
from ropewalk.ledger.versions.change import change_version
from ropewalk.ledger.versions.statements import ShippedDocuments, VersionAct, parse_version_act

FIRST = Trust((NODE.public,), (NODE.public,))


def rule(kind: str, **members: Any) -> dict[str, Any]:
    return {"id": kind, "name": kind, "version": 1, "kind": kind, "decision": "deny", **members}


def policy_of(*rules: dict[str, Any]) -> Policy:
    return parse_policy(Policy("p", rules, EVALUATOR, {}).to_bytes())


def person(name: str, key: SigningKey) -> dict[str, str]:
    return {"name": name, **key.public.to_json()}


def two_people(*acts: str) -> Policy:
    """Ada has two keys, Bob has one."""
    people = [person("ada", ADA), person("ada", P256), person("bob", SECP)]
    return policy_of(rule("control", acts=list(acts), approvals=2, approvers=people))


def statement(act: KeyAct, *approvers: SigningKey, new: SigningKey = NEXT) -> bytes:
    signed = [approve(act.to_json(), key) for key in approvers]
    new_key = new if act.new_key is not None else None
    return key_envelope(act, NODE, at(0), new_key=new_key, approvals=signed).raw


ROTATE = KeyAct("rotate", CHANNEL, NODE.public.identity(), at(0), at(0), NEXT.public)


# --- two people ---


def test_a_rotation_that_two_people_approve_is_sealed_and_verifies(tmp_path):
    make_channel(tmp_path, two_people("rotate"))
    with opened_with(tmp_path, NODE, NEXT) as opened:
        opened.log.submit(statement(ROTATE, ADA, SECP))
        opened.log.submit(observed(1).raw)
    assert verify_stored(tmp_path, CHANNEL, deep=True).ok


@pytest.mark.parametrize(
    ("approvers", "why"),
    [
        ((), "none from an approver"),
        ((ADA,), "only from ada"),
        ((ADA, ADA), "only from ada"),
        ((ADA, P256), "only from ada"),  # two keys, one person
        ((ADA, STRANGER), "only from ada"),
        ((NODE, NEXT), "none from an approver"),
    ],
)
def test_one_person_is_not_two_however_often_and_with_how_many_keys(tmp_path, approvers, why):
    make_channel(tmp_path, two_people("rotate"))
    with opened_with(tmp_path, NODE) as opened:
        with pytest.raises(Denied, match=f"needs 2 approvals, got {why}"):
            opened.log.submit(statement(ROTATE, *approvers))
        opened.log.submit(observed(1).raw)


def test_an_approval_of_something_else_is_none(tmp_path):
    make_channel(tmp_path, two_people("rotate"))
    other = [approve(replace(ROTATE, until=at(1)).to_json(), key) for key in (ADA, SECP)]
    said = key_envelope(ROTATE, NODE, at(0), new_key=NEXT, approvals=other)
    with opened_with(tmp_path, NODE) as opened, pytest.raises(SigInvalid, match="the approval of"):
        opened.log.submit(said.raw)


def test_a_verifier_that_has_the_policy_demands_the_approvals_again():
    policy = two_people("rotate")
    chain = Chain(policy_hash=policy.hash)
    chain.add(NODE, rotation())
    chain.add(NEXT)
    fault = check_channel(chain.found(), trust=FIRST, policy=policy).fault
    assert fault is not None and "needs 2 approvals" in fault.detail
    assert check_channel(chain.found(), trust=FIRST).fault is None  # without its text nobody can tell


def test_a_policy_may_demand_two_people_for_some_acts_only(tmp_path):
    make_channel(tmp_path, two_people("destroy"))
    rotate_key(tmp_path, CHANNEL, NODE, NEXT, now_ns=lambda: NOON_NS)
    todo = propose(CHANNEL, "destroy", NODE.public.identity(), now_ns=lambda: NOON_NS)
    with pytest.raises(Denied, match="to destroy needs 2 approvals"):
        execute_act(tmp_path, todo, (NEXT,), now_ns=lambda: NOON_NS)


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ({"approvals": 3}, "approvals must be at most the number of approvers .2., got 3"),
        ({"approvals": 0}, "approvals must be a number"),
        ({"approvals": True}, "approvals must be a number"),
        ({"acts": ["sing"]}, "acts must be a list of"),
        ({"acts": []}, "acts must be a list of"),
        ({"approvers": [{"name": "x"}]}, "approver x"),
        ({"approvers": [person("a", ADA), person("b", ADA)]}, "listed twice"),
        ({"decision": "audit"}, "must deny"),
        ({"when": {"domains": ["*"]}}, "must deny"),
    ],
)
def test_a_rule_of_control_that_makes_no_sense_is_refused(members, why):
    people = [person("ada", ADA), person("bob", SECP)]
    good = rule("control", acts=["rotate"], approvals=2, approvers=people)
    policy_of(good)
    with pytest.raises(Invalid, match=why):
        policy_of({**good, **members})


def test_approvals_are_read_back_and_none_that_was_changed_is():
    act = ROTATE.to_json()
    raw = approve(act, ADA).to_bytes(act)
    said, found = parse_approval(raw)
    assert require_approvals(said, [found], two_people("destroy").controls) == ()
    with pytest.raises(SigInvalid):
        parse_approval(raw.replace(CHANNEL.encode(), b"ea.kore"))


# --- lifetimes ---


LIVES = policy_of(
    rule("key_lifetime", days=90, overlap_days=30),
    rule("policy_lifetime", until="2026-01-01T00:00:00Z", overlap_days=10),
)


def warnings_at(home, days: float) -> list[str]:
    with open_channel(home, CHANNEL) as reading:
        return key_notices(reading, NOON_NS + int(days * DAY_NS))


def test_a_key_past_its_lifetime_seals_nothing_new_but_the_next_key(tmp_path):
    make_channel(tmp_path, LIVES)
    with opened_with(tmp_path, NODE) as opened:
        opened.log.submit(observed(1).raw)
    with opened_with(tmp_path, NODE, NEXT, hours=24 * 90) as opened:
        with pytest.raises(Denied, match=r"the key of this channel ended on 2025-01-30.*key_lifetime"):
            opened.log.submit(observed(2).raw)
        opened.log.submit(rotation(since=24 * 90, until=24 * 90).raw)
        assert opened.log.submit(observed(2).raw).height == 2
    assert verify_stored(tmp_path, CHANNEL, deep=True).ok  # what was sealed stays as good as it was


def test_a_writer_that_stays_open_notices_that_its_key_ends(tmp_path):
    make_channel(tmp_path, LIVES)
    clock = [NOON_NS]
    with opened_with(tmp_path, NODE, now_ns=lambda: clock[0]) as opened:
        opened.log.submit(observed(1).raw)
        clock[0] += 90 * DAY_NS
        with pytest.raises(Denied, match="the key of this channel ended"):
            opened.log.submit(observed(2).raw)


def test_warnings_come_during_the_overlap_and_end_with_the_rotation(tmp_path):
    make_channel(tmp_path, LIVES)
    with opened_with(tmp_path, NODE) as opened:
        opened.log.submit(observed(1).raw)
    assert warnings_at(tmp_path, 59) == []
    assert "the key ends on 2025-01-30T12:00:00Z, in 29 days" in warnings_at(tmp_path, 60.5)[0]
    assert "the key ended" in warnings_at(tmp_path, 91)[0]
    rotate_key(tmp_path, CHANNEL, NODE, NEXT, now_ns=lambda: NOON_NS + 61 * DAY_NS)
    assert warnings_at(tmp_path, 62) == []


def test_a_policy_past_its_end_lets_nothing_in_and_says_so_before(tmp_path):
    make_channel(tmp_path, policy_of(LIVES.rules[1]))
    with opened_with(tmp_path, NODE) as opened:
        opened.log.submit(observed(1).raw)
    with (
        opened_with(tmp_path, NODE, hours=24 * 500) as opened,
        pytest.raises(Denied, match="the policy of this"),
    ):
        opened.log.submit(observed(2).raw)
    assert any("the policy ends on 2026-01-01" in text for text in warnings_at(tmp_path, 420))
    assert verify_stored(tmp_path, CHANNEL, deep=True).ok


@pytest.mark.parametrize(
    "members",
    [
        {"days": 0},
        {"days": True},
        {"overlap_days": 91},
        {"overlap_days": -1},
        {"days": 10**9},
        {"decision": "audit"},
    ],
)
def test_a_lifetime_that_makes_no_sense_is_refused(members):
    with pytest.raises(Invalid):
        policy_of({**LIVES.rules[0], **members})


@pytest.mark.parametrize("times", [{"until": "soon"}, {"since": "2027-01-01T00:00:00Z"}, {"since": 7}])
def test_a_policy_that_ends_before_it_begins_is_refused(times):
    with pytest.raises(Invalid):
        policy_of({**LIVES.rules[1], **times})


# --- ends ---


def test_a_retired_key_ends_before_its_overlap_is_over(tmp_path):
    make_channel(tmp_path)
    with opened_with(tmp_path, NODE) as opened:
        opened.log.submit(rotation(until=48).raw)
    with opened_with(tmp_path, NEXT, hours=1) as opened:
        opened.log.submit(act_of("retire", NODE, signer=NEXT, said=1, since=1).raw)
    with pytest.raises(Conflict, match="no available key is valid"):
        opened_with(tmp_path, NODE, hours=2)
    with open_channel(tmp_path, CHANNEL) as reading:
        assert [row["counts"] for row in key_rows(reading, NOON_NS + 2 * HOUR_NS)] == [False, True]


@pytest.mark.parametrize("kind", ["retire", "revoke", "destroy"])
def test_a_key_that_seals_cannot_be_ended_before_it_gave_way(tmp_path, kind):
    make_channel(tmp_path)
    with opened_with(tmp_path, NODE) as opened, pytest.raises(Unverified, match="rotate first"):
        opened.log.submit(act_of(kind, NODE, signer=NODE).raw)


def test_only_the_sealing_key_ends_others():
    chain = rotated_chain()
    chain.add(NEXT, act_of("retire", NODE, signer=STRANGER))
    fault = check_channel(chain.found(), trust=FIRST).fault
    assert fault is not None and fault.height == 5


def test_key_destroyed_unless_still_needed(tmp_path):
    keys = tmp_path / "keys"
    for number, name in enumerate(("old", "new"), 1):
        key_files.make(keys, name, "ed25519", bytes([number]) * 32)
    old, new = (key_files.load_signing(keys, name) for name in ("old", "new"))
    create_channel(tmp_path, CHANNEL, "old", old.public)
    todo = propose(CHANNEL, "destroy", old.public.identity())
    with pytest.raises(Conflict, match="still signs channel"):
        destroy_key(tmp_path, todo, (old,), keys, "old")
    rotate_key(tmp_path, CHANNEL, old, new)
    with pytest.raises(Conflict, match="not the key"):
        destroy_key(tmp_path, todo, (old, new), keys, "new")
    destroy_key(tmp_path, propose(CHANNEL, "destroy", old.public.identity()), (old, new), keys, "old")
    assert [each.name for each in key_files.ls(keys)] == ["new"]
    assert verify_stored(tmp_path, CHANNEL, deep=True).ok


def test_key_with_pending_successor_still_needed(tmp_path):
    keys = tmp_path / "keys"
    for number, name in enumerate(("old", "new"), 1):
        key_files.make(keys, name, "ed25519", bytes([number]) * 32)
    old, new = (key_files.load_signing(keys, name) for name in ("old", "new"))
    for channel in ("done", "waiting"):
        create_channel(tmp_path, channel, "old", old.public)
    now = partial(int, NOON_NS)
    rotate_key(tmp_path, "done", old, new, now_ns=now)
    rotate_key(tmp_path, "waiting", old, new, since_ns=NOON_NS + DAY_NS, now_ns=now)
    for channel in ("done", "waiting"):
        todo = propose(channel, "destroy", old.public.identity(), now_ns=now)
        with pytest.raises(Conflict, match="must sign channel waiting until"):
            destroy_key(tmp_path, todo, (new, old), keys, "old", now_ns=now)
    with pytest.raises(Conflict, match="must sign channel waiting until"):
        execute_act(
            tmp_path, propose("waiting", "retire", old.public.identity(), now_ns=now), (new, old), now_ns=now
        )
    assert [each.name for each in key_files.ls(keys)] == ["new", "old"]
    later = partial(int, NOON_NS + DAY_NS)
    todo = propose("done", "destroy", old.public.identity(), now_ns=later)
    destroy_key(tmp_path, todo, (new, old), keys, "old", now_ns=later)
    assert [each.name for each in key_files.ls(keys)] == ["new"]


def test_pending_rotation_allows_revoke_not_rotate(tmp_path):
    make_channel(tmp_path)
    now = partial(int, NOON_NS)
    rotate_key(tmp_path, CHANNEL, NODE, NEXT, since_ns=NOON_NS + DAY_NS, now_ns=now)
    stolen = propose(CHANNEL, "revoke", ADA.public.identity(), now_ns=now)
    assert execute_act(tmp_path, stolen, (NEXT, NODE), now_ns=now).height == 1
    with pytest.raises(Conflict, match="a rotation is pending"):
        rotate_key(tmp_path, CHANNEL, NEXT, THIRD, now_ns=now)
    assert verify_stored(tmp_path, CHANNEL, deep=True).ok


def test_a_rotation_is_not_dated_back(tmp_path):
    make_channel(tmp_path)
    with pytest.raises(Invalid, match="which has passed"):
        rotate_key(tmp_path, CHANNEL, NODE, NEXT, since_ns=NOON_NS - HOUR_NS, now_ns=lambda: NOON_NS)
    with open_channel(tmp_path, CHANNEL) as reading:
        assert reading.head().height == 0


def test_what_cannot_be_done_to_a_key_is_no_failed_verification(tmp_path):
    make_channel(tmp_path)
    now = partial(int, NOON_NS)
    ends: tuple[Act, ...] = ("retire", "revoke", "destroy")
    for act in ends:
        with pytest.raises(Conflict, match="rotate first"):
            execute_act(
                tmp_path, propose(CHANNEL, act, NODE.public.identity(), now_ns=now), (NODE,), now_ns=now
            )
    with pytest.raises(NotFound, match="is not a key of channel"):
        execute_act(
            tmp_path, propose(CHANNEL, "retire", ADA.public.identity(), now_ns=now), (NODE,), now_ns=now
        )
    rotate_key(tmp_path, CHANNEL, NODE, NEXT, now_ns=now)
    with pytest.raises(Conflict, match="has ended on"):
        execute_act(
            tmp_path, propose(CHANNEL, "retire", NODE.public.identity(), now_ns=now), (NEXT,), now_ns=now
        )


# --- revocation ---


def test_revoked_author_refused_from_then_on(tmp_path):
    make_channel(tmp_path)
    with opened_with(tmp_path, NODE) as opened:
        opened.log.submit(observed(1).raw)
        opened.log.submit(act_of("revoke", ADA, signer=NODE).raw)
        with pytest.raises(SigInvalid, match=r"revoked since 2024-11-01T12:00:00Z \(a test\)"):
            opened.log.submit(observed(2).raw)
        opened.log.submit(observed(3, key=P256).raw)
    assert verify_stored(tmp_path, CHANNEL, deep=True).ok


def test_a_key_is_revoked_again_only_for_an_earlier_date(tmp_path):
    make_channel(tmp_path)
    revoke = partial(propose, CHANNEL, "revoke", ADA.public.identity())
    for hours, refused in ((2, False), (2, True), (3, True), (1, False), (1.5, True)):
        act = revoke(since_ns=NOON_NS + int(hours * HOUR_NS), reason=f"{hours} h")
        if refused:
            with pytest.raises(Conflict, match="is revoked since"):
                execute_act(tmp_path, act, (NODE,), now_ns=lambda: NOON_NS)
        else:
            execute_act(tmp_path, act, (NODE,), now_ns=lambda: NOON_NS)
    with open_channel(tmp_path, CHANNEL) as reading:
        assert reading.head().height == 2
        (row,) = revoked_rows(reading)
    assert row == {"fingerprint": ADA.public.identity().hex(), "since": at(1), "reason": "1 h"}


def test_a_chain_that_took_a_revoked_author_in_all_the_same_is_refused():
    chain = Chain()
    chain.add(NODE)
    chain.add(NODE, act_of("revoke", ADA, signer=NODE))
    chain.add(NODE)
    fault = check_channel(chain.found(), trust=FIRST).fault
    assert fault is not None and (fault.height, fault.step) == (2, "envelopes")


def test_a_revocation_for_the_future_holds_when_its_date_has_come():
    chain = Chain()
    chain.add(NODE, act_of("revoke", ADA, signer=NODE, since=5))
    chain.add(NODE, hours=4)
    assert check_channel(chain.found(), trust=FIRST).fault is None
    chain.add(NODE, hours=5)
    fault = check_channel(chain.found(), trust=FIRST).fault
    assert fault is not None and fault.height == 2


def test_revoked_sealing_key_keeps_earlier_blocks():
    chain = Chain()
    chain.add(NODE)
    chain.add(NODE, rotation(until=100))
    chain.add(NEXT, act_of("revoke", NODE, signer=NEXT, since=-24), hours=1)
    chain.add(NEXT, hours=2)
    key_history = KeyHistory(FIRST, lenient=True)
    span = check_channel(chain.found(), trust=FIRST, key_history=key_history)
    report = to_report(span, deep=True, trust=FIRST, key_history=key_history)
    (step,) = [each for each in report.steps if each.name == "block_signatures"]
    assert step.status == "passed"
    assert "was revoked later: its earlier blocks stay valid" in step.detail
    chain.add(NODE, hours=3)
    fault = check_channel(chain.found(), trust=FIRST).fault
    assert fault is not None and "revoked since" in fault.detail


def test_a_rotation_back_to_a_revoked_key_is_refused():
    chain = Chain()
    chain.add(NODE, act_of("revoke", THIRD, signer=NODE))
    chain.add(NODE, rotation(new=THIRD))
    fault = check_channel(chain.found(), trust=FIRST).fault
    assert fault is not None and "was revoked" in fault.detail


def revoking(key: SigningKey, hours: float) -> Trust:
    return replace(FIRST, revocations=(Revocation(key.public.identity(), at(hours), "stolen"),))


def test_trust_revocations_hold_from_their_date(tmp_path):
    chain = Chain()
    for hours in range(3):
        chain.add(NODE, hours=hours)
    for key, step in ((ADA, "envelopes"), (NODE, "block_signatures")):
        fault = check_channel(chain.found(), trust=revoking(key, 1)).fault
        assert fault is not None and (fault.height, fault.step) == (1, step)
        assert "revoked since 2024-11-01T13:00:00Z (stolen)" in fault.detail
        assert check_channel(chain.found(), trust=revoking(key, 3)).fault is None
    told = KeyHistory(revoking(ADA, 3), lenient=True)
    check_channel(chain.found(), trust=revoking(ADA, 3), key_history=told)
    assert "3 envelopes of keys that were revoked later stay valid" in told.summary()
    assert parse_trust(revoking(ADA, 1).to_bytes()) == revoking(ADA, 1)


def test_bundles_and_proofs_look_revocations_up_too(tmp_path):
    rotated_channel(tmp_path)
    path = tmp_path / "b.tar.zst"
    with open_channel(tmp_path, CHANNEL) as reading:
        export_bundle(reading, NEXT, 0, 4, path)
        proof = reading.prove(observed(3).id)
    assert verify_bundle(path, revoking(ADA, 1), deep=True).report.ok
    assert failed(verify_bundle(path, revoking(ADA, 0), deep=True).report) == ["envelope_rules"]
    shallow = verify_bundle(path, revoking(ADA, 0)).report
    assert [step.name for step in shallow.steps if step.status == "not_checked"] == [
        "policy_hash",
        "envelope_rules",
    ]
    assert failed(verify_bundle(path, revoking(NEXT, 0)).report) == ["bundle_signature", "block_signatures"]
    assert verify_proof(proof, revoking(ADA, 1)).ok
    assert failed(verify_proof(proof, revoking(ADA, 0))) == ["envelope_signature"]
    assert failed(verify_proof(proof, revoking(NEXT, 0))) == ["block_signer"]


@pytest.mark.parametrize(
    "value",
    [
        {},
        [7],
        [{"key": "ab" * 32}],
        [{"key": "ab", "since": at(0)}],
        [{"key": "ab" * 32, "since": "now"}],
        [{"key": "ab" * 32, "since": at(0), "more": 1}],
        [{"key": "ab" * 32, "since": at(0), "reason": 1}],
    ],
)
def test_revocations_that_cannot_be_read_are_refused(value):
    raw = json.loads(FIRST.to_bytes()) | {"revocations": value}
    with pytest.raises(Invalid):
        parse_trust(json.dumps(raw).encode())


# --- the commands ---


def done(ropewalk: Ropewalk, *words: str) -> Any:
    answer = ropewalk(*words, "--json")
    assert answer.code == 0, answer
    return answer.json


def failed(report: Report) -> list[str]:
    return [step.name for step in report.steps if step.status == "failed"]


def test_the_commands_rotate_with_two_approvals_and_refuse_one(ropewalk):
    for name in ("ada", "bob", "next"):
        done(ropewalk, "key", "new", name, "--if-missing")
    people = [{"name": name, **done(ropewalk, "key", "show", name)["public"]} for name in ("ada", "bob")]
    policy = policy_of(
        rule("control", acts=["rotate", "retire", "destroy"], approvals=2, approvers=people),
        rule("key_lifetime", days=90, overlap_days=90),
    )
    Path("policy.json").write_bytes(policy.to_bytes())
    done(ropewalk, "ledger", "create", "--channel", "c", "--policy", "policy.json")
    rotate = ("ledger", "key", "rotate", "--channel", "c", "--to", "next")
    done(ropewalk, *rotate, "--overlap-days", "30", "--propose", "rotation.json")
    written = Path("rotation.json").read_bytes()
    over = ropewalk(*rotate, "--propose", "rotation.json")
    assert over.code == 4 and "may have been approved" in over.err
    assert Path("rotation.json").read_bytes() == written
    given = []
    for name in ("ada", "bob"):
        told = ropewalk("ledger", "key", "approve", "rotation.json", "--key", name, "-o", f"{name}.json")
        assert told.code == 0
        act = json.loads(written)
        lines = [" ".join(line.split()) for line in told.err.splitlines()]
        assert lines == [
            "approving: replace the signing key of channel c",
            f"key node, {done(ropewalk, 'key', 'show', 'node')['did']}",
            f"new key next, {done(ropewalk, 'key', 'show', 'next')['did']}",
            f"since {act['since']}",
            f"old key until {act['until']}",
        ]
        given += ["--approval", f"{name}.json"]
    alone = ropewalk(*rotate, "--proposal", "rotation.json", *given[:2], *given[:2])
    assert alone.code == 6
    assert "got only from ada" in alone.err
    told = done(ropewalk, *rotate, "--proposal", "rotation.json", *given)
    assert (told["act"], told["height"]) == ("rotate", 0)
    listed = done(ropewalk, "ledger", "key", "ls", "--channel", "c")
    assert [row["counts"] for row in listed["keys"]] == [True, True]
    assert listed["lifetimes"][0]["what"] == "the key"
    (act,) = done(ropewalk, "ledger", "key", "show", "--channel", "c")["acts"]
    assert len(act["approved_by"]) == 2
    assert any("the key ends on" in text for text in done(ropewalk, "ledger", "status")["warnings"])
    retire = ("ledger", "key", "retire", "--channel", "c", "node")
    assert ropewalk(*retire).code == 6
    other = ropewalk(*retire, "--proposal", "rotation.json", *given)
    assert other.code == 8
    assert "got rotate in channel" in other.err
    again = ropewalk(*rotate, "--proposal", "rotation.json", *given)
    assert again.code == 4
    assert "is already the signing key of channel c" in again.err


def test_the_commands_go_on_with_the_new_key_and_destroy_the_old_one(ropewalk):
    done(ropewalk, "key", "new", "ada", "--if-missing")
    for name in ("first", "second"):
        done(ropewalk, "key", "new", name)
    done(ropewalk, "ledger", "create", "--channel", "audit", "--key", "first")
    make(ropewalk, "one.json")
    done(ropewalk, "ledger", "append", "--channel", "audit", "--file", "one.json")
    done(ropewalk, "ledger", "trust", "--channel", "audit", "-o", "first.json")
    done(ropewalk, "ledger", "key", "rotate", "--channel", "audit", "--to", "second")
    make(ropewalk, "two.json", "--correlation-id", "two")
    done(ropewalk, "ledger", "append", "--channel", "audit", "--file", "two.json")
    assert ropewalk("ledger", "key", "destroy", "--channel", "audit", "second").code == 4
    done(ropewalk, "ledger", "key", "destroy", "--channel", "audit", "first", "--reason", "rotated")
    assert ropewalk("key", "show", "first").code == 3
    stolen = done(ropewalk, "key", "show", "ada")["did"]
    revoke = ("ledger", "key", "revoke", "--channel", "audit", stolen, "--reason", "stolen")
    done(ropewalk, *revoke)
    assert ropewalk(*revoke).code == 4
    listed = ropewalk("ledger", "key", "ls", "--channel", "audit").out.splitlines()
    assert len(listed) == 3 and f"ada, {stolen}  revoked since" in listed[2] and "(stolen)" in listed[2]
    make(ropewalk, "three.json", "--correlation-id", "three")
    assert ropewalk("ledger", "append", "--channel", "audit", "--file", "three.json").code == 5
    assert done(ropewalk, "ledger", "verify", "--deep", "--trust", "first.json")["ok"]
    Path("revoked.json").write_text(json.dumps([{"key": stolen, "since": "2020-01-01T00:00:00Z"}]))
    done(
        ropewalk,
        "ledger",
        "trust",
        "--channel",
        "audit",
        "--revocations",
        "revoked.json",
        "-o",
        "strict.json",
    )
    assert ropewalk("ledger", "verify", "--deep", "--trust", "strict.json").code == 5


def test_whoever_approves_far_away_is_told_what_is_not_known_there(ropewalk):
    done(ropewalk, "key", "new", "ada", "--if-missing")
    act = {"version": 1, "act": "revoke", "channel": "far", "key": "ab" * 32, "since": at(0)}
    Path("act.json").write_text(json.dumps(act | {"reason": "stolen\x1b[2J"}))
    told = ropewalk("ledger", "key", "approve", "act.json", "--key", "ada", "--repo", "nowhere")
    assert told.code == 0 and json.loads(told.out)["act"]["reason"] == "stolen\x1b[2J"
    assert f"fingerprint {'ab' * 32}, not known here" in told.err
    assert "revoke a key in channel far" in told.err and "\x1b" not in told.err


# --- evidence ---


def test_revoked_provenance_key_refused_from_date(tmp_path):
    make_channel(tmp_path)
    with opened_with(tmp_path, NODE) as opened:
        opened.log.submit(attested(dsse(P256), "slsa.v1").raw)
    pins = EvidenceAllowList(keys=(P256.public,), builders=("https://builder.example/v1",))
    believed = replace(FIRST, evidence=pins)
    assert verify_stored(tmp_path, CHANNEL, trust=believed, deep=True).ok
    for hours, wrong in ((1, []), (0, ["evidence"])):
        revoked = Revocation(P256.public.identity(), at(hours))
        report = verify_stored(tmp_path, CHANNEL, trust=replace(believed, revocations=(revoked,)), deep=True)
        assert failed(report) == wrong


def test_roots_that_end_are_announced_a_month_before(tmp_path):
    root = Authority("a root")
    make_channel(tmp_path)
    write_evidence(tmp_path, CHANNEL, EvidenceSettings((root.pem,)))
    until_ns = int(root.certificate.not_valid_after_utc.timestamp()) * 10**9
    with open_channel(tmp_path, CHANNEL) as reading:
        assert key_notices(reading, until_ns - 31 * DAY_NS) == []
        assert "ends on" in key_notices(reading, until_ns - 29 * DAY_NS)[0]
        assert "ended on" in key_notices(reading, until_ns)[0]


def test_changed_roots_are_recorded(tmp_path):
    """A change of trusted evidence is an envelope with fingerprints and a date, and an edited file is found."""
    key_files.make(tmp_path / "keys", "node", "ed25519", b"node" + bytes(28))
    make_channel(tmp_path)
    old, new = (EvidenceSettings((Authority(name).pem,)) for name in ("an old root", "a new root"))

    def rotate(settings):
        return rotate_evidence(tmp_path, CHANNEL, settings, (NODE,), now_ns=lambda: NOON_NS)

    def settings_step():
        steps = {step.name: step for step in verify_stored(tmp_path, CHANNEL).steps}
        return steps["evidence_settings"].status if "evidence_settings" in steps else None

    assert rotate(old) is None and settings_step() is None  # the first settings replace nothing
    receipt = rotate(new)
    assert receipt is not None and rotate(new) is None
    with open_channel(tmp_path, CHANNEL) as reading:
        made = reading.envelope(receipt.envelope_id)
    payload = made.value["payload"]
    der = ssl.PEM_cert_to_DER_cert(new.roots[0])
    assert made.event_type == "ledger.evidence_rotation" and payload["since"] == at(0)
    assert payload["roots"] == [hashlib.sha256(der).hexdigest()]
    assert settings_step() == "passed"
    lie = {**payload, "evidence_hash": payload["new_evidence_hash"], "new_evidence_hash": "00" * 32}
    with opened_with(tmp_path, NODE) as opened, pytest.raises(RopewalkError):
        opened.log.submit(observed(1, event_class="Alert", event_type=made.event_type, payload=lie).raw)
    assert settings_step() == "passed"  # an author's envelope records nothing
    for spoil in (
        lambda: write_evidence(tmp_path, CHANNEL, old),
        (tmp_path / "ledger" / CHANNEL / "evidence.json").unlink,
    ):
        spoil()
        assert settings_step() == "failed"
        with pytest.raises(Unverified, match="not the one that the channel recorded"):
            opened_with(tmp_path, NODE)
    assert rotate(new) is None and settings_step() == "passed"  # as after a crash between record and file
    write_evidence(tmp_path, CHANNEL, old)
    key_files.destroy(tmp_path / "keys", "node")
    assert settings_step() == "not_checked"  # a copy may trust other evidence


def test_evidence_set_records_a_change(ropewalk):
    done(ropewalk, "ledger", "create", "--channel", "c")
    change = ("ledger", "evidence", "set", "--channel", "c", "--key", "ada", "--builder")
    assert [done(ropewalk, *change, f"urn:{n}")["recorded"] for n in (1, 1, 2)] == [None, None, 0]
    (act,) = done(ropewalk, "ledger", "key", "show", "--channel", "c")["acts"]
    found = Path(done(ropewalk, *change, "urn:2")["path"]).read_bytes()
    assert act["new_evidence_hash"] == blake3(found).hex() and len(act["keys"]) == 1
    assert done(ropewalk, "ledger", "verify", "--deep")["ok"]


def test_evidence_change_needs_two_people(ropewalk):
    done(ropewalk, "key", "new", "bob")
    people = [{"name": name, **done(ropewalk, "key", "show", name)["public"]} for name in ("ada", "bob")]
    policy = policy_of(rule("control", acts=["evidence"], approvals=2, approvers=people))
    Path("policy.json").write_bytes(policy.to_bytes())
    done(ropewalk, "ledger", "create", "--channel", "c", "--policy", "policy.json")
    change = ("ledger", "evidence", "set", "--channel", "c", "--builder", "urn:1")
    assert ropewalk(*change).code == 6  # also the first settings
    done(ropewalk, *change, "--reason", "first", "--propose", "act.json")
    given = ["--proposal", "act.json"]
    for name in ("ada", "bob"):
        done(ropewalk, "ledger", "key", "approve", "act.json", "--key", name, "-o", f"{name}.json")
        given += ["--approval", f"{name}.json"]
    assert ropewalk(*change, *given[:4]).code == 6
    assert ropewalk(*change[:-1], "urn:2", *given).code == 4  # approved for other settings
    assert not Path(".git/ropewalk/ledger/c/evidence.json").exists()
    assert done(ropewalk, *change, *given)["recorded"] == 0
    assert ropewalk(*change[:-1], "urn:2", *given).code == 4
    assert done(ropewalk, "ledger", "verify", "--deep")["ok"]


def test_controlled_evidence_is_recorded_from_the_first(tmp_path):
    """One person must not put a file there before the first settings are approved."""
    key_files.make(tmp_path / "keys", "node", "ed25519", b"node" + bytes(28))
    make_channel(tmp_path, two_people("evidence"))
    with opened_with(tmp_path, NODE) as opened:
        opened.log.submit(observed(1).raw)
    settings = EvidenceSettings((Authority("a root").pem,))
    write_evidence(tmp_path, CHANNEL, settings)
    with pytest.raises(Unverified, match="not the one that the channel recorded"):
        opened_with(tmp_path, NODE)
    steps = {step.name: step.status for step in verify_stored(tmp_path, CHANNEL).steps}
    assert steps["evidence_settings"] == "failed"


def test_rotation_approved_by_a_revoked_key_is_refused(tmp_path):
    make_channel(tmp_path, two_people("rotate"))
    with opened_with(tmp_path, NODE, NEXT) as opened:
        opened.log.submit(act_of("revoke", SECP, signer=NODE, since=3).raw)  # also before its date has come
        with pytest.raises(RopewalkError, match="which was revoked"):
            opened.log.submit(statement(ROTATE, ADA, SECP))


# --- versions ---


def test_version_change_needs_two_sign_offs(ropewalk):
    done(ropewalk, "key", "new", "bob")
    people = [{"name": name, **done(ropewalk, "key", "show", name)["public"]} for name in ("ada", "bob")]
    policy = policy_of(rule("control", acts=["version"], approvals=2, approvers=people))
    Path("policy.json").write_bytes(policy.to_bytes())
    done(ropewalk, "ledger", "create", "--channel", "c", "--policy", "policy.json")
    Path("guide.md").write_text("nothing to do")
    done(ropewalk, "ledger", "lifecycle", "rehearse", "1.0.x", "--downgrade")
    change: tuple[str, ...] = ("ledger", "lifecycle", "set", "1.0.x", "maintenance")
    assert ropewalk(*change).code == 6  # not without the channel that asks
    change = (*change, "--guide", "guide.md")
    done(ropewalk, *change, "--channel", "c", "--propose", "change.json")
    given = []
    for name in ("ada", "bob"):
        done(ropewalk, "ledger", "key", "approve", "change.json", "--key", name, "-o", f"{name}.json")
        given += ["--approval", f"{name}.json"]
    refused = ropewalk(*change, "--channel", "c", *given[:2], *given[:2])
    assert refused.code == 6
    assert "to change a version needs 2 approvals, got only from ada" in refused.err
    other = ropewalk(
        "ledger", "lifecycle", "set", "1.1.x", "maintenance", "--channel", "c", *change[5:], *given
    )
    assert other.code == 8
    assert done(ropewalk, *change, "--channel", "c", *given)["stage"] == "maintenance"
    _, block = done(ropewalk, "ledger", "read", "--channel", "c")["blocks"]
    ask, result = block["envelopes"]
    assert (ask["event_class"], result["event_class"]) == ("Command", "Result")
    assert len(result["payload"]["approvals"]) == 2
    assert done(ropewalk, *change, "--channel", "c", *given)["stage"] == "maintenance"  # said once
    assert len(done(ropewalk, "ledger", "read", "--channel", "c")["blocks"]) == 2
    assert done(ropewalk, "ledger", "verify", "--deep")["ok"]


def test_a_change_that_the_life_of_a_version_forbids_is_not_recorded(tmp_path):
    make_channel(tmp_path)
    act = shipped(tmp_path, VersionAct(CHANNEL, "1.0.x", "disabled"))
    change_version(tmp_path, act, (NODE,), now_ns=lambda: NOON_NS)
    with pytest.raises(Invalid):
        change_version(tmp_path, replace(act, stage="active"), (NODE,), now_ns=lambda: NOON_NS)
    with open_channel(tmp_path, CHANNEL) as reading:
        assert reading.head().height == 2  # the rehearsal and the first change


# --- form ---


@pytest.mark.parametrize("other", [None, True, 7, "", "x", [], {}, "00" * 32])
@pytest.mark.parametrize("name", [*ROTATE.to_json(), "acceptance", "approvals"])
def test_malformed_key_statement_is_refused(name, other):
    whole = rotation().value
    if name == "approvals" and other == []:
        return  # as it is
    payload = {**whole["payload"], name: other}
    chain = Chain()
    chain.add(NODE, payload_resigned({**whole, "payload": payload}, NODE))
    fault = check_channel(chain.found(), trust=FIRST).fault
    assert fault is not None and fault.step == "block_signatures"


def test_members_of_a_version_change_are_those_that_were_signed():
    """A member more, or by another name, would end the signatures of acts that stand in channels."""
    documents = ShippedDocuments("11", "22", {"ops": "33"})
    act = VersionAct("ops", "1.0.x", "deprecated", "2027-01-01T00:00:00Z", 90, documents)
    assert json.dumps(act.to_json()) == (
        '{"version": 1, "act": "version", "channel": "ops", "protocol_version": "1.0.x", "stage": "deprecated", '
        '"sunset": "2027-01-01T00:00:00Z", "grace_days": 90, '
        '"documents": {"guide": "11", "transcript": "22", "policies": {"ops": "33"}}}'
    )
    assert list(VersionAct("ops", "1.0.x", "active").to_json()) == [
        "version", "act", "channel", "protocol_version", "stage", "sunset", "grace_days",
    ]  # fmt: skip


@pytest.mark.parametrize("name", VersionAct(CHANNEL, "1.0.x", "active").to_json())
def test_malformed_version_change_is_refused(name):
    whole = VersionAct(CHANNEL, "1.0.x", "active").to_json()
    others: list[Any] = [True, -7, "x", [], {}]
    for other in others:
        if (name, other) != ("channel", "x"):
            with pytest.raises(Invalid):
                parse_version_act({**whole, name: other})
