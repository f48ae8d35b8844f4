"""What a channel held so far, for the rules that look back, kept while it is checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ropewalk.ledger.block.index_keys import claim_key, claim_of
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.rules.verdict import Position


class KeyTable(Protocol):
    """Short keys and numbers, as a dictionary has them."""

    def get(self, key: bytes, /) -> int | None:
        """Return the number under a key."""

    def setdefault(self, key: bytes, number: int, /) -> object:
        """Keep a number, unless the key has one."""


class SeenEnvelopes:
    """What a channel held so far, kept while it is checked; keys are cut to 128 bits, beyond forging."""

    def __init__(self, table: Callable[[str], KeyTable] = lambda _name: dict[bytes, int]()) -> None:
        self._ids, self._claims = table("ids"), table("claims")
        self._intents, self._roots = table("intents"), table("roots")

    def remember(self, envelope: Envelope, height: int, index: int) -> None:
        """Record the position of an envelope."""
        self.remember_statement(envelope.id, envelope.intent, height, index)
        if (claim := claim_of(envelope.fields)) is not None:
            self._claims.setdefault(claim[:16], height << 13 | index)

    def remember_statement(self, envelope_id: bytes, intent: bytes, height: int, index: int) -> None:
        """Record the position of an envelope that claims no correlation id."""
        at = height << 13 | index
        self._ids.setdefault(envelope_id[:16], at)
        self._intents.setdefault(intent[:16], at)

    def remember_root(self, root: bytes, leaves: int) -> None:
        """A block is complete; later proofs may lead to it."""
        self._roots.setdefault(root[:16], leaves)

    def position(self, envelope_id: bytes) -> Position | None:
        """Return where an envelope stands."""
        return _position(self._ids.get(envelope_id[:16]))

    def chain(self, _envelope_id: bytes) -> tuple[str, ...] | None:
        """Not kept; it was compared when the envelope was accepted."""
        return None

    def claim(self, event_class: str, correlation_id: str) -> Position | None:
        """Return where a class with a correlation id was first seen."""
        return _position(self._claims.get(claim_key(event_class, correlation_id)[:16]))

    def intent(self, intent: bytes) -> Position | None:
        """Return where a statement was first seen."""
        return _position(self._intents.get(intent[:16]))

    def leaves(self, root: bytes) -> int | None:
        """Return how many envelopes the block with that root has."""
        return self._roots.get(root[:16])


def _position(at: int | None) -> Position | None:
    return None if at is None else Position(at >> 13, at & 0x1FFF)
