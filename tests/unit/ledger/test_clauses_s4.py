"""Clauses of S4 that need a provocation of their own: each test breaks if its clause does."""

from __future__ import annotations

import copy
import json
import socket
from base64 import b64encode
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from tests.folding import fold
from tests.unit.ledger.making import NODE, changed, command, observed, opened, resigned

from ropewalk.errors import InvalidEnvelope, RopewalkError, TooLarge
from ropewalk.kernel import cbor, jcs
from ropewalk.kernel.schema import shipped as schema
from ropewalk.ledger.block.block import GENESIS, seal
from ropewalk.ledger.channel.channel import verify_blocks
from ropewalk.ledger.envelope.envelope import parse, parse_cbor, parse_stored, parse_wire
from ropewalk.ledger.envelope.fields import DEFAULT_SIGNED, STRICT_SIGNED
from ropewalk.ledger.proof.verify import SeenEnvelopes
from ropewalk.ledger.rules.policy import parse_policy
from ropewalk.ledger.rules.rules import RULES, judge
from ropewalk.ledger.rules.verdict import Context

VECTORS = Path(__file__).parents[3] / "vectors" / "ledger_rules"
REF = {"locator": "https://payloads.example/x", "content_type": "text/plain", "bytes": 3}
OBJECTS: dict[str, dict[str, Any]] = {
    "attestation_evidence": {"format": "slsa.v1", "evidence_hash": "0" * 64},
    "payload_ref": REF,
    "integrity_proof": {"type": "snark", "proof": "AA=="},
    "confidentiality_tag": {"level": "internal", "key_ref": "k", "enclave_ref": "e"},
    "policy_tag": {"policy_hash": "00", "policy_version": "1", "decision": "audit"},
}


def cases() -> list[Any]:
    return [
        pytest.param(case, id=f"{path.stem}-{case['name']}")
        for path in sorted(VECTORS.glob("*.json"))
        for case in json.loads(path.read_text(encoding="utf-8"))["cases"]
        if "envelope" in case["input"]
    ]


@fold("case", cases())
def test_the_eight_rules_find_the_same_in_cbor_as_in_json(case):
    given, wanted = case["input"], case.get("expect") or case["error"]
    wire = cbor.encode(given["envelope"])
    if "code" in wanted:
        with pytest.raises(RopewalkError) as caught:
            parse_cbor(wire)
        assert caught.value.exit_code == 8
        return
    one = parse_cbor(wire)
    assert one.raw == parse(jcs.encode(given["envelope"])).raw
    seen = SeenEnvelopes()
    for number, value in enumerate(given.get("history", [])):
        seen.remember(parse_cbor(cbor.encode(value)), 0, number)
    for block in given.get("roots", []):
        seen.remember_root(bytes.fromhex(block["root"]), block["envelope_count"])
    policy = parse_policy(jcs.encode(given["policy"])) if given.get("policy") else None
    finding = RULES[wanted["rule"] - 1](one, Context(seen, policy))
    assert (finding.rule, finding.status) == (wanted["rule"], wanted["status"]), finding.detail


def test_the_default_order_of_signed_fields_is_the_specifications():
    assert ", ".join(DEFAULT_SIGNED) == (
        "protocol_version, domain, event_class, event_type, correlation_id, causality_chain, timestamp, "
        "origin_identity, payload_hash, integrity_proof, confidentiality_tag, policy_tag"
    )
    assert STRICT_SIGNED[: len(DEFAULT_SIGNED)] == DEFAULT_SIGNED


@pytest.mark.parametrize("name", OBJECTS)
def test_optional_objects_are_closed_and_may_be_null(name):
    bare = observed()
    members: dict[str, Any] = {name: OBJECTS[name]}
    given = changed(bare, **members)
    assert parse_stored(given.raw).value[name] == OBJECTS[name]
    members[name] = {**OBJECTS[name], "more": 1}
    with pytest.raises(InvalidEnvelope) as caught:
        changed(bare, **members)
    assert caught.value.fields["where"].startswith(f"/{name}")
    assert parse(jcs.encode({**bare.value, name: None})) == bare


@pytest.mark.parametrize("name", ["origin_identity", "signature"])
def test_required_objects_are_closed_and_never_null(name):
    value = copy.deepcopy(observed(label="Ada").value)
    assert parse(jcs.encode(value)).value["origin_identity"]["label"] == "Ada"
    for wrong in ({**value[name], "more": 1}, None):
        with pytest.raises(InvalidEnvelope):
            parse(jcs.encode({**value, name: wrong}))


WORDS = {
    ("event_class",): (
        "Command", "Observation", "Result", "Alert", "Attestation", "CapabilityAdvertisement",
    ),
    ("confidentiality_tag", "level"): ("public", "internal", "confidential", "restricted"),
    ("integrity_proof", "type"): ("merkle", "snark", "lattice"),
    ("policy_tag", "decision"): ("allow", "audit", "deny"),
    ("attestation_evidence", "format"): ("tee.report", "slsa.v1", "snark.v1"),
}  # fmt: skip


def with_word(way: tuple[str, ...], word: Any) -> dict[str, Any]:
    value = copy.deepcopy({**observed(correlation_id="c").value, **OBJECTS})
    inner = value
    for step in way[:-1]:
        inner = inner[step]
    inner[way[-1]] = word
    return value


