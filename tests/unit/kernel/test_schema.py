"""The shipped schemas themselves, and how a document that breaks one is told so."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import jsonschema_rs
import pytest
from tests.waiting import LIMIT_S

from ropewalk.errors import InvalidEnvelope, NotFound
from ropewalk.kernel.schema import shipped as schema

ULID = "01HF4Y9Q1SM8Q7K9DK2R3V4AWB"
EVENT = {"ulid": ULID, "ns": "governance", "type": "proposal.created", "payload": {"title": "Q4"}}

# The specifications' own ids; the rest is ours and says so.
SPECIFIED = {
    "api/stream_frame": "https://gatos.io/schemas/v1/api/stream_frame.schema.json",
    "common/ids": "https://gatos.dev/schemas/v1/common/ids.schema.json",
    "ledger/envelope": "https://ea.foundation/schemas/envelope.v1.json",
    "message-plane/consumer_checkpoint": "https://gatos.io/schemas/v1/message-plane/consumer_checkpoint.schema.json",
    "message-plane/event_envelope": "https://gatos.io/schemas/v1/message-plane/event_envelope.schema.json",
    "policy/governance_policy": "https://gatos.dev/schemas/v1/policy/governance_policy.schema.json",
    "privacy/opaque_pointer": "https://gatos.io/schemas/v1/privacy/opaque_pointer.schema.json",
    "privacy/shiplog_pointer": "https://gatos.dev/schemas/v1/privacy/opaque_pointer.schema.json",
    "shiplog/anchor": "https://gatos.dev/schemas/v1/shiplog/anchor.schema.json",
    "shiplog/consumer_checkpoint": "https://gatos.dev/schemas/v1/shiplog/consumer_checkpoint.schema.json",
    "shiplog/deployment_trailer": "https://gatos.dev/schemas/v1/shiplog/deployment_trailer.schema.json",
    "shiplog/event_envelope": "https://gatos.dev/schemas/v1/shiplog/event_envelope.schema.json",
}


def document(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(schema.text(name))
    return loaded


def parts(value: object) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for each in value.values():
            yield from parts(each)
    elif isinstance(value, list):
        for each in value:
            yield from parts(each)


def complaint(name: str, value: object) -> str:
    with pytest.raises(InvalidEnvelope) as caught:
        schema.validate(name, value)
    return caught.value.detail


@pytest.mark.parametrize("name", schema.names())
def test_every_schema_is_valid_draft_2020_12(name):
    assert document(name)["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema_rs.meta.validate(document(name))


def test_ids_are_the_specifications_and_unique():
    ids = schema.schema_ids()
    assert {name: ids[name] for name in SPECIFIED} == SPECIFIED
    assert len(set(ids.values())) == len(ids)
    assert all(
        each.startswith("urn:ropewalk:schema:v1:") for name, each in ids.items() if name not in SPECIFIED
    )


@pytest.mark.parametrize("name", schema.names())
def test_every_reference_stays_in_the_package(name):
    ids = {each: document(known) for known, each in schema.schema_ids().items()}
    for part in parts(document(name)):
        if "$ref" not in part:
            continue
        uri, _, pointer = part["$ref"].partition("#")
        target: Any = ids[uri] if uri else document(name)
        for step in pointer.split("/")[1:]:
            target = target[step]
        assert isinstance(target, dict)


@pytest.mark.parametrize("name", schema.names())
def test_patterns_hold_the_whole_text_or_only_its_start_beside_a_format(name):
    for part in parts(document(name)):
        if isinstance(pattern := part.get("pattern"), str):
            assert pattern.startswith("^")
            assert pattern.endswith("$") or part.get("format") == "uri"


@pytest.mark.parametrize("name", schema.names())
def test_only_formats_we_assert_are_used(name):
    assert {part["format"] for part in parts(document(name)) if isinstance(part.get("format"), str)} <= {
        "date-time",
        "uri",
    }


def test_nothing_is_fetched():
    with pytest.raises(jsonschema_rs.ValidationError, match="nothing is ever fetched"):
        jsonschema_rs.validator_for({"$ref": "https://example.com/x.json"}, retriever=schema._fetch_nothing)


def test_importing_reads_no_file_and_loads_no_validator():
    script = """
import sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
import ropewalk.kernel.schema.shipped
assert "jsonschema_rs" not in sys.modules, "the validator was loaded"
assert not [each for each in opened if "schemas/v1" in each], opened
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=LIMIT_S)


def test_unknown_names_are_told_with_the_known_ones():
    for name in ("shiplog/event", "../errors", "shiplog/../ledger/envelope", ""):
        with pytest.raises(NotFound) as caught:
            schema.validate(name, {})
        assert "ledger/envelope" in caught.value.advice_now


# --- what a person hears ---


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("shiplog/event_envelope", {}, '"ulid" is missing'),
        ("shiplog/event_envelope", 5, '5 is not of type "object"'),
        ("shiplog/event_envelope", {**EVENT, "b": 1, "a": 2}, '/a: "a" has no place here'),
        ("shiplog/event_envelope", {**EVENT, "ulid": 7}, "/ulid: found 7, expected a ULID"),
        (
            "shiplog/event_envelope",
            {**EVENT, "type": ""},
            '/type: found "", expected a text that is not empty',
        ),
        (
            "shiplog/event_envelope",
            {**EVENT, "payload": []},
            '/payload: an empty array is not of type "object"',
        ),
        ("shiplog/event_envelope", {**EVENT, "refs": {"X": "y"}}, '/refs: key "X", expected a namespace'),
        (
            "shiplog/event_envelope",
            {**EVENT, "refs": {"x": None}},
            "/refs/x: found null, expected blake3: and 64",
        ),
        ("api/stream_frame", {}, '"kind" is missing: a frame of a client has op, one of a server has kind'),
        (
            "api/stream_frame",
            {"op": "subscribe"},
            '/op: "subscribe" is not one of "sub", "unsub" or "credit"',
        ),
        ("api/stream_frame", {"op": "sub", "refs": [1]}, '/refs/0: 1 is not of type "string"'),
        (
            "api/stream_frame",
            {"op": "sub", "sinceSeq": -1},
            "/sinceSeq: found -1, expected a sequence number",
        ),
        ("api/stream_frame", {"kind": "ping", "now": 1}, '/now: "now" has no place here'),
        (
            "policy/governance_policy",
            {"governance": {"x": {"quorum": {}}}},
            '/governance/x/quorum: "all_of" is missing',
        ),
        (
            "policy/governance_policy",
            {"governance": {"a/b~c": 1}},
            '/governance/a~1b~0c: 1 is not of type "object"',
        ),
        ("shiplog/anchor", {"x": {1, 2}}, "Unsupported type: 'set'"),
    ],
)
def test_a_refusal_says_what_was_found_and_what_was_expected(name, value, words):
    detail = complaint(name, value)
    assert detail.startswith(words)
    assert detail.endswith(f"({name})")


def test_the_rule_of_low_entropy_is_told_as_a_rule():
    digest = "blake3:" + "0" * 64
    pointer = {
        "kind": "opaque_pointer",
        "algo": "blake3",
        "location": "gatos://b/1",
        "capability": "gatos://c/1",
    }
    secret = {**pointer, "extensions": {"class": "low-entropy"}}
    assert "could be guessed" in complaint("privacy/shiplog_pointer", {**secret, "digest": digest})
    both = {**secret, "digest": digest, "ciphertext_digest": digest}
    assert complaint("privacy/shiplog_pointer", both).startswith(
        "/digest: has no place here: a low-entropy pointer"
    )
    assert "at least one of digest and ciphertext_digest" in complaint("privacy/shiplog_pointer", pointer)


def test_long_values_do_not_flood_the_message():
    assert len(complaint("shiplog/event_envelope", {**EVENT, "ns": "x" * 100_000})) < 250
    assert len(complaint("shiplog/event_envelope", {**EVENT, "\x1b[31m" * 10_000: 1})) < 250


