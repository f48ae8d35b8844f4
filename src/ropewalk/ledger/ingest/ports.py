"""Interfaces of the ingest: block storage, index, head and limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.block.block import BLOCK_BYTES_TARGET, BLOCK_ENVELOPES_MAX
from ropewalk.ledger.block.index_keys import BlockIndexKeys
from ropewalk.ledger.keys.history import KeyHistory

FUTURE_NS_MAX: Final = 5 * 60 * 10**9


class BlockStore(Protocol):
    """Block storage. `append` writes, `sync` makes durable; both raise `Unavailable` and change nothing else."""

    def append(self, height: int, lines: Sequence[bytes], block_hash: bytes, *, statement: bool) -> Any:
        """Write a block's lines as the record of a height; return its place. `statement`: it holds a key statement."""

    def sync(self) -> None:
        """Make everything appended durable."""


class Index(Protocol):
    """Index of the stored blocks; entries are visible as soon as they are added."""

    def position(self, envelope_id: bytes) -> tuple[int, int] | None:
        """Return the position of an envelope."""

    def claim(self, key: bytes) -> tuple[int, int] | None:
        """Return the first position of a class with a correlation id."""

    def intent(self, key: bytes) -> tuple[int, int] | None:
        """Return the first position of a statement."""

    def leaves(self, root: bytes) -> int | None:
        """Return the number of envelopes of the block with that root."""

    def lines_of(self, height: int, index: int | None) -> list[bytes]:
        """Return the record line of a block, and the line of one of its envelopes."""

    def block_hash(self, height: int) -> bytes:
        """Return the hash of a block."""

    def add(self, place: Any, lengths: Sequence[int], marks: BlockIndexKeys) -> None:
        """Add the next block."""


@dataclass(frozen=True, slots=True)
class Head:
    """The end of a channel: next height, last block hash and time, number of envelopes."""

    height: int = 0
    block_hash: bytes = bytes(32)
    timestamp_ns: int = 0
    envelopes: int = 0


@dataclass(frozen=True, slots=True)
class IngestLimits:
    """When a block is closed, and how far in the future an envelope's timestamp may be.

    `linger_s` keeps a block open for more envelopes; 0 closes it as soon as the previous one is durable.
    """

    linger_s: float = 0.0
    block_bytes: int = BLOCK_BYTES_TARGET
    block_envelopes: int = BLOCK_ENVELOPES_MAX
    future_ns: int = FUTURE_NS_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterSetup:
    """What a channel is written with: its keys, its stores, and the hooks of its folder.

    `keys` are those of the channel that are here, the preferred one first; `note` is called with the height of every
    key statement before it is written; `witness_gate` raises if a block of a height must wait for witnesses;
    `prove_batch` makes a header's integrity_proof from its merkle_root.
    """

    channel: str
    keys: Sequence[SigningKey]
    blocks: BlockStore
    index: Index
    head: Head
    key_history: KeyHistory
    now_ns: Callable[[], int]
    limits: IngestLimits
    keep_evidence: Callable[[str, bytes], None]
    note: Callable[[int], None]
    witness_gate: Callable[[int], None] | None
    prove_batch: Callable[[bytes], Any] | None
