"""Every stored case about canonical JSON, accepted or refused, against our code."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.folding import fold

from ropewalk.errors import InvalidJson
from ropewalk.kernel import jcs

FOLDER = Path(__file__).parents[3] / "vectors" / "jcs"


def load(rule: str) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads((FOLDER / f"{rule}.json").read_text(encoding="utf-8"))["cases"]
    return cases


def to_bytes(form: dict[str, str]) -> bytes:
    return bytes.fromhex(form["hex"]) if "hex" in form else form["text"].encode()


def foreign(raw: bytes) -> bytes:
    return jcs.encode_foreign(jcs.parse_foreign(raw))


def canonical(raw: bytes) -> bytes:
    return jcs.encode(jcs.parse_canonical(raw))


ACTS: dict[str, Callable[[bytes], bytes]] = {"foreign_numbers": foreign, "not_canonical": canonical}
RULES = sorted(path.stem for path in FOLDER.glob("*.json") if path.stem != "numbers")
CASES = [pytest.param(rule, case, id=f"{rule}-{case['name']}") for rule in RULES for case in load(rule)]


def test_every_rule_has_a_file():
    assert {"duplicate_keys", "lone_surrogates", "big_integers", "nesting", "byte_order_mark"} <= set(RULES)


@fold(("rule", "case"), CASES)
def test_case(rule, case):
    act = ACTS.get(rule, jcs.canonicalise)
    raw = to_bytes(case["input"])
    if "error" not in case:
        assert act(raw) == to_bytes(case["expect"])
        return
    with pytest.raises(InvalidJson) as caught:
        act(raw)
    assert caught.value.fields == case["error"]
    assert f"at byte {case['error']['position']}" in caught.value.detail


@fold(("rule", "case"), CASES)
def test_accepted_text_means_what_its_canonical_form_means(rule, case):
    if "error" in case:
        return
    reader = jcs.parse_foreign if rule == "foreign_numbers" else jcs.parse
    value = reader(to_bytes(case["input"]))
    assert value == reader(to_bytes(case["expect"]))
    assert jcs.encode_foreign(value) == to_bytes(case["expect"])


@pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in load("numbers")])
def test_doubles_are_printed_as_ecmascript_prints_them(case):
    for bits, text in zip(case["input"]["bits"], case["expect"]["text"], strict=True):
        (value,) = struct.unpack(">d", bytes.fromhex(bits))
        assert jcs.encode_foreign(value) == text.encode(), bits
        if value.is_integer() and 2**53 - 1 < abs(value) < 1e21:
            with pytest.raises(InvalidJson):
                jcs.encode(value)
        else:
            assert jcs.encode(value) == text.encode(), bits
            assert jcs.parse_canonical(text.encode()) == value, bits
