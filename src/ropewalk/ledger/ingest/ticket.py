"""Tickets: envelopes placed in a block that is not yet durable."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from ropewalk.errors import RopewalkError
from ropewalk.ledger.envelope.model import Envelope

POLL_S: Final = 1.0  # a wake-up may be lost if a thread is interrupted while waking another


@dataclass(frozen=True, slots=True)
class LedgerReceipt:
    """Where an accepted envelope is stored. `replayed` means it was stored before.

    `audit` lists the reasons if the policy accepted it under audit.
    """

    envelope_id: bytes
    height: int
    index: int
    block_hash: bytes
    replayed: bool = False
    audit: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form that `ledger append` prints; `audit` is present only with reasons."""
        out: dict[str, Any] = {
            "envelope_id": self.envelope_id.hex(),
            "height": self.height,
            "index": self.index,
            "block_hash": self.block_hash.hex(),
            "replayed": self.replayed,
        }
        return {**out, "audit": list(self.audit)} if self.audit else out


class EnvelopeSink(Protocol):
    """Accepts envelopes: a local channel, a remote one, or one in an enclave."""

    def submit(self, raw: bytes) -> LedgerReceipt:
        """Submit one; raise if it is rejected."""

    def submit_many(self, raws: Sequence[bytes]) -> list[LedgerReceipt | RopewalkError]:
        """Submit several; return one outcome each, in order."""


class Waiter:
    """Lets one thread wait until it is woken."""

    __slots__ = ("_call", "_latch")

    def __init__(self) -> None:
        # The thread that pops it may release the latch; of two threads only one can.
        self._call = [True]
        self._latch = threading.Lock()  # a plain lock: an Event would cost ten times as much per envelope
        self._latch.acquire()

    def wake(self) -> None:
        """Wake the thread, now or as soon as it waits."""
        try:
            self._call.pop()
        except IndexError:  # woken already
            return
        self._latch.release()

    def wait(self) -> None:
        """Wait until woken; there may be nothing new."""
        if self._latch.acquire(timeout=POLL_S):
            # Before it checks anything, so that any later change wakes it again.
            self._call.append(True)


class Ticket:
    """A submitted envelope. `waiter`: the thread that waits for it; `placed`: it is in an open block.

    `abandoned`: its caller was interrupted, so it must not be placed.
    """

    __slots__ = ("_outcome", "abandoned", "audit", "duplicates", "placed", "waiter")

    def __init__(self) -> None:
        self.waiter: Waiter | None = None
        self.placed = self.abandoned = False
        self.audit: tuple[str, ...] = ()
        self.duplicates: list[Ticket] = []
        self._outcome: LedgerReceipt | RopewalkError | None = None

    def settle(
        self, outcome: LedgerReceipt | RopewalkError, settled_queue: deque[Ticket] | None = None
    ) -> None:
        """Deliver the outcome to the waiter and to those that submitted the same bytes meanwhile.

        Waiters are woken, or queued in `settled_queue`.
        """
        self._outcome = outcome
        if settled_queue is None:
            self.wake()
        elif self.waiter is not None:
            settled_queue.append(self)
        for duplicate in self.duplicates:
            again = replace(outcome, replayed=True) if isinstance(outcome, LedgerReceipt) else outcome
            duplicate.settle(again, settled_queue)

    def wake(self) -> bool:
        """Wake the waiter; return whether there was one."""
        waiter = self.waiter
        if waiter is None:
            return False
        waiter.wake()
        return True

    @property
    def settled(self) -> bool:
        """Whether the outcome is known."""
        return self._outcome is not None

    @property
    def outcome(self) -> LedgerReceipt | RopewalkError:
        """The receipt or the error; only once settled."""
        assert self._outcome is not None, "not settled yet"
        return self._outcome

    def result(self) -> LedgerReceipt:
        """Return the receipt or raise the error."""
        if isinstance(self.outcome, RopewalkError):
            raise self.outcome
        return self.outcome


class OpenBlock:
    """A block that still takes envelopes; with a key statement (`alone`) it takes no other."""

    __slots__ = ("alone", "envelopes", "height", "size", "tickets")

    def __init__(self, height: int, *, alone: bool = False) -> None:
        self.height, self.alone = height, alone
        self.envelopes: list[Envelope] = []
        self.tickets: list[Ticket] = []
        self.size = 0

    def add(self, envelope: Envelope, ticket: Ticket) -> None:
        """Append an envelope."""
        self.size += len(envelope.raw)
        self.envelopes.append(envelope)
        self.tickets.append(ticket)

    def waiting(self) -> Iterator[Ticket]:
        """Yield the tickets of the placed envelopes, each with those that wait for the same outcome."""
        for ticket in self.tickets:
            yield ticket
            yield from ticket.duplicates
