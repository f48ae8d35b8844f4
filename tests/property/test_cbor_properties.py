"""The fast ways of CBOR never differ from the law, whatever the bytes and whatever the value."""

from __future__ import annotations

from typing import Any

import cbor2
import dag_cbor
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from multiformats import CID as PeerCid

from ropewalk.errors import InvalidCbor
from ropewalk.kernel import cbor, jcs
from ropewalk.kernel.cbor import Link
from ropewalk.kernel.cbor_check import CORE, DAG, INT_SAFE_MAX, check, is_safe_integer
from ropewalk.kernel.digest import DAG_CBOR, RAW, cid

QUICK = settings(max_examples=150, deadline=None)
WAYS: dict[str, tuple[Any, Any, Any]] = {
    "core": (CORE, cbor.encode, cbor.decode),
    "dag": (DAG, cbor.dag_encode, cbor.dag_decode),
}

# Bytes that guards look for, so that chance meets them often.
TREACHEROUS = [
    b"\xd8\x2a",
    b"\xfb",
    b"\xfb\x3f\xf0" + bytes(6),
    b"\xfb\x40\x00",
    b"\x9a\xff",
    b"\x1b\x00\x20",
    b"\x01\x55\x00\x00",
]

texts = st.text(max_size=20) | st.sampled_from(["", ";;", "\x1b\x7f", "é", "\ue000", "\U0001f600", "a" * 24])
octets = st.binary(max_size=40) | st.lists(st.sampled_from(TREACHEROUS), max_size=3).map(b"".join)
cids = st.tuples(st.sampled_from([RAW, DAG_CBOR, 0x0129]), st.binary(max_size=4)).map(
    lambda parts: cid(*parts)
)
floats = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(
    [0.5, -0.0, 1.0, 2.0**53, 1e300, 65504.0]
)
ints = st.integers(-INT_SAFE_MAX, INT_SAFE_MAX) | st.integers(-300, 300)
wide_ints = ints | st.integers(-(2**64), 2**64 - 1)


def containers(inner):
    return st.lists(inner, max_size=6) | st.dictionaries(texts, inner, max_size=6)


def core_float(number):
    return is_safe_integer(number) or not number.is_integer() or abs(number) >= 1e21


scalars = st.none() | st.booleans() | texts
core_values = st.recursive(scalars | ints | octets | floats.filter(core_float), containers, max_leaves=20)
json_values = st.recursive(scalars | ints | floats.filter(core_float), containers, max_leaves=20)
dag_values = st.recursive(
    scalars | wide_ints | octets | cids | cids.map(Link) | floats, containers, max_leaves=20
)
values = st.tuples(st.just("core"), core_values) | st.tuples(st.just("dag"), dag_values)


def reduced(value):
    """The value that comes back: integral floats as integers, maps in canonical order."""
    if isinstance(value, float):
        return int(value) if is_safe_integer(value) else value
    if isinstance(value, list):
        return [reduced(item) for item in value]
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: (len(key.encode()), key.encode()))
        return {key: reduced(value[key]) for key in keys}
    return value


@QUICK
@given(values)
def test_every_value_comes_back_reduced_and_its_bytes_are_lawful(case):
    name, value = case
    dialect, encode, decode = WAYS[name]
    raw = encode(value)
    check(raw, dialect)
    back = decode(raw)
    assert repr(back) == repr(reduced(value))  # the types as well: 1, 1.0 and True are equal to Python
    assert encode(back) == raw


@QUICK
@given(values, st.data())
def test_changed_bytes_are_refused_exactly_when_the_law_refuses_them(case, data):
    name, value = case
    dialect, encode, decode = WAYS[name]
    raw = bytearray(encode(value))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw)))
        new = data.draw(
            st.binary(min_size=1, max_size=2) | st.sampled_from([b"\x18", b"\xf9", b"\xfa", *TREACHEROUS])
        )
        raw[at : at + data.draw(st.integers(0, 2))] = new
    judge(bytes(raw), dialect, encode, decode)


@QUICK
@given(st.binary(max_size=24), st.sampled_from(sorted(WAYS)))
def test_any_bytes_are_judged_as_the_law_judges_them(raw, name):
    judge(raw, *WAYS[name])


def judge(raw, dialect, encode, decode):
    try:
        check(raw, dialect)
    except InvalidCbor:
        with pytest.raises(InvalidCbor):
            decode(raw)
    else:
        assert encode(decode(raw)) == raw


@QUICK
@given(json_values)
def test_cbor_and_json_carry_the_same_model(value):
    through_json = jcs.parse(jcs.encode(value))
    through_cbor = cbor.decode(cbor.encode(value))
    assert jcs.encode(through_cbor) == jcs.encode(through_json)
    assert through_cbor == through_json


@QUICK
@given(dag_values)
def test_the_peer_codec_writes_the_same_bytes(value):
    """`dag-cbor` from PyPI keeps integral floats as floats, so it is given the reduced value."""
    assert cbor.dag_encode(value) == dag_cbor.encode(for_peer(reduced(value)))


def for_peer(value):
    if isinstance(value, Link):
        return PeerCid.decode(value.cid)
    if isinstance(value, list):
        return [for_peer(item) for item in value]
    if isinstance(value, dict):
        return {key: for_peer(item) for key, item in value.items()}
    return value


@QUICK
@given(core_values)
def test_cbor2_in_canonical_mode_writes_the_same_bytes(value):
    assert cbor.encode(value) == cbor2.dumps(reduced(value), canonical=True)
