"""Envelopes: one model, one canonical form, one id, in JSON and in CBOR."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import cbor2
import pytest
from tests.unit.ledger.making import ADA, NOON, P256, SECP, command, observed, resigned

from ropewalk.errors import InvalidCbor, InvalidEnvelope, InvalidJson, RopewalkError, TooLarge
from ropewalk.kernel import cbor, jcs
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.envelope.envelope import build, chain_after, parse, parse_cbor, parse_stored, to_cbor
from ropewalk.ledger.envelope.fields import DEFAULT_SIGNED, FIELDS, parse_timestamp
from ropewalk.ledger.envelope.model import signature_preimage

DETACHED: dict[str, Any] = {"locator": "https://example.org/x", "content_type": "text/plain", "bytes": 3}
RICH = observed(
    correlation_id="c-1",
    label="Ada",
    detached=DETACHED,
    evidence={"format": "slsa.v1", "evidence_hash": "0" * 64, "report": {"payload": {"a": [1.5, "é"]}}},
    integrity_proof={"type": "snark", "proof": "AA=="},
    confidentiality={"level": "internal", "key_ref": "k"},
    policy_tag={"policy_hash": "00", "decision": "audit"},
)


def test_the_published_vector_comes_out():
    key = SigningKey("ed25519", bytes(range(32)))
    one = build(
        key,
        domain="ea.core",
        event_class="Observation",
        event_type="test.vector",
        payload={"b": [1, 2, {"z": None}], "a": "é"},
        timestamp=NOON,
        correlation_id="c-1",
        signed_fields=DEFAULT_SIGNED,
    )
    assert one.hex_id == "550a1c4dfb3bb74acad545dc635bf17fc6c7f9d5e634724796d92d38d7d645f9"
    assert one.signature_bytes.hex().startswith("c0144edd3fa6c47d")
    assert (len(one.raw), len(to_cbor(one))) == (769, 671)


def test_all_sixteen_fields_can_be_carried():
    assert set(RICH.value) == set(FIELDS)
    assert parse(RICH.raw) == RICH


@pytest.mark.parametrize("one", [RICH, observed(), observed(key=P256), observed(key=SECP), command("c")])
def test_json_to_cbor_and_back_gives_the_same_envelope_and_id(one):
    again = parse_cbor(to_cbor(one))
    assert again == one and again.raw == one.raw


def test_byte_strings_become_the_text_json_peers_hash():
    value = json.loads(RICH.raw)
    value["origin_identity"]["public_key"] = b64encode(ADA.public.raw).decode()
    value["attestation_evidence"]["evidence_hash"] = value["policy_tag"]["policy_hash"] = "5e" * 32
    value["integrity_proof"] = {"type": "snark", "proof": "AAEC"}
    in_json = parse(resigned(value))
    wire: Any = json.loads(in_json.raw)
    wire["payload_hash"] = bytes.fromhex(wire["payload_hash"])
    wire["attestation_evidence"]["evidence_hash"] = wire["policy_tag"]["policy_hash"] = b"\x5e" * 32
    wire["integrity_proof"]["proof"] = bytes(range(3))
    wire["origin_identity"]["public_key"] = ADA.public.raw
    wire["signature"]["sig"] = in_json.signature_bytes
    assert parse_cbor(cbor.encode(wire)).id == in_json.id


def test_a_byte_string_where_none_belongs_is_refused():
    wire: Any = json.loads(observed().raw)
    for change in ({"domain": b"x"}, {"payload": b"x"}, {"payload": {"deep": [b"x"]}}):
        with pytest.raises(RopewalkError) as caught:
            parse_cbor(cbor.encode({**wire, **change}))
        assert caught.value.exit_code == 8


def test_cbor_with_indefinite_lengths_or_unsorted_keys_is_refused():
    value = observed().value
    body = b"".join(
        cbor.encode(k) + cbor.encode(v) for k, v in sorted(value.items(), key=lambda i: (len(i[0]), i[0]))
    )
    assert parse_cbor(bytes([0xA0 + len(value)]) + body) == observed()
    with pytest.raises(InvalidCbor):
        parse_cbor(b"\xbf" + body + b"\xff")
    unsorted = b"".join(cbor.encode(k) + cbor.encode(v) for k, v in value.items())
    with pytest.raises(InvalidCbor):
        parse_cbor(bytes([0xA0 + len(value)]) + unsorted)
    with pytest.raises(InvalidCbor):
        parse_cbor(cbor2.dumps(value))  # not sorted either
    with pytest.raises(InvalidEnvelope):
        parse_cbor(cbor.encode([1]))


def test_any_layout_is_accepted_at_the_edge_and_stored_canonically():
    loose = json.dumps(dict(reversed(list(RICH.value.items()))), indent=3).encode()
    assert parse(loose) == RICH
    with pytest.raises(InvalidJson):
        parse_stored(loose)


def test_null_optionals_are_dropped_at_the_edge_and_refused_inside():
    with_nulls = {**observed().value, "payload_ref": None, "correlation_id": None, "policy_tag": None}
    assert parse(jcs.encode(with_nulls)) == observed()
    with pytest.raises(InvalidEnvelope, match="null"):
        parse_stored(jcs.encode(with_nulls))


def test_a_null_payload_stays():
    assert parse(observed(payload=None).raw).payload is None


@pytest.mark.parametrize(
    "stamp",
    [
        2**64,
        -1,
        "2024-11-01T12:00:00+00:00",
        "2024-11-01T13:00:00+01:00",
        "2024-11-01T12:00:00",
        "2024-11-01 12:00:00Z",
        "2024-11-01T12:00:00.0000000001Z",
        "2024-11-01T12:00:60Z",
        "2024-13-01T12:00:00Z",
        "2024-02-30T12:00:00Z",
        "",
        None,
    ],
)
def test_a_timestamp_in_another_form_is_refused_because_it_is_signed(stamp):
    value = {**observed().value, "timestamp": stamp}
    with pytest.raises(RopewalkError) as caught:
        parse(json.dumps(value).encode())
    assert caught.value.exit_code == 8


def test_timestamps_count_nanoseconds():
    assert parse_timestamp("2024-11-01T12:00:00.000000001Z") == 1730462400 * 10**9 + 1
    assert parse_timestamp("2024-11-01T12:00:00.5Z") - parse_timestamp(NOON) == 500_000_000
    assert parse_timestamp("1969-12-31T23:59:59Z") == -(10**9)


def test_large_envelopes_need_a_detached_payload():
    with pytest.raises(TooLarge, match="detached"):
        observed(payload="x" * (1 << 20))
    big = {"format": "tee.report", "evidence_hash": "0" * 64, "report": {"x": "y" * (1 << 20)}}
    assert len(observed(evidence=big, detached=DETACHED).raw) > 1 << 20
    with pytest.raises(TooLarge):
        parse(b" " * ((4 << 20) + 1))
    with pytest.raises(TooLarge):
        parse_cbor(bytes((4 << 20) + 1))


@pytest.mark.parametrize("missing", [name for name in FIELDS if name not in RICH.value or name != "payload"])
def test_members_must_have_their_types(missing):
    wrongs: list[Any] = [-5, [], {"x": 1}]
    for wrong in wrongs:
        with pytest.raises(RopewalkError) as caught:
            parse(jcs.encode({**RICH.value, missing: wrong}))
            if missing == "causality_chain" and wrong == []:
                raise InvalidEnvelope("an empty chain is for rule 3 to refuse")
        assert caught.value.exit_code == 8


@pytest.mark.parametrize(
    "raw",
    [b"", b"null", b"[]", b"{}", b'{"a":1,"a":2}', b"\xef\xbb\xbf{}", b'"\\ud800"', b"[" * 200 + b"]" * 200],
)
def test_what_is_no_envelope_is_refused_as_input(raw):
    with pytest.raises(RopewalkError) as caught:
        parse(raw)
    assert caught.value.exit_code == 8


def test_an_unknown_member_is_refused():
    with pytest.raises(InvalidEnvelope, match="extra"):
        parse(jcs.encode({**observed().value, "extra": 1}))


def test_children_carry_the_chain_of_their_parents():
    ask = command("c-1")
    child = observed(1, parent=ask)
    grandchild = observed(2, parent=child)
    assert ask.causality_chain == ("c-1",)
    assert child.causality_chain == (ask.hex_id, "c-1")
    assert grandchild.causality_chain == (ask.hex_id, child.hex_id, "c-1")
    assert chain_after(child, "c-2") == [ask.hex_id, child.hex_id, "c-2"]


def test_the_shortcuts_of_the_hot_path_give_the_bytes_of_the_long_way():
    tricky = [
        RICH,
        observed(payload={"payload": {"payload_hash": "x"}, "a": ',"payload_hash":"'}),
        observed(payload=',"payload":'),
        observed(payload=[1.5, 1e21, -0.0, "é\u2028\U0001f600"]),
        observed(event_type=',"payload":x', domain='"payload":'),
        observed(payload=1, signed_fields=[*DEFAULT_SIGNED, "payload"]),
        observed(correlation_id='é"\\\u0007\U0001f600'),
        observed(label=',"payload":'),
    ]
    for one in tricky:
        stored = parse_stored(one.raw)
        assert stored.payload_raw == jcs.encode(one.value["payload"])
        assert stored.preimage == signature_preimage(one.value)


def test_the_detached_payload_leaves_only_its_hash():
    one = observed(payload={"secret": 1}, detached=DETACHED)
    assert one.is_detached and one.payload is None
    assert one.payload_hash.hex() == observed(payload={"secret": 1}).value["payload_hash"]
    assert b"secret" not in one.raw
