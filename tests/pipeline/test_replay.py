"""Replay over Spark gives the roots that one process gives, however the work is cut."""

from __future__ import annotations

from typing import Any

import pytest

from ropewalk.errors import Unverified
from ropewalk.node.replay import find_reducer, replay_channel
from ropewalk.pipeline.replay import replay_channels
from tests.pipeline.tampering import change_payload
from tests.pipeline.world import World

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]


def test_roots_are_the_same_for_any_partitioning_and_for_one_process(spark: Any, world: World):
    world.ledger("ea.other", 9)
    expected = {
        channel: replay_channel(world.place.home, channel, find_reducer("counts")).state_root.hex()
        for channel in ("ea.core", "ea.other")
    }
    for partitions in (1, 2, 7, 16):
        found = replay_channels(
            spark, world.path, "counts", partitions=partitions, rows_per_range=max(1, 40 // partitions)
        )
        assert {each.channel: each.state_root for each in found} == expected


def test_a_channel_that_does_not_verify_is_not_folded(spark: Any, world: World):
    change_payload(world)
    with pytest.raises(Unverified, match="block 2"):
        replay_channels(spark, world.path, "counts")
