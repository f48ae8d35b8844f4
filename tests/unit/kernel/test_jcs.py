"""Canonical JSON from Python values: what may be written, what is refused, and what the refusal says."""

from __future__ import annotations

import datetime
import decimal
import enum
import math
import uuid
from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import orjson
import pytest

from ropewalk.errors import InvalidJson
from ropewalk.kernel import jcs


class Plain(enum.Enum):
    RED = "red"


class Text(enum.StrEnum):
    RED = "red"


class Mixed(str, enum.Enum):  # noqa: UP042 — the older kind, whose str() differs from its characters
    RED = "red"

    def __str__(self) -> str:
        return "something else"


class Whole(enum.IntEnum):
    ONE = 1


class LoudText(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "LOUD"


class LoudInt(int):
    def __int__(self) -> int:
        return 99

    def __repr__(self) -> str:
        return "99"


class LoudFloat(float):
    def __repr__(self) -> str:
        return "99.5"


class Twin(str):
    """A key that Python tells apart from an equal text."""

    __slots__ = ()

    def __hash__(self) -> int:
        return 7

    def __eq__(self, other: object) -> bool:
        return self is other


@dataclass
class Fact:
    a: int = 1


Point = namedtuple("Point", "x y")


def nested(depth: int, leaf: object = 1) -> object:
    value = leaf
    for _ in range(depth):
        value = [value]
    return value


def refusal(value: object, act=jcs.encode) -> InvalidJson:
    with pytest.raises(InvalidJson) as caught:
        act(value)
    return caught.value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (False, "false"),
        (1, "1"),
        (1.0, "1"),
        (-0.0, "0"),
        ((1, (2,)), "[1,[2]]"),
        (Point(1, 2), "[1,2]"),
        ({"b": 1, "a": (True, None)}, '{"a":[true,null],"b":1}'),
        (OrderedDict(b=1, a=2), '{"a":2,"b":1}'),
        (defaultdict(int, a=1), '{"a":1}'),
        (Text.RED, '"red"'),
        (Mixed.RED, '"red"'),
        (Whole.ONE, "1"),
        ({Text.RED: Whole.ONE}, '{"red":1}'),
        (LoudText("quiet"), '"quiet"'),
        (LoudInt(3), "3"),
        (LoudFloat(0.5), "0.5"),
        ([True, 1, 1.5], "[true,1,1.5]"),
        ({}, "{}"),
        ([], "[]"),
        ((), "[]"),
        ({"a": 2.0**53 - 1}, '{"a":9007199254740991}'),
    ],
)
def test_value_is_written(value, text):
    assert jcs.encode(value) == text.encode()
    assert jcs.encode([value, 1.0]) == f"[{text},1]".encode(), "the exact path agrees"


@pytest.mark.parametrize(
    "value",
    [
        b"bytes",
        bytearray(b"a"),
        {1, 2},
        frozenset({1}),
        1j,
        decimal.Decimal(1),
        uuid.UUID(int=1),
        datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC),
        datetime.date(2024, 1, 1),
        Plain.RED,
        Fact(),
        orjson.Fragment(b"1"),
        MappingProxyType({"a": 1}),
        range(3),
        object(),
        ...,
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("act", [jcs.encode, jcs.encode_foreign])
def test_what_is_no_json_type_is_refused_wherever_it_stands(value, act):
    for outer in (value, [value], {"a": value}, {"a": [1.0, {"b": value}]}):
        error = refusal(outer, act)
        assert error.fields["reason"] == "not JSON"
        assert type(value).__name__ in error.detail


@pytest.mark.parametrize("key", [1, 1.5, None, True, b"a", (1,), Plain.RED, uuid.UUID(int=1)], ids=repr)
def test_keys_are_strings(key):
    error = refusal({"outer": {key: 1}})
    assert error.fields == {"reason": "not JSON", "where": "/outer"}
    assert "is not a string" in error.detail


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, LoudFloat("nan"), LoudFloat("inf")])
@pytest.mark.parametrize("act", [jcs.encode, jcs.encode_foreign])
def test_only_finite_numbers_are_written(value, act):
    error = refusal({"a": [None, value]}, act)
    assert error.fields == {"reason": "not finite", "where": "/a/1"}


BEYOND = [
    2**53,
    -(2**53),
    2**63,
    2**64,
    10**21 + 1,
    10**30,
    10**5000,
    2.0**53,
    -(2.0**53),
    1e20,
    9.99e20,
    LoudInt(2**60),
]


@pytest.mark.parametrize("value", BEYOND, ids=lambda value: f"2^{math.log2(abs(value)):.2f}")
def test_integers_beyond_what_a_double_holds_are_refused(value):
    error = refusal({"n": value})
    assert error.fields == {"reason": "big integer", "where": "/n"}
    assert len(error.detail) < 120


def test_doubles_from_1e21_are_written_with_an_exponent():
    assert jcs.encode([1e21, -1e21, 1.5e300]) == b"[1e+21,-1e+21,1.5e+300]"


