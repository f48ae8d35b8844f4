"""Ingest: envelopes in, sealed blocks out, a receipt when the block is on disk.

Group commit without a writer thread: one of the waiting submitters leads. It checks the submitted envelopes in
batches, writes them with one sync, and delivers the receipts. The others wait until they have their receipt or are
woken to lead. Envelopes that arrive meanwhile go into the next round, so blocks grow under load. A submitter waits for
others only if `linger_s` is set.

No round is lost: a leader checks for work again before it waits, and wakes another submitter before it returns.

A caller with a receipt often submits again at once. So waiters with receipts are woken first, a few at a time, each
waking the next; only then the next round starts. Rounds are larger, and threads do not contend for the interpreter.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from ropewalk.errors import Conflict, InvalidEnvelope, RopewalkError, Usage
from ropewalk.kernel.keys import SigningKey
from ropewalk.kernel.report import Status
from ropewalk.ledger.block.block import Block, check_contents
from ropewalk.ledger.envelope.envelope import parse_wire
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.ingest.pending_history import PendingHistory
from ropewalk.ledger.ingest.ports import BlockStore, Head, Index, IngestLimits
from ropewalk.ledger.ingest.sealer import BlockSealer
from ropewalk.ledger.ingest.ticket import LedgerReceipt, Ticket, Waiter
from ropewalk.ledger.keys.history import KeyHistory
from ropewalk.ledger.keys.statements import is_key_statement
from ropewalk.ledger.proof.trust import Trust
from ropewalk.ledger.rules.policy import Policy
from ropewalk.ledger.rules.rules import ParallelMap, check_signatures, map_serially
from ropewalk.ledger.rules.verdict import SUPPORTED_MINORS, Context

BATCH_MAX: Final = 256  # envelopes of a long list that are parsed before the first is placed
WAKEUPS_PER_ROUND: Final = 2  # waiters woken at a time; more would only contend for the interpreter


class ChannelWriter:
    """One channel open for writing."""

    def __init__(
        self,
        channel: str,
        key: SigningKey,
        blocks: BlockStore,
        index: Index,
        head: Head,
        *,
        now_ns: Callable[[], int],
        policy: Policy | None = None,
        limits: IngestLimits | None = None,
        supported_minors: frozenset[str] | Callable[[], frozenset[str]] = SUPPORTED_MINORS,
        keep_evidence: Callable[[str, bytes], None] | None = None,
        evidence: Callable[[Envelope], tuple[Status, str]] | None = None,
        parallel_map: ParallelMap = map_serially,
        also: Sequence[SigningKey] = (),
        key_history: KeyHistory | None = None,
        note: Callable[[int], None] = lambda _height: None,
    ) -> None:
        """Open the writer.

        `also` are further keys of the channel, `key_history` its keys so far, and `note` is called with the height of
        every key statement before it is written.
        """
        self.channel, self.policy = channel, policy
        self.limits = limits or IngestLimits()
        self._now_ns, self._parallel_map = now_ns, parallel_map
        self._arrivals: deque[tuple[bytes, Ticket]] = deque()
        self._arrived = threading.Condition()  # notified of arrivals if `linger_s` is set
        self._leader_lock = threading.Lock()  # guards everything below; only `end` blocks on it
        self._leader: int | None = None  # thread id of the leader
        self._settled_queue: deque[Ticket] = deque()  # settled tickets whose threads still wait
        self._sealer = BlockSealer(
            channel,
            (key, *also),
            blocks,
            index,
            head,
            now_ns=now_ns,
            policy=policy,
            limits=self.limits,
            settled_queue=self._settled_queue,
            keep_evidence=keep_evidence,
            key_history=key_history or KeyHistory(Trust((key.public,), ()), policy=policy),
            note=note,
        )
        self._minors = supported_minors if callable(supported_minors) else lambda: supported_minors
        self._context = Context(self.history, policy, self._minors(), evidence=evidence)

    @property
    def head(self) -> Head:
        """The head: everything with a receipt is below it."""
        return self._sealer.head

    @property
    def key_history(self) -> KeyHistory:
        """The keys of the channel and their validity."""
        return self._sealer.key_history

    @property
    def history(self) -> PendingHistory:
        """What the channel holds, including blocks not yet written."""
        return self._sealer.history

    # --- submit -----------------------------------------------------------------------------------------------------

    def submit(self, raw: bytes) -> LedgerReceipt:
        """Check one envelope, place it in a block, and return its receipt once the block is durable."""
        ticket = Ticket()
        self._take(((check_wire(raw), ticket),))
        self._wait_until_settled((ticket,))
        return ticket.result()

    def submit_many(self, raws: Iterable[bytes]) -> list[LedgerReceipt | RopewalkError]:
        """Submit in order from one thread, sharing blocks and syncs; errors are returned in place of receipts."""
        arrivals = [(check_wire(raw), Ticket()) for raw in raws]
        self._take(arrivals)
        tickets = [ticket for _, ticket in arrivals]
        self._wait_until_settled(tickets)
        return [ticket.outcome for ticket in tickets]

    def _wait_until_settled(self, tickets: Sequence[Ticket]) -> None:
        """Lead or wait until all are settled. An interrupted caller abandons its tickets."""
        waiter = Waiter()
        try:
            for ticket in tickets:
                if not ticket.settled:
                    self._serve(ticket, waiter)
        except BaseException:
            for ticket in tickets:
                ticket.abandoned = True
            raise

    def _take(self, arrivals: Sequence[tuple[bytes, Ticket]]) -> None:
        self._sealer.check_open()
        self._arrivals.extend(arrivals)
        if self.limits.linger_s:
            with self._arrived:
                self._arrived.notify()

    def insert(self, block: Block) -> None:
        """Insert a block sealed by another process with this channel's key, verified and linked. A fork is stored and
        rejected.
        """
        self._sealer.key_history.check(block.record)
        check_contents(block)
        if not self._leader_lock.acquire(blocking=False):
            raise Conflict(f"channel {self.channel} is being appended to")
        try:
            self._sealer.recover()
            self._sealer.check_open()
            if self._sealer.open_block or any(
                not (each.abandoned or each.settled) for each in self._waiting()
            ):
                raise Conflict(f"channel {self.channel} is being appended to")
            policy_hash = self.policy.hash if self.policy is not None else None
            self._sealer.insert(block, replace(self._context, policy_hash=policy_hash, sealed=True))
        finally:
            self._leader_lock.release()
            self._wake_leader()

    def end(self) -> None:
        """Stop taking envelopes because the store is about to be closed. Finish a running round first."""
        self._sealer.ended = "was closed"
        if (
            self._leader != threading.get_ident()
        ):  # else closed from within a round, as a signal handler may do
            with self._leader_lock:
                pass
            self._wake_settled()
            self._wake_leader()

    def abandon_after_fork(self) -> None:
        """Close it in a forked child: leader and waiters are threads of the parent and never return here."""
        self._sealer.ended = "was closed"
        self._leader_lock, self._leader = threading.Lock(), None

    # --- inside -----------------------------------------------------------------------------------------------------

    def _judge(self, arrivals: Sequence[tuple[bytes, Ticket]]) -> None:
        """Check envelopes of one batch; place each one or settle its ticket with the error."""
        read: list[tuple[Envelope, Ticket]] = []
        try:
            self._sealer.check_open()
            context = self._current_context()
            now_ns = self._now_ns()
            ended = self._lifetime_error(now_ns) if self.policy is not None else None
            for raw, ticket in arrivals:
                if ticket.abandoned:
                    continue
                try:
                    envelope = parse_wire(raw)
                    check_time(envelope, now_ns, self.limits)
                    if ended is not None and not is_key_statement(envelope):
                        raise ended
                    read.append((envelope, ticket))
                except RopewalkError as error:
                    ticket.settle(error)
            signatures = self._parallel_map(check_signatures, [envelope for envelope, _ in read])
            for (envelope, ticket), signature in zip(read, signatures, strict=True):
                try:
                    self._sealer.place(envelope, signature, context, ticket)
                except RopewalkError as error:
                    ticket.settle(error)
        except RopewalkError as error:
            self._refuse(arrivals, error)

    def _refuse(self, arrivals: Sequence[tuple[bytes, Ticket]], error: BaseException) -> None:
        refusal = self._sealer.refusal(error)
        for _, ticket in arrivals:
            if not ticket.settled and not ticket.placed:
                ticket.settle(refusal)

    def _lifetime_error(self, now_ns: int) -> RopewalkError | None:
        """Return the error that rejects all but key statements, if the key's or the policy's lifetime has ended."""
        try:
            self._sealer.check_key_lifetimes(now_ns)
        except RopewalkError as error:
            return error
        return None

    def _current_context(self) -> Context:
        """Return the current context; supported versions may change while a channel is open."""
        minors = self._minors()
        if minors != self._context.supported_minors:
            self._context = replace(self._context, supported_minors=minors)
        return self._context

    def _serve(self, ticket: Ticket, waiter: Waiter) -> None:
        """Lead or wait until the ticket is settled."""
        ticket.waiter = waiter
        try:
            while not ticket.settled:
                if not self._settled_queue and self._leader_lock.acquire(blocking=False):
                    try:
                        self._lead()
                    finally:
                        self._leader_lock.release()
                elif self._leader == threading.get_ident():
                    raise Usage(
                        f"channel {self.channel}: submit must not be called from within a commit round",
                        advice="Submit from another thread, or when the round is over.",
                    )
                else:
                    waiter.wait()
        finally:
            # Also if this thread was interrupted: it must not be woken any more.
            ticket.waiter = None
            self._wake_settled()
            self._wake_leader()

    def _wake_settled(self) -> None:
        """Wake the next waiter that has its outcome; it will wake the one after it."""
        while self._settled_queue:
            try:
                ticket = self._settled_queue.popleft()
            except IndexError:  # another thread took the last one
                return
            if ticket.wake():
                return

    def _wake_leader(self) -> None:
        """Wake a waiter to lead if there is work, no leader, and no settled waiter left to wake."""
        if not self._settled_queue and not self._leader_lock.locked():
            any(ticket.wake() for ticket in self._waiting())

    def _waiting(self) -> Iterator[Ticket]:
        """Yield the tickets of all pending envelopes in order. Others may be added or removed meanwhile."""
        yield from self._sealer.waiting()
        with contextlib.suppress(IndexError):
            for number in itertools.count():
                yield self._arrivals[number][1]

    def _lead(self) -> None:
        """Run one round: check what has arrived, up to one full block, and write it."""
        more = False
        try:
            self._leader = threading.get_ident()
            self._sealer.recover()
            if self.limits.linger_s:
                with self._arrived:
                    self._arrived.wait_for(self._fill, self.limits.linger_s)
            more = self._fill() and bool(self._arrivals)
        finally:  # after an error, what was placed before is still written
            try:
                self._sealer.write(more=more)
            finally:
                for _ in range(WAKEUPS_PER_ROUND):
                    self._wake_settled()
                self._leader = None

    def _fill(self) -> bool:
        """Check what has arrived, in batches; return whether it filled a block and began another."""
        while self._arrivals and self._sealer.open_block < 2:
            batch: list[tuple[bytes, Ticket]] = []
            try:
                for _ in range(min(BATCH_MAX, len(self._arrivals))):
                    # an entry is always in the queue or in the batch, even if interrupted here
                    batch.append(self._arrivals[0])
                    self._arrivals.popleft()
                self._judge(batch)
            except BaseException as error:
                self._refuse(batch, error)
                raise
        return self._sealer.open_block > 1


def check_time(envelope: Envelope, now_ns: int, limits: IngestLimits) -> None:
    """Reject an envelope whose timestamp is too far in the future."""
    ahead = envelope.timestamp_ns - now_ns
    if ahead > limits.future_ns:
        raise InvalidEnvelope(
            f"timestamp {envelope.timestamp} is {ahead // 10**9} s in the future; "
            f"at most {limits.future_ns // 10**9} s are allowed",
            where="/timestamp",
            advice="Set the author's clock, then sign again.",
        )


def check_wire(raw: object) -> bytes:
    """Return the bytes. Submissions of several callers are checked together, so reject anything else here."""
    if isinstance(raw, bytes):
        return raw
    if isinstance(raw, bytearray | memoryview):
        return bytes(raw)
    raise InvalidEnvelope(
        f"an envelope must be submitted as bytes, got {type(raw).__name__}", advice="Submit `envelope.raw`."
    )
