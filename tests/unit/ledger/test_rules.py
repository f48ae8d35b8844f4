"""The eight rules against their vectors, and how refusals and verdicts read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.folding import fold
from tests.unit.ledger.making import changed, command, observed

from ropewalk.errors import Denied, RopewalkError
from ropewalk.kernel import jcs
from ropewalk.ledger.envelope.envelope import parse
from ropewalk.ledger.envelope.fields import MINIMUM_SIGNED
from ropewalk.ledger.proof.verify import SeenEnvelopes
from ropewalk.ledger.rules.policy import STRICT, parse_policy
from ropewalk.ledger.rules.rules import RULES, judge
from ropewalk.ledger.rules.verdict import NAMES, Context

FILES = sorted((Path(__file__).parents[3] / "vectors" / "ledger_rules").glob("*.json"))
CASES = [
    pytest.param(case, id=f"{path.stem}-{case['name']}")
    for path in FILES
    for case in json.loads(path.read_text(encoding="utf-8"))["cases"]
]


def test_every_rule_has_its_file_of_accepted_and_refused_cases():
    assert [path.stem for path in FILES] == [f"{n}_{name}" for n, name in enumerate(NAMES, 1)]
    for path in FILES:
        cases = json.loads(path.read_text(encoding="utf-8"))["cases"]
        assert any("expect" in case for case in cases) and any("error" in case for case in cases)


@fold("case", CASES)
def test_case(case: dict[str, Any]):
    given = case["input"]
    raw = given["raw"].encode() if "raw" in given else jcs.encode(given["envelope"])
    wanted = case.get("expect") or case["error"]
    if "code" in wanted:
        with pytest.raises(RopewalkError) as caught:
            parse(raw)
        assert caught.value.code == wanted["code"] and caught.value.exit_code == 8
        return
    seen = SeenEnvelopes()
    for number, value in enumerate(given.get("history", [])):
        seen.remember(parse(jcs.encode(value)), 0, number)
    for block in given.get("roots", []):
        seen.remember_root(bytes.fromhex(block["root"]), block["envelope_count"])
    policy = parse_policy(jcs.encode(given["policy"])) if given.get("policy") else None
    finding = RULES[wanted["rule"] - 1](parse(raw), Context(seen, policy))
    assert (finding.rule, finding.status) == (wanted["rule"], wanted["status"]), finding.detail
    assert finding.status == "passed" or finding.detail


EXIT_CODES = {1: 5, 2: 5, 3: 5, 4: 5, 5: 5, 6: 6, 7: 5, 8: 4}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_refusal_carries_eight_findings_and_code(path: Path):
    rule = int(path.stem[0])
    for case in json.loads(path.read_text(encoding="utf-8"))["cases"]:
        given = case["input"]
        if "rule" not in case.get("error", {}) or "raw" in given:
            continue
        seen = SeenEnvelopes()
        for number, value in enumerate(given.get("history", [])):
            seen.remember(parse(jcs.encode(value)), 0, number)
        policy = parse_policy(jcs.encode(given["policy"])) if given.get("policy") else None
        verdict = judge(parse(jcs.encode(given["envelope"])), Context(seen, policy))
        assert not verdict.ok
        with pytest.raises(RopewalkError) as caught:
            verdict.require()
        rules = caught.value.to_problem()["rules"]
        assert [each["rule"] for each in rules] == list(range(1, 9))
        first = next(each["rule"] for each in rules if each["status"] == "failed")
        assert caught.value.exit_code == EXIT_CODES[first]
        assert rules[rule - 1]["status"] == "failed"


def test_what_is_present_but_unsigned_is_listed():
    one = observed(correlation_id="c", signed_fields=MINIMUM_SIGNED)
    verdict = judge(one, Context())
    assert verdict.ok and verdict.unsigned_fields == ("correlation_id", "causality_chain")
    assert judge(observed(correlation_id="c"), Context()).unsigned_fields == ()


def test_the_strict_policy_demands_that_everything_present_is_signed():
    one = observed(correlation_id="c", signed_fields=MINIMUM_SIGNED)
    with pytest.raises(Denied, match="not signed: correlation_id") as caught:
        judge(one, Context(policy=STRICT)).require()
    assert caught.value.exit_code == 6
    judge(observed(correlation_id="c"), Context(policy=STRICT)).require()


def test_without_a_channel_nothing_is_said_about_it():
    statuses = [finding.status for finding in judge(command("c-1"), Context()).findings]
    assert statuses == ["passed"] * 7 + ["not_checked"]


def test_a_changed_field_fails_only_the_rules_it_breaks():
    one = changed(observed(1), payload_hash="0" * 64)
    assert [f.rule for f in judge(one, Context()).findings if f.status == "failed"] == [1]
