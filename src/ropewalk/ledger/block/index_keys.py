"""Index entries of a block: ids, claims and intents of its envelopes, and its leaves in the trees."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ropewalk.kernel import jcs, merkle
from ropewalk.kernel.digest import blake3
from ropewalk.ledger.block.block import Block, Header
from ropewalk.ledger.envelope.model import Envelope, envelope_id, signature_preimage

CLAIMING = frozenset(("Command", "Result", "Alert"))
"""The classes whose correlation ids rule 8 checks."""


@dataclass(frozen=True, slots=True)
class BlockIndexKeys:
    """The index keys of one block. `claims` and `intents` have the order of `ids`; None means no claim."""

    prev_block_hash: bytes
    block_hash: bytes
    header_leaf: bytes
    root: bytes
    timestamp_ns: int
    ids: tuple[bytes, ...]
    claims: tuple[bytes | None, ...]
    intents: tuple[bytes, ...]


def claim_key(event_class: str, correlation_id: str) -> bytes:
    """Return the index key for a class with a correlation id."""
    return blake3(f"{event_class}\0{correlation_id}".encode())


def index_keys_of(header: Header, envelopes: Sequence[Envelope]) -> BlockIndexKeys:
    """Return the index keys of envelopes that were just checked."""
    return _index_keys(
        header,
        (envelope.id for envelope in envelopes),
        (claim_of(envelope.fields) for envelope in envelopes),
        (envelope.intent for envelope in envelopes),
    )


def derive(lines: Sequence[bytes]) -> BlockIndexKeys:
    """Return the index keys of a stored block. The form is checked; the rules were checked at ingest."""
    block = Block.from_lines(lines)
    values = [cast(dict[str, Any], jcs.parse(raw)) for raw in block.envelopes]
    return _index_keys(
        block.header,
        map(envelope_id, block.envelopes),
        map(claim_of, values),
        (blake3(signature_preimage(value)) for value in values),
    )


def _index_keys(
    header: Header, ids: Iterable[bytes], claims: Iterable[bytes | None], intents: Iterable[bytes]
) -> BlockIndexKeys:
    return BlockIndexKeys(
        header.prev_block_hash,
        header.hash,
        merkle.SHA256.leaf(header.encode()),
        header.merkle_root,
        header.timestamp_ns,
        tuple(ids),
        tuple(claims),
        tuple(intents),
    )


def claim_of(value: dict[str, Any]) -> bytes | None:
    """Return the index key of an envelope's class with its correlation id; None if it claims none."""
    correlation_id = value.get("correlation_id")
    if correlation_id is None or value["event_class"] not in CLAIMING:
        return None
    return claim_key(value["event_class"], correlation_id)
