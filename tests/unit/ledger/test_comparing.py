"""What files, reports and advice say, so that a person can compare: keys in both spellings, heights, roots, signers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.ledger.attesting import attested, dsse
from tests.unit.ledger.calling import make
from tests.unit.ledger.making import ADA, NODE, observed, opened

from ropewalk.cli.common.verdict import format_report
from ropewalk.errors import Conflict, Invalid
from ropewalk.kernel.note import note
from ropewalk.kernel.report import Report, Step
from ropewalk.kernel.schema import shipped as schema
from ropewalk.ledger.block.block import Fork
from ropewalk.ledger.block.fork import verify_fork
from ropewalk.ledger.channel.channel import Channel, open_channel
from ropewalk.ledger.channel.settings import create_channel
from ropewalk.ledger.proof.proof import verify_proof
from ropewalk.ledger.proof.trust import Trust, parse_trust
from ropewalk.ledger.rules.policy import STRICT

TRUST = Trust((NODE.public,), (ADA.public,))


@pytest.fixture(scope="module")
def channel(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    with opened(home) as ledger:
        for number in range(4):
            ledger.log.submit(observed(number).raw)
    with open_channel(home, "ea.core") as reading:
        yield reading


def test_a_trust_file_takes_a_key_as_did_key_or_as_hex():
    written = json.loads(TRUST.to_bytes())
    assert written["block_signers"] == [NODE.public.to_json()], "written as it always was"
    value = {**written, "block_signers": [NODE.public.did()], "bundle_signers": [ADA.public.did()]}
    value["evidence"] = {"keys": [ADA.public.did()]}
    schema.validate("ledger/trust", written)
    schema.validate("ledger/trust", value)
    read = parse_trust(json.dumps(value).encode())
    assert replace(read, evidence=None) == TRUST
    assert read.evidence is not None and read.evidence.keys == (ADA.public,)
    for wrong in ("did:key:z6Mk", "did:web:example.org", NODE.public.raw.hex(), 7):
        with pytest.raises(Invalid, match="trust file: block_signers"):
            parse_trust(json.dumps({**written, "block_signers": [wrong]}).encode())


def test_trust_explanation_names_keys():
    said = "\n".join(TRUST.explain())
    for key in (NODE.public, ADA.public):
        assert key.did() in said and key.raw.hex() in said


def test_whoever_prints_a_trust_file_is_told_the_same_keys_as_did_key(ropewalk):
    assert ropewalk("ledger", "create", "--channel", "audit", "--key", "ada").code == 0
    printed = ropewalk("ledger", "trust", "--channel", "audit")
    signer = parse_trust(printed.out.encode()).block_signers[0]
    assert signer.did() in printed.err and signer.raw.hex() in printed.err
    answer = ropewalk("ledger", "trust", "--channel", "audit", "-o", "trust.json", "--json").json
    assert any(signer.did() in line and signer.raw.hex() in line for line in answer["why"])


def said(report: Report) -> dict[str, str]:
    assert all(step.detail for step in report.steps), report
    return {step.name: step.detail for step in report.steps}


def test_every_step_of_a_proof_says_what_was_compared(channel: Channel):
    proof = channel.prove(observed(2).id)
    header, trust = proof.block.header, replace(TRUST, policy_hash=STRICT.hash)
    for believed in (None, TRUST, trust, Trust((ADA.public,), ())):
        told = said(verify_proof(proof, believed))
        assert proof.envelope.hex_id[:16] in told["envelope_hash"] and "block 2" in told["envelope_hash"]
        assert header.merkle_root.hex()[:16] in told["merkle_path"]
        assert ADA.public.did() in told["envelope_signature"]
        assert NODE.public.did() in told["block_signature"] and NODE.public.did() in told["block_signer"]
    assert STRICT.hash.hex()[:16] in said(verify_proof(proof, trust))["policy_hash"]
    wrong = said(verify_proof(replace(proof, index=1)))
    assert "envelope 1 among 1" in wrong["merkle_path"]


def test_every_step_about_ranges_and_consistency_says_what_was_compared(channel: Channel):
    statement = channel.prove_range(1, 3)
    told = said(statement.report())
    root = statement.root.hex()[:16]
    assert "among 4 of ea.core" in told["range"] and root in told["range"] and root in told["signed_head"]
    forged = replace(statement, root=bytes(32)).report()
    assert not forged.ok and "0000000000000000…" in said(forged)["range"]

    proof = channel.prove_consistency(2, 4)
    told = said(proof.report())
    for each in (proof.old_root, proof.new_root):
        assert each.hex()[:16] in told["consistency"]
    assert "2 blocks of ea.core" in told["consistency"] and "bundle of blocks 0–3" in told["signed_head"]
    assert not replace(proof, old_root=bytes(32)).report().ok
    assert said(channel.prove_consistency(0, 0).report())["signed_head"].endswith("about 0 blocks")


@pytest.mark.parametrize(
    ("kind", "change", "code"),
    [
        ("range", {}, 0),  # its root is not signed: accepted by --no-trust alone
        ("range", {"root": "00" * 32}, 5),
        ("range", {"left": []}, 5),
        ("range", {"start": 4}, 8),
        ("range", {"size": 0}, 8),
        ("range", {"block_hashes": []}, 8),
        ("range", {"channel": None}, 8),
        ("range", {"channel": "\x1b[31mea"}, 8),
        ("consistency", {}, 0),
        ("consistency", {"path": []}, 5),
        ("consistency", {"old": 5}, 8),
        ("consistency", {"channel": {"a": 1}}, 8),
    ],
)
def test_impossible_proof_refused_wrong_fails(
    channel: Channel, ropewalk, tmp_path: Path, kind: str, change: dict[str, Any], code: int
):
    made = channel.prove_range(1, 3) if kind == "range" else channel.prove_consistency(2, 4)
    (tmp_path / "proof.json").write_text(json.dumps({**json.loads(made.to_bytes()), **change}))
    answer = ropewalk("verify", "proof.json", "--no-trust", "--json")
    assert answer.code == code, answer.out + answer.err
    assert ropewalk("verify", "proof.json").code == (code or 5)
    assert (code == 8) == (answer.json.get("code") == "InvalidProof")


def test_what_a_stranger_wrote_into_a_report_steers_no_terminal():
    told = format_report(Report.of([Step("x", "failed", "a\x07\u202eb\nc")], entries=1))
    assert told.splitlines()[0].endswith(r"a\x07\u202eb\nc")


def test_the_type_of_an_envelope_forges_no_line_of_what_is_printed(ropewalk, tmp_path: Path):
    forged = "x\n0/1  2024-11-01T12:00:00Z  Alert  fire\u202e\x07"
    (tmp_path / "x.json").write_bytes(observed(event_type=forged).raw)
    assert ropewalk("ledger", "create", "--channel", "audit").code == 0
    assert ropewalk("ledger", "append", "--channel", "audit", "--file", "x.json").code == 0
    (line,) = ropewalk("ledger", "read", "--channel", "audit").out.splitlines()
    assert line.startswith("0/0  ") and r"x\n0/1" in line and line.isprintable()
    rule = {"id": "r", "name": "n", "version": 1, "kind": "schema_declared", "decision": "deny"}
    (tmp_path / "p.json").write_text(json.dumps({"version": 1, "rules": [rule]}))
    said = ropewalk("ledger", "policy", "check", "--file", "x.json", "--policy", "p.json")
    assert said.code == 6 and said.out.count("\n") == 9 and r"\u202e\x07" in said.out


def test_every_step_about_a_fork_says_what_was_compared(channel: Channel):
    first, second = (block.record for block in channel.blocks(0, 1))
    for trust in (None, TRUST, Trust((), ())):
        told = said(verify_fork(Fork(first, first), trust))
        assert told["same_place"] == "height 0 of ea.core"
        assert (
            first.hash.hex()[:16] in told["two_blocks"] and first.hash.hex()[:16] in told["first_signature"]
        )
        assert NODE.public.did() in told["same_signer"] and NODE.public.did() in told["signer"]
    apart = verify_fork(Fork(first, second), TRUST)
    assert not apart.ok and said(apart)["same_place"] == "height 0 of ea.core, and height 1 of ea.core"


def test_a_channel_that_exists_is_advised_about_as_it_is(tmp_path):
    create_channel(tmp_path, "ea.core", "node", NODE.public)
    with pytest.raises(Conflict) as refused:
        create_channel(tmp_path, "ea.core", "ada", ADA.public)
    assert (
        "policy and keys of a channel are fixed" in refused.value.advice_now
        and "another name" in refused.value.advice_now
    )


def test_tiles_come_with_the_key_that_checks_their_checkpoint(ropewalk):
    make(ropewalk)
    assert ropewalk("ledger", "append", "--channel", "audit", "--file", "one.json").code == 0
    tiles = ("ledger", "tiles", "--channel", "audit", "--host", "log.example", "-o", "public")
    vkey = ropewalk(*tiles, "--json").json["vkey"]
    verifier = note.Verifier.from_text(vkey)
    head, _ = note.open_head(Path("public/checkpoint").read_bytes(), verifier)
    assert (head.origin, head.size) == ("log.example/audit", 1)
    assert f"check public/checkpoint with the vkey {vkey}" in ropewalk(*tiles).out
    signed = ropewalk(
        "ledger", "head", "--channel", "audit", "--note", "--host", "log.example", "--json"
    ).json
    assert signed["vkey"] == vkey and note.open_head(signed["note"].encode(), verifier)[0] == head


def test_a_nonce_that_was_asked_for_and_not_checked_is_no_success(ropewalk):
    assert ropewalk("ledger", "create", "--channel", "audit").code == 0
    report: dict[str, Any] = {**dsse(ADA), "freshness": {"nonce": "0a0b"}}
    Path("fresh.json").write_bytes(attested(report, "slsa.v1").raw)
    check = ("ledger", "evidence", "check", "--channel", "audit", "--file", "fresh.json", "--json")
    plain = ropewalk(*check)
    assert (plain.code, plain.json["status"]) == (0, "not_checked")
    asked = ropewalk(*check, "--nonce", "0a0b")
    assert (asked.code, asked.json["status"]) == (5, "not_checked") and "nonce" in asked.json["detail"]
    setting = ("ledger", "evidence", "set", "--channel", "audit", "--key", ADA.public.did())
    assert ropewalk(*setting, "--builder", "https://builder.example/v1").code == 0
    answered = ropewalk(*check, "--nonce", "0a0b")
    assert (answered.code, answered.json["status"]) == (0, "passed")
