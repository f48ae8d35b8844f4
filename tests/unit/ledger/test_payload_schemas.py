"""A payload fits the schema that the channel's policy declares for its type, wherever the policy is held up."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from tests.unit.ledger.making import NODE, NOON_NS, observed, opened
from tests.unit.ledger.test_replay import replayed

from ropewalk import errors
from ropewalk.errors import Denied, Invalid, RopewalkError
from ropewalk.kernel import jcs
from ropewalk.ledger.block.block import GENESIS, Block, seal
from ropewalk.ledger.channel.channel import open_channel, verify_blocks
from ropewalk.ledger.envelope import template_cache
from ropewalk.ledger.envelope.envelope import parse, parse_stored
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.proof.verify import check_block
from ropewalk.ledger.rules.policy import Policy, parse_policy
from ropewalk.ledger.rules.rules import judge
from ropewalk.ledger.rules.verdict import Context

VECTORS = Path(__file__).parents[3] / "vectors" / "ledger_policy" / "schema.json"
CASES = [
    pytest.param(case, id=case["name"]) for case in json.loads(VECTORS.read_text(encoding="utf-8"))["cases"]
]
COUNT: dict[str, Any] = {
    "type": "object",
    "required": ["n"],
    "properties": {"n": {"type": "integer", "minimum": 0}},
}


def rule(**members: Any) -> dict[str, Any]:
    common = {"id": "count", "name": "payloads", "version": 1, "kind": "schema", "decision": "deny"}
    return {**common, "schema": COUNT, "when": {"types": ["test.*"]}, **members}


def policy(*rules: dict[str, Any]) -> Policy:
    return parse_policy(jcs.encode({"version": 1, "rules": list(rules or [rule()])}))


def refusal(*rules: dict[str, Any]) -> str:
    with pytest.raises(Invalid) as caught:
        policy(*rules)
    assert caught.value.exit_code == 8
    return caught.value.detail


@pytest.mark.parametrize("case", CASES)
def test_case(case: dict[str, Any]):
    given = case["input"]
    if "envelope" not in given:
        with pytest.raises(getattr(errors, case["error"])):
            parse_policy(jcs.encode(given["policy"]))
        return
    wanted = case.get("expect") or case["error"]
    decision = parse_policy(jcs.encode(given["policy"])).decide(parse(jcs.encode(given["envelope"])))
    assert (decision.outcome, [reason.rule for reason in decision.reasons]) == (
        wanted["decision"],
        wanted["rules"],
    )


def test_the_rule_says_where_the_payload_is_wrong_and_how():
    assert policy().decide(observed(payload={"n": 1})).reasons == ()
    for payload, detail in (
        ({"n": -1}, "payload /n: -1 is less than the minimum of 0"),
        ({}, 'payload: "n" is missing'),
        (None, 'payload: null is not of type "object"'),
    ):
        decision = policy().decide(observed(payload=payload))
        assert decision.outcome == "deny" and [each.detail for each in decision.reasons] == [detail]


def test_schema_rule_narrowed_by_type_and_domain():
    wrong: dict[str, Any] = {"payload": {"n": "x"}}
    assert policy().decide(observed(event_type="other.seen", **wrong)).outcome == "allow"
    narrow = policy(rule(when={"domains": ["shop"], "classes": ["Alert"]}))
    assert narrow.decide(observed(**wrong)).outcome == "allow"
    assert narrow.decide(observed(domain="shop", **wrong)).outcome == "allow"
    assert narrow.decide(observed(domain="shop", event_class="Alert", **wrong)).outcome == "deny"
    two = policy(rule(decision="audit"), rule(id="small", schema={"maxProperties": 1}))
    both = two.decide(observed(payload={"n": "x", "m": 1}))
    assert [(each.rule, each.decision) for each in both.reasons] == [("count", "audit"), ("small", "deny")]


def test_detached_payload_judged_by_schema_rule():
    away = observed(payload={"n": 1}, detached={"locator": "https://example.org/body"})
    for members, outcome in (
        ({}, "deny"),
        ({"detached": "allow"}, "allow"),
        ({"detached": "audit"}, "audit"),
    ):
        decision = policy(rule(**members)).decide(away)
        assert decision.outcome == outcome
        assert "the payload is detached and was not checked against the schema" in decision.explain()


def test_types_nobody_declared_can_be_refused():
    closed = {"id": "closed", "name": "payloads", "version": 1, "kind": "schema_declared", "decision": "deny"}
    rules = policy(rule(), closed)
    assert rules.decide(observed()).outcome == "allow"
    assert 'no schema is declared for "other"' in rules.decide(observed(event_type="other")).explain()


def test_the_hash_freezes_the_schema_and_the_file_brings_it_back():
    one, other = policy(), policy(rule(schema={**COUNT, "maxProperties": 1}))
    assert one.hash != other.hash
    again = parse_policy(one.to_bytes())
    assert again == one and again.hash == one.hash
    assert again.decide(observed(payload={"n": -1})) == one.decide(observed(payload={"n": -1}))


def test_a_policy_in_use_can_be_sent_to_another_process():
    used = policy()
    assert used.decide(observed(payload={})).outcome == "deny"
    assert pickle.loads(pickle.dumps(used)).decide(observed(payload={})).outcome == "deny"


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"schema": True}, 'rule "count": "schema" is missing or has the wrong type'),
        ({"schema": {"typo": 1}}, 'rule "count": schema: keyword "typo" is not known'),
        (
            {"schema": {"items": {"$ref": "other.json"}}},
            'rule "count": schema /items: reference "other.json" leaves',
        ),
        ({"schema": {"$schema": "urn:x"}}, 'rule "count": schema: dialect "urn:x" is not known'),
        ({"detached": "refuse"}, 'rule "count": detached must be allow, audit or deny'),
        ({"detached": ["deny"]}, 'rule "count": detached must be allow, audit or deny'),
        ({"schemas": []}, 'rule "count": unknown member "schemas"'),
    ],
)
def test_unusable_policy_schema_names_its_rule(members, words):
    assert words in refusal(rule(**members))


def test_the_schema_of_another_kind_of_rule_is_not_understood():
    assert "unknown member" in refusal(rule(kind="correlation"))


def recast(number: object) -> Envelope:
    """An envelope that comes out of a mould: its payload is not among the fields that were read."""
    template_cache._moulds.clear()
    parse_stored(observed(0).raw)
    one = parse_stored(observed(payload={"n": number}).raw)
    assert "payload" not in one.fields
    return one


def test_envelopes_out_of_a_mould_are_judged_by_their_own_payload():
    assert policy().decide(recast(7)).outcome == "allow"
    decision = policy().decide(recast(-7))
    assert decision.outcome == "deny" and "-7 is less" in decision.explain()


def test_what_does_not_fit_is_refused_at_the_door_and_the_rest_is_taken(tmp_path):
    with opened(tmp_path, policy=policy()) as ledger:
        raws = [observed(payload={"n": n}).raw for n in (1, -1, 2, "x", 3)]
        outcomes = ledger.log.submit_many(raws)
        assert [isinstance(each, Denied) for each in outcomes] == [False, True, False, True, False]
        assert outcomes[1].exit_code == 6 and "payload /n: -1 is less" in outcomes[1].detail
    with open_channel(tmp_path, "ea.core") as channel:
        kept = [parse_stored(raw).payload for block in channel.blocks() for raw in block.envelopes]
        assert kept == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert verify_blocks(tmp_path, "ea.core", deep=True).ok


def sealed(rules: Policy, *payloads: Any) -> Block:
    """A block whose sealer did not look."""
    return seal(
        NODE,
        channel="ea.core",
        height=0,
        prev_block_hash=GENESIS,
        envelopes=[observed(payload=each).raw for each in payloads],
        timestamp_ns=NOON_NS,
        policy_hash=rules.hash,
    )


def test_sealed_misfit_payload_found_with_policy():
    rules = policy()
    lines = sealed(rules, {"n": 0}, {"n": -1}).lines()
    assert check_block(lines, 0).fault is None
    other = policy(rule(schema={}))
    assert check_block(lines, 0, policy=other).fault is None, "it says nothing of blocks made under another"
    fault = check_block(lines, 0, policy=rules).fault
    assert fault is not None and fault.index == 1 and "payload /n: -1 is less" in fault.detail


def test_a_replay_under_the_policy_stops_at_a_payload_that_does_not_fit():
    rules = policy()
    good, bad = sealed(rules, {"n": 1}), sealed(rules, {"n": 1}, {"n": "x"})
    assert replayed([good], policy=rules).height == 0
    with pytest.raises(RopewalkError, match='payload /n: "x" is not of type "integer"'):
        replayed([bad], policy=rules)


def test_a_verdict_lists_what_the_schema_found():
    verdict = judge(observed(payload={"n": -1}), Context(policy=policy()))
    assert not verdict.ok
    assert verdict.to_json()["reasons"] == [
        {"rule": "count", "decision": "deny", "detail": "payload /n: -1 is less than the minimum of 0"}
    ]


def test_policy_check_explains_and_append_refuses(ropewalk):
    Path("policy.json").write_bytes(policy().to_bytes())
    Path("broken.json").write_bytes(jcs.encode({"version": 1, "rules": [rule(schema={"typo": 1})]}))
    refused = ropewalk("ledger", "create", "--channel", "broken", "--policy", "broken.json")
    assert refused.code == 8 and 'rule "count": schema: keyword "typo" is not known' in refused.err
    assert ropewalk("ledger", "create", "--channel", "counts", "--policy", "policy.json").code == 0
    for number, code, words in (
        (1, 0, "allow"),
        (-1, 6, "count → deny (payload /n: -1 is less than the minimum of 0)"),
    ):
        Path("one.json").write_bytes(observed(payload={"n": number}).raw)
        checked = ropewalk("ledger", "policy", "check", "--channel", "counts", "--file", "one.json")
        assert checked.code == code and words in checked.out
        appended = ropewalk("ledger", "append", "--channel", "counts", "--file", "one.json")
        assert appended.code == code and (code == 0 or words in appended.err)
    assert ropewalk("ledger", "verify", "--channel", "counts", "--deep").code == 0


def test_a_flood_of_kinds_does_not_change_what_is_decided():
    rules = policy()
    for number in range(1_100):
        assert rules.decide(observed(event_type=f"other.{number}", payload={})).outcome == "allow"
    assert rules.decide(observed(event_type="test." + "x" * 1_000, payload={})).outcome == "deny"
    assert rules.decide(observed(payload={})).outcome == "deny"
    assert len(rules._applying) <= 1_024
