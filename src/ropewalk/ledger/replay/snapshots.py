"""Which recorded snapshots are believed, and from which of them a replay goes on.

A snapshot that is broken, or is not this channel's, is refused by name and the one before it is looked at. So the
worst that damage can do is to make a replay start at the first block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ropewalk.errors import RopewalkError, Unverified
from ropewalk.kernel import jcs
from ropewalk.kernel.keys import PublicKey
from ropewalk.ledger.block.block import Block, check_contents, check_signature
from ropewalk.ledger.envelope.envelope import parse_stored
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.replay.replay import SNAPSHOT_TYPE, Replay, Snapshot, companion, parse_snapshot
from ropewalk.ledger.rules.rules import rule_1_canonical_hash, rule_2_signature_scope
from ropewalk.ledger.rules.verdict import Context

Found = tuple[int, Sequence[bytes]]
"""A height of the companion channel, and the lines stored for it."""


@dataclass(frozen=True, slots=True)
class RefusedSnapshot:
    """A snapshot that is not believed: which, and why."""

    name: str
    reason: str

    def to_json(self) -> dict[str, Any]:
        """As `replay` prints it."""
        return {"snapshot": self.name, "reason": self.reason}


def read_snapshots(
    channel: str, signers: Iterable[PublicKey], blocks: Iterable[Found]
) -> tuple[list[Snapshot], list[RefusedSnapshot]]:
    """The snapshots of a channel from the blocks of its companion: those sealed and signed by its keys, and the rest.

    >>> from ropewalk.kernel.keys import SigningKey
    >>> read_snapshots("ea.core", [SigningKey.generate("ed25519", bytes(32)).public], [])
    ([], [])
    """
    keys = tuple(signers)
    found: list[Snapshot] = []
    refused: list[RefusedSnapshot] = []
    for height, lines in _until_damage(companion(channel), blocks, refused):
        where = f"block {height} of {companion(channel)}"
        try:
            block = Block.from_lines(lines)
            check_signature(block.record, keys)
            check_contents(block)
            if block.header.channel != companion(channel):
                raise Unverified(f'a block of channel "{block.header.channel}"')
        except RopewalkError as error:
            refused.append(RefusedSnapshot(where, error.detail))
            continue
        for number, raw in enumerate(block.envelopes):
            name = f"envelope {number} in {where}"
            try:
                envelope = parse_stored(raw)
                if envelope.event_type != SNAPSHOT_TYPE:
                    continue
                name = envelope.hex_id
                found.append(_believed(channel, keys, envelope))
            except RopewalkError as error:
                refused.append(RefusedSnapshot(name, error.detail))
    return found, refused


def resume_newest(
    replay: Replay,
    snapshots: Iterable[Snapshot],
    *,
    last: int,
    state_of: Callable[[bytes], bytes | None],
    block_at: Callable[[int], bytes],
) -> tuple[int | None, list[RefusedSnapshot]]:
    """Go on from the newest snapshot, not above `last`, that holds; the height, and those refused on the way to it.

    `state_of` finds the bytes kept for a state root, None where they are gone; `block_at` the hash at a height.
    """
    refused: list[RefusedSnapshot] = []
    mine = [each for each in snapshots if each.evaluator == replay.evaluator and each.height <= last]
    for snapshot in sorted(mine, key=lambda each: each.height, reverse=True):
        raw = state_of(snapshot.state_root)
        if raw is None:
            continue  # states are disposable; that one is missing is no fault
        try:
            if block_at(snapshot.height) != snapshot.block_hash:
                raise Unverified("it stands on another block than the channel's")
            replay.resume(snapshot, jcs.parse_canonical(raw))
        except RopewalkError as error:
            refused.append(RefusedSnapshot(f"snapshot at {snapshot.height}", error.detail))
            continue
        return snapshot.height, refused
    return None, refused


def _believed(channel: str, signers: Sequence[PublicKey], envelope: Envelope) -> Snapshot:
    rules = (rule_1_canonical_hash, rule_2_signature_scope)
    if envelope.public_key not in signers or any(
        rule(envelope, Context()).status != "passed" for rule in rules
    ):
        raise Unverified("it is not signed by the channel's key")
    snapshot = parse_snapshot(envelope)
    if snapshot.channel != channel:
        raise Unverified(f'it is of channel "{snapshot.channel}"')
    return snapshot


def _until_damage(name: str, blocks: Iterable[Found], refused: list[RefusedSnapshot]) -> Iterator[Found]:
    """Blocks as far as they can be read; where that ends too early, it is told."""
    try:
        yield from blocks
    except RopewalkError as error:
        refused.append(RefusedSnapshot(name, error.detail))
