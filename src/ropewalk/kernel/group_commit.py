"""Group commit: submitters that arrive while one round is written share the next round and its sync.

There is no writer thread: one of the waiting submitters leads. It runs a round, which takes tickets from `arrivals`,
writes them and settles each; the others wait until their ticket is settled or they are woken to lead. There is no
timer, so a single submitter pays nothing.

No round is lost: a submitter checks for work again before it waits, and wakes another one before it returns. A caller
with an outcome often submits again at once. So waiters with outcomes are woken first, a few at a time, each waking the
next; only then the next round starts. Rounds are larger, and threads do not contend for the interpreter.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Generic, TypeVar

from ropewalk.errors import Conflict, RopewalkError, Usage

POLL_S: Final = 1.0  # a wake-up may be lost if a thread is interrupted while waking another
WAKEUPS_PER_ROUND: Final = 2  # waiters woken at a time; more would only contend for the interpreter

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


class Waiter:
    """Lets one thread wait until it is woken."""

    __slots__ = ("_call", "_latch")

    def __init__(self) -> None:
        # The thread that pops it may release the latch; of two threads only one can.
        self._call = [True]
        self._latch = threading.Lock()  # a plain lock: an Event would cost ten times as much per ticket
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


class Ticket(Generic[Item, Outcome]):
    """A submitted item. `waiter`: the thread that waits for it; `abandoned`: its caller was interrupted."""

    __slots__ = ("_outcome", "abandoned", "item", "waiter")

    def __init__(self, item: Item) -> None:
        self.item = item
        self.waiter: Waiter | None = None
        self.abandoned = False
        self._outcome: Outcome | RopewalkError | None = None

    def settle(self, outcome: Outcome | RopewalkError, settled: deque[Any] | None = None) -> None:
        """Deliver the outcome and wake the waiter, or queue it in `settled` to be woken in its turn."""
        self._outcome = outcome
        if settled is None:
            self.wake()
        elif self.waiter is not None:
            settled.append(self)

    def wake(self) -> bool:
        """Wake the waiter; return whether there was one."""
        waiter = self.waiter
        if waiter is None:
            return False
        waiter.wake()
        return True

    @property
    def settled(self) -> bool:
        return self._outcome is not None

    @property
    def outcome(self) -> Outcome | RopewalkError:
        """What was delivered; only once settled."""
        assert self._outcome is not None, "not settled yet"
        return self._outcome

    def result(self) -> Outcome:
        """Return what was delivered, or raise it if it is an error."""
        if isinstance(self.outcome, RopewalkError):
            raise self.outcome
        return self.outcome


T = TypeVar("T", bound=Ticket[Any, Any])


class GroupCommit(Generic[T]):
    """The queue of one log. `write_round` takes tickets from `arrivals` and settles them, as the only writer.

    A round may leave tickets unsettled for the next one; `placed` yields those. `name` is used in errors.

    >>> def write_round():
    ...     ticket = commit.arrivals.popleft()
    ...     ticket.settle(ticket.item * 2, commit.settled)
    >>> commit = GroupCommit("demo", write_round)
    >>> ticket = Ticket(21)
    >>> commit.submit([ticket])
    >>> ticket.result()
    42
    """

    def __init__(
        self, name: str, write_round: Callable[[], None], *, placed: Callable[[], Iterable[T]] = tuple
    ) -> None:
        self.arrivals: deque[T] = deque()
        self.settled: deque[T] = deque()  # settled tickets whose threads still wait
        self._name, self._write_round, self._placed = name, write_round, placed
        self._arrived = threading.Condition()  # notified of arrivals while a round lingers
        self._lingers = False
        self._lock = threading.Lock()  # held by the leader; only `finish` blocks on it
        self._leader: int | None = None  # thread id of the leader

    def submit(self, tickets: Sequence[T]) -> None:
        """Queue tickets; lead or wait until all are settled. An interrupted caller abandons its tickets."""
        waiter = Waiter()
        try:
            self.arrivals.extend(tickets)
            if self._lingers:
                with self._arrived:
                    self._arrived.notify()
            for ticket in tickets:
                if not ticket.settled:
                    self._serve(ticket, waiter)
        except BaseException:
            for ticket in tickets:
                ticket.abandoned = True
            raise

    def take(self, batch: list[T]) -> None:
        """Move the oldest arrival to a batch. Even if interrupted here, it is in the queue or in the batch."""
        batch.append(self.arrivals[0])
        self.arrivals.popleft()

    def linger(self, enough: Callable[[], bool], seconds: float) -> None:
        """Let a round wait for more arrivals, until there are enough."""
        self._lingers = True
        with self._arrived:
            self._arrived.wait_for(enough, seconds)

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep rounds from starting; raise if one runs."""
        if not self._lock.acquire(blocking=False):
            raise self.busy()
        try:
            yield
        finally:
            self._lock.release()
            self._wake_leader()

    def check_idle(self) -> None:
        """Raise if a ticket waits for its outcome."""
        if any(not (each.abandoned or each.settled) for each in self._waiting()):
            raise self.busy()

    def busy(self) -> Conflict:
        """Return the error for a caller that would disturb a round."""
        return Conflict(f"{self._name} is being appended to")

    def finish(self) -> None:
        """Wait for a running round, then wake everyone: the owner takes nothing more."""
        if self._leader != threading.get_ident():  # else called within a round, as a signal handler may do
            with self._lock:
                pass
            self._wake_settled()
            self._wake_leader()

    def reset_after_fork(self) -> None:
        """Forget the leader in a forked child: it is a thread of the parent and never returns here."""
        self._lock, self._leader = threading.Lock(), None

    def _serve(self, ticket: T, waiter: Waiter) -> None:
        """Lead or wait until the ticket is settled."""
        ticket.waiter = waiter
        try:
            while not ticket.settled:
                if not self.settled and self._lock.acquire(blocking=False):
                    try:
                        self._lead()
                    finally:
                        self._lock.release()
                elif self._leader == threading.get_ident():
                    raise Usage(
                        f"{self._name}: submit must not be called from within a commit round",
                        advice="Submit from another thread, or when the round is over.",
                    )
                else:
                    waiter.wait()
        finally:
            # Also if this thread was interrupted: it must not be woken any more.
            ticket.waiter = None
            self._wake_settled()
            self._wake_leader()

    def _lead(self) -> None:
        try:
            self._leader = threading.get_ident()
            self._write_round()
        finally:
            for _ in range(WAKEUPS_PER_ROUND):
                self._wake_settled()
            self._leader = None

    def _wake_settled(self) -> None:
        """Wake the next waiter that has its outcome; it will wake the one after it."""
        while self.settled:
            try:
                ticket = self.settled.popleft()
            except IndexError:  # another thread took the last one
                return
            if ticket.wake():
                return

    def _wake_leader(self) -> None:
        """Wake a waiter to lead if there is work, no leader, and no settled waiter left to wake."""
        if not self.settled and not self._lock.locked():
            any(ticket.wake() for ticket in self._waiting())

    def _waiting(self) -> Iterator[T]:
        """Yield the tickets of all pending items in order. Others may be added or removed meanwhile."""
        yield from self._placed()
        with contextlib.suppress(IndexError):
            for number in itertools.count():
                yield self.arrivals[number]
