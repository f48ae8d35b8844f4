"""ULIDs rise under any clock, and text, parts and bytes say the same."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.errors import InvalidUlid
from ropewalk.kernel import ulid
from ropewalk.kernel.ulid import TIME_MS_MAX, Ulid, next_ulid, next_ulids

MOST = settings(max_examples=150, deadline=None)
times = st.integers(0, TIME_MS_MAX)
chances = st.integers(0, ulid.RANDOMNESS_MAX)
entropies = st.binary(min_size=10, max_size=10)
# Clocks that crawl, stand still, jump and run backwards.
clocks = st.lists(st.one_of(st.integers(-5, 40), st.integers(-(2**50), TIME_MS_MAX)), min_size=1, max_size=40)


@MOST
@given(times, clocks, entropies)
def test_ulids_rise_strictly_under_any_clock(start, clock, entropy):
    last: Ulid = next_ulid(None, start, entropy)
    for now_ms in clock:
        if ulid.randomness(last) == ulid.RANDOMNESS_MAX:
            return
        new = next_ulid(last, now_ms, entropy)
        assert ulid.is_ulid(new)
        assert new > last
        assert ulid.time_ms(new) == max(ulid.time_ms(last), now_ms)
        last = new


@MOST
@given(times, chances)
def test_text_parts_and_bytes_say_the_same(time_ms, chance):
    made = ulid.make(time_ms, chance)
    assert ulid.parse(made) == made
    assert (ulid.time_ms(made), ulid.randomness(made)) == (time_ms, chance)
    assert int.from_bytes(ulid.to_bytes(made), "big") == time_ms << 80 | chance
    assert ulid.from_bytes(ulid.to_bytes(made)) == made


@MOST
@given(times, chances, times, chances)
def test_text_and_bytes_sort_as_time_and_chance(time_a, chance_a, time_b, chance_b):
    a, b = ulid.make(time_a, chance_a), ulid.make(time_b, chance_b)
    assert (a < b) == ((time_a, chance_a) < (time_b, chance_b))
    assert (ulid.to_bytes(a) < ulid.to_bytes(b)) == (a < b)


@MOST
@given(times, st.integers(0, ulid.RANDOMNESS_MAX - 200), st.integers(0, 120))
def test_a_batch_equals_single_steps(time_ms, chance, count):
    last: Ulid | None = ulid.make(time_ms, chance)
    batch = next_ulids(last, time_ms, bytes(10), count)
    assert [ulid.randomness(each) for each in batch] == list(range(chance + 1, chance + 1 + count))


@MOST
@given(st.one_of(st.text(max_size=30), st.from_regex(r"[0-9A-Za-z]{26}", fullmatch=True)))
def test_any_text_is_a_ulid_or_refused(text):
    try:
        found = ulid.parse(text)
    except InvalidUlid:
        assert not ulid.is_ulid(text)
        return
    assert ulid.make(ulid.time_ms(found), ulid.randomness(found)) == text


@settings(max_examples=50, deadline=None)
@given(times, entropies)
def test_python_ulid_reads_the_same_ulid(time_ms, entropy):
    from ulid import ULID

    ours = ulid.make(time_ms, entropy)
    theirs = ULID.from_str(ours)
    assert bytes(theirs) == ulid.to_bytes(ours)
    assert str(theirs) == ours
