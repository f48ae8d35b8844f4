"""The statements of vectors/ledger_keys/, held against our line of keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.folding import fold

from ropewalk import errors
from ropewalk.kernel.digest import hash_from_hex
from ropewalk.kernel.keys import PublicKey
from ropewalk.ledger.keys.history import KeyHistory, parse_key_proofs
from ropewalk.ledger.proof.trust import Trust

FOLDER = Path(__file__).parents[3] / "vectors" / "ledger_keys"
CASES = [
    pytest.param(case, id=f"{path.stem}-{case['name']}")
    for path in sorted(FOLDER.glob("*.json"))
    for case in json.loads(path.read_bytes())["cases"]
]


def counts(given: dict[str, Any]) -> bool:
    key_history = KeyHistory(Trust(tuple(map(PublicKey.from_json, given["named"])), ()))
    key_history.follow(parse_key_proofs(given["keys"]) if given["keys"] else ())
    block = given["block"]
    if "signer" not in block:
        hashes = (each and bytes.fromhex(each) for each in (block["policy_hash"], given["pinned"]))
        return key_history.policies.fits(block["height"], *hashes)
    if "evidence_hash" in given:
        return key_history.evidence == hash_from_hex(given["evidence_hash"])
    validity = key_history.validity(PublicKey.from_json(block["signer"]))
    return validity is not None and validity.is_valid(block["height"], int(block["timestamp"]))


@fold("case", CASES)
def test_case(case):
    if "error" in case:
        with pytest.raises(getattr(errors, case["error"])):
            counts(case["input"])
    else:
        assert counts(case["input"]) is case["expect"]
