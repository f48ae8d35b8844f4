"""What the ledger asks of the outside: where blocks live, what is known about them, where they end, and its limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from ropewalk.ledger.block.block import BLOCK_BYTES_TARGET, BLOCK_ENVELOPES_MAX
from ropewalk.ledger.block.index_keys import BlockIndexKeys

FUTURE_NS_MAX: Final = 5 * 60 * 10**9


class Blocks(Protocol):
    """Where blocks live. `append` writes, `sync` makes durable; both raise `Unavailable` and change nothing else."""

    def append(self, height: int, lines: Sequence[bytes], block_hash: bytes, *, statement: bool) -> Any:
        """Write a block's lines as the record of a height; returns its place. `statement`: it is about keys."""

    def sync(self) -> None:
        """Make everything appended durable."""


class Index(Protocol):
    """What is known about the blocks so far; found as soon as it was added."""

    def position(self, envelope_id: bytes) -> tuple[int, int] | None:
        """Where an envelope stands."""

    def claim(self, key: bytes) -> tuple[int, int] | None:
        """Where a class with a correlation id was first seen."""

    def intent(self, key: bytes) -> tuple[int, int] | None:
        """Where a statement was first seen."""

    def leaves(self, root: bytes) -> int | None:
        """How many envelopes the block with that root has."""

    def lines_of(self, height: int, index: int | None) -> list[bytes]:
        """The record line of a block, and the line of one of its envelopes."""

    def block_hash(self, height: int) -> bytes:
        """The hash of a block."""

    def add(self, place: Any, lengths: Sequence[int], marks: BlockIndexKeys) -> None:
        """Take in the next block."""


@dataclass(frozen=True, slots=True)
class Head:
    """Where a channel ends: next height, last block hash and time, how many envelopes."""

    height: int = 0
    block_hash: bytes = bytes(32)
    timestamp_ns: int = 0
    envelopes: int = 0


@dataclass(frozen=True, slots=True)
class IngestLimits:
    """When a block is closed, and how far ahead of us an author's clock may be.

    `linger_s` holds a block open for company; 0 closes it as soon as the one before it is durable.
    """

    linger_s: float = 0.0
    block_bytes: int = BLOCK_BYTES_TARGET
    block_envelopes: int = BLOCK_ENVELOPES_MAX
    future_ns: int = FUTURE_NS_MAX
