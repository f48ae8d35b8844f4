"""The idea under every log: an entry names its parents, and checked spans join."""

from __future__ import annotations

import json
import pickle
from functools import reduce
from itertools import pairwise
from pathlib import Path

import pytest

from ropewalk.errors import BrokenLink, DigestMismatch, RopewalkError
from ropewalk.kernel.digest import sha256
from ropewalk.kernel.entry import (
    EMPTY,
    Entry,
    EntryId,
    Span,
    check_entry,
    check_span,
    join,
)

VECTORS = Path(__file__).parents[3] / "vectors" / "entry"


def derive(parents: tuple[EntryId, ...], body: bytes) -> EntryId:
    return EntryId(sha256(len(parents).to_bytes(1, "big") + b"".join(parents) + body))


def make(body: bytes, *parents: EntryId) -> Entry:
    return Entry(derive(parents, body), parents, body)


def line(length: int) -> list[Entry]:
    entries = [make(b"0")]
    while len(entries) < length:
        entries.append(make(b"%d" % len(entries), entries[-1].id))
    return entries


LINE = line(12)


def test_a_span_says_what_it_needs_and_what_it_offers():
    assert check_span(LINE, derive) == Span((), (LINE[-1].id,), 12, LINE[0].id)
    assert check_span(LINE[3:5], derive) == Span((LINE[2].id,), (LINE[4].id,), 2, LINE[3].id)
    assert check_span([], derive) == EMPTY


def test_a_span_is_folded_without_holding_the_line():
    seen = []

    def reading():
        for entry in LINE:
            yield entry
            seen.append(entry.id)

    def derive_in_step(parents, body):
        assert len(seen) == int(body)  # every entry before this one was already let go
        return derive(parents, body)

    assert check_span(reading(), derive_in_step).count == 12


def test_every_cut_in_three_joins_the_same_in_both_groupings():
    whole = check_span(LINE, derive)
    for one in range(13):
        for two in range(one, 13):
            a, b, c = (check_span(part, derive) for part in (LINE[:one], LINE[one:two], LINE[two:]))
            assert join(join(a, b), c) == whole == join(a, join(b, c))


def test_the_empty_span_changes_nothing():
    span = check_span(LINE[2:4], derive)
    assert join(EMPTY, span) == span == join(span, EMPTY)
    assert join(EMPTY, EMPTY) == EMPTY


def changed(entry: Entry) -> Entry:
    return Entry(entry.id, entry.parents, entry.body + b"!")


def test_a_changed_body_is_caught_and_named():
    for place, entry in enumerate(LINE):
        with pytest.raises(DigestMismatch) as refusal:
            check_span([*LINE[:place], changed(entry), *LINE[place + 1 :]], derive)
        assert refusal.value.fields["entry"] == entry.id.hex()


def test_another_way_to_derive_ids_is_caught_and_names_the_first_entry():
    with pytest.raises(DigestMismatch) as refusal:
        check_span(LINE, lambda parents, body: EntryId(sha256(body)))
    assert refusal.value.fields["entry"] == LINE[0].id.hex()


def test_a_missing_entry_is_caught_and_names_the_one_that_hangs():
    for gap in range(1, 11):
        with pytest.raises(BrokenLink) as refusal:
            check_span([*LINE[:gap], *LINE[gap + 1 :]], derive)
        assert refusal.value.fields["entry"] == LINE[gap + 1].id.hex()
        assert refusal.value.fields["expected"] == [LINE[gap].id.hex()]
        assert refusal.value.fields["got"] == [LINE[gap - 1].id.hex()]


def test_missing_doubled_and_reordered_spans_are_caught():
    a, b, c = (check_span(part, derive) for part in (LINE[:4], LINE[4:8], LINE[8:]))
    for order in ([a, c], [a, b, b, c], [a, a], [b, a], [a, c, b], [c, b, a]):
        with pytest.raises(BrokenLink):
            reduce(join, order, EMPTY)


def test_a_line_cannot_begin_twice():
    with pytest.raises(BrokenLink, match="is none, but"):
        check_span([make(b"one"), make(b"two")], derive)


def test_a_cut_top_or_bottom_shows_in_what_the_span_says():
    whole = check_span(LINE, derive)
    assert check_span(LINE[:-1], derive).above != whole.above
    assert check_span(LINE[1:], derive).below != ()


def test_a_merge_has_no_place_in_a_line():
    merge = make(b"merge", LINE[3].id, LINE[4].id)
    with pytest.raises(BrokenLink, match="2 parents") as refusal:
        check_entry(merge, derive)
    assert refusal.value.fields["entry"] == merge.id.hex()


def test_spans_and_refusals_cross_process_borders():
    spans = [check_span(LINE[:5], derive), check_span(LINE[5:], derive)]
    assert reduce(join, pickle.loads(pickle.dumps(spans))) == check_span(LINE, derive)
    with pytest.raises(BrokenLink) as refusal:
        join(*reversed(spans))
    assert pickle.loads(pickle.dumps(refusal.value)).fields == refusal.value.fields


def test_links_of_a_line_are_exactly_its_neighbours():
    assert all(upper.parents == (lower.id,) for lower, upper in pairwise(LINE))


def stored(case):
    def entry(each):
        parents = tuple(EntryId(bytes.fromhex(text)) for text in each["parents"])
        return Entry(EntryId(bytes.fromhex(each["id"])), parents, bytes.fromhex(each["body"]))

    def plain(parents, body):
        return EntryId(sha256(b"".join(parents) + body))

    return reduce(join, [check_span(map(entry, span), plain) for span in case["input"]["spans"]], EMPTY)


@pytest.mark.parametrize(
    "case",
    json.loads((VECTORS / "spans.json").read_text(encoding="utf-8"))["cases"],
    ids=lambda case: case["name"],
)
def test_stored_case_holds(case):
    if "expect" in case:
        span = stored(case)
        assert case["expect"] == {
            "below": [each.hex() for each in span.below],
            "above": [each.hex() for each in span.above],
            "count": span.count,
        }
        return
    with pytest.raises(RopewalkError) as refusal:
        stored(case)
    assert refusal.value.code == case["error"]["code"]
    assert refusal.value.fields["entry"] == case["error"]["entry"]
