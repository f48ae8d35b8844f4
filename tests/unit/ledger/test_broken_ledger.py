"""Defects found by attacking the finished ledger; each stays here under its name."""

from __future__ import annotations

import json
import sys
import time

import pytest
from tests.unit.ledger.attesting import attested, dsse
from tests.unit.ledger.bundling import pack, signed, tar_of, unpack
from tests.unit.ledger.making import (
    ADA,
    NODE,
    NOON_NS,
    chain_of_blocks,
    changed,
    command,
    observed,
    opened,
    resigned,
)

from ropewalk.errors import Damaged, Denied, Invalid, RopewalkError, Unverified
from ropewalk.kernel import jcs
from ropewalk.ledger.block.block import GENESIS, Block, parse_record, seal
from ropewalk.ledger.bundle.files import export_bundle, verify_bundle
from ropewalk.ledger.channel.channel import open_channel, verify_blocks
from ropewalk.ledger.channel.settings import read_settings
from ropewalk.ledger.envelope.envelope import parse
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.evidence.trust import EvidenceTrust
from ropewalk.ledger.evidence.verify import evidence_check
from ropewalk.ledger.proof.proof import Proof, parse_proof
from ropewalk.ledger.proof.trust import Trust, parse_trust
from ropewalk.ledger.replay.guard import guarded
from ropewalk.ledger.replay.reducers import FoldContext, Reducer
from ropewalk.ledger.replay.replay import Replay
from ropewalk.ledger.rules.policy import STRICT, Policy, parse_policy
from ropewalk.ledger.rules.rules import judge
from ropewalk.ledger.rules.verdict import Context

TRUST = Trust((NODE.public,), (NODE.public,))


def only(kind: str, decision: str = "deny") -> Policy:
    rule = {"id": "r", "name": "n", "version": 1, "kind": kind, "decision": decision}
    return parse_policy(jcs.encode({"version": 1, "rules": [rule]}))


def test_a_header_whose_format_is_true_does_not_pass_for_format_1():
    raw = chain_of_blocks(1)[0].record.raw
    with pytest.raises(Invalid, match="block format True"):
        parse_record(raw.replace(b'"protocol_version":1', b'"protocol_version":true'))


def test_a_version_of_true_is_no_version_1():
    block = chain_of_blocks(1, per_block=1)[0]
    envelope = observed(0)
    proof = Proof(envelope, 0, (), block.record, 0, envelope.hex_id).to_bytes()
    assert parse_proof(proof).height == 0
    for read, raw in ((parse_proof, proof), (parse_trust, TRUST.to_bytes())):
        with pytest.raises(RopewalkError, match="version True"):
            read(raw.replace(b'"version":1', b'"version":true'))


def test_policy_refuses_unhashable_requirement():
    rule = {"id": "r", "name": "n", "version": 1, "kind": "confidentiality", "decision": "allow"}
    wrong: list[list[jcs.Json]] = [[{}], [[]], [None]]
    for requires in wrong:
        raw = {"version": 1, "rules": [{**rule, "level": "restricted", "requires": requires}]}
        with pytest.raises(Invalid):
            parse_policy(jcs.encode(raw))


def test_bound_forged_provenance_is_not_checked():
    forged = attested(dsse(ADA), "slsa.v1")
    with pytest.raises(Denied, match="was not verified"):
        judge(forged, Context(policy=only("evidence_checked"))).require()


def test_evidence_checked_on_entry_verifies_deep(tmp_path):
    trust = EvidenceTrust(keys=(ADA.public,), builders=frozenset({"https://builder.example/v1"}))
    policy = only("evidence_checked")
    true = attested(dsse(ADA), "slsa.v1")
    assert judge(true, Context(policy=policy, evidence=evidence_check(trust, lambda: 0))).ok
    with opened(tmp_path, policy=policy) as ledger:
        config = {"version": 1, "keys": [ADA.public.to_json()], "builders": ["https://builder.example/v1"]}
        (ledger.channel.folder / "evidence.json").write_text(json.dumps(config))
    with opened(tmp_path) as ledger:
        ledger.log.submit(true.raw)
        with pytest.raises(RopewalkError):
            ledger.log.submit(attested(dsse(NODE), "slsa.v1", nonce="x").raw)
    assert verify_blocks(tmp_path, "ea.core", deep=True).ok


