"""Blocks as a busy channel seals them, for benchmarks that store them one way or another."""

from __future__ import annotations

from collections.abc import Iterator

from blake3 import blake3

from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.block.block import GENESIS, Block, seal
from ropewalk.ledger.envelope.envelope import build

__all__ = ["sealed_blocks"]

PER_BLOCK = 700  # about a megabyte


def sealed_blocks(key: SigningKey, channel: str, count: int) -> Iterator[Block]:
    """A channel of so many envelopes from its first block on."""
    below = GENESIS
    for height, start in enumerate(range(0, count, PER_BLOCK)):
        raws = [
            build(
                key,
                domain="bench",
                event_class="Observation",
                event_type="deployment.success",
                payload={"n": number, "text": blake3(number.to_bytes(8, "big")).hexdigest(length=150)},
                timestamp="2024-11-01T12:00:00Z",
            ).raw
            for number in range(start, min(start + PER_BLOCK, count))
        ]
        block = seal(
            key, channel=channel, height=height, prev_block_hash=below, envelopes=raws, timestamp_ns=height
        )
        yield block
        below = block.hash
