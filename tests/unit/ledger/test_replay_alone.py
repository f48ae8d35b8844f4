"""Replays and snapshots that are wrong in one thing only: the channel they speak of."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.ledger.making import NODE, NOON_NS, chain_of_blocks

from ropewalk.errors import BrokenLink
from ropewalk.ledger.block.block import GENESIS, Block, seal
from ropewalk.ledger.keys.history import KeyHistory
from ropewalk.ledger.proof.trust import Trust
from ropewalk.ledger.replay.reducers import REDUCERS
from ropewalk.ledger.replay.replay import Replay, Snapshot, companion, snapshot_envelope
from ropewalk.ledger.replay.snapshots import read_snapshots

COUNTS = REDUCERS["counts"]


def replayed(blocks: list[Block], channel: str = "ea.core") -> Replay:
    replay = Replay(COUNTS, channel, key_history=KeyHistory(Trust((NODE.public,), ())))
    for block in blocks:
        replay.feed(block.lines())
    return replay


def test_the_first_block_of_another_channel_is_not_taken_for_ours():
    """It stands on nothing, as ours would, and the same key sealed it."""
    replayed(chain_of_blocks(1))
    with pytest.raises(BrokenLink, match="channel must be"):
        replayed(chain_of_blocks(1, channel="ea.other"))


def kept(snapshot: Snapshot, channel: str) -> tuple[int, list[bytes]]:
    """A block of a companion channel that holds a snapshot."""
    envelope = snapshot_envelope(snapshot, NODE, NOON_NS)
    block = seal(
        NODE,
        channel=channel,
        height=0,
        prev_block_hash=GENESIS,
        envelopes=[envelope.raw],
        timestamp_ns=NOON_NS,
    )
    return 0, block.lines()


def test_snapshots_are_those_of_this_channel_and_stand_in_its_companion():
    ours = replayed(chain_of_blocks(2)).snapshot()
    found, refused = read_snapshots("ea.core", [NODE.public], [kept(ours, companion("ea.core"))])
    assert (found, refused) == ([ours], [])
    elsewhere, why = read_snapshots("ea.core", [NODE.public], [kept(ours, companion("ea.other"))])
    assert elsewhere == [] and "a block of channel" in why[0].reason
    theirs = replace(ours, channel="ea.other")
    foreign, why = read_snapshots("ea.core", [NODE.public], [kept(theirs, companion("ea.core"))])
    assert foreign == [] and 'belongs to channel "ea.other"' in why[0].reason
