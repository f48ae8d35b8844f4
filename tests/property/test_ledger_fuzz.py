"""Parsers of the ledger under arbitrary and nearly right input: they answer or refuse, and never anything else."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.ledger.making import NODE, chain_of_blocks, command, observed

from ropewalk.errors import RopewalkError
from ropewalk.kernel import jcs
from ropewalk.kernel.entry import join
from ropewalk.ledger.block.block import parse_record
from ropewalk.ledger.envelope.envelope import parse, parse_cbor, parse_stored, to_cbor
from ropewalk.ledger.envelope.model import Envelope, signature_preimage
from ropewalk.ledger.proof.proof import Proof, parse_consistency, parse_proof, parse_range
from ropewalk.ledger.proof.trust import Trust, parse_trust
from ropewalk.ledger.proof.verify import BlockSpan, check_block
from ropewalk.ledger.rules.policy import STRICT, parse_policy
from ropewalk.ledger.rules.rules import judge
from ropewalk.ledger.rules.verdict import Context

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
BLOCKS = chain_of_blocks(3)
PROOF = Proof(observed(1), 0, (bytes(32),), BLOCKS[0].record, BLOCKS[0].height, observed(1).hex_id).to_bytes()
SCHEMA_POLICY = (
    b'{"rules":[{"decision":"deny","id":"a","kind":"schema","name":"n","schema":{"$defs":{"b":{"type":"integer"}},'
    b'"properties":{"c":{"$ref":"#/$defs/b"}}},"version":1}],"version":1}'
)

PARSERS: list[tuple[Callable[[bytes], object], bytes]] = [
    (parse, command("c").raw),
    (parse_stored, command("c").raw),
    (parse_cbor, to_cbor(command("c"))),
    (parse_record, BLOCKS[1].record.raw),
    (parse_proof, PROOF),
    (parse_range, b'{"version":1}'),
    (parse_consistency, b'{"version":1}'),
    (parse_policy, STRICT.to_bytes()),
    (parse_policy, SCHEMA_POLICY),
    (parse_trust, Trust((NODE.public,), ()).to_bytes()),
]
NAMES = [parser.__name__ for parser, _ in PARSERS]


@pytest.mark.parametrize(("parser", "sample"), PARSERS, ids=NAMES)
@settings(deadline=None, max_examples=80)
@given(raw=st.binary(max_size=200))
def test_bytes_of_any_kind_are_parsed_or_refused_as_input(parser, sample, raw):
    _parsed_or_refused(parser, raw)


@pytest.mark.parametrize(("parser", "sample"), PARSERS, ids=NAMES)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_parse_or_refuse_changed_bytes(parser, sample, data):
    raw = bytearray(sample)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw) - 1))
        what = data.draw(st.sampled_from(["flip", "drop", "double", "insert"]))
        if what == "flip":
            raw[at] = data.draw(st.integers(0, 255))
        elif what == "drop":
            del raw[at : at + data.draw(st.integers(1, 9))]
            raw = raw or bytearray(b" ")
        elif what == "double":
            raw[at:at] = raw[at : at + data.draw(st.integers(1, 40))]
        else:
            raw[at:at] = data.draw(st.binary(min_size=1, max_size=4))
    _parsed_or_refused(parser, bytes(raw))


@pytest.mark.parametrize(("parser", "sample"), PARSERS, ids=NAMES)
@settings(deadline=None, max_examples=80)
@given(data=st.data())
def test_parse_or_refuse_any_member(parser, sample, data):
    if parser is parse_cbor:
        return
    value: Any = json.loads(sample)
    target = value
    while isinstance(target, dict) and target:
        name = data.draw(st.sampled_from(sorted(target)))
        if not isinstance(target[name], dict) or data.draw(st.booleans()):
            target[name] = data.draw(JSON)
            break
        target = target[name]
    try:
        raw = jcs.encode(value)
    except RopewalkError:
        return
    _parsed_or_refused(parser, raw)


def _parsed_or_refused(parser: Callable[[bytes], object], raw: bytes) -> None:
    try:
        parsed = parser(raw)
    except RopewalkError as error:
        assert error.exit_code == 8, error
        return
    if isinstance(parsed, Envelope):
        assert parse_stored(parsed.raw) == parsed
        judge(parsed, Context())
        judge(parsed, Context(policy=STRICT))


@settings(deadline=None, max_examples=60)
@given(payload=JSON, domain=TEXT, kind=TEXT, correlation=st.none() | TEXT)
def test_whatever_is_said_survives_both_forms_and_every_rule(payload, domain, kind, correlation):
    try:
        one = observed(payload=payload, domain=domain, event_type=kind, correlation_id=correlation)
    except RopewalkError as error:  # numbers that have no canonical form
        assert error.exit_code == 8
        return
    assert parse(one.raw) == parse_stored(one.raw) == parse_cbor(to_cbor(one)) == one
    assert parse(json.dumps(one.value, indent=1).encode()) == one
    assert one.preimage == signature_preimage(one.value)
    assert one.payload_raw == jcs.encode(payload)
    assert judge(one, Context()).ok


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(["whole", "cut", "swapped", "bent"])),
        min_size=3,
        max_size=6,
    )
)
def test_joining_spans_is_associative_also_where_something_is_wrong(parts):
    spans = []
    for number, harm in parts:
        lines = BLOCKS[number].lines()
        if harm == "cut":
            lines = lines[:-1]
        elif harm == "swapped":
            lines = [lines[0], *lines[:0:-1]]
        elif harm == "bent":
            lines = [lines[0].replace(b"ea.core", b"ea.cure"), *lines[1:]]
        spans.append(check_block(lines, number, deep=False))
    left = BlockSpan()
    for span in spans:
        left = join(left, span)
    right = BlockSpan()
    for span in reversed(spans):
        right = join(span, right)
    assert left == right
