"""Canonical CBOR in both dialects: one value, one spelling, and no input that costs more than its size."""

from __future__ import annotations

import base64
import enum
import json
import math
import resource
import sys
from pathlib import Path
from typing import Any

import libipld
import pytest
from tests.folding import fold
from tests.waiting import together

from ropewalk.errors import InvalidCbor, InvalidDigest
from ropewalk.kernel import cbor, jcs
from ropewalk.kernel.cbor import Link
from ropewalk.kernel.cbor_check import CORE, DAG, check

VECTORS = Path(__file__).parents[3] / "vectors"
CID = bytes.fromhex("01711220") + bytes(32)
DIALECTS: dict[str, tuple[Any, Any, Any]] = {
    "core": (CORE, cbor.encode, cbor.decode),
    "dag": (DAG, cbor.dag_encode, cbor.dag_decode),
}


def load(path):
    return json.loads((VECTORS / path).read_text(encoding="utf-8"))


def cases():
    for path in sorted((VECTORS / "cbor").glob("*.json")):
        for case in load(path)["cases"]:
            yield pytest.param(case, id=f"{path.stem}-{case['name']}")


def from_dag_json(value):
    if isinstance(value, list):
        return [from_dag_json(item) for item in value]
    if isinstance(value, dict) and value.keys() == {"/"}:
        inner = value["/"]
        return Link.parse(inner) if isinstance(inner, str) else base64.b64decode(inner["bytes"] + "==")
    if isinstance(value, dict):
        return {key: from_dag_json(item) for key, item in value.items()}
    return value


def same(left, right):
    """Equal in value and in type, all the way down: 1, 1.0 and True are equal to Python."""
    return repr(left) == repr(right)


@fold("case", list(cases()))
def test_vectors_hold_in_the_fast_way_and_by_the_law(case):
    dialect, encode, decode = DIALECTS[case["input"]["dialect"]]
    raw = bytes.fromhex(case["input"]["hex"])
    if "error" in case:
        for read in (decode, lambda raw: check(raw, dialect)):
            with pytest.raises(InvalidCbor) as caught:
                read(raw)
            assert caught.value.fields["reason"] == case["error"]["reason"]
            assert 0 <= caught.value.fields["position"] <= len(raw)
    else:
        value = from_dag_json(case["expect"]["value"])
        check(raw, dialect)
        assert same(decode(raw), value)
        assert encode(value) == raw


@pytest.mark.parametrize(
    "case", load("gossiplog/dag-cbor-decode.json")["cases"], ids=lambda case: case["input"]
)
def test_only_what_the_javascript_codec_writes_is_read(case):
    raw = bytes.fromhex(case["input"])
    if case.get("canonical"):
        assert cbor.dag_encode(cbor.dag_decode(raw)) == raw
    else:
        with pytest.raises(InvalidCbor):
            cbor.dag_decode(raw)


@pytest.mark.parametrize("name", ["v0.6-messages", "v0.6-high-clock", "v0.13-messages", "v0.13-high-clock"])
def test_every_recorded_message_is_read_and_written_back(name):
    for message in load(f"gossiplog/{name}.json")["messages"]:
        for field in ("message_cbor", "signed_message_cbor", "payload_cbor"):
            if field in message:
                raw = bytes.fromhex(message[field])
                check(raw, DAG)
                assert cbor.dag_encode(cbor.dag_decode(raw)) == raw


@pytest.mark.parametrize("name", ["v0.6-messages", "v0.13-messages"])
def test_recorded_payloads_have_the_recorded_values(name):
    seen = 0
    for message in load(f"gossiplog/{name}.json")["messages"]:
        if "payload_cbor" not in message:
            continue
        raw = bytes.fromhex(message["payload_cbor"])
        value = from_dag_json(message["payload_dagjson"])
        # DAG-JSON drops the difference between an integral float and an integer beyond ±(2^53−1).
        assert cbor.dag_decode(raw) == value
        seen += 1
    assert seen > 20


class Colour(enum.IntEnum):
    RED = 3


