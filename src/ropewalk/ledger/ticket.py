"""On the way to a receipt: envelopes that were placed in a block which is not yet durable."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ropewalk.errors import RopewalkError
from ropewalk.ledger.envelope import Envelope

__all__ = ["Forming", "Receipt", "Ticket"]


@dataclass(frozen=True, slots=True)
class Receipt:
    """Where an accepted envelope stands. `replayed` means it stood there before."""

    envelope_id: bytes
    height: int
    index: int
    block_hash: bytes
    replayed: bool = False

    def to_json(self) -> dict[str, Any]:
        """As `ledger append` prints it."""
        return {
            "envelope_id": self.envelope_id.hex(),
            "height": self.height,
            "index": self.index,
            "block_hash": self.block_hash.hex(),
            "replayed": self.replayed,
        }


class Ticket:
    """An envelope on its way. `awaited`: a thread sleeps on it, or will; `placed`: it stands in a forming block."""

    __slots__ = ("_call", "_latch", "_outcome", "awaited", "placed", "twins")

    def __init__(self, awaited: bool = False) -> None:
        self.awaited = awaited
        self.placed = False
        self.twins: list[Ticket] = []
        self._outcome: Receipt | RopewalkError | None = None
        # Who takes it out may release the latch; of two threads only one can.
        self._call = [True]
        self._latch = threading.Lock()  # a bare lock: an Event would cost ten times as much per envelope
        self._latch.acquire()

    def settle(self, outcome: Receipt | RopewalkError, leaving: deque[Ticket] | None = None) -> None:
        """Give the outcome to whoever waits, also to those who sent the same bytes meanwhile.

        Sleepers are woken, or put in line with those who are `leaving`.
        """
        self._outcome = outcome
        if self.awaited:
            if leaving is None:
                self.wake()
            else:
                leaving.append(self)
        for twin in self.twins:
            again = replace(outcome, replayed=True) if isinstance(outcome, Receipt) else outcome
            twin.settle(again, leaving)

    def wake(self) -> None:
        """Let its thread look again, now or as soon as it would sleep."""
        try:
            self._call.pop()
        except IndexError:  # called already
            return
        self._latch.release()

    def call(self, own: Ticket) -> bool:
        """Wake its thread, if there is one and it is another than that of `own`; whether that was done."""
        if not self.awaited or self is own:
            return False
        self.wake()
        return True

    def wait(self) -> None:
        """Sleep until woken; there may be nothing new."""
        self._latch.acquire()
        # Before it looks at anything, so that whatever changes after that wakes again.
        self._call.append(True)

    @property
    def settled(self) -> bool:
        """Whether the outcome is known."""
        return self._outcome is not None

    @property
    def outcome(self) -> Receipt | RopewalkError:
        """The receipt or the refusal; only once settled."""
        assert self._outcome is not None, "not settled yet"
        return self._outcome

    def result(self) -> Receipt:
        """The receipt, or the refusal raised."""
        if isinstance(self.outcome, RopewalkError):
            raise self.outcome
        return self.outcome


class Forming:
    """A block that still takes envelopes."""

    __slots__ = ("envelopes", "height", "size", "tickets")

    def __init__(self, height: int) -> None:
        self.height = height
        self.envelopes: list[Envelope] = []
        self.tickets: list[Ticket] = []
        self.size = 0

    def waiting(self) -> Iterator[Ticket]:
        """Tickets of the placed envelopes, each with those that wait for the same outcome."""
        for ticket in self.tickets:
            yield ticket
            yield from ticket.twins