def test_the_first_fault_does_not_depend_on_the_order_of_members():
    broken = {
        **EVENT,
        "ns": "A",
        "type": "",
        "zeta": 1,
        "alpha": 2,
        "refs": {"x": 1, "b": 2},
        "payload": None,
    }
    heard = set()
    chance = random.Random(1)
    for _ in range(50):
        members = list(broken.items())
        chance.shuffle(members)
        heard.add(complaint("shiplog/event_envelope", dict(members)))
    assert len(heard) == 1


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    ("name", "value", "where"),
    [
        ("api/client_frame", {"op": "sub", "topics": [1] * 500_000}, "/topics/0"),
        ("shiplog/event_envelope", {**EVENT, "refs": {f"k{n}": n for n in range(200_000)}}, "/refs/k0"),
        ("shiplog/event_envelope", {**EVENT, **{f"k{n:06}": n for n in range(200_000)}}, "/k000000"),
        ("ledger/envelope", {"causality_chain": [1] * 500_000}, ""),
        ("message-plane/event_envelope", {**EVENT, "payload": [[[]]] * 100_000}, "/payload"),
    ],
)
def test_a_fault_in_every_item_is_told_as_fast_as_one(name, value, where):
    with pytest.raises(InvalidEnvelope) as caught:
        schema.validate(name, value)
    assert caught.value.fields["where"] == where


def test_a_large_document_with_one_fault_is_told_of_it():
    payload = {"samples": [{"n": n} for n in range(5_000)]}
    schema.validate("shiplog/event_envelope", {**EVENT, "payload": payload})
    assert complaint("shiplog/event_envelope", {**EVENT, "payload": payload, "ns": ""}).startswith(
        '/ns: found ""'
    )


def test_formats_are_asserted():
    anchor = {"ulid": ULID, "topic": "prod", "head": "8b" * 20}
    schema.validate("shiplog/anchor", {**anchor, "created_at": "2025-11-10T10:05:00+01:00"})
    for wrong in ("2025-11-10", "yesterday", "2025-02-30T00:00:00Z", "2025-11-10T10:05:00Z\n"):
        assert "expected an RFC 3339 date-time" in complaint(
            "shiplog/anchor", {**anchor, "created_at": wrong}
        )


# --- the defects of the printed ledger schema ---


def printed(line: str) -> str:
    """A string literal as the specification prints it."""
    text: str = json.loads(line)
    return text


def test_d1_the_printed_version_pattern_is_no_json_and_ours_is():
    with pytest.raises(json.JSONDecodeError):
        printed(r'"^[0-9]+\.[0-9]+\.[0-9]+$"')
    pattern = document("ledger/envelope")["properties"]["protocol_version"]["pattern"]
    assert pattern == printed(r'"^[0-9]+\\.[0-9]+\\.[0-9]+$"')
    assert re.fullmatch(pattern, "1.0.0")
    assert not re.fullmatch(pattern, "1x0x0")


def test_d2_our_hash_pattern_takes_digests():
    theirs = printed(r'"^[A-Fa-f0-9+/=:-]{16,}$"')
    ours = document("ledger/envelope")["$defs"]["digest"]["pattern"]
    in_hex = "56b512d0d4cac4ee26fd1536e9ed2db5406b1be6cdf0b2f320e049f606327e5c"
    in_base64 = "VrUS0NTKxO4m/RU26e0ttUBrG+bN8LLzIOBJ9gYyflw="
    assert not re.search(theirs, in_base64), "though S4 §3.1 allows base64"
    assert not re.search(theirs, "blake3:" + in_hex), "though S4 §6 writes the algorithm"
    assert re.search(theirs, "-" * 16), "though this is no digest"
    assert re.search(ours, in_hex)
    assert not re.search(ours, "-" * 64)
    assert not re.search(ours, in_hex.upper()), "one digest, one spelling"


def test_cddl_and_json_schema_name_the_same_members():
    cddl = files("ropewalk").joinpath("schemas/v1/ledger/envelope.cddl").read_text(encoding="utf-8")
    cddl = re.sub(r";.*", "", cddl)
    body = cddl[cddl.index("envelope = {") : cddl.index("}")]
    found = {name: not optional for optional, name in re.findall(r'(\?)?\s*"(\w+)":', body)}
    envelope = document("ledger/envelope")
    assert found == {name: name in envelope["required"] for name in envelope["properties"]}
    for closed in (
        envelope["properties"]["event_class"]["enum"],
        envelope["properties"]["confidentiality_tag"]["properties"]["level"]["enum"],
        envelope["$defs"]["algorithm"]["enum"],
    ):
        assert " / ".join(f'"{each}"' for each in closed) in cddl