class Words(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "core", "dag"),
    [
        (1.0, "01", "01"),
        (-0.0, "00", "00"),
        (-3.0, "22", "22"),
        ([1.0, {"a": 2.0}], "8201a1616102", "8201a1616102"),
        (1.5, "f93e00", "fb3ff8000000000000"),
        (0.1, "fb3fb999999999999a", "fb3fb999999999999a"),
        ({"b": 1, "aa": 2, "a": 3}, "a361610361620162616102", "a361610361620162616102"),
        ({"b": 1.5, "a": b"\xfb"}, "a2616141fb6162f93e00", "a2616141fb6162fb3ff8000000000000"),
        (Colour.RED, "03", "03"),
        (Words("a"), "6161", "6161"),
        ({Words("a"): True}, "a16161f5", "a16161f5"),
        ([Colour.RED, 0.5], "8203f93800", "8203fb3fe0000000000000"),
    ],
)
def test_numbers_reduce_and_maps_sort(value, core, dag):
    assert cbor.encode(value).hex() == core
    assert cbor.dag_encode(value).hex() == dag


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (math.nan, "not a finite number"),
        ([math.inf], "not a finite number"),
        (2**64, "integer out of range"),
        (-(2**64) - 1, "integer out of range"),
        ("\ud800", "text holds a lone surrogate"),
        ({"\ud800": 1}, "map key holds a lone surrogate"),
        ({1: 2}, "map key 1 is not text"),
        ({b"a": 2}, "map key b'a' is not text"),
        ((1, 2), "tuple has no canonical form"),
        (bytearray(b"a"), "bytearray has no canonical form"),
        ({"a": [{1, 2}]}, "set has no canonical form"),
        (1j, "complex has no canonical form"),
    ],
)
@pytest.mark.parametrize("encode", [cbor.encode, cbor.dag_encode])
def test_values_without_a_spelling_are_refused(encode, value, reason):
    with pytest.raises(InvalidCbor) as caught:
        encode(value)
    assert caught.value.fields["reason"] == reason


def test_a_refused_value_is_named_by_its_place():
    with pytest.raises(InvalidCbor, match=r"DAG-CBOR value at /a/1: not a finite number"):
        cbor.dag_encode({"a": [0, math.nan]})


@pytest.mark.parametrize("value", [2**53, -(2**53), 2.0**53, 999999999999999868928.0, [";", 2**60]])
def test_the_json_model_ends_at_safe_integers(value):
    with pytest.raises(InvalidCbor, match="integer out of range"):
        cbor.encode(value)


def test_links_have_no_place_in_the_json_model():
    with pytest.raises(InvalidCbor, match="Link has no canonical form"):
        cbor.encode([Link(CID)])


def test_a_link_must_hold_a_whole_cid():
    for cid in (b"", CID[:-1], CID + b"\0", b"\x02" + CID[1:]):
        with pytest.raises(InvalidDigest):
            Link(cid)
    assert Link.parse(Link(CID).text()) == Link(CID)


def test_bytes_that_read_like_a_cid_stay_bytes():
    value = {"link": Link(CID), "bytes": CID, "parents": [CID[:20], b"\x01\x55\x00\x00"]}
    raw = cbor.dag_encode(value)
    assert raw.count(b"\xd8\x2a") == 1
    assert same(cbor.dag_decode(raw), {key: value[key] for key in ("link", "bytes", "parents")})
    # The trap is real: without our guards this library would write four links.
    assert libipld.encode_dag_cbor(CID)[:2] == b"\xd8\x2a"


def test_what_both_models_share_has_equal_bytes_and_equal_json():
    value = {"name": "é\U0001f600", "list": [None, True, -1, 2**53 - 1], "nested": {"b": {}, "a": []}}
    raw = cbor.encode(value)
    assert raw == cbor.dag_encode(value)
    assert jcs.encode(cbor.decode(raw)) == jcs.encode(value)


