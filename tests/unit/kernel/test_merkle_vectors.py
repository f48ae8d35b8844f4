"""Every stored case about trees, positive and forged, against our code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.folding import fold

from ropewalk.errors import RopewalkError
from ropewalk.kernel import merkle

FOLDER = Path(__file__).parents[3] / "vectors" / "merkle"
HASHERS = {hasher.name: hasher for hasher in (merkle.LEDGER, merkle.RANGE, merkle.SHA256)}


def hashes(texts: list[str]) -> list[bytes]:
    return [bytes.fromhex(text) for text in texts]


def leaf(given: dict[str, Any]) -> dict[str, Any]:
    return {"leaf": HASHERS[given["hasher"]].leaf(bytes.fromhex(given["data"])).hex()}


def root(given: dict[str, Any]) -> dict[str, Any]:
    return {"root": merkle.root(hashes(given["leaves"]), HASHERS[given["hasher"]]).hex()}


def inclusion(given: dict[str, Any]) -> dict[str, Any]:
    merkle.verify_inclusion(
        bytes.fromhex(given["leaf"]),
        given["index"],
        given["size"],
        hashes(given["path"]),
        bytes.fromhex(given["root"]),
        HASHERS[given["hasher"]],
    )
    return {"holds": True}


def consistency(given: dict[str, Any]) -> dict[str, Any]:
    merkle.verify_consistency(
        given["old"],
        given["new"],
        hashes(given["path"]),
        bytes.fromhex(given["old_root"]),
        bytes.fromhex(given["new_root"]),
        HASHERS[given["hasher"]],
    )
    return {"holds": True}


def range_(given: dict[str, Any]) -> dict[str, Any]:
    merkle.verify_range(
        hashes(given["leaves"]),
        given["start"],
        given["size"],
        merkle.RangeProof(tuple(hashes(given["left"])), tuple(hashes(given["right"]))),
        bytes.fromhex(given["root"]),
        HASHERS[given["hasher"]],
    )
    return {"holds": True}


def odd_leaf_duplication(given: dict[str, Any]) -> dict[str, Any]:
    hasher, short, long = HASHERS[given["hasher"]], hashes(given["leaves"]), hashes(given["doubled"])
    assert merkle.root_seed(short, hasher) == merkle.root_seed(long, hasher)
    return {
        "root": merkle.root(short, hasher).hex(),
        "root_of_doubled": merkle.root(long, hasher).hex(),
        "seed_root_of_both": merkle.root_seed(short, hasher).hex(),
    }


def frontier(given: dict[str, Any]) -> dict[str, Any]:
    edge = merkle.Frontier.from_bytes(bytes.fromhex(given["frontier"]), HASHERS[given["hasher"]])
    assert edge.to_bytes().hex() == given["frontier"]
    return {"size": edge.size, "root": edge.root().hex()}


RULES = {
    "leaves": leaf,
    "roots": root,
    "inclusion": inclusion,
    "consistency": consistency,
    "range": range_,
    "odd_leaf_duplication": odd_leaf_duplication,
    "frontier": frontier,
}
CASES = [
    pytest.param(rule, case, id=f"{rule}-{case['name']}")
    for rule in RULES
    for case in json.loads((FOLDER / f"{rule}.json").read_text(encoding="utf-8"))["cases"]
]


def test_every_file_is_run():
    assert {path.stem for path in FOLDER.glob("*.json")} == set(RULES)


@fold(("rule", "case"), CASES)
def test_case_holds(rule, case):
    if "expect" in case:
        assert RULES[rule](case["input"]) == case["expect"]
        return
    with pytest.raises(RopewalkError) as refusal:
        RULES[rule](case["input"])
    assert refusal.value.code == case["error"]["code"]
    assert refusal.value.fields.get("step") == case["error"].get("step", refusal.value.fields.get("step"))
