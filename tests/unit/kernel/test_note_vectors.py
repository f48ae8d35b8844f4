"""Every stored case about notes, their keys and signed heads, against our code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.folding import fold

from ropewalk.errors import RopewalkError
from ropewalk.kernel.note.note import SignedHead, Signer, Verifier, open_note, sign_note

FOLDER = Path(__file__).parents[3] / "vectors" / "note"


def opened(given: dict[str, Any]) -> dict[str, Any]:
    raw = bytes.fromhex(given["note_hex"]) if "note_hex" in given else given["note"].encode()
    note = open_note(raw, map(Verifier.from_text, given["keys"]))
    return {
        "text": note.text,
        "verified": [each.name for each in note.verified],
        "unverified": [each.name for each in note.unverified],
        "times": {each.name: each.time_s for each in note.verified if each.time_s is not None},
    }


def key(given: dict[str, Any]) -> dict[str, Any]:
    verifier = Verifier.from_text(given["key"])
    assert verifier.to_text() == given["key"]
    return {
        "name": verifier.name,
        "key_id": verifier.key_id.hex(),
        "type": verifier.type.value,
        "public_key": verifier.key.raw.hex(),
    }


def head(given: dict[str, Any]) -> dict[str, Any]:
    parsed = SignedHead.from_text(given["text"])
    assert parsed.to_text() == given["text"]
    return {
        "origin": parsed.origin,
        "size": parsed.size,
        "root": parsed.root.hex(),
        "extensions": list(parsed.extensions),
    }


def signing(given: dict[str, Any]) -> dict[str, Any]:
    signers = map(Signer.from_secret_text, given["secret_keys"])
    return {"note": sign_note(given["text"], *signers).decode()}


RULES = {
    "published": opened,
    "notes": opened,
    "cosignatures": opened,
    "keys": key,
    "heads": head,
    "signing": signing,
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
    assert type(refusal.value).__name__ == case["error"]["code"]
