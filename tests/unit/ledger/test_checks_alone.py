"""Every check refuses by itself: each of these is wrong in one thing only, which no other check would notice."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.ledger.making import (
    NODE,
    NOON,
    NOON_NS,
    P256,
    chain_of_blocks,
    changed,
    observed,
    resigned,
)

from ropewalk.errors import (
    BrokenLink,
    DigestMismatch,
    Invalid,
    InvalidEnvelope,
    InvalidProof,
    SigInvalid,
    TooLarge,
    Unverified,
)
from ropewalk.kernel import jcs, merkle
from ropewalk.kernel.digest import Tag
from ropewalk.kernel.keys import Signature
from ropewalk.ledger.block.block import (
    GENESIS,
    HEADER_BYTES_MAX,
    Block,
    BlockRecord,
    Header,
    check_contents,
    check_link,
    check_signature,
    find_fork,
    parse_record,
    seal,
)
from ropewalk.ledger.block.fork import parse_fork
from ropewalk.ledger.envelope.adapt import ORIGINAL_BYTES_MAX, check_adapted, resign
from ropewalk.ledger.envelope.envelope import parse, parse_stored
from ropewalk.ledger.envelope.fields import MINIMUM_SIGNED
from ropewalk.ledger.envelope.model import Envelope, envelope_id
from ropewalk.ledger.proof.proof import Proof, parse_proof, verify_proof
from ropewalk.ledger.proof.trust import Trust
from ropewalk.ledger.proof.verify import SeenEnvelopes
from ropewalk.ledger.rules.policy import STRICT, Policy, parse_policy
from ropewalk.ledger.rules.rules import CHAIN_MAX, judge
from ropewalk.ledger.rules.verdict import Context

BLOCKS = chain_of_blocks(3)


def resealed(header: Header, block: Block = BLOCKS[0]) -> Block:
    """The block under another header, signed again by its own key."""
    signature = Signature(NODE.alg, NODE.sign(Tag.BLOCK_SIGNATURE + header.encode()))
    record: dict[str, Any] = {
        "header": header.to_json(),
        "signature": signature.to_json(),
        "signer": NODE.public.to_json(),
    }
    return Block(BlockRecord(header, signature, NODE.public, jcs.encode(record)), block.envelopes)


# --- blocks ---


def test_the_right_hash_below_does_not_excuse_a_wrong_height():
    below = BLOCKS[0].header
    with pytest.raises(BrokenLink, match="expected block 1"):
        check_link(below, replace(BLOCKS[1].header, height=2))
    with pytest.raises(BrokenLink, match="expected block 0"):
        check_link(None, replace(BLOCKS[0].header, height=1))


def test_the_right_height_does_not_excuse_a_wrong_hash_below():
    with pytest.raises(BrokenLink, match="prev_block_hash must be"):
        check_link(BLOCKS[0].header, replace(BLOCKS[1].header, prev_block_hash=GENESIS))
    with pytest.raises(BrokenLink, match="prev_block_hash must be"):
        check_link(None, replace(BLOCKS[0].header, prev_block_hash=bytes([1] * 32)))


@pytest.mark.parametrize("count", [2, 4])
def test_the_right_root_does_not_excuse_a_wrong_count(count):
    """The count is what sizes of proofs are taken from."""
    wrong = resealed(replace(BLOCKS[0].header, envelope_count=count))
    check_signature(wrong.record, [NODE.public])
    with pytest.raises(DigestMismatch) as caught:
        check_contents(wrong)
    assert caught.value.fields["where"] == "envelope_count"


def test_a_seal_that_holds_under_another_algorithm_s_name_is_refused():
    record = BLOCKS[0].record
    check_signature(record)
    with pytest.raises(SigInvalid, match="p256 signature of a ed25519 key"):
        check_signature(replace(record, signature=Signature("p256", record.signature.raw)))


def test_a_header_too_large_to_be_anchored_is_refused():
    small = replace(BLOCKS[0].header, integrity_proof="x" * 1_000)
    assert parse_record(resealed(small).record.raw).header == small
    large = replace(BLOCKS[0].header, integrity_proof="x" * HEADER_BYTES_MAX)
    with pytest.raises(Invalid, match="at most"):
        parse_record(resealed(large).record.raw)


def test_a_block_record_holds_three_members_and_no_fourth():
    value: Any = jcs.parse(BLOCKS[0].record.raw)
    with pytest.raises(Invalid, match="exactly"):
        parse_record(jcs.encode({**value, "more": 1}))


def test_the_same_height_of_two_channels_is_no_fork():
    other = chain_of_blocks(1, channel="ea.other")[0]
    assert other.hash != BLOCKS[0].hash
    assert find_fork(BLOCKS[0].record, other.record) is None


# --- rules ---


def status(envelope: Envelope, rule: int, context: Context) -> str:
    return judge(envelope, context).findings[rule - 1].status


def test_signature_of_other_algorithm_fails():
    """The name of the algorithm stands outside what is signed; both keys have 33 bytes."""
    one = observed(key=P256)
    value = {**one.value, "signature": {**one.value["signature"], "alg": "secp256k1"}}
    assert status(one, 2, Context()) == "passed"
    assert status(parse(jcs.encode(value)), 2, Context()) == "failed"


def test_a_chain_longer_than_anybody_looks_up_fails_rule_3():
    def chained(length: int) -> Envelope:
        names = [number.to_bytes(32, "big").hex() for number in range(length - 1)]
        return changed(observed(correlation_id="c"), causality_chain=[*names, "c"])

    for context in (Context(), Context(SeenEnvelopes())):
        assert status(chained(CHAIN_MAX), 3, context) == "not_checked"
        assert status(chained(CHAIN_MAX + 1), 3, context) == "failed"


def test_ancestor_named_twice_fails_rule_3():
    twice = changed(observed(correlation_id="c"), causality_chain=["aa" * 32, "aa" * 32, "c"])
    for context in (Context(), Context(SeenEnvelopes())):
        assert status(twice, 3, context) == "failed"


@pytest.mark.parametrize("kind", ["Command", "Result"])
def test_command_needs_correlation_id(kind):
    for context in (Context(), Context(SeenEnvelopes())):
        assert status(observed(event_class=kind), 3, context) == "failed"


def proved(**members: Any) -> Envelope:
    """An envelope with a Merkle proof over its own payload hash: a tree of one leaf."""
    leaf = observed().payload_hash.hex()
    proof = {"leaf": leaf, "index": 0, "size": 1, "path": [], "root": leaf, **members}
    text = b64encode(jcs.encode(proof)).decode()
    return observed(integrity_proof={"type": "merkle", "proof": text})


def test_proof_may_lead_to_payload_hash():
    assert status(proved(), 7, Context(SeenEnvelopes())) == "passed"
    in_capitals = observed().payload_hash.hex().upper()
    assert in_capitals != in_capitals.lower()
    assert status(proved(leaf=in_capitals, root=in_capitals), 7, Context(SeenEnvelopes())) == "failed"


def test_an_ancestor_in_capitals_is_no_id():
    seen = SeenEnvelopes()
    parent = observed(correlation_id="c")
    seen.remember(parent, 0, 0)
    child = observed(1, parent=parent)
    assert status(child, 3, Context(seen)) == "passed"
    shouted = changed(child, causality_chain=[parent.hex_id.upper(), "c"])
    assert status(shouted, 3, Context(seen)) == "not_checked"


@pytest.mark.parametrize(
    ("decision", "found"), [("allow", "passed"), ("audit", "failed"), ("deny", "failed")]
)
def test_only_allow_lets_an_alert_be_said_again(decision, found):
    seen = SeenEnvelopes()
    seen.remember(observed(event_class="Alert", correlation_id="a"), 0, 0)
    tag = {"policy_hash": STRICT.hash.hex(), "decision": decision}
    again = observed(1, event_class="Alert", correlation_id="a", policy_tag=tag)
    assert status(again, 8, Context(seen, STRICT)) == found
    assert status(again, 8, Context(seen)) == "failed"


@pytest.mark.parametrize(("found", "outcome"), [("passed", "allow"), ("not_checked", "deny")])
def test_evidence_counts_as_checked_only_where_it_passed(found, outcome):
    one = observed(evidence={"format": "tee.report", "evidence_hash": "0" * 64})
    decision = judge(one, Context(policy=STRICT, evidence=lambda _: (found, "said"))).decision
    assert decision is not None and decision.outcome == outcome


# --- proofs ---


def proof_of(envelope: bytes) -> Proof:
    """What a node that seals anything would hand out."""
    block = seal(
        NODE,
        channel="ea.core",
        height=0,
        prev_block_hash=GENESIS,
        envelopes=[envelope, observed(9).raw],
        timestamp_ns=NOON_NS,
    )
    stored = parse_stored(envelope)
    path = merkle.inclusion_proof([stored.id, observed(9).id], 0)
    return Proof(stored, 0, path, block.record, 0, stored.hex_id)


@pytest.mark.parametrize(
    ("change", "step"),
    [({"payload": {"n": 1}}, "payload_hash"), ({"event_type": "forged"}, "envelope_signature")],
)
def test_a_trusted_seal_does_not_excuse_an_envelope_that_does_not_hold(change, step):
    trust = Trust((NODE.public,), ())
    good = observed().value
    assert verify_proof(proof_of(jcs.encode(good)), trust).ok
    report = verify_proof(proof_of(jcs.encode({**good, **change})), trust)
    assert [each.name for each in report.steps if each.status == "failed"] == [step]


@pytest.mark.parametrize(
    "change",
    [
        {"path": ["00" * 32] * 65},
        {"path": ["AB" * 32]},
        {"path": ["ab" * 31]},
        {"index": -1},
        {"index": True},
        {"height": -1},
        {"version": 2},
        {"version": True},
    ],
)
def test_a_proof_file_of_another_form_is_refused_before_it_is_judged(change):
    value: Any = jcs.parse(proof_of(observed().raw).to_bytes())
    assert parse_proof(jcs.encode(value))
    with pytest.raises(InvalidProof):
        parse_proof(jcs.encode({**value, **change}))


# --- policies ---


def policy(*rules: dict[str, Any]) -> Policy:
    numbered = [{"id": f"r{i}", "name": "n", "version": 1, **rule} for i, rule in enumerate(rules)]
    return parse_policy(jcs.encode({"version": 1, "rules": numbered}))


def restricted(**members: Any) -> Envelope:
    tag = {"level": "restricted", **members.pop("tag", {})}
    return observed(confidentiality=tag, **members)


LEVEL = {"kind": "confidentiality", "decision": "allow", "level": "restricted", "requires": []}


def test_policy_silent_on_restricted_denies_it():
    assert policy().decide(restricted()).outcome == "deny"
    assert policy(LEVEL).decide(restricted()).outcome == "allow"
    elsewhere = policy({**LEVEL, "when": {"domains": ["other"]}})
    assert elsewhere.decide(restricted()).outcome == "deny"
    assert elsewhere.decide(restricted(domain="other")).outcome == "allow"


@pytest.mark.parametrize(
    ("need", "tag", "members"),
    [
        ("key_ref", {"key_ref": "k"}, {}),
        ("enclave_ref", {"enclave_ref": "e"}, {}),
        ("detached", {}, {"payload": {"secret": 1}, "detached": {"locator": "file:///x"}}),
    ],
)
def test_level_without_requirement_is_denied(need, tag, members):
    for decision in ("allow", "audit"):
        rules = policy({**LEVEL, "decision": decision, "requires": [need]})
        assert rules.decide(restricted()).outcome == "deny"
        assert rules.decide(restricted(tag=tag, **members)).outcome == decision


@pytest.mark.parametrize(
    ("when", "meant"),
    [
        ({"domains": ["builds"]}, {"domain": "builds"}),
        ({"classes": ["Alert"]}, {"event_class": "Alert"}),
        ({"types": ["deploy.*"]}, {"event_type": "deploy.web"}),
    ],
)
def test_a_rule_speaks_only_of_what_it_is_narrowed_to(when, meant):
    rules = policy({"kind": "correlation", "decision": "deny", "when": when})
    assert rules.decide(observed()).outcome == "allow"
    assert rules.decide(observed(**meant)).outcome == "deny"


def test_naming_another_policy_is_not_naming_this_one():
    rules = policy({"kind": "policy_tag", "decision": "deny"})
    assert rules.decide(observed(policy_tag={"policy_hash": rules.hash.hex()})).outcome == "allow"
    assert rules.decide(observed(policy_tag={"policy_hash": STRICT.hash.hex()})).outcome == "deny"


def test_two_rules_of_one_id_are_refused():
    rule = {"kind": "correlation", "decision": "deny", "id": "same"}
    with pytest.raises(Invalid, match="share an id"):
        policy(rule, rule)


def test_listed_fields_must_be_signed_and_others_need_not():
    one = observed(correlation_id="c", signed_fields=MINIMUM_SIGNED)
    for field, outcome in (("correlation_id", "deny"), ("policy_tag", "allow"), ("domain", "allow")):
        rules = policy({"kind": "signed_fields", "decision": "deny", "fields": [field]})
        assert rules.decide(one).outcome == outcome


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"rules": None}, "rules"),
        ({"rules": [5]}, "a rule must be an object"),
        ({"name": 5}, "must be strings"),
        ({"evaluator_version": None}, "must be strings"),
        ({"capability_matrix": []}, "capability_matrix"),
        ({"capability_matrix": {"versions": "1.0.x"}}, "ranges"),
        ({"capability_matrix": {"versions": [1]}}, "ranges"),
        (
            {"rules": [{"id": 5, "name": "n", "version": 1, "kind": "correlation", "decision": "deny"}]},
            '"id"',
        ),
        (
            {"rules": [{"id": "a", "name": "n", "version": "1", "kind": "correlation", "decision": "deny"}]},
            "version",
        ),
    ],
)
def test_a_policy_of_another_form_is_refused_for_what_is_wrong_with_it(change, word):
    with pytest.raises(Invalid, match=word):
        parse_policy(jcs.encode({"version": 1, "rules": [], **change}))


# --- forks ---


@pytest.mark.parametrize(
    "change", [{"more": 1}, {"version": 2}, {"version": True}, {"kind": "knife"}, {"height": 1}]
)
def test_a_fork_s_document_has_one_form(change):
    other = seal(
        NODE,
        channel="ea.core",
        height=0,
        prev_block_hash=GENESIS,
        envelopes=[observed(77).raw],
        timestamp_ns=NOON_NS,
    )
    fork = find_fork(BLOCKS[0].record, other.record)
    assert fork is not None
    assert parse_fork(fork.to_bytes()) == fork
    value: Any = jcs.parse(fork.to_bytes())
    with pytest.raises(Invalid):
        parse_fork(jcs.encode({**value, **change}))


# --- adapters ---


def test_original_with_missing_fields_not_resigned():
    """Its signature holds, but says nothing of who, what and when."""
    value = observed().value
    for left_out in MINIMUM_SIGNED:
        names = [name for name in value["signature"]["signed_fields"] if name != left_out]
        short = resigned({**value, "signature": {**value["signature"], "signed_fields": names}})
        with pytest.raises(Unverified, match="does not sign all required fields"):
            resign(short, NODE, NOON)


def test_an_original_too_large_to_travel_is_refused_before_it_is_read():
    with pytest.raises(TooLarge):
        resign(b" " * (ORIGINAL_BYTES_MAX + 1), NODE, NOON)


@pytest.mark.parametrize("name", [*MINIMUM_SIGNED, "signature", "payload"])
def test_an_original_that_lacks_a_field_is_invalid_and_not_forged(name):
    value = {key: each for key, each in observed().value.items() if key != name}
    with pytest.raises(InvalidEnvelope, match=name):
        resign(jcs.encode(value), NODE, NOON)


def test_what_is_carried_as_an_original_must_be_an_envelope():
    done = resign(observed().raw, NODE, NOON).envelope
    evidence = done.value["attestation_evidence"]
    carried = {
        "legacy_envelope": b64encode(b"[]").decode(),
        "legacy_envelope_id": envelope_id(b"[]").hex(),
    }
    lie = changed(done, NODE, attestation_evidence={**evidence, "report": {**evidence["report"], **carried}})
    with pytest.raises(Unverified, match="not a valid envelope"):
        check_adapted(lie)
