"""On the way to a receipt: envelopes that were placed in a block which is not yet durable."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from ropewalk.errors import RopewalkError
from ropewalk.ledger.envelope.model import Envelope

POLL_S: Final = 1.0  # a call may be lost with a thread that is interrupted while it calls


@dataclass(frozen=True, slots=True)
class LedgerReceipt:
    """Where an accepted envelope stands. `replayed` means it stood there before.

    `audit` are the reasons why the policy let it pass only under audit.
    """

    envelope_id: bytes
    height: int
    index: int
    block_hash: bytes
    replayed: bool = False
    audit: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As `ledger append` prints it; `audit` is there only where there are reasons."""
        out: dict[str, Any] = {
            "envelope_id": self.envelope_id.hex(),
            "height": self.height,
            "index": self.index,
            "block_hash": self.block_hash.hex(),
            "replayed": self.replayed,
        }
        return {**out, "audit": list(self.audit)} if self.audit else out


class EnvelopeSink(Protocol):
    """What takes envelopes: a channel that is open here, one that is elsewhere, or one in an enclave."""

    def submit(self, raw: bytes) -> LedgerReceipt:
        """Take one, or raise what refuses it."""

    def submit_many(self, raws: Sequence[bytes]) -> list[LedgerReceipt | RopewalkError]:
        """Take these, one outcome each, in order."""


class Waiter:
    """Where one thread sleeps until it is woken."""

    __slots__ = ("_call", "_latch")

    def __init__(self) -> None:
        # Who takes it out may release the latch; of two threads only one can.
        self._call = [True]
        self._latch = threading.Lock()  # a bare lock: an Event would cost ten times as much per envelope
        self._latch.acquire()

    def wake(self) -> None:
        """Let the thread look again, now or as soon as it would sleep."""
        try:
            self._call.pop()
        except IndexError:  # called already
            return
        self._latch.release()

    def wait(self) -> None:
        """Sleep until woken; there may be nothing new."""
        if self._latch.acquire(timeout=POLL_S):
            # Before it looks at anything, so that whatever changes after that wakes again.
            self._call.append(True)


class Ticket:
    """An envelope on its way. `sleeper`: whose thread waits for it; `placed`: it stands in a forming block.

    `gone`: its caller was interrupted, and it is not to be placed any more.
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
        """Give the outcome to whoever waits, also to those who sent the same bytes meanwhile.

        Sleepers are woken, or put in line with those who are `leaving`.
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
        """Wake who waits for it; whether there was somebody."""
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
        """The receipt or the refusal; only once settled."""
        assert self._outcome is not None, "not settled yet"
        return self._outcome

    def result(self) -> LedgerReceipt:
        """The receipt, or the refusal raised."""
        if isinstance(self.outcome, RopewalkError):
            raise self.outcome
        return self.outcome


class OpenBlock:
    """A block that still takes envelopes; with a statement about keys in it, `alone`, it takes no other."""

    __slots__ = ("alone", "envelopes", "height", "size", "tickets")

    def __init__(self, height: int, *, alone: bool = False) -> None:
        self.height, self.alone = height, alone
        self.envelopes: list[Envelope] = []
        self.tickets: list[Ticket] = []
        self.size = 0

    def add(self, envelope: Envelope, ticket: Ticket) -> None:
        """Place an envelope at the end."""
        self.size += len(envelope.raw)
        self.envelopes.append(envelope)
        self.tickets.append(ticket)

    def waiting(self) -> Iterator[Ticket]:
        """Tickets of the placed envelopes, each with those that wait for the same outcome."""
        for ticket in self.tickets:
            yield ticket
            yield from ticket.duplicates
