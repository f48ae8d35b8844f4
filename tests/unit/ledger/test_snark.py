"""`snark.v1` evidence and header proofs: real proofs of snarkjs, and every way to bend them."""

from __future__ import annotations

import copy
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.ledger.calling import make
from tests.unit.ledger.making import NODE

from ropewalk.errors import Invalid, Unverified
from ropewalk.kernel import jcs
from ropewalk.ledger.block.block import GENESIS, seal
from ropewalk.ledger.bundle.files import export_bundle, verify_bundle
from ropewalk.ledger.channel.channel import open_channel, open_log
from ropewalk.ledger.channel.maintenance import verify_stored
from ropewalk.ledger.channel.settings import create_channel
from ropewalk.ledger.envelope.envelope import parse_stored
from ropewalk.ledger.evidence.allowed import EvidenceAllowList
from ropewalk.ledger.evidence.snark import (
    CURVES,
    INPUTS_MAX,
    check_header_proof,
    check_snark,
    halves,
    key_digest,
    key_text,
    load_bn128,
    parse_key,
)
from ropewalk.ledger.evidence.trust import EvidenceTrust
from ropewalk.ledger.evidence.verify import check_evidence

VECTORS = Path(__file__).parents[3] / "vectors/snark"
NOW_NS = 1_793_534_400_000_000_000


def load(curve="bls12381"):
    return json.loads((VECTORS / f"{curve}.json").read_text())


VECTOR = load()
KEY = key_text(json.dumps(VECTOR["verification_key"]).encode())
KEYS = {key_digest(KEY): KEY}
REPORT = VECTOR["envelope"]["attestation_evidence"]["report"]
DIGEST = bytes.fromhex(VECTOR["payload_hash"])
PINS = EvidenceAllowList(snark_keys=(KEY,))


def bent(**members):
    return {**copy.deepcopy(REPORT), **members}


@pytest.mark.parametrize("curve", ["bls12381", "bn128"])
def test_snark_of_the_vectors_holds(curve):
    vector = load(curve)
    text = key_text(json.dumps(vector["verification_key"]).encode())
    assert key_digest(text) == vector["vk_sha256"]
    envelope = parse_stored(jcs.encode(vector["envelope"]))
    trust = EvidenceTrust.of((), EvidenceAllowList(snark_keys=(text,)))
    assert check_evidence(envelope, trust, NOW_NS)[0] == "passed"
    root = bytes.fromhex(vector["merkle_root"])
    if curve == "bls12381":  # a pairing over BN254 takes a second here
        assert check_header_proof(vector["header_proof"], root, {key_digest(text): text})[0] == "passed"


def test_snark_of_another_key_is_not_checked():
    envelope = parse_stored(jcs.encode(VECTOR["envelope"]))
    assert check_evidence(envelope, EvidenceTrust.of((), EvidenceAllowList()), NOW_NS)[0] == "not_checked"
    assert check_snark(REPORT, DIGEST, {})[0] == "not_checked"
    assert check_snark(bent(system="plonk"), DIGEST, KEYS)[0] == "not_checked"
    status, detail = check_evidence(envelope, EvidenceTrust.of((), PINS), NOW_NS, nonce=b"n")
    assert (status, "nonce" in detail) == ("failed", True)


@pytest.mark.parametrize("curve", ["bls12381", "bn128"])
def test_snark_wrong_input_is_refused(curve):
    vector = load(curve)
    text = key_text(json.dumps(vector["verification_key"]).encode())
    report = copy.deepcopy(vector["envelope"]["attestation_evidence"]["report"])
    report["public_inputs"][2] = "92"
    with pytest.raises(Unverified, match="does not hold"):
        check_snark(report, bytes.fromhex(vector["payload_hash"]), {key_digest(text): text})


