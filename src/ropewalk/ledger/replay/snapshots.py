"""Decide which recorded snapshots are valid, and from which one a replay resumes.

A snapshot that is broken, or of another channel, is reported and the previous one is tried. So the
worst effect of damage is a replay from the first block.
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
    """A rejected snapshot and the reason."""

    name: str
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form that `replay` prints."""
        return {"snapshot": self.name, "reason": self.reason}


def read_snapshots(
    channel: str, signers: Iterable[PublicKey], blocks: Iterable[Found]
) -> tuple[list[Snapshot], list[RefusedSnapshot]]:
    """Return the valid snapshots of a channel from its companion's blocks, and the rejected ones.

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
    """Resume from the newest valid snapshot not above `last`; return its height and the rejected ones.

    `state_of` returns the stored bytes of a state root or None; `block_at` returns the hash at a height.
    """
    refused: list[RefusedSnapshot] = []
    mine = [each for each in snapshots if each.evaluator == replay.evaluator and each.height <= last]
    for snapshot in sorted(mine, key=lambda each: each.height, reverse=True):
        raw = state_of(snapshot.state_root)
        if raw is None:
            continue  # states are disposable; a missing one is not an error
        try:
            if block_at(snapshot.height) != snapshot.block_hash:
                raise Unverified("its block hash is not the channel's")
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
        raise Unverified("it must be signed by the channel's key")
    snapshot = parse_snapshot(envelope)
    if snapshot.channel != channel:
        raise Unverified(f'it belongs to channel "{snapshot.channel}"')
    return snapshot


def _until_damage(name: str, blocks: Iterable[Found], refused: list[RefusedSnapshot]) -> Iterator[Found]:
    """Yield blocks as far as they can be read; report where that ends too early."""
    try:
        yield from blocks
    except RopewalkError as error:
        refused.append(RefusedSnapshot(name, error.detail))