def test_the_published_envelope_has_its_published_size():
    untouched = load("ledger/envelope_tampered.json")["cases"][0]["input"]
    assert len(jcs.encode(untouched)) == 769
    assert len(cbor.encode(untouched)) == 671
    assert jcs.encode(cbor.decode(cbor.encode(untouched))) == jcs.encode(untouched)


def nest(depth, wrap=lambda inner: [inner]):
    value = 0
    for _ in range(depth):
        value = wrap(value)
    return value


@pytest.mark.parametrize("encode", [cbor.encode, cbor.dag_encode])
@pytest.mark.parametrize(
    "wrap", [lambda inner: [inner], lambda inner: {"a": inner}, lambda inner: ["x" * 200, inner]]
)
def test_values_nest_128_deep_and_no_deeper(encode, wrap):
    assert encode(nest(128, wrap))
    for depth in (129, 1000, 100_000):
        with pytest.raises(InvalidCbor, match="nested deeper than 128"):
            encode(nest(depth, wrap))


@pytest.mark.parametrize("encode", [cbor.encode, cbor.dag_encode])
def test_encoding_is_bounded_at_any_recursion_limit(encode):
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10**6)
    try:
        with pytest.raises(InvalidCbor, match="nested deeper than 128"):
            encode(nest(100_000))
        assert encode({"a": [1]}) == bytes.fromhex("a161618101")
    finally:
        sys.setrecursionlimit(limit)


def test_a_value_inside_itself_is_refused():
    ring: list[object] = []
    ring.append(ring)
    for encode in (cbor.encode, cbor.dag_encode):
        with pytest.raises(InvalidCbor, match="nested deeper than 128"):
            encode(ring)


def test_many_containers_side_by_side_are_not_deep():
    value = [[[{"a": []}], "é" * 300] for _ in range(500)]
    for encode, decode in ((cbor.encode, cbor.decode), (cbor.dag_encode, cbor.dag_decode)):
        assert decode(encode(value)) == value


@pytest.mark.parametrize("decode", [cbor.decode, cbor.dag_decode])
def test_depth_is_bounded_whatever_the_recursion_limit(decode):
    outcome = []

    def read():
        for raw in (b"\x81" * 1_000_000, b"\xa1\x61a" * 300_000):
            try:
                decode(raw)
            except InvalidCbor as error:
                outcome.append(error.fields["reason"])

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10**6)
    try:
        together(read)  # the stack of a thread is small: a recursive reader would crash here
    finally:
        sys.setrecursionlimit(limit)
    assert outcome == ["nested deeper than 128"] * 2


@pytest.mark.parametrize("decode", [cbor.decode, cbor.dag_decode])
@pytest.mark.parametrize("head", [b"\x9a\x00\x4c\x4b\x40", b"\xba\x00\x26\x25\xa0\x60"])
def test_claimed_lengths_reserve_no_memory(decode, head):
    raw = head * 120 + bytes(5_000_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InvalidCbor):
        decode(raw)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert (after - before) * (1 if sys.platform == "darwin" else 1024) < 100 << 20


@pytest.mark.parametrize("decode", [cbor.decode, cbor.dag_decode])
def test_a_long_key_over_many_items_costs_its_size_and_not_its_square(decode):
    # Naming each item's place would copy the key a million times: 10^12 bytes, which the timeout would not survive.
    many, long = 1_000_000, 1_000_000
    raw = b"\xa1\x7a" + long.to_bytes(4, "big") + "é".encode() * (long // 2)
    raw += b"\x9a" + (many + 2).to_bytes(4, "big") + b"\xf6" * many
    raw += b"\x42\xd8\x2a" + b"\x42\xd8\x2a"  # byte strings that look like the head of a link: the slow way
    (value,) = decode(raw).values()
    assert len(value) == many + 2


def test_large_honest_values_pass():
    value = {"blob": bytes(range(256)) * 4096, "list": list(range(70_000)), "text": "ж" * 100_000}
    for encode, decode in ((cbor.encode, cbor.decode), (cbor.dag_encode, cbor.dag_decode)):
        assert decode(encode(value)) == value
