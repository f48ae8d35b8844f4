"""Rows of the index of a channel: blocks, the state, positions; and their encoding.

State and block entries end in a checksum; that of an entry covers its height too. Positions are in checked pages.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ropewalk.disk.index_pages import IndexDamaged
from ropewalk.kernel import merkle
from ropewalk.kernel.digest import blake3
from ropewalk.ledger.block.index_keys import BlockIndexKeys
from ropewalk.ledger.block.leaves import leaves_path, leaves_root
from ropewalk.ledger.channel.segments.format import BlockPlace

PLACE = struct.Struct(">QI")  # height and index of an envelope
CHECK_BYTES = 16
_HEIGHT = struct.Struct(">Q")
_BLOCK = struct.Struct(">QQIIQ32s32s")
_STATE = struct.Struct(">QQQQIQ32s")
# Leaves under one stored inner node: a path then takes 31 hashes at the bottom instead of one per leaf.
_RUN = 32


@dataclass(frozen=True, slots=True)
class IndexState:
    """How far the index reaches: the next height, the number of envelopes, the last block."""

    height: int
    envelopes: int
    place: BlockPlace | None
    timestamp_ns: int
    block_hash: bytes
    range_edge: bytes
    header_edge: bytes


EMPTY = IndexState(0, 0, None, 0, bytes(32), bytes(8), bytes(8))


@dataclass(frozen=True, slots=True)
class BlockEntry:
    """One block in the index: its place, and enough of its tree to prove any envelope."""

    height: int
    place: BlockPlace
    timestamp_ns: int
    block_hash: bytes
    header_leaf: bytes
    offsets: tuple[int, ...]  # offsets of the lines in the body, the record first, plus the end
    leaves: bytes
    nodes: bytes  # roots of full runs of 32 leaves

    @property
    def count(self) -> int:
        """The number of envelopes of the block."""
        return len(self.leaves) // merkle.HASH_BYTES

    def leaf(self, index: int) -> bytes:
        """Return the id of the envelope at an index."""
        return self.leaves[index * 32 : index * 32 + 32]

    def path(self, index: int) -> tuple[bytes, ...]:
        """Return the inclusion path of an envelope, hashing its run and the runs' roots instead of every leaf."""
        count = self.count
        if count <= 2 * _RUN:
            return leaves_path(self.leaves, index)
        start = index // _RUN * _RUN
        run, runs = self.leaves[start * 32 : (start + _RUN) * 32], self.nodes
        if len(runs) * _RUN < len(self.leaves):
            runs += leaves_root(self.leaves[len(runs) * _RUN :])
        return *leaves_path(run, index - start), *leaves_path(runs, index // _RUN)


def entry_of(height: int, place: BlockPlace, lengths: Sequence[int], marks: BlockIndexKeys) -> BlockEntry:
    """Return the index entry of a block; `lengths` are those of its lines."""
    offsets = [0]
    for length in lengths:
        offsets.append(offsets[-1] + length + 1)
    leaves = b"".join(marks.ids)
    full = len(marks.ids) // _RUN * _RUN if len(marks.ids) > 2 * _RUN else 0
    nodes = _split(leaves[: full * 32])
    for _ in range(_RUN.bit_length() - 1):
        nodes = _split(merkle.LEDGER.level(b"".join(nodes))) if nodes else nodes
    return BlockEntry(
        height,
        place,
        marks.timestamp_ns,
        marks.block_hash,
        marks.header_leaf,
        tuple(offsets),
        leaves,
        b"".join(nodes),
    )


def rows_of(marks: BlockIndexKeys) -> Iterator[tuple[bytes, int]]:
    """Yield the names under which a block is found, each with the index of its envelope."""
    yield b"root\0" + marks.root, 0
    for index, (envelope_id, intent, claim) in enumerate(
        zip(marks.ids, marks.intents, marks.claims, strict=True)
    ):
        yield b"id\0" + envelope_id, index
        yield b"intent\0" + intent, index
        if claim is not None:
            yield b"claim\0" + claim, index


def pack_entry(entry: BlockEntry) -> bytes:
    """Encode a block's entry, with its checksum."""
    head = _BLOCK.pack(
        entry.place.segment,
        entry.place.offset,
        entry.place.length,
        entry.count,
        entry.timestamp_ns,
        entry.block_hash,
        entry.header_leaf,
    )
    raw = head + struct.pack(f">{len(entry.offsets)}I", *entry.offsets) + entry.leaves + entry.nodes
    return raw + _check(entry.height, raw)


def unpack_entry(height: int, packed: bytes) -> BlockEntry:
    """Decode a block's entry. Raise `IndexDamaged` if the bytes are not those written for that height."""
    raw, check = packed[:-CHECK_BYTES], packed[-CHECK_BYTES:]
    if _check(height, raw) != check:
        raise IndexDamaged(f"the entry of block {height} differs from its checksum")
    segment, offset, length, count, stamp, block_hash, header_leaf = _BLOCK.unpack_from(raw)
    lines = count + 2
    at = _BLOCK.size + 4 * lines
    offsets = struct.unpack_from(f">{lines}I", raw, _BLOCK.size)
    end = at + 32 * count
    return BlockEntry(
        height,
        BlockPlace(segment, offset, length),
        stamp,
        block_hash,
        header_leaf,
        offsets,
        raw[at:end],
        raw[end:],
    )


def pack_state(state: IndexState) -> bytes:
    """Encode the state, with its checksum."""
    place = state.place or BlockPlace(0, 0, 0)
    head = _STATE.pack(
        state.height,
        state.envelopes,
        place.segment,
        place.offset,
        place.length,
        state.timestamp_ns,
        state.block_hash,
    )
    raw = head + struct.pack(">H", len(state.range_edge)) + state.range_edge + state.header_edge
    return raw + blake3(raw)[:CHECK_BYTES]


def unpack_state(packed: bytes) -> IndexState | None:
    """Decode the state; None if the bytes are not what was written."""
    raw = packed[:-CHECK_BYTES]
    if blake3(raw)[:CHECK_BYTES] != packed[-CHECK_BYTES:]:
        return None
    try:
        height, envelopes, segment, offset, length, stamp, block_hash = _STATE.unpack_from(raw)
        (edge,) = struct.unpack_from(">H", raw, _STATE.size)
    except struct.error:
        return None
    at = _STATE.size + 2
    state = IndexState(
        height,
        envelopes,
        BlockPlace(segment, offset, length),
        stamp,
        block_hash,
        raw[at : at + edge],
        raw[at + edge :],
    )
    return state if height else None


def _check(height: int, raw: bytes) -> bytes:
    return blake3(_HEIGHT.pack(height) + raw)[:CHECK_BYTES]


def _split(packed: bytes) -> list[bytes]:
    return [packed[i : i + 32] for i in range(0, len(packed), 32)]
