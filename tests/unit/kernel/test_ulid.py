"""ULIDs: strict when read, strictly rising when made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ropewalk import errors
from ropewalk.errors import InvalidUlid, OutOfOrder
from ropewalk.kernel import ulid
from ropewalk.kernel.ulid import Ulid, next_ulid, next_ulids

VECTORS = Path(__file__).parents[3] / "vectors" / "ulid"
TIME = 1469922850259
LAST = ulid.make(TIME, ulid.RANDOMNESS_MAX - 2)


def cases(path):
    stored = json.loads((VECTORS / path).read_text(encoding="utf-8"))
    return [pytest.param(case, id=case["name"]) for case in stored["cases"]]


@pytest.mark.parametrize("case", cases("parse.json"))
def test_a_ulid_has_one_spelling(case):
    text = case["input"]
    if "error" in case:
        assert not ulid.is_ulid(text)
        with pytest.raises(InvalidUlid):
            ulid.parse(text)
    else:
        found = ulid.parse(text)
        time_ms, randomness = case["expect"]["time_ms"], int(case["expect"]["randomness"], 16)
        assert (ulid.time_ms(found), ulid.randomness(found)) == (time_ms, randomness)
        assert ulid.make(time_ms, randomness) == text
        assert ulid.make(time_ms, bytes.fromhex(case["expect"]["randomness"])) == text
        assert ulid.from_bytes(ulid.to_bytes(found)) == text


@pytest.mark.parametrize("case", cases("next.json"))
def test_the_next_ulid_is_higher_whatever_the_clock_does(case):
    given = case["input"]
    arguments = given["last"], given["now_ms"], bytes.fromhex(given["entropy"])
    if "error" in case:
        with pytest.raises(getattr(errors, case["error"])):
            next_ulid(*arguments)
        with pytest.raises(getattr(errors, case["error"])):
            next_ulids(*arguments, 1)
    else:
        assert next_ulid(*arguments) == case["expect"]
        assert next_ulids(*arguments, 1) == [case["expect"]]
        assert given["last"] is None or case["expect"] > given["last"]


@pytest.mark.parametrize("value", [None, 7, b"01ARZ3NDEK0000000000000000", [], True])
def test_only_text_is_a_ulid(value):
    assert not ulid.is_ulid(value)
    with pytest.raises(InvalidUlid):
        ulid.parse(value)


def test_the_message_says_what_is_wrong():
    with pytest.raises(InvalidUlid, match="'U' at 25 is not in the alphabet"):
        ulid.parse("01ARZ3NDEK000000000000000U")
    with pytest.raises(InvalidUlid, match="more than 128 bits"):
        ulid.parse("8" + "0" * 25)
    with pytest.raises(InvalidUlid, match="25 characters instead of 26"):
        ulid.parse("0" * 25)


def test_the_wire_name_of_an_overflow_is_temporal_order():
    with pytest.raises(OutOfOrder) as caught:
        next_ulid(ulid.make(TIME, ulid.RANDOMNESS_MAX), TIME, bytes(10))
    assert caught.value.code == "TemporalOrder"
    assert caught.value.status == 409


@pytest.mark.parametrize("length", [0, 9, 11, 16])
def test_entropy_has_ten_bytes(length):
    with pytest.raises(InvalidUlid):
        next_ulid(None, TIME, bytes(length))
    with pytest.raises(InvalidUlid):
        ulid.make(TIME, bytes(length))


@pytest.mark.parametrize("randomness", [-1, 2**80])
def test_randomness_has_80_bits(randomness):
    with pytest.raises(InvalidUlid):
        ulid.make(TIME, randomness)


@pytest.mark.parametrize("time_ms", [-1, 2**48])
def test_time_has_48_bits(time_ms):
    with pytest.raises(InvalidUlid):
        ulid.make(time_ms, 0)


@pytest.mark.parametrize("length", [0, 15, 17])
def test_binary_ulids_have_16_bytes(length):
    with pytest.raises(InvalidUlid):
        ulid.from_bytes(bytes(length))


@pytest.mark.parametrize("count", [0, 1, 2, 31, 32, 33, 1000])
def test_many_at_once_equal_one_after_another(count):
    last: Ulid | None = ulid.make(TIME, 29)
    at_once = next_ulids(last, TIME - 5, bytes(10), count)
    one_by_one = []
    for _ in range(count):
        last = next_ulid(last, TIME - 5, bytes(10))
        one_by_one.append(last)
    assert at_once == one_by_one


def test_many_at_once_are_all_or_none():
    assert next_ulids(LAST, TIME, bytes(10), 2)[-1] == ulid.make(TIME, ulid.RANDOMNESS_MAX)
    with pytest.raises(OutOfOrder):
        next_ulids(LAST, TIME, bytes(10), 3)


@pytest.mark.parametrize("length", [0, 6, 15, 17])
def test_only_sixteen_bytes_are_a_ulid(length):
    with pytest.raises(InvalidUlid, match="16 bytes"):
        ulid.from_bytes(bytes(length))