@pytest.mark.parametrize("way", WORDS, ids="/".join)
def test_enumerations_hold_their_words_and_no_other(way):
    schema = json.loads((files("ropewalk.schemas") / "v1/ledger/envelope.schema.json").read_bytes())
    for step in way:
        schema = schema["properties"][step]
    assert tuple(schema["enum"]) == WORDS[way]
    for word in WORDS[way]:
        assert parse(resigned(with_word(way, word)))
    for wrong in ("", WORDS[way][0].swapcase(), WORDS[way][0] + " ", "other", None):
        with pytest.raises(InvalidEnvelope):
            parse(resigned(with_word(way, wrong)))


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("domain", ""),
        ("event_type", ""),
        ("protocol_version", "1.0"),
        ("protocol_version", "1.0.0-rc1"),
        ("protocol_version", "v1.0.0"),
        ("payload_hash", "0" * 63),
        ("payload_hash", "g" * 64),
    ],
)
def test_patterns_and_least_lengths_are_kept(name, wrong):
    with pytest.raises(InvalidEnvelope) as caught:
        parse(resigned({**observed().value, name: wrong}))
    assert caught.value.fields["where"] == f"/{name}"


@pytest.mark.parametrize(
    "wrong", [{"content_type": "text/plain"}, {**REF, "bytes": -1}, {"locator": "no uri"}]
)
def test_a_place_of_a_payload_has_a_uri_and_perhaps_type_and_size(wrong):
    for good in (REF, {"locator": "file:///x"}):
        assert changed(observed(), payload_ref=good).value["payload_ref"] == good
    with pytest.raises(InvalidEnvelope):
        changed(observed(), payload_ref=wrong)


def test_locators_are_never_fetched(tmp_path, monkeypatch):
    evidence = {**OBJECTS["attestation_evidence"], "verification_service": "https://attest.example/verify"}
    away = observed(payload={"secret": 1}, detached=REF, evidence=evidence)

    def asked(*_args: object, **_options: object) -> None:
        raise AssertionError("somebody was asked")

    with monkeypatch.context() as patched, opened(tmp_path) as ledger:
        for name in ("socket", "create_connection", "getaddrinfo"):
            patched.setattr(socket, name, asked)
        assert judge(away, Context()).ok
        assert ledger.log.submit(away.raw).height == 0
        assert verify_blocks(tmp_path, "ea.core", deep=True).ok


def test_result_names_command_and_continues_chain():
    ask = command("c-1")
    done = observed(event_class="Result", event_type="test.done", parent=ask)
    assert done.correlation_id == "c-1"
    assert done.causality_chain == (ask.hex_id, "c-1")
    seen = SeenEnvelopes()
    assert judge(done, Context(seen)).findings[2].status == "failed"  # no Command yet
    seen.remember(ask, 0, 0)
    assert judge(done, Context(seen)).findings[2].status == "passed"


def test_result_is_tied_by_correlation_id():
    ask, seen_disk = command("c-1"), observed(2)
    seen = SeenEnvelopes()
    seen.remember(ask, 0, 0)
    seen.remember(seen_disk, 0, 1)
    said: dict[str, Any] = {"event_class": "Result", "event_type": "test.done", "correlation_id": "c-1"}
    done = observed(parent=seen_disk, **said)
    assert ask.hex_id not in done.causality_chain
    assert judge(done, Context(seen)).findings[2].status == "passed"


@pytest.mark.parametrize("chain", [None, ["c-1"]])
def test_result_must_append_to_its_chain(chain):
    """S4 §3.2: refused on entry; blocks sealed before this was required stay valid."""
    ask = command("c-1")
    seen = SeenEnvelopes()
    seen.remember(ask, 0, 0)
    done = changed(observed(event_class="Result", event_type="test.done", parent=ask), causality_chain=chain)
    for context in (Context(seen), Context()):
        found = judge(done, context).findings[2]
        assert found.status == "failed" and "names no ancestor" in found.detail
    assert judge(done, Context(seen, sealed=True)).findings[2].status == "passed"


def test_a_block_is_closed_before_it_passes_one_mebibyte(tmp_path):
    raws = [observed(number, payload={"n": number, "x": "y" * 400_000}).raw for number in range(5)]
    assert 2 * len(raws[0]) < 1 << 20 < 3 * len(raws[0])
    with opened(tmp_path) as ledger:
        assert [receipt.height for receipt in ledger.log.submit_many(raws)] == [0, 0, 1, 1, 2]


def test_no_block_holds_more_than_four_mebibytes():
    place: dict[str, Any] = {"channel": "a", "height": 0, "prev_block_hash": GENESIS, "timestamp_ns": 1}
    four = [b"x" * (1 << 20)] * 4
    assert seal(NODE, envelopes=four, **place).header.envelope_count == 4
    with pytest.raises(TooLarge):
        seal(NODE, envelopes=[*four, b"x"], **place)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("payload_hash", b64encode(bytes(32)).decode()),
        ("payload_hash", "AB" * 32),
        ("timestamp", 1_730_462_400_000_000_000),
    ],
)
def test_schema_takes_what_s4_takes(name, other):
    """The shipped schema is as wide as S4 §4.1, and a ledger makes these spellings canonical."""
    value = {**observed().value, name: other}
    schema.validate("ledger/envelope", value)
    found = parse_wire(json.dumps(value).encode())
    assert found.value[name] != other and parse_stored(found.raw).id == found.id


def test_timestamp_with_an_offset_is_refused():
    value = {**observed().value, "timestamp": "2024-11-01T13:00:00+01:00"}
    schema.validate("ledger/envelope", value)
    with pytest.raises(RopewalkError) as caught:
        parse_wire(json.dumps(value).encode())
    assert caught.value.exit_code == 8
