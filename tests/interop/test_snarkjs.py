"""Groth16 proofs beside snarkjs: it verifies those kept as vectors, and makes new ones that we verify."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from tests.tools import install_npm_packages, needs

from ropewalk.errors import Unverified
from ropewalk.ledger.evidence.snark import check_snark, key_digest, key_text

FOLDER = Path(__file__).parent / "snark"
VECTORS = Path(__file__).parents[2] / "vectors/snark"
pytestmark = [pytest.mark.slow, needs("node", "npm"), pytest.mark.timeout(600)]


@pytest.fixture(scope="session")
def prove():
    install_npm_packages(FOLDER, "snarkjs")

    def run(*words, given=""):
        done = subprocess.run(
            ["node", str(FOLDER / "prove.mjs"), *words],
            input=given,
            capture_output=True,
            text=True,
            timeout=500,
            check=True,
        )
        return json.loads(done.stdout)

    return run


@pytest.mark.parametrize("curve", ["bls12381", "bn128"])
def test_snarkjs_verifies_the_vectors(prove, curve):
    vector = json.loads((VECTORS / f"{curve}.json").read_text())
    key = vector["verification_key"]
    for report in (vector["envelope"]["attestation_evidence"]["report"], vector["header_proof"]["proof"]):
        given = {"verification_key": key, **report}
        assert prove("verify", given=json.dumps(given)) is True
        given["public_inputs"] = [*report["public_inputs"][:2], "92"]
        assert prove("verify", given=json.dumps(given)) is False


@pytest.mark.parametrize("curve", ["bls12381", "bn128"])
def test_new_snarkjs_proof_verifies_here(prove, curve, tmp_path):
    digest = bytes(range(32))
    made = prove("make", curve, digest.hex(), str(tmp_path))
    text = key_text(json.dumps(made["verification_key"]).encode())
    report = {
        "system": "groth16",
        "curve": curve,
        "vk_sha256": key_digest(text),
        "public_inputs": made["publicSignals"],
        "proof": made["proof"],
    }
    assert check_snark(report, digest, {key_digest(text): text})[0] == "passed"
    report["public_inputs"] = [*made["publicSignals"][:2], "92"]
    with pytest.raises(Unverified, match="does not hold"):
        check_snark(report, digest, {key_digest(text): text})