def test_snark_public_inputs_bind_the_digest():
    for inputs in (["1", "2", "91"], REPORT["public_inputs"][:1], [], "91", [1, 2, 91]):
        with pytest.raises(Unverified, match="halves"):
            check_snark(bent(public_inputs=inputs), DIGEST, KEYS)
    with pytest.raises(Unverified, match="halves"):
        check_snark(REPORT, bytes(32), KEYS)
    other = {**VECTOR["envelope"], "payload_hash": "00" * 32}
    assert halves(DIGEST) == REPORT["public_inputs"][:2] != halves(bytes.fromhex(other["payload_hash"]))


def test_snark_input_has_one_spelling():
    """A number plus the order of the field would prove the same: it is refused, as are other spellings."""
    alias = str(int(REPORT["public_inputs"][2]) + CURVES["bls12381"].r)
    for text in (alias, "091", "+91", "91 ", 91, "-1", ""):
        with pytest.raises(Unverified, match="decimal texts below"):
            check_snark(bent(public_inputs=[*REPORT["public_inputs"][:2], text]), DIGEST, KEYS)
    for inputs in (REPORT["public_inputs"][:2], [*REPORT["public_inputs"], "0"]):
        with pytest.raises(Unverified, match="3 public inputs"):
            check_snark(bent(public_inputs=inputs), DIGEST, KEYS)


