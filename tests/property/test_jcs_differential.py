"""Canonical JSON against two strangers: rfc8785 for writing, the standard library's reader for strictness."""

from __future__ import annotations

import json
import math
from typing import Any

import orjson
import rfc8785
from hypothesis import event, given
from hypothesis import strategies as st

from ropewalk.errors import InvalidJson
from ropewalk.kernel import jcs
from ropewalk.kernel.json_check import first_fault

SAFE = 2**53 - 1

# Where orders, escapes and encodings part: controls, quotes, both sides of the surrogates, the first and last astral.
CORNERS = (
    '\x00\x08\t\n\x0c\r\x1f "/:\\\x7f\x80é\u2028\ud7ff\ue000\ufb33\ufe0f\uffff\U00010000\U0001f600\U0010ffff'
)

texts = st.text(st.sampled_from(CORNERS), max_size=6) | st.text(max_size=12) | st.just("\ud800")
keys = st.text(st.sampled_from(CORNERS + "ab"), max_size=3) | st.text(max_size=6)
integers = st.integers() | st.integers(-1000, 1000) | st.sampled_from([SAFE, -SAFE, SAFE + 1, 2**63, 2**64])
floats = (
    st.floats()
    | st.integers(-1000, 1000).map(float)
    | st.decimals(-(10**6), 10**6, places=3).map(float)
    | st.sampled_from([1e-7, 1e-6, 9.5e-6, 1e-5, 1e-4, 1e15, 1e16, 1e20, 1e21, 2.0**53, 5e-324, -0.0])
    | st.builds(lambda digits, power: digits * 10.0**power, st.floats(1, 10), st.integers(-12, 25))
)
scalars = st.none() | st.booleans() | texts | integers | floats
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=5) | st.lists(inner).map(tuple)
    ),
    max_leaves=20,
)


def wrap(value: object, way: list[bool]) -> object:
    for is_array in way:
        value = [value] if is_array else {"k": value}
    return value


deep_values = st.builds(wrap, values, st.lists(st.booleans(), min_size=100, max_size=140))


