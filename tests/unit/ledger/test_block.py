"""Blocks: every edit of a header or of the contents shows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.ledger.making import ADA, NODE, NOON_NS, P256, SECP, chain_of_blocks, observed

from ropewalk.errors import (
    BrokenLink,
    DigestMismatch,
    Invalid,
    InvalidName,
    RopewalkError,
    SigInvalid,
    TooLarge,
)
from ropewalk.kernel import jcs, merkle
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.block.block import (
    GENESIS,
    Block,
    Header,
    check_channel_name,
    check_contents,
    check_link,
    check_signature,
    find_fork,
    parse_record,
    seal,
)
from ropewalk.ledger.envelope.model import envelope_id

BLOCKS = chain_of_blocks(3)


def test_the_published_header_vector_comes_out():
    key = SigningKey("ed25519", bytes(range(32)))
    root = merkle.root([envelope_id(bytes([i])) for i in range(3)])
    header = Header("ea.core", 0, GENESIS, root, 1730462400000000000, key.public.identity(), 3)
    assert header.hash.hex() == "3096b6fc1cc0ef1ceb5b0a9b72828804a74043af3e678e6431a5be6b6790d43f"
    assert (
        merkle.SHA256.leaf(header.encode()).hex()
        == "073f16fa32d5854afc4927fc2f628cfb185a596421f6f0b332206110700bdfc3"
    )


@pytest.mark.parametrize("key", [NODE, P256, SECP], ids=lambda key: key.alg)
def test_a_sealed_block_holds_under_every_algorithm(key):
    block = seal(
        key, channel="a", height=0, prev_block_hash=GENESIS, envelopes=[observed().raw], timestamp_ns=1
    )
    check_signature(block.record, [key.public])
    check_contents(block)
    assert Block.from_lines(block.lines()) == block


EDITS: dict[str, Any] = {
    "protocol_version": 2,
    "channel": "ea.other",
    "height": 1,
    "prev_block_hash": "11" * 32,
    "merkle_root": "22" * 32,
    "timestamp": "1",
    "origin_identity": "33" * 32,
    "integrity_proof": "x",
    "policy_hash": "44" * 32,
    "envelope_count": 4,
}


@pytest.mark.parametrize("member", EDITS)
def test_an_edit_of_any_header_member_shows(member):
    value: Any = jcs.parse(BLOCKS[0].record.raw)
    value["header"][member] = EDITS[member]
    with pytest.raises(RopewalkError):
        check_signature(parse_record(jcs.encode(value)))


@pytest.mark.parametrize("member", EDITS)
def test_a_header_without_one_of_its_ten_members_is_no_header(member):
    value: Any = jcs.parse(BLOCKS[0].record.raw)
    del value["header"][member]
    with pytest.raises(Invalid):
        parse_record(jcs.encode(value))


@pytest.mark.parametrize(
    "change",
    [
        {"height": -1},
        {"height": True},
        {"height": "0"},
        {"timestamp": 5},
        {"timestamp": "05"},
        {"timestamp": str(2**64)},
        {"merkle_root": "AA" * 32},
        {"merkle_root": None},
        {"extra": 1},
    ],
)
def test_header_members_have_one_form(change):
    value: Any = jcs.parse(BLOCKS[0].record.raw)
    value["header"] |= change
    with pytest.raises(Invalid):
        parse_record(jcs.encode(value))


def test_reordered_dropped_doubled_and_foreign_envelopes_show():
    block = BLOCKS[0]
    a, b, c = block.envelopes
    for envelopes in ((b, a, c), (a, b), (a, b, c, c), (a, a, c), (a, b, observed(99).raw), (c, b, a)):
        with pytest.raises(DigestMismatch):
            check_contents(replace(block, envelopes=envelopes))


def test_an_odd_leaf_doubled_does_not_keep_the_root():
    three = list(BLOCKS[0].envelopes)
    leaves = [envelope_id(raw) for raw in three]
    assert merkle.root(leaves) != merkle.root([*leaves, leaves[2]])
    assert merkle.root_seed(leaves) == merkle.root_seed([*leaves, leaves[2]])  # what the first code did


def test_the_signer_must_be_the_one_the_header_names_and_one_we_trust():
    block = BLOCKS[0]
    with pytest.raises(SigInvalid, match="not trusted"):
        check_signature(block.record, [ADA.public])
    with pytest.raises(SigInvalid, match="another signer"):
        check_signature(replace(block.record, signer=ADA.public))
    with pytest.raises(SigInvalid):
        check_signature(replace(block.record, signature=BLOCKS[1].record.signature))


def test_links_hold_only_in_their_order():
    first, second, third = (block.header for block in BLOCKS)
    check_link(None, first)
    check_link(first, second)
    check_link(second, third)
    for below, header in ((None, second), (first, third), (first, first), (third, second)):
        with pytest.raises(BrokenLink):
            check_link(below, header)
    with pytest.raises(BrokenLink, match="earlier"):
        check_link(first, replace(second, timestamp_ns=NOON_NS - 1))
    with pytest.raises(BrokenLink, match="channel"):
        check_link(first, replace(second, channel="ea.other"))
    check_link(first, replace(second, timestamp_ns=first.timestamp_ns))  # equal times are in order


def test_empty_and_oversized_blocks_cannot_be_sealed():
    options: dict[str, Any] = {"channel": "a", "height": 0, "prev_block_hash": GENESIS, "timestamp_ns": 1}
    with pytest.raises(Invalid):
        seal(NODE, envelopes=[], **options)
    with pytest.raises(TooLarge):
        seal(NODE, envelopes=[b"{}"] * 8193, **options)
    with pytest.raises(TooLarge):
        seal(NODE, envelopes=[b"x" * (1 << 20)] * 5, **options)


def test_two_blocks_of_one_height_are_a_fork_and_both_sides_are_kept():
    other = seal(
        NODE,
        channel="ea.core",
        height=0,
        prev_block_hash=GENESIS,
        envelopes=[observed(77).raw],
        timestamp_ns=NOON_NS,
    )
    fork = find_fork(BLOCKS[0].record, other.record)
    assert fork is not None
    kept: Any = jcs.parse(fork.to_bytes())
    assert jcs.encode(kept["ours"]) == BLOCKS[0].record.raw
    assert jcs.encode(kept["theirs"]) == other.record.raw
    assert find_fork(BLOCKS[0].record, BLOCKS[0].record) is None
    assert find_fork(BLOCKS[0].record, BLOCKS[1].record) is None


@pytest.mark.parametrize(
    "name", ["", "A", "a..b", "../x", "a/b", ".a", "-a", "a.", "a" * 129, "a\0", "é", "a b"]
)
def test_names_that_would_be_trouble_as_folders_are_refused(name):
    with pytest.raises(InvalidName):
        check_channel_name(name)
