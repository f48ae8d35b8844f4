"""Out of a known mould comes the same envelope as from a full reading, and the same refusal."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.ledger.making import NODE, NOON, observed

from ropewalk import native
from ropewalk.errors import RopewalkError
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import blake3
from ropewalk.kernel.merkle import LEDGER
from ropewalk.ledger.envelope import template_cache
from ropewalk.ledger.envelope.envelope import parse, parse_run, parse_stored, recast_run
from ropewalk.ledger.envelope.fields import DEFAULT_SIGNED
from ropewalk.ledger.envelope.model import Envelope, signature_preimage
from ropewalk.ledger.rules.rules import judge
from ropewalk.ledger.rules.verdict import Context

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(-1e9, 1e9) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
TIMES = st.datetimes().map(lambda time: f"{time.isoformat().split('.')[0]}.{time.microsecond:06}Z")


@pytest.fixture(autouse=True)
def no_moulds():
    template_cache._moulds.clear()
    template_cache._packed = None


def plain(payload: object, timestamp: str = NOON, **members: Any) -> Envelope:
    return observed(payload=payload, timestamp=timestamp, **members)


def holding(payload: bytes) -> bytes:
    """A plain envelope with these bytes for a payload, and their hash."""
    one = plain({"n": 1})
    raw = one.raw.replace(one.value["payload_hash"].encode(), blake3(payload).hex().encode())
    return raw.replace(b'{"n":1}', payload)


def reading(raw: bytes, read=parse_stored) -> object:
    """Everything that is known of an envelope, or why there is none."""
    try:
        one = read(raw)
    except RopewalkError as error:
        return type(error), error.detail
    verdict = judge(one, Context())
    facts = one.raw, one.id, one.value, one.public_key, one.signature_bytes, one.preimage, one.intent
    words = one.timestamp, one.event_type, one.signed_fields, one.unsigned_fields, one.payload_raw, one.level
    return facts, words, [finding.to_json() for finding in verdict.findings]


def in_a_run(raw: bytes) -> Envelope:
    """The last of many that are read at once, which a compiled loop does for known moulds."""
    return list(parse_run([raw] * 9, [LEDGER.leaf(raw)] * 9))[-1]


def both(raw: bytes) -> tuple[object, object]:
    """What is known of the bytes with the moulds as they are, and without any."""
    with_moulds = reading(raw), reading(raw, parse)
    assert reading(raw, in_a_run) == with_moulds[0]
    kept = dict(template_cache._moulds)
    without = []
    for read in (parse_stored, parse):
        template_cache._moulds.clear()
        without.append(reading(raw, read))
    template_cache._moulds.update(kept)
    return with_moulds, tuple(without)


def test_the_second_of_a_kind_comes_out_of_the_mould_of_the_first():
    assert template_cache.recast(plain({"n": 1}).raw) is None
    parse_stored(plain({"n": 1}).raw)
    assert template_cache.recast(plain({"n": 2}, "2024-11-01T12:00:00.25Z").raw) is not None
    assert template_cache.recast(plain({"n": 2}, event_type="heard").raw) is None


@pytest.mark.parametrize("size", [1, 1_010, 1_030, 5_000])
def test_a_run_is_cast_by_the_loop(size: int):
    """Payloads below and above what the loop hashes itself; a wrong hash is left to the parser."""
    kinds = ("seen", "heard")
    for kind in kinds:
        parse_stored(plain({"n": 1}, event_type=kind).raw)
    run = [plain({"n": n, "text": "é" + "x" * size}, event_type=kinds[n % 2]).raw for n in range(9)]
    run[4] = run[4].replace(b'"n":4', b'"n":5')
    found = recast_run(run)
    assert [each is None for each in found] == [n == 4 or not native.is_here() for n in range(9)]
    known = [template_cache.recast(raw) for raw in run]
    for each, facts in zip(found, known, strict=True):
        if each is not None and facts is not None:
            assert facts.items() <= vars(each).items() and each.intent == blake3(each.preimage)
    with native.switched_off():
        assert recast_run(run) == [None] * 9


@given(JSON, TIMES)
@settings(deadline=None, max_examples=60)
def test_whatever_the_payload_and_the_time_both_readings_agree(payload, time):
    parse_stored(plain({"n": 1}).raw)
    one = plain(payload, time)
    assert one.preimage == signature_preimage(one.value)
    with_moulds, without = both(one.raw)
    assert with_moulds == without


@given(st.data())
@settings(deadline=None, max_examples=150)
def test_bytes_changed_anywhere_are_read_or_refused_alike(data):
    parse_stored(plain({"n": 1}).raw)
    raw = bytearray(plain({"n": [1, {"m": "é"}], "text": "rope"}).raw)
    for _ in range(data.draw(st.integers(1, 2))):
        at = data.draw(st.integers(0, len(raw) - 1))
        new = data.draw(
            st.sampled_from([b"", b'"', b"0", b"}", b"{", b",", b"A", b"=", b" ", b"\xff", b"1.0"])
        )
        raw[at : at + data.draw(st.integers(0, 2))] = new
    with_moulds, without = both(bytes(raw))
    assert with_moulds == without


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(holding(b"[" * 127 + b"]" * 127), id="at the depth"),
        pytest.param(holding(b"[" * 128 + b"]" * 128), id="too deep"),
        pytest.param(holding(b'{"n":1.0}'), id="another spelling"),
        pytest.param(holding(b'{"n":1,"n":1}'), id="a key twice"),
        pytest.param(holding(b'{"n":1},"payload":{"n":1}'), id="two payloads"),
        pytest.param(holding(b""), id="no payload"),
        pytest.param(holding(b'"\xff"'), id="no text"),
        pytest.param(holding(b"9007199254740993"), id="a number too large"),
        pytest.param(holding(b'"%b"' % (b"x" * (1 << 20))), id="too large"),
        pytest.param(plain({"n": 1}).raw.replace(b"Z", b"z"), id="another time"),
        pytest.param(
            plain({"n": 1}, "2024-11-01T23:59:59Z").raw.replace(b":59Z", b":60Z"), id="a leap second"
        ),
        pytest.param(plain({"n": 1}).raw.replace(b'==","signed', b'=A","signed'), id="no base64"),
        pytest.param(plain(None).raw, id="nothing inside"),
        pytest.param(plain({"n": 1}, signed_fields=(*DEFAULT_SIGNED, "payload")).raw, id="payload signed"),
        pytest.param(plain({"n": 1}, signed_fields=(*DEFAULT_SIGNED, "domain")).raw, id="signed twice"),
        pytest.param(plain({"n": 1}, signed_fields=("domain",)).raw, id="too little signed"),
        pytest.param(plain({"n": 1}, signed_fields=DEFAULT_SIGNED[::-1]).raw, id="another order"),
        pytest.param(plain({"n": 1}, domain='"sig":"A",payload').raw, id="names inside texts"),
        pytest.param(
            plain({"payload_hash": "x", "sig": "y", "timestamp": "z"}).raw, id="names inside the payload"
        ),
    ],
)
def test_odd_ones_are_read_or_refused_alike(raw):
    kinds: list[object] = [{"n": 1}, {"deep": []}, "x"]
    for known in kinds:
        parse_stored(plain(known).raw)
    with_moulds, without = both(raw)
    assert with_moulds == without
    with_moulds, without = both(raw)  # and again, should the odd one have left a mould
    assert with_moulds == without


def test_a_signature_by_another_key_does_not_hold_out_of_a_mould_either():
    parse_stored(plain({"n": 1}).raw)
    other = plain({"n": 2})
    wrong = {
        **other.value,
        "signature": {**other.value["signature"], "sig": plain({"n": 3}).value["signature"]["sig"]},
    }
    raw = jcs.encode(wrong)
    assert template_cache.recast(raw) is not None
    assert judge(parse_stored(raw), Context()).findings[1].status == "failed"


def test_authors_have_moulds_of_their_own():
    parse_stored(plain({"n": 1}).raw)
    bo = plain(1, key=NODE)
    assert template_cache.recast(bo.raw) is None
    assert parse_stored(bo.raw).public_key == NODE.public


def test_moulds_are_few_and_small(monkeypatch):
    monkeypatch.setattr(template_cache, "_MOULDS_MAX", 3)
    for number in range(10):
        parse_stored(plain({"n": 1}, event_type=f"kind{number}").raw)
        assert len(template_cache._moulds) <= 3
    template_cache._moulds.clear()
    parse_stored(plain({"n": 1}, event_type="x" * 5000).raw)
    assert not template_cache._moulds