def test_manifest_of_other_policy_fails_unpinned(tmp_path):
    with opened(tmp_path) as ledger:
        ledger.log.submit(observed(1).raw)
    path = tmp_path / "x.tar.zst"
    with open_channel(tmp_path, "ea.core") as channel:
        export_bundle(channel, NODE, 0, 0, path)
    pack(path, tar_of(signed(unpack(path), policy_hash=STRICT.hash.hex())))
    report = verify_bundle(path, TRUST).report
    assert [step.name for step in report.steps if step.status == "failed"] == ["policy_hash"]


def sealed(*envelopes: Envelope, policy_hash: bytes | None = None) -> Block:
    raws = [each.raw for each in envelopes]
    return seal(
        NODE,
        channel="ea.core",
        height=0,
        prev_block_hash=GENESIS,
        envelopes=raws,
        timestamp_ns=NOON_NS,
        policy_hash=policy_hash,
    )


def test_a_block_sealed_elsewhere_is_judged_before_it_is_taken_in(tmp_path):
    forged = {**observed(1).value, "payload_hash": "0" * 64}
    one, other = command("c-1"), command("c-1", payload={"again": True})
    with opened(tmp_path) as ledger:
        for wrong in (
            sealed(parse(resigned(forged))),
            sealed(changed(observed(1), NODE)),
            sealed(one, other),
            sealed(observed(1), observed(1)),
            sealed(observed(1), policy_hash=bytes(32)),
        ):
            with pytest.raises(RopewalkError):
                ledger.log.insert(wrong)
        assert ledger.log.head.height == 0
        ledger.log.insert(sealed(one, observed(1)))
        assert ledger.log.submit(one.raw).replayed
    assert verify_blocks(tmp_path, "ea.core", deep=True).ok


def test_an_ancestor_in_capitals_is_not_taken_for_one_in_the_channel(tmp_path):
    with opened(tmp_path) as ledger:
        ask = command("c-1")
        ledger.log.submit(ask.raw)
        spelt = changed(observed(2, correlation_id="c-1"), causality_chain=[ask.hex_id.upper(), "c-1"])
        finding = judge(spelt, Context(ledger.log.history)).findings[2]
        assert (finding.status, finding.detail) == ("not_checked", "1 of 1 ancestors are not in this channel")


def test_a_reducer_that_switches_the_guard_off_is_caught_at_it():
    def sly(state, _event, _moment):
        sys.setprofile(None)
        return {**state, "at": time.time()}

    with pytest.raises(Unverified, match="the guard itself"):
        guarded(Reducer("sly", sly)).fold({}, {}, FoldContext("c", 0, 0))


def test_a_reducer_that_trips_is_named_and_is_no_defect_of_ours():
    def trips(state, _event, _moment):
        return state["missing"]

    replay = Replay(Reducer("trips", trips), "ea.core")
    with pytest.raises(Invalid, match=r"reducer trips failed in block 0: KeyError\('missing'\)"):
        replay.feed(chain_of_blocks(1)[0].lines())
    assert replay.height == -1


def test_spoilt_settings_are_damage_not_bad_input(tmp_path):
    with opened(tmp_path, policy=STRICT) as ledger:
        folder = ledger.channel.folder
    whole = json.loads((folder / "channel.json").read_bytes())
    for raw in (b"{", b"[]", json.dumps({**whole, "signer": 1}).encode()):
        (folder / "channel.json").write_bytes(raw)
        with pytest.raises(Damaged):
            read_settings(tmp_path, "ea.core")
    (folder / "channel.json").write_text(json.dumps(whole))
    assert read_settings(tmp_path, "ea.core").policy == STRICT
    for spoil in (lambda: (folder / "policy.json").write_bytes(b"{"), (folder / "policy.json").unlink):
        spoil()
        with pytest.raises(Damaged):
            read_settings(tmp_path, "ea.core")
