"""Ingest: envelopes in, sealed blocks out, a receipt when the block is on disk.

Group commit without a thread of its own: one of those who wait leads. It judges what has arrived, many envelopes at a
time, writes it with one sync for all, and hands out the receipts; the others sleep until they have theirs or are called
to lead. What arrives meanwhile goes into the next round: under load the blocks grow by themselves, and nobody waits for
company unless `linger_s` asks for it.

No round is left undone: whoever has led looks again before it sleeps, and calls a sleeper before it goes.

Who has a receipt often has more to say. So the sleepers with receipts are let go first, a few at a time, each waking
the next, and only then is the next round led: rounds are larger, and threads do not queue for the interpreter.
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
from ropewalk.ledger.ingest.ports import Blocks, Head, Index, IngestLimits
from ropewalk.ledger.ingest.sealer import BlockSealer
from ropewalk.ledger.ingest.ticket import LedgerReceipt, Ticket, Waiter
from ropewalk.ledger.keys.history import KeyHistory
from ropewalk.ledger.keys.statements import is_key_statement
from ropewalk.ledger.proof.trust import Trust
from ropewalk.ledger.rules.policy import Policy
from ropewalk.ledger.rules.rules import ParallelMap, check_signatures, map_serially
from ropewalk.ledger.rules.verdict import SUPPORTED_MINORS, Context

BATCH_MAX: Final = 256  # envelopes of a long list that are held in parsed form before the first is placed
WAKEUPS_PER_ROUND: Final = 2  # how many are let go at a time; more would only wait for one another


class ChannelWriter:
    """One channel open for writing."""

    def __init__(
        self,
        channel: str,
        key: SigningKey,
        blocks: Blocks,
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
        """`also` are further keys of the channel, `line` is what it has said about them so far, and `note` is told of
        every height at which more will be said.
        """
        self.channel, self.policy = channel, policy
        self.limits = limits or IngestLimits()
        self._now_ns, self._parallel_map = now_ns, parallel_map
        self._arrivals: deque[tuple[bytes, Ticket]] = deque()
        self._arrived = threading.Condition()  # told of arrivals, where somebody may linger for them
        self._leader_lock = threading.Lock()  # over all that follows; nobody waits for it, but to end
        self._leader: int | None = None  # whose thread that is
        self._settled_queue: deque[Ticket] = deque()  # settled; their threads still sleep
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
        """Where the channel ends: all that has a receipt stands before."""
        return self._sealer.head

    @property
    def key_history(self) -> KeyHistory:
        """The keys of the channel, and what was said about them."""
        return self._sealer.key_history

    @property
    def history(self) -> PendingHistory:
        """What stands in the channel, and what is on its way into it."""
        return self._sealer.history

    # --- the way in -------------------------------------------------------------------------------------------------

    def submit(self, raw: bytes) -> LedgerReceipt:
        """Judge one envelope, place it in a block, and return its receipt once the block is durable."""
        ticket = Ticket()
        self._take(((check_wire(raw), ticket),))
        self._wait_until_settled((ticket,))
        return ticket.result()

    def submit_many(self, raws: Iterable[bytes]) -> list[LedgerReceipt | RopewalkError]:
        """Submit in order from one thread, sharing blocks and syncs; refusals stand in their places."""
        arrivals = [(check_wire(raw), Ticket()) for raw in raws]
        self._take(arrivals)
        tickets = [ticket for _, ticket in arrivals]
        self._wait_until_settled(tickets)
        return [ticket.outcome for ticket in tickets]

    def _wait_until_settled(self, tickets: Sequence[Ticket]) -> None:
        """Lead or sleep until all are settled. Whoever is interrupted leaves nothing to be judged later."""
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
        """Take a block sealed elsewhere by this channel's key, verified and linked. A fork is kept and refused."""
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
        """Take nothing more: what it writes to is about to be closed. A round under way is finished before."""
        self._sealer.ended = "was closed"
        if self._leader != threading.get_ident():  # else closed from within a round, as a signal handler may
            with self._leader_lock:
                pass
            self._wake_settled()
            self._wake_leader()

    def abandon_after_fork(self) -> None:
        """End it in a forked child: whoever led or slept here is a thread of the parent's, and never comes."""
        self._sealer.ended = "was closed"
        self._leader_lock, self._leader = threading.Lock(), None

    # --- inside -----------------------------------------------------------------------------------------------------

    def _judge(self, arrivals: Sequence[tuple[bytes, Ticket]]) -> None:
        """Judge envelopes that came together; each is placed, or its ticket is settled at once."""
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
        """What refuses everything but statements about keys, if the life of the key or of the policy has ended."""
        try:
            self._sealer.check_key_lifetimes(now_ns)
        except RopewalkError as error:
            return error
        return None

    def _current_context(self) -> Context:
        """What to judge against now: versions come and go while a channel stays open."""
        minors = self._minors()
        if minors != self._context.supported_minors:
            self._context = replace(self._context, supported_minors=minors)
        return self._context

    def _serve(self, ticket: Ticket, waiter: Waiter) -> None:
        """Lead or sleep until the ticket is settled."""
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
                        f"channel {self.channel}: submitted from within its own round, which would wait for itself",
                        advice="Submit from another thread, or when the round is over.",
                    )
                else:
                    waiter.wait()
        finally:
            # Also if this thread was interrupted: nobody is to be called here any more.
            ticket.waiter = None
            self._wake_settled()
            self._wake_leader()

    def _wake_settled(self) -> None:
        """Wake the next of those who have their outcome; it will wake the one after it."""
        while self._settled_queue:
            try:
                ticket = self._settled_queue.popleft()
            except IndexError:  # another thread took the last one
                return
            if ticket.wake():
                return

    def _wake_leader(self) -> None:
        """Wake a sleeper if there is something to do, nobody is at it, and all who may go have gone."""
        if not self._settled_queue and not self._leader_lock.locked():
            any(ticket.wake() for ticket in self._waiting())

    def _waiting(self) -> Iterator[Ticket]:
        """All who are on their way, the first first. Others may come and go meanwhile."""
        yield from self._sealer.waiting()
        with contextlib.suppress(IndexError):
            for number in itertools.count():
                yield self._arrivals[number][1]

    def _lead(self) -> None:
        """One round: judge what has arrived, as much as fills a block, and write it."""
        more = False
        try:
            self._leader = threading.get_ident()
            self._sealer.recover()
            if self.limits.linger_s:
                with self._arrived:
                    self._arrived.wait_for(self._fill, self.limits.linger_s)
            more = self._fill() and bool(self._arrivals)
        finally:  # where judging broke off, what was placed before is written all the same
            try:
                self._sealer.write(more=more)
            finally:
                for _ in range(WAKEUPS_PER_ROUND):
                    self._wake_settled()
                self._leader = None

    def _fill(self) -> bool:
        """Judge what has arrived, a part at a time; whether it filled a block and began another."""
        while self._arrivals and self._sealer.open_block < 2:
            batch: list[tuple[bytes, Ticket]] = []
            try:
                for _ in range(min(BATCH_MAX, len(self._arrivals))):
                    batch.append(self._arrivals[0])  # here or there at any moment, never nowhere
                    self._arrivals.popleft()
                self._judge(batch)
            except BaseException as error:
                self._refuse(batch, error)
                raise
        return self._sealer.open_block > 1


def check_time(envelope: Envelope, now_ns: int, limits: IngestLimits) -> None:
    """Refuse an envelope whose author's clock is too far ahead of ours."""
    ahead = envelope.timestamp_ns - now_ns
    if ahead > limits.future_ns:
        raise InvalidEnvelope(
            f"timestamp {envelope.timestamp} is {ahead // 10**9} s in the future; "
            f"at most {limits.future_ns // 10**9} s are allowed",
            where="/timestamp",
            advice="Set the author's clock, then sign again.",
        )


def check_wire(raw: object) -> bytes:
    """What one caller submits is judged together with what others do, so only bytes may come that far."""
    if isinstance(raw, bytes):
        return raw
    if isinstance(raw, bytearray | memoryview):
        return bytes(raw)
    raise InvalidEnvelope(
        f"an envelope is submitted as its bytes, not as {type(raw).__name__}", advice="Submit `envelope.raw`."
    )
