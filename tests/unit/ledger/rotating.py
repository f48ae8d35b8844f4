"""Channels whose keys change, for tests: a rotation as an envelope, and blocks sealed by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.unit.ledger.making import NODE, NOON_NS, observed

from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.block.block import GENESIS, Block, seal
from ropewalk.ledger.channel.channel import open_log
from ropewalk.ledger.channel.settings import create_channel
from ropewalk.ledger.envelope.fields import format_timestamp
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.keys.statements import KeyAct, key_envelope

NEXT = SigningKey.generate("ed25519", b"next" + bytes(28))
THIRD = SigningKey.generate("p256", b"third" + bytes(27))
STRANGER = SigningKey.generate("ed25519", b"stranger" + bytes(24))
CHANNEL = "ea.core"
HOUR_NS = 3_600 * 10**9
DAY_NS = 24 * HOUR_NS


def at(hours: float) -> str:
    """So many hours after noon, as envelopes write it."""
    return format_timestamp(NOON_NS + int(hours * HOUR_NS))


def rotation(
    old: SigningKey = NODE,
    new: SigningKey = NEXT,
    *,
    said: float = 0,
    since: float = 0,
    until: float = 0,
    channel: str = CHANNEL,
    signer: SigningKey | None = None,
    accepted_by: SigningKey | None = None,
    **options: Any,
) -> Envelope:
    """A rotation; times are hours after noon. `signer` and `accepted_by` make one that is forged."""
    act = KeyAct("rotate", channel, old.public.identity(), at(since), at(until), new.public)
    return key_envelope(act, signer or old, at(said), new_key=accepted_by or new, **options)


def act_of(
    kind: Any, key: SigningKey, *, signer: SigningKey, said: float = 0, since: float = 0, **options: Any
) -> Envelope:
    """A retirement, revocation or destruction of a key, said by another."""
    act = KeyAct(kind, CHANNEL, key.public.identity(), at(since), reason="a test")
    return key_envelope(act, signer, at(said), **options)


class Chain:
    """A channel in memory, sealed by hand: honest or not."""

    def __init__(self, channel: str = CHANNEL, policy_hash: bytes | None = None) -> None:
        self.channel, self.blocks, self._number = channel, list[Block](), 0
        self._policy_hash = policy_hash

    def add(self, key: SigningKey, *envelopes: Envelope, hours: float = 0) -> Block:
        """Seal a block with a key at a time; without envelopes an ordinary one is made."""
        if not envelopes:
            self._number += 1
            envelopes = (observed(self._number),)
        below = self.blocks[-1] if self.blocks else None
        made = seal(
            key,
            channel=self.channel,
            height=len(self.blocks),
            prev_block_hash=below.hash if below is not None else GENESIS,
            envelopes=[each.raw for each in envelopes],
            timestamp_ns=NOON_NS + int(hours * HOUR_NS),
            policy_hash=self._policy_hash,
        )
        self.blocks.append(made)
        return made

    def found(self) -> list[tuple[int, list[bytes]]]:
        """As verifiers read it."""
        return [(block.height, block.lines()) for block in self.blocks]


def rotated_chain() -> Chain:
    """Two blocks of the first key, a rotation, two blocks of the second."""
    chain = Chain()
    chain.add(NODE)
    chain.add(NODE)
    chain.add(NODE, rotation())
    chain.add(NEXT)
    chain.add(NEXT)
    return chain


def make_channel(home: Path, policy: Any = None) -> None:
    """An empty channel sealed by the first key."""
    create_channel(home, CHANNEL, "node", NODE.public, policy)


def opened_with(home: Path, *keys: SigningKey, hours: float = 0, **options: Any) -> Any:
    """The channel open for writing with some keys, at a time."""
    now_ns = NOON_NS + int(hours * HOUR_NS)
    return open_log(home, CHANNEL, keys[0], also=keys[1:], **{"now_ns": lambda: now_ns, **options})


def rotated_channel(home: Path, policy: Any = None) -> None:
    """A stored channel: blocks 0 and 1 of the first key, the rotation at 2, then 3 and 4 of the second."""
    make_channel(home, policy)
    with opened_with(home, NODE, NEXT) as opened:
        for number in range(2):
            opened.log.submit(observed(number).raw)
        opened.log.submit(rotation().raw)
        for number in range(3, 5):
            opened.log.submit(observed(number).raw)


__all__ = [
    "CHANNEL",
    "DAY_NS",
    "HOUR_NS",
    "NEXT",
    "STRANGER",
    "THIRD",
    "Chain",
    "act_of",
    "at",
    "make_channel",
    "opened_with",
    "rotated_chain",
    "rotated_channel",
    "rotation",
]
