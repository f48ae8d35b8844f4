"""Patterns: which refs and topics they stand for, which texts are none, and what one says about another."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.errors import InvalidName
from ropewalk.stream.core.patterns import Pattern, parse_pattern


@pytest.mark.parametrize(
    ("pattern", "name", "matched"),
    [
        ("refs/gatos/state/public/**", "refs/gatos/state/public/ui/main", True),
        ("refs/gatos/state/public/**", "refs/gatos/state/public/x", True),
        ("refs/gatos/state/public/**", "refs/gatos/state/public", False),
        ("refs/gatos/state/public/**", "refs/gatos/state/private/x", False),
        ("refs/gatos/*/main", "refs/gatos/ui/main", True),
        ("refs/gatos/*/main", "refs/gatos/ui/deep/main", False),
        ("refs/gatos/**/main", "refs/gatos/main", True),
        ("refs/gatos/**/main", "refs/gatos/a/b/c/main", True),
        ("refs/gatos/ui-*", "refs/gatos/ui-7", True),
        ("refs/gatos/ui-*", "refs/gatos/ui-7/x", False),
        ("refs/gatos/*-*-x", "refs/gatos/a-b-c-x", True),
        ("refs/gatos/a", "refs/gatos/a", True),
        ("refs/gatos/a", "refs/gatos/A", False),
        ("refs/gatos/a.c", "refs/gatos/abc", False),
    ],
)
def test_ref_patterns(pattern, name, matched):
    assert parse_pattern("ref", pattern).matches(name) is matched


@pytest.mark.parametrize(
    ("pattern", "name", "matched"),
    [
        ("gatos.jobs.*", "jobs/pending", True),
        ("jobs.*", "jobs/pending", True),
        ("jobs/*", "jobs.pending", True),
        ("jobs.*", "gatos.jobs.pending", True),
        ("gatos.jobs.*", "gatos/jobs/pending", True),
        ("jobs.*", "jobs", False),
        ("jobs.*", "jobs/pending/high", False),
        ("jobs.**", "jobs/pending/high", True),
        ("jobs.>", "jobs/pending/high", True),
        ("jobs.>", "jobs", False),
        (">", "jobs/pending", True),
        ("**", "governance", True),
        ("*", "governance", True),
        ("*", "jobs/pending", False),
        ("*.*", "jobs", False),
        ("gatos.*", "jobs", True),
        ("governance", "governance", True),
        ("gatos.governance", "governance", True),
        ("governance", "Governance", False),
        ("job*.pend*", "jobs/pending", True),
    ],
)
def test_topic_patterns(pattern, name, matched):
    assert parse_pattern("topic", pattern).matches(name) is matched


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        ("ref", "", "0 characters"),
        ("ref", "heads/main", "begin with refs/"),
        ("ref", "*", "begin with refs/"),
        ("ref", "refs//x", "a part is empty"),
        ("ref", "refs/x/", "a part is empty"),
        ("ref", "refs/x**", "must be a whole part"),
        ("ref", "refs/***", "must be a whole part"),
        ("ref", "refs/a..b", "no ref"),
        ("ref", "refs/a b", "no ref"),
        ("ref", "refs/[ab]", "no ref"),
        ("ref", "refs/a?", "no ref"),
        ("ref", "refs/\x1b[31m", "no ref"),
        ("ref", "refs/" + "x" * 300, "305 characters"),
        ("ref", "refs" + "/x" * 70, "71 parts"),
        ("topic", "", "0 characters"),
        ("topic", "jobs..x", "a part is empty"),
        ("topic", ".jobs", "a part is empty"),
        ("topic", "jobs.", "a part is empty"),
        ("topic", "jobs.>.x", "parts are letters"),
        ("topic", "jobs pending", "parts are letters"),
        ("topic", "jöbs", "parts are letters"),
        ("topic", "jobs.**x", "must be a whole part"),
    ],
)
def test_what_is_no_pattern_is_refused_with_a_reason(kind, text, reason):
    with pytest.raises(InvalidName, match=re.escape(reason)) as refused:
        parse_pattern(kind, text)
    assert "\x1b" not in refused.value.detail


def test_a_hostile_pattern_costs_no_more_than_lengths_multiplied():
    stars = parse_pattern("ref", "refs/" + "*a" * 120 + "b")
    assert not stars.matches("refs/" + "a" * 240)
    deep = parse_pattern("ref", "refs" + "/**/a" * 31 + "/b")
    assert not deep.matches("refs" + "/a" * 200)


parts = st.text("ab*", min_size=1, max_size=3).filter(lambda part: "**" not in part)
patterns = st.lists(parts | st.just("**"), min_size=1, max_size=4).map(
    lambda found: parse_pattern("ref", "refs/" + "/".join(found))
)
names = st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=4).map(
    lambda found: "refs/" + "/".join(found)
)


def as_regex(pattern: Pattern) -> str:
    """The same pattern told another way, for short texts only."""
    made, texts = "", pattern.text.split("/")
    for at, part in enumerate(texts):
        last = at == len(texts) - 1
        if part == "**":
            made += "(?:/[^/]+)+" if last else "(?:/[^/]+)*"
        else:
            made += ("/" if at else "") + re.escape(part).replace(r"\*", "[^/]*")
    return made


@given(patterns, names)
@settings(deadline=None, max_examples=400)
def test_a_pattern_matches_what_its_regular_expression_matches(pattern, name):
    assert pattern.matches(name) == bool(re.fullmatch(as_regex(pattern), name))


@given(patterns, patterns, names)
@settings(deadline=None, max_examples=400)
def test_covering_pattern_matches_all_of_covered(rule, pattern, name):
    if rule.covers(pattern) and pattern.matches(name):
        assert rule.matches(name)


@given(patterns)
@settings(deadline=None, max_examples=100)
def test_a_pattern_covers_itself(pattern):
    assert pattern.covers(pattern)