def outside_subgroup():
    """A point on BLS12-381 that is not in the group of prime order."""
    p = CURVES["bls12381"].p
    for x in range(1, 100):
        y = pow(x**3 + 4, (p + 1) // 4, p)
        if (y * y - x**3 - 4) % p == 0:
            return [str(x), str(y), "1"]
    raise AssertionError


def test_snark_points_must_be_on_curve_and_in_group():
    infinity = ["0", "1", "0"]
    for name, point, why in (
        ("pi_a", ["1", "1", "1"], "on its curve"),
        ("pi_a", ["0", "0", "1"], "on its curve"),
        ("pi_a", infinity, "on its curve"),
        ("pi_c", outside_subgroup(), "subgroup"),
        ("pi_b", [["1", "0"], ["1", "0"], ["1", "0"]], "on its curve"),
        ("pi_b", [["0", "0"], ["1", "0"], ["0", "0"]], "on its curve"),
        ("pi_b", [["1"], ["1"], ["1"]], "three coordinates"),
        ("pi_a", None, "three coordinates"),
    ):
        proof = {**REPORT["proof"], name: point}
        with pytest.raises(Unverified, match=why):
            check_snark(bent(proof=proof), DIGEST, KEYS)
    a = REPORT["proof"]["pi_a"]
    shifted = [str(int(a[0]) + CURVES["bls12381"].p), *a[1:]]
    with pytest.raises(Unverified, match="decimal texts below"):
        check_snark(bent(proof={**REPORT["proof"], "pi_a": shifted}), DIGEST, KEYS)


def test_snark_bn128_twist_outside_group_is_refused():
    """BN254's twist has a large cofactor: a point on it is usually outside the group."""
    limit = sys.getrecursionlimit()
    bn = load_bn128()
    assert sys.getrecursionlimit() == limit < 100_000
    curve, p = CURVES["bn128"], CURVES["bn128"].p
    found = None
    for x in range(1, 60):
        value = bn.FQ2([x, 0]) ** 3 + bn.FQ2(list(curve.twist))
        root = value ** ((p * p + 15) // 32)  # candidate roots, up to a root of unity
        for power in range(8):
            unit = bn.FQ2([9, 1]) ** (power * (p * p - 1) // 16)
            if (root * unit) ** 2 == value:
                found = (x, root * unit)
                break
        if found:
            break
    assert found is not None
    point = [[str(found[0]), "0"], [str(int(c)) for c in found[1].coeffs], ["1", "0"]]
    assert curve.g2(point)
    vector = load("bn128")
    text = key_text(json.dumps(vector["verification_key"]).encode())
    report = vector["envelope"]["attestation_evidence"]["report"]
    report["proof"]["pi_b"] = point
    with pytest.raises(Unverified, match="subgroup"):
        check_snark(report, bytes.fromhex(vector["payload_hash"]), {key_digest(text): text})


def test_snark_key_must_be_whole():
    key = VECTOR["verification_key"]
    for wrong in (
        {**key, "protocol": "plonk"},
        {**key, "curve": "bn254"},
        {**key, "IC": key["IC"][:2]},
        {**key, "IC": [*key["IC"][:3], ["0", "1", "0"]]},  # infinity: input 2 would prove nothing
        {**key, "IC": key["IC"] * INPUTS_MAX},
        {**key, "vk_delta_2": key["IC"][0]},
    ):
        with pytest.raises(Invalid):
            parse_key(jcs.encode(wrong).decode())
    with pytest.raises(Invalid):
        key_text(b"[]")


def test_header_proof_forms():
    root = bytes.fromhex(VECTOR["merkle_root"])
    good = VECTOR["header_proof"]
    assert check_header_proof(good, root, KEYS)[0] == "passed"
    assert check_header_proof(good, bytes(32), KEYS)[0] == "failed"
    assert check_header_proof(good, root, {})[0] == "not_checked"
    for other in ({"type": "lattice", "proof": "x"}, {"type": "lattice", "proof": {}}, "x", 7, {}):
        assert check_header_proof(other, root, KEYS)[0] == "not_checked", "lattice is never verified"


def channel_with_proof(home, proof):
    settings = create_channel(home, "math", "node", NODE.public)
    with open_log(home, "math", NODE, prove_batch=lambda _root: proof, now_ns=lambda: NOW_NS) as opened:
        opened.log.submit(jcs.encode(VECTOR["envelope"]))
    return replace(settings.trust(), evidence=PINS)


def test_header_proof_is_judged_in_channel_and_bundle(tmp_path):
    for number, (proof, expected) in enumerate(
        ((VECTOR["header_proof"], "passed"), (None, "passed"),
         ({"type": "snark", "proof": REPORT}, "failed"), ({"type": "lattice", "proof": "x"}, "not_checked"))
    ):  # fmt: skip
        home = tmp_path / str(number)
        trust = channel_with_proof(home, proof)
        steps = {s.name: s for s in verify_stored(home, "math", trust=trust, deep=True).steps}
        assert (proof, steps["evidence"].status) == (proof, expected), steps["evidence"]
        with open_channel(home, "math") as channel:
            assert channel.head().height == 1
            export_bundle(channel, NODE, 0, 0, home / "x.tar.zst")
        found = {s.name: s for s in verify_bundle(home / "x.tar.zst", trust).report.steps}
        assert found["evidence"].status == expected
        if expected == "failed":
            assert "integrity_proof" in steps["evidence"].detail and "index" not in steps["evidence"].fields


def test_header_too_large_is_never_sealed():
    with pytest.raises(Invalid):
        seal(NODE, channel="math", height=0, prev_block_hash=GENESIS, envelopes=[b"{}"], timestamp_ns=1,
             prove=lambda _root: "x" * 70_000)  # fmt: skip


def test_evidence_set_pins_a_snark_key(ropewalk):
    Path("vk.json").write_text(json.dumps(VECTOR["verification_key"], indent=3))
    Path("proof.json").write_text(json.dumps(VECTOR["envelope"]))
    make(ropewalk)
    assert ropewalk("ledger", "append", "--channel", "audit", "--file", "one.json").code == 0
    done = ropewalk("ledger", "evidence", "set", "--channel", "audit", "--snark-vk", "vk.json", "--json")
    assert done.code == 0 and len(done.json["evidence"]["snark_keys"]) == 1
    shown = ropewalk("ledger", "evidence", "show", "--channel", "audit").out
    assert f"verification key {VECTOR['vk_sha256'][:16]}" in shown
    checked = ropewalk("ledger", "evidence", "check", "--file", "proof.json", "--channel", "audit", "--json")
    assert (checked.code, checked.json["status"]) == (0, "passed")
    assert ropewalk("ledger", "append", "--channel", "audit", "--file", "proof.json").code == 0
    Path("vk.json").write_text("{}")
    assert ropewalk("ledger", "evidence", "set", "--channel", "audit", "--snark-vk", "vk.json").code == 8
