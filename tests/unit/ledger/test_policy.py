"""Policies decide, explain themselves, and are named by their hash."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.ledger.making import ADA, NODE, P256, observed, opened

from ropewalk.errors import Denied, Invalid, RopewalkError
from ropewalk.kernel import jcs
from ropewalk.ledger.proof.trust import Trust, parse_trust
from ropewalk.ledger.rules.policy import STRICT, Policy, parse_policy
from ropewalk.ledger.rules.rules import judge
from ropewalk.ledger.rules.verdict import Context


def policy(*rules: dict[str, Any], **members: Any) -> Policy:
    numbered = [{"id": f"r{i}", "name": f"n{i}", "version": 1, **rule} for i, rule in enumerate(rules)]
    return parse_policy(jcs.encode({"version": 1, "rules": numbered, **members}))


def test_only_allowed_signers_pass():
    only_ada = policy({"kind": "signers", "decision": "deny", "allowed": [ADA.public.to_json()]})
    assert only_ada.decide(observed()).outcome == "allow"
    decision = only_ada.decide(observed(key=P256))
    assert (
        decision.outcome == "deny"
        and f"{P256.public.did()} (p256 {P256.public.raw.hex()[:16]}…) is not an allowed signer"
        in decision.explain()
    )


def test_domains_are_patterns_and_the_severest_rule_wins():
    rules = policy(
        {"kind": "domains", "decision": "audit", "allowed": ["ea.*"]},
        {"kind": "domains", "decision": "deny", "allowed": ["ea.*", "arda.ui"]},
    )
    assert rules.decide(observed()).outcome == "allow"
    assert rules.decide(observed(domain="arda.ui")).outcome == "audit"
    assert rules.decide(observed(domain="evil")).outcome == "deny"
    assert [reason.decision for reason in rules.decide(observed(domain="evil")).reasons] == ["audit", "deny"]


def test_evidence_can_be_demanded_per_domain():
    rules = policy(
        {"kind": "evidence", "decision": "deny", "formats": ["slsa.v1"], "when": {"domains": ["builds"]}}
    )
    assert rules.decide(observed()).outcome == "allow"
    assert rules.decide(observed(domain="builds")).outcome == "deny"
    evidence = {"format": "slsa.v1", "evidence_hash": "0" * 64}
    built = observed(domain="builds", evidence=evidence)
    assert rules.decide(built, "passed").outcome == "allow"
    assert rules.decide(built).outcome == rules.decide(built, "not_checked").outcome == "deny"
    assert rules.decide(built, "failed").outcome == "deny"
    other = observed(domain="builds", evidence={**evidence, "format": "tee.report"})
    assert rules.decide(other, "passed").outcome == "deny"


def test_classes_can_be_made_to_carry_a_correlation_id():
    rules = policy({"kind": "correlation", "decision": "deny", "when": {"classes": ["Alert"]}})
    assert rules.decide(observed(event_class="Alert")).outcome == "deny"
    assert rules.decide(observed(event_class="Alert", correlation_id="a")).outcome == "allow"
    assert rules.decide(observed()).outcome == "allow"


def test_envelopes_can_be_made_to_name_the_policy():
    rules = policy({"kind": "policy_tag", "decision": "deny"})
    assert rules.decide(observed()).outcome == "deny"
    assert rules.decide(observed(policy_tag={"policy_hash": rules.hash.hex()})).outcome == "allow"


def test_unchecked_proofs_and_evidence_are_for_the_policy_to_judge():
    lattice = observed(integrity_proof={"type": "lattice", "proof": "AA=="})
    assert judge(lattice, Context()).ok
    with pytest.raises(Denied, match="lattice"):
        judge(lattice, Context(policy=STRICT)).require()
    unseen = observed(evidence={"format": "tee.report", "evidence_hash": "0" * 64})
    with pytest.raises(Denied, match="was not verified"):
        judge(unseen, Context(policy=STRICT)).require()
    snark = observed(integrity_proof={"type": "snark", "proof": "AA=="})
    with pytest.raises(Denied, match="snark"):
        judge(snark, Context(policy=STRICT)).require()


def test_the_hash_covers_the_rules_in_any_order_but_not_the_name():
    one = {"kind": "correlation", "decision": "deny", "id": "a", "name": "x", "version": 1}
    two = {"kind": "policy_tag", "decision": "audit", "id": "b", "name": "y", "version": 1}
    same = [
        parse_policy(jcs.encode({"version": 1, "name": name, "rules": rules}))
        for name, rules in (("p", [one, two]), ("q", [two, one]))
    ]
    assert same[0].hash == same[1].hash
    assert policy(one).hash != same[0].hash
    assert policy(one, evaluator_version="other/1").hash != policy(one).hash
    assert policy(one, capability_matrix={"a": 1}).hash != policy(one).hash


def test_a_policy_survives_its_file():
    assert parse_policy(STRICT.to_bytes()) == STRICT


@pytest.mark.parametrize(
    "rule",
    [
        {"kind": "magic", "decision": "deny"},
        {"kind": "correlation", "decision": "perhaps"},
        {"kind": "signers", "decision": "deny"},
        {
            "kind": "signers",
            "decision": "deny",
            "allowed": [{"identity_type": "ed25519", "public_key": "00"}],
        },
        {"kind": "domains", "decision": "deny", "allowed": [5]},
        {"kind": "signed_fields", "decision": "deny", "fields": ["nothing"]},
        {"kind": "confidentiality", "decision": "allow", "level": "secret", "requires": []},
        {"kind": "confidentiality", "decision": "allow", "level": "restricted", "requires": ["magic"]},
        {"kind": "correlation", "decision": "deny", "when": {"moons": ["full"]}},
        {"kind": "correlation", "decision": "deny", "typo": 1},
    ],
)
def test_a_rule_nobody_can_read_is_refused(rule):
    with pytest.raises(Invalid):
        policy(rule)


@pytest.mark.parametrize(
    "raw",
    [
        b"[]",
        b'{"version":2,"rules":[]}',
        b'{"version":true,"rules":[]}',
        b'{"version":1,"rules":[],"x":1}',
        b"{",
    ],
)
def test_what_is_no_policy_is_refused(raw):
    with pytest.raises(RopewalkError) as caught:
        parse_policy(raw)
    assert caught.value.exit_code == 8


def test_the_policy_is_enforced_at_ingress_and_named_in_every_header(tmp_path):
    only_ada = policy({"kind": "signers", "decision": "deny", "allowed": [ADA.public.to_json()]})
    with opened(tmp_path, policy=only_ada) as ledger:
        receipt = ledger.log.submit(observed().raw)
        with pytest.raises(Denied) as caught:
            ledger.log.submit(observed(1, P256).raw)
        assert caught.value.exit_code == 6
        assert caught.value.fields["decision"] == "deny" and len(caught.value.fields["rules"]) == 8
        assert receipt.height == 0
    from ropewalk.ledger.channel.channel import open_channel

    with open_channel(tmp_path, "ea.core") as channel:
        assert [block.header.policy_hash for block in channel.blocks()] == [only_ada.hash]
        assert channel.settings.trust().policy_hash == only_ada.hash


def test_trust_survives_its_file_and_says_what_it_trusts():
    trust = Trust((NODE.public,), (NODE.public, ADA.public), STRICT.hash, ("-----BEGIN CERTIFICATE-----",))
    assert parse_trust(trust.to_bytes()) == trust
    assert any(STRICT.hash.hex() in line for line in trust.explain())


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"policy_hash": "AB" * 32},
        {"policy_hash": 5},
        {"block_signers": {}},
        {"block_signers": [{"identity_type": "ed25519", "public_key": "01" + "00" * 31}]},
        {"roots": ["nothing"]},
        {"extra": 1},
    ],
)
def test_a_trust_file_with_anything_unclear_is_refused(change):
    value: Any = jcs.parse(Trust((NODE.public,), ()).to_bytes())
    with pytest.raises(Invalid):
        parse_trust(jcs.encode({**value, **change}))


def test_missing_level_counts_as_public():
    untagged = observed()
    assert judge(untagged, Context()).ok
    closed = policy({"kind": "confidentiality", "decision": "deny", "level": "public", "requires": []})
    assert closed.decide(untagged).outcome == "deny"
    looser = {"kind": "confidentiality", "decision": "allow", "level": "public", "requires": []}
    both = policy({"kind": "confidentiality", "decision": "deny", "level": "public", "requires": []}, looser)
    assert both.decide(untagged).outcome == "deny"
    assert not judge(untagged, Context(policy=both)).ok