def depth(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    return 1 + max(map(depth, value), default=0) if isinstance(value, list | tuple) else 0


def has_big_integer(value: object) -> bool:
    """The one place where our rule is stricter than rfc8785's for doubles; for Python integers see the unit tests."""
    if isinstance(value, dict):
        return any(map(has_big_integer, value.values()))
    if isinstance(value, list | tuple):
        return any(map(has_big_integer, value))
    return isinstance(value, float) and SAFE < abs(value) < 1e21


def has_exact_giant(value: object) -> bool:
    """Python integers from 1e21 upwards that a double holds: ours writes them, rfc8785 does not."""
    if isinstance(value, dict):
        return any(map(has_exact_giant, value.values()))
    if isinstance(value, list | tuple):
        return any(map(has_exact_giant, value))
    return type(value) is int and abs(value) >= 10**21


def by_peer(value: Any) -> bytes | None:
    if depth(value) > jcs.DEPTH_MAX or has_big_integer(value):
        return None
    try:
        return rfc8785.dumps(value)
    except (rfc8785.CanonicalizationError, UnicodeEncodeError):
        return None


def by_us(value: Any) -> bytes | None:
    try:
        return jcs.encode(value)
    except InvalidJson:
        return None


@given(values.filter(lambda value: not has_exact_giant(value)))
def test_encode_writes_the_bytes_of_rfc8785_or_both_refuse(value):
    ours = by_us(value)
    event("refused" if ours is None else "written")
    assert ours == by_peer(value)


@given(values)
def test_the_fast_path_answers_only_where_it_equals_the_exact_one(value):
    fast, as_it_stands = jcs._encode_fast(value)
    event("exact path only" if fast is None else "plain" if as_it_stands else "respelt")
    if fast is not None:
        assert fast == jcs._encode_exact(value, jcs._strict)
        if not has_exact_giant(value):
            assert fast == rfc8785.dumps(value)


@given(deep_values.filter(lambda value: not has_exact_giant(value)))
def test_deep_values_are_written_up_to_the_bound(value):
    event("too deep" if depth(value) > jcs.DEPTH_MAX else "deep")
    assert by_us(value) == by_peer(value)


@given(values, st.booleans(), st.sampled_from([None, 1]), st.sampled_from([(",", ":"), (" ,\t", " : ")]))
def test_any_layout_of_a_value_has_the_same_canonical_bytes(value, ascii_only, indent, separators):
    canonical = by_us(value)
    if canonical is None:
        return
    value = jcs.parse(canonical)
    assert jcs.parse_canonical(canonical) == value
    assert jcs.encode(value) == canonical
    raw = json.dumps(value, ensure_ascii=ascii_only, indent=indent, separators=separators).encode()
    assert jcs.canonicalise(raw) == canonical
    assert jcs.parse(raw) == value
    assert first_fault(raw, jcs._allows_strict) is None


@given(values)
def test_foreign_numbers_survive_a_second_reading(value):
    try:
        canonical = jcs.encode_foreign(value)
    except InvalidJson:
        return
    again = jcs.parse_foreign(canonical)
    assert jcs.encode_foreign(again) == canonical
    strict = by_us(value)
    assert strict is None or strict == canonical


def strict_by_library(raw: bytes) -> bytes | None:
    """Strict reading put together from the standard library's hooks, then rfc8785."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError("duplicate key")
        return dict(pairs)

    def refuse(name: str) -> None:
        raise ValueError(name)

    def integer(text: str) -> int | float:
        exact = int(text)
        if abs(exact) <= SAFE:
            return exact
        if abs(float(exact)) < 1e21 or int(float(exact)) != exact:
            raise ValueError("big integer")
        return float(exact)

    try:
        value = json.loads(raw.decode(), object_pairs_hook=unique, parse_constant=refuse, parse_int=integer)
    except (ValueError, OverflowError):
        return None
    return by_peer(value)


@st.composite
def damaged_texts(draw: st.DrawFn) -> bytes:
    """JSON with a few bytes removed, doubled, added or changed: mostly wrong, sometimes still right."""
    value = draw(values)
    try:
        raw = bytearray(
            json.dumps(value, ensure_ascii=draw(st.booleans()), allow_nan=True), "utf-8", "surrogatepass"
        )
    except UnicodeEncodeError:
        raw = bytearray(b"{}")
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, max(len(raw) - 1, 0)))
        match draw(st.sampled_from(["remove", "double", "add", "change"])):
            case "remove":
                del raw[at : at + draw(st.integers(1, 3))]
            case "double":
                raw[at:at] = raw[at : at + draw(st.integers(1, 9))]
            case "add":
                raw[at:at] = draw(
                    st.sampled_from([b",", b'"a":1,', b"[", b"}", b"\\u003a", b"\\ud83d", b"0", b"e9", b" "])
                )
            case "change":
                raw[at : at + 1] = bytes([draw(st.sampled_from(b'{}[]:,"\\0189.-+eEu\x00\x80\xed\xef'))])
    return bytes(raw)


@given(damaged_texts())
def test_parse_accepts_exactly_what_strict_json_is(raw):
    expected = strict_by_library(raw)
    fault = first_fault(raw, jcs._allows_strict)
    assert (fault is None) == (expected is not None)
    event("accepted" if fault is None else fault.fields["reason"])
    try:
        assert jcs.canonicalise(raw) == expected
    except InvalidJson as refused:
        assert expected is None
        assert refused.fields == fault.fields if fault else False
        assert 0 <= refused.fields["position"] <= len(raw)


@given(st.binary(max_size=40))
def test_random_bytes_never_raise_anything_else(raw):
    for read in (jcs.parse, jcs.parse_foreign, jcs.parse_canonical, jcs.canonicalise):
        try:
            read(raw)
        except InvalidJson as refused:
            assert refused.fields["reason"] != "refused by the parser"


@given(floats)
def test_orjson_still_prints_the_doubles_of_the_fast_path_as_we_rely_on(number):
    """The guard's second claim, alone: a new orjson that prints otherwise must fail here first."""
    if math.isfinite(number) and not number.is_integer() and 1e-4 <= abs(number) <= SAFE:
        assert orjson.dumps(number) == rfc8785.dumps(number)
