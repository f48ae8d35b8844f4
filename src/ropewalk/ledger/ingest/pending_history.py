"""History of a channel that is being written: stored envelopes and pending ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ropewalk.errors import Damaged
from ropewalk.kernel import jcs
from ropewalk.ledger.block.index_keys import claim_key, claim_of
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.ingest.ports import Index
from ropewalk.ledger.ingest.ticket import EnvelopeTicket
from ropewalk.ledger.rules.verdict import Position


class PendingHistory:
    """The index and, on top of it, the pending blocks: of two concurrent claims only one can be first.

    Callers must hold the leader lock.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        self._asked: tuple[bytes, Position | None]
        self.clear()

    def pending(self, envelope_id: bytes) -> EnvelopeTicket | None:
        """Return the ticket of an envelope placed in a block that is not yet durable."""
        pending = self._ids.get(envelope_id)
        return pending[1] if pending is not None else None

    def stored_at(self, envelope: Envelope) -> tuple[int, int] | None:
        """Return where an envelope is stored in a durable block, compared byte by byte with the stored one."""
        # The id covers what was signed: if the statement is new, so is the envelope.
        place = self._index.position(envelope.id) if self.intent(envelope.intent) is not None else None
        if place is not None and self._index.lines_of(*place)[1] != envelope.raw:
            raise Damaged(
                f"block {place[0]}, envelope {place[1]}: stored bytes differ from the envelope with their id",
                height=place[0],
                advice="Find the damage with `ropewalk ledger verify --deep`.",
            )
        return place

    def add(self, envelope: Envelope, place: Position, ticket: EnvelopeTicket) -> None:
        self._ids[envelope.id] = place, ticket, envelope
        self._intents[envelope.intent] = place
        if (key := claim_of(envelope.fields)) is not None:
            self._claims.setdefault(key, place)
        self._asked = b"", None

    def drop(self, envelopes: Iterable[Envelope]) -> None:
        """Remove envelopes that the index now has."""
        for envelope in envelopes:
            del self._ids[envelope.id]
            del self._intents[envelope.intent]
            if (key := claim_of(envelope.fields)) is not None:
                self._claims.pop(key, None)
        self._asked = b"", None

    def clear(self) -> None:
        """Remove all pending envelopes."""
        self._ids: dict[bytes, tuple[Position, EnvelopeTicket, Envelope]] = {}
        self._claims: dict[bytes, Position] = {}
        self._intents: dict[bytes, Position] = {}
        self._asked = b"", None

    # --- History ----------------------------------------------------------------------------------------------------

    def position(self, envelope_id: bytes) -> Position | None:
        """Return the position of an envelope, also in a block not yet sealed."""
        pending = self._ids.get(envelope_id)
        return pending[0] if pending is not None else _position(self._index.position(envelope_id))

    def chain(self, envelope_id: bytes) -> tuple[str, ...] | None:
        pending = self._ids.get(envelope_id)
        if pending is not None:
            return pending[2].causality_chain
        place = self._index.position(envelope_id)
        if place is None:
            return None
        value: Any = jcs.parse(self._index.lines_of(*place)[1])
        chain = value.get("causality_chain", [])
        return tuple(str(each) for each in chain) if isinstance(chain, list) else ()

    def claim(self, event_class: str, correlation_id: str) -> Position | None:
        """Return the position of the first envelope of a class with a correlation id."""
        key = claim_key(event_class, correlation_id)
        return self._claims.get(key) or _position(self._index.claim(key))

    def intent(self, intent: bytes) -> Position | None:
        """Return the position of the same statement."""
        if self._asked[0] != intent:  # asked twice for every envelope, by `stored_at` and by rule 8
            found = self._intents.get(intent) or _position(self._index.intent(intent))
            self._asked = intent, found
        return self._asked[1]

    def leaves(self, root: bytes) -> int | None:
        """Return the number of envelopes of the block with that root."""
        return self._index.leaves(root)


def _position(place: tuple[int, int] | None) -> Position | None:
    return None if place is None else Position(*place)
