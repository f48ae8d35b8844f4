"""Tickets: envelopes placed in a block that is not yet durable."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ropewalk.errors import RopewalkError
from ropewalk.kernel import group_commit
from ropewalk.ledger.envelope.model import Envelope


@dataclass(frozen=True, slots=True)
class LedgerReceipt:
    """Where an accepted envelope is stored. `replayed` means it was stored before.

    `audit` lists the reasons if the policy accepted it under audit. `checkpoint` is a signed head over its block, and
    `cosignatures` are its lines of witnesses; both only if witnesses were asked.
    """

    envelope_id: bytes
    height: int
    index: int
    block_hash: bytes
    replayed: bool = False
    audit: tuple[str, ...] = ()
    checkpoint: bytes | None = None
    cosignatures: tuple[str, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form that `ledger append` prints.

        `audit` is present only with reasons, `cosignatures` and `checkpoint` only if witnesses were asked.
        """
        out: dict[str, Any] = {
            "envelope_id": self.envelope_id.hex(),
            "height": self.height,
            "index": self.index,
            "block_hash": self.block_hash.hex(),
            "replayed": self.replayed,
        }
        if self.audit:
            out["audit"] = list(self.audit)
        if self.cosignatures is not None:
            out["cosignatures"] = list(self.cosignatures)
            out["checkpoint"] = None if self.checkpoint is None else self.checkpoint.decode()
        return out

    def _repr_html_(self) -> str:
        from ropewalk.pages import html_table

        found = self.to_json()
        return html_table(f"block {self.height}, envelope {self.index}", list(found), [list(found.values())])


class EnvelopeSink(Protocol):
    """Accepts envelopes: a local channel, a remote one, or one in an enclave."""

    def submit(self, raw: bytes) -> LedgerReceipt:
        """Submit one; raise if it is rejected."""

    def submit_many(self, raws: Sequence[bytes]) -> list[LedgerReceipt | RopewalkError]:
        """Submit several; return one outcome each, in order."""


class EnvelopeTicket(group_commit.Ticket[bytes, LedgerReceipt]):
    """A submitted envelope. `placed`: it is in an open block; `duplicates` submitted the same bytes meanwhile."""

    __slots__ = ("audit", "duplicates", "placed")

    def __init__(self, item: bytes = b"") -> None:
        super().__init__(item)
        self.placed = False
        self.audit: tuple[str, ...] = ()
        self.duplicates: list[EnvelopeTicket] = []

    def settle(self, outcome: LedgerReceipt | RopewalkError, settled: deque[Any] | None = None) -> None:
        """Deliver the outcome to the waiter and to those of the duplicates."""
        super().settle(outcome, settled)
        for duplicate in self.duplicates:
            again = replace(outcome, replayed=True) if isinstance(outcome, LedgerReceipt) else outcome
            duplicate.settle(again, settled)


class OpenBlock:
    """A block that still takes envelopes; with a key statement (`alone`) it takes no other."""

    __slots__ = ("alone", "envelopes", "height", "size", "tickets")

    def __init__(self, height: int, *, alone: bool = False) -> None:
        self.height, self.alone = height, alone
        self.envelopes: list[Envelope] = []
        self.tickets: list[EnvelopeTicket] = []
        self.size = 0

    def add(self, envelope: Envelope, ticket: EnvelopeTicket) -> None:
        self.size += len(envelope.raw)
        self.envelopes.append(envelope)
        self.tickets.append(ticket)

    def waiting(self) -> Iterator[EnvelopeTicket]:
        """Yield the tickets of the placed envelopes, each with those that wait for the same outcome."""
        for ticket in self.tickets:
            yield ticket
            yield from ticket.duplicates