def test_integers_from_1e21_are_written_only_if_a_double_holds_them():
    assert jcs.encode([10**21, -(2**100)]) == b"[1e+21,-1.2676506002282294e+30]"
    assert jcs.parse(jcs.encode([10**21, -(2**100)])) == [10**21, -(2**100)]


def test_foreign_integers_are_rounded_to_doubles():
    assert (
        jcs.encode_foreign([2**53 + 1, 2**63, 10**21, 7]) == b"[9007199254740992,9223372036854776000,1e+21,7]"
    )
    assert refusal(10**400, jcs.encode_foreign).fields["reason"] == "not finite"


@pytest.mark.parametrize(
    "text", ["\ud800", "a\udfff", "\ud83d\ude00", "\udc80 as os.fsdecode makes it"], ids=ascii
)
def test_surrogates_in_python_strings_are_refused(text):
    assert refusal([1, text]).fields == {"reason": "lone surrogate", "where": "/1"}
    assert refusal({text: 1}).fields["reason"] == "lone surrogate"
    assert refusal(LoudText(text)).fields["reason"] == "lone surrogate"
    refusal({text: [text]}).detail.encode()  # the message itself can be printed


def test_where_is_a_json_pointer():
    assert refusal({"a/b": {"~": [0, {"": math.nan}]}}).fields["where"] == "/a~1b/~0/1/"
    assert refusal(math.nan).fields["where"] == ""


def test_128_levels_pass_and_129_do_not():
    for fits in (nested(128), nested(128, 1.0), nested(128, "x"), nested(127, {}), nested(127, {"a": 1.0})):
        assert jcs.parse(jcs.encode(fits)) == fits
        error = refusal([fits])
        assert error.fields["reason"] == "nested too deep"
        assert error.fields["where"].startswith("/0" * 127)


@pytest.mark.parametrize("depth", [129, 254, 255, 1024, 1025, 5_000, 100_000])
@pytest.mark.parametrize("opener", [b"[", b'{"a":', b'[{"a":'])
@pytest.mark.parametrize("read", [jcs.parse, jcs.parse_foreign, jcs.parse_canonical, jcs.canonicalise])
def test_no_depth_of_text_exhausts_the_stack(read, opener, depth):
    with pytest.raises(InvalidJson, match="nested deeper than 128"):
        read(opener * depth)


def test_a_million_brackets_are_one_fault():
    with pytest.raises(InvalidJson, match="nested deeper than 128 at byte 128"):
        jcs.parse(b"[" * 1_000_000 + b"]" * 1_000_000)


def test_no_depth_of_value_exhausts_the_stack():
    assert refusal(nested(100_000)).fields["reason"] == "nested too deep"


def test_a_value_that_contains_itself_is_refused_at_once():
    ring: list[object] = []
    ring += [ring, ring, {"a": ring}]
    assert refusal(ring).fields["reason"] == "nested too deep"


def test_keys_that_would_become_equal_are_refused():
    assert refusal({"a": 1, Twin("a"): 2}).fields["reason"] == "duplicate key"


def test_encode_leaves_the_value_alone():
    items = [1.0, {"z": 1, "a": LoudText("x")}]
    value = {"b": items, "a": 1}
    jcs.encode(value)
    assert list(value) == ["b", "a"]
    assert type(items[0]) is float


def test_parse_gives_one_python_number_for_one_value():
    value: Any = jcs.parse(b"[1.0, 1, 1e0, -0.0, -0, 0.5, 1e21]")
    assert value == [1, 1, 1, 0, 0, 0.5, 1e21]
    assert [type(number) for number in value] == [int, int, int, int, int, float, float]
    assert math.copysign(1, jcs.parse(b"-0.0")) == 1  # type: ignore[arg-type]


def test_parse_keeps_unusual_numbers_in_text_that_is_canonical_already():
    raw = b'{"a":1e+21,"b":1e-7,"c":5e-324}'
    assert jcs.parse_canonical(raw) == {"a": 1e21, "b": 1e-7, "c": 5e-324}


def test_parse_foreign_rounds_as_doubles_do():
    value = jcs.parse_foreign(b"[9223372036854775809, 9007199254740993, 18446744073709551617, 1e20, 3]")
    assert value == [2**63, 2**53, 2**64, 10**20, 3]
    assert jcs.parse_foreign(jcs.encode_foreign(value)) == value


def test_the_duplicate_is_named():
    with pytest.raises(InvalidJson, match=r'^duplicate key "é\\n" at byte 11$'):
        jcs.parse('{"é\\n": 1,"\\u00e9\\u000a":2}'.encode())


def test_messages_stay_short_whatever_was_found():
    for raw in (b"9" * 400, b'{"%s":1,"%s":2}' % (b"k" * 10_000, b"k" * 10_000)):
        with pytest.raises(InvalidJson) as caught:
            jcs.parse(raw)
        assert len(caught.value.detail) < 140
