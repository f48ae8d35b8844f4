"""The statements of vectors/ledger_keys/, held against our line of keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ropewalk import errors
from ropewalk.kernel.keys import PublicKey
from ropewalk.ledger.keys.history import KeyLine, parse_key_proofs
from ropewalk.ledger.proof.trust import Trust

FILE = Path(__file__).parents[3] / "vectors" / "ledger_keys" / "line.json"


def counts(given: dict[str, Any]) -> bool:
    line = KeyLine(Trust(tuple(map(PublicKey.from_json, given["named"])), ()))
    line.follow(parse_key_proofs(given["keys"]) if given["keys"] else ())
    block = given["block"]
    life = line.life(PublicKey.from_json(block["signer"]))
    return life is not None and life.counts(block["height"], int(block["timestamp"]))


@pytest.mark.parametrize("case", json.loads(FILE.read_bytes())["cases"], ids=lambda case: case["name"])
def test_case(case):
    if "error" in case:
        with pytest.raises(getattr(errors, case["error"])):
            counts(case["input"])
    else:
        assert counts(case["input"]) is case["expect"]
