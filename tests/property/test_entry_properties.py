"""Lines may be cut anywhere."""

from __future__ import annotations

from functools import reduce
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.errors import BrokenLink, Unverified
from ropewalk.kernel.digest import sha256
from ropewalk.kernel.entry import EMPTY, Entry, EntryId, Span, check_span, join

LENGTH = 1_000


def derive(parents: tuple[EntryId, ...], body: bytes) -> EntryId:
    return EntryId(sha256(len(parents).to_bytes(1, "big") + b"".join(parents) + body))


def make(body: bytes, *parents: EntryId) -> Entry:
    return Entry(derive(parents, body), parents, body)


def line() -> list[Entry]:
    entries = [make(b"0")]
    while len(entries) < LENGTH:
        entries.append(make(b"%d" % len(entries), entries[-1].id))
    return entries


LINE = line()
WHOLE = check_span(LINE, derive)

cuts = st.lists(st.integers(0, LENGTH), max_size=12).map(sorted)


def parts(cuts: list[int]) -> list[list[Entry]]:
    edges = [0, *cuts, LENGTH]
    return [LINE[low:high] for low, high in pairwise(edges)]


def join_somehow(spans: list[Span], random: Random) -> Span:
    """Join neighbours in a random grouping, as a cluster would."""
    while len(spans) > 1:
        at = random.randrange(len(spans) - 1)
        spans = [*spans[:at], join(spans[at], spans[at + 1]), *spans[at + 2 :]]
    return spans[0]


@settings(deadline=None, max_examples=25)
@given(cuts, st.randoms(use_true_random=False))
def test_any_cut_joined_in_any_grouping_is_the_whole(cuts, random):
    assert join_somehow([check_span(part, derive) for part in parts(cuts)], random) == WHOLE


@settings(deadline=None, max_examples=25)
@given(cuts, st.integers(0, LENGTH - 1), st.randoms(use_true_random=False))
def test_a_changed_body_is_caught_in_whichever_part_it_lies(cuts, place, random):
    pieces = [list(part) for part in parts(cuts)]
    for piece in pieces:
        for index, entry in enumerate(piece):
            if entry is LINE[place]:
                piece[index] = Entry(entry.id, entry.parents, entry.body + b"!")
    with pytest.raises(Unverified) as refusal:
        join_somehow([check_span(piece, derive) for piece in pieces], random)
    assert refusal.value.fields["entry"] == LINE[place].id.hex()


@settings(deadline=None, max_examples=40)
@given(st.sets(st.integers(1, LENGTH - 1), min_size=3, max_size=12).map(sorted), st.data())
def test_a_missing_doubled_or_moved_span_is_caught(cuts, data):
    spans = [check_span(part, derive) for part in parts(cuts)]
    at = data.draw(st.integers(1, len(spans) - 2))
    broken = data.draw(
        st.sampled_from(
            [
                [*spans[:at], *spans[at + 1 :]],
                [*spans[: at + 1], spans[at], *spans[at + 1 :]],
                [*spans[: at - 1], spans[at], spans[at - 1], *spans[at + 1 :]],
            ]
        )
    )
    random = data.draw(st.randoms(use_true_random=False))
    with pytest.raises(BrokenLink):
        join_somehow(broken, random)


def test_empty_parts_are_harmless():
    assert reduce(join, [EMPTY, WHOLE, EMPTY]) == WHOLE
