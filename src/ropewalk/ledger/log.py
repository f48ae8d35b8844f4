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
from typing import Any, Final

from ropewalk.errors import Conflict, InvalidEnvelope, RopewalkError, Unavailable, Unverified, Usage
from ropewalk.kernel.keys import SigningKey
from ropewalk.kernel.report import Status
from ropewalk.ledger.block import (
    Block,
    check_contents,
    check_link,
    check_signature,
    find_fork,
    parse_record,
    seal,
)
from ropewalk.ledger.envelope import Envelope, parse_stored, parse_wire
from ropewalk.ledger.history import OpenHistory
from ropewalk.ledger.marks import marks_of
from ropewalk.ledger.policy import Policy
from ropewalk.ledger.ports import Blocks, Head, Index, Limits
from ropewalk.ledger.rules import (
    SUPPORTED_MINORS,
    Context,
    Finding,
    Position,
    Spread,
    check_signatures,
    judge,
    one_hand,
)
from ropewalk.ledger.ticket import Forming, Receipt, Sleeper, Ticket

__all__ = ["Blocks", "Head", "Index", "Limits", "Log", "Receipt", "Ticket", "check_time", "check_wire"]

BATCH_MAX: Final = 256  # envelopes of a long list that are held in parsed form before the first is placed
STOPPED: Final = "stopped before a block that it wrote was known here"
DOORS: Final = 2  # how many are let go at a time; more would only wait for one another


class Log:
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
        limits: Limits | None = None,
        supported_minors: frozenset[str] | Callable[[], frozenset[str]] = SUPPORTED_MINORS,
        keep_evidence: Callable[[str, bytes], None] | None = None,
        evidence: Callable[[Envelope], tuple[Status, str]] | None = None,
        spread: Spread = one_hand,
    ) -> None:
        self.channel, self.head, self.policy = channel, head, policy
        self.limits = limits or Limits()
        self._key, self._blocks, self._index, self._now_ns = key, blocks, index, now_ns
        self._keep_evidence = keep_evidence
        self._spread = spread
        self._arrivals: deque[tuple[bytes, Ticket]] = deque()
        self._company = threading.Condition()  # told of arrivals, where somebody may linger for them
        self._leading = threading.Lock()  # over all that follows; nobody waits for it, but to end
        self._leader: int | None = None  # whose thread that is
        self._forming: list[Forming] = []
        self._sealing: list[Forming] = []
        self.history = OpenHistory(index)
        self._leaving: deque[Ticket] = deque()  # settled; their threads still sleep
        self._unknown = False  # whether blocks may have been written that the index and the head do not have
        self._ended: str | None = None  # why nothing more is taken
        self._minors = supported_minors if callable(supported_minors) else lambda: supported_minors
        self._context = Context(self.history, policy, self._minors(), evidence=evidence)

    # --- the way in -------------------------------------------------------------------------------------------------

    def submit(self, raw: bytes) -> Receipt:
        """Judge one envelope, place it in a block, and return its receipt once the block is durable."""
        ticket = Ticket()
        self._take(((check_wire(raw), ticket),))
        self._see_through((ticket,))
        return ticket.result()

    def submit_many(self, raws: Iterable[bytes]) -> list[Receipt | RopewalkError]:
        """Submit in order from one thread, sharing blocks and syncs; refusals stand in their places."""
        arrivals = [(check_wire(raw), Ticket()) for raw in raws]
        self._take(arrivals)
        tickets = [ticket for _, ticket in arrivals]
        self._see_through(tickets)
        return [ticket.outcome for ticket in tickets]

    def _see_through(self, tickets: Sequence[Ticket]) -> None:
        """Lead or sleep until all are settled. Whoever is interrupted leaves nothing to be judged later."""
        sleeper = Sleeper()
        try:
            for ticket in tickets:
                if not ticket.settled:
                    self._serve(ticket, sleeper)
        except BaseException:
            for ticket in tickets:
                ticket.gone = True
            raise

    def _take(self, arrivals: Sequence[tuple[bytes, Ticket]]) -> None:
        self._check_open()
        self._arrivals.extend(arrivals)
        if self.limits.linger_s:
            with self._company:
                self._company.notify()

    def insert(self, block: Block) -> None:
        """Take a block sealed elsewhere by this channel's key, verified and linked. A fork is kept and refused."""
        check_signature(block.record, (self._key.public,))
        check_contents(block)
        if not self._leading.acquire(blocking=False):
            raise Conflict(f"channel {self.channel} is being appended to")
        try:
            self._check_open()
            if self._forming or any(not (ticket.gone or ticket.settled) for ticket in self._waiting()):
                raise Conflict(f"channel {self.channel} is being appended to")
            self._insert(block)
        finally:
            self._leading.release()
            self._call_leader()

    def _insert(self, block: Block) -> None:
        record = block.record
        if record.header.channel != self.channel:
            raise Conflict(f"block of channel {record.header.channel}, not {self.channel}")
        if record.height < self.head.height:
            ours = parse_record(self._index.lines_of(record.height, None)[0])
            fork = find_fork(ours, record)
            if fork is None:
                return
            if self._keep_evidence is not None:
                self._keep_evidence(f"fork-{record.height}-{record.hash.hex()[:16]}.json", fork.to_bytes())
            raise fork.error()
        below = (
            parse_record(self._index.lines_of(self.head.height - 1, None)[0]) if self.head.height else None
        )
        check_link(below.header if below else None, record.header)
        envelopes = self._judge_sealed(block)
        place = self._blocks.append(block.height, block.lines())
        self._blocks.sync()
        self._take_in(envelopes, block, place)

    def _judge_sealed(self, block: Block) -> list[Envelope]:
        """The envelopes of a block sealed elsewhere, each judged as if it came to the door."""
        policy_hash = self.policy.hash if self.policy is not None else None
        if block.header.policy_hash != policy_hash:
            raise Unverified(
                f"block {block.height}: made under another policy than this channel's", height=block.height
            )
        context = replace(self._context, policy_hash=policy_hash, sealed=True)
        envelopes = []
        try:
            for index, raw in enumerate(block.envelopes):
                envelope = parse_stored(raw)
                judge(envelope, context).require()
                self.history.add(envelope, Position(block.height, index), Ticket())
                envelopes.append(envelope)
        finally:
            self.history.clear()
        return envelopes

    def end(self) -> None:
        """Take nothing more: what it writes to is about to be closed. A round under way is finished before."""
        self._ended = "was closed"
        if self._leader != threading.get_ident():  # else closed from within a round, as a signal handler may
            with self._leading:
                pass
            self._let_go()
            self._call_leader()

    def forsake(self) -> None:
        """End it in a forked child: whoever led or slept here is a thread of the parent's, and never comes."""
        self._ended = "was closed"
        self._leading, self._leader = threading.Lock(), None

    # --- inside -----------------------------------------------------------------------------------------------------

    def _judge(self, arrivals: Sequence[tuple[bytes, Ticket]]) -> None:
        """Judge envelopes that came together; each is placed, or its ticket is settled at once."""
        read: list[tuple[Envelope, Ticket]] = []
        try:
            self._check_open()
            context = self._look_at_the_gate()
            now_ns = self._now_ns()
            for raw, ticket in arrivals:
                if ticket.gone:
                    continue
                try:
                    envelope = parse_wire(raw)
                    check_time(envelope, now_ns, self.limits)
                    read.append((envelope, ticket))
                except RopewalkError as error:
                    ticket.settle(error)
            signatures = self._spread(check_signatures, [envelope for envelope, _ in read])
            for (envelope, ticket), signature in zip(read, signatures, strict=True):
                try:
                    self._place(envelope, signature, context, ticket)
                except RopewalkError as error:
                    ticket.settle(error)
        except RopewalkError as error:
            self._refuse(arrivals, error)

    def _refuse(self, arrivals: Sequence[tuple[bytes, Ticket]], error: BaseException) -> None:
        refusal = self._refusal(error)
        for _, ticket in arrivals:
            if not ticket.settled and not ticket.placed:
                ticket.settle(refusal)

    def _refusal(self, error: BaseException) -> RopewalkError:
        """What those hear who wait, whatever went wrong."""
        return (
            error if isinstance(error, RopewalkError) else Unavailable(f"channel {self.channel}: {error!r}")
        )

    def _look_at_the_gate(self) -> Context:
        """What to judge against now: versions come and go while a channel stays open."""
        minors = self._minors()
        if minors != self._context.supported_minors:
            self._context = replace(self._context, supported_minors=minors)
        return self._context

    def _place(self, envelope: Envelope, signature: Finding, context: Context, ticket: Ticket) -> None:
        """Put an envelope into the forming block, if it is new and keeps the rules."""
        twin = self.history.on_its_way(envelope.id)
        if twin is not None and not twin.settled:
            twin.twins.append(ticket)
            ticket.placed = True
            return
        stands = self.history.stands(envelope)
        if stands is not None:
            ticket.settle(Receipt(envelope.id, *stands, self._index.block_hash(stands[0]), replayed=True))
            return
        try:
            judge(envelope, context, signature).require()
        except RopewalkError:
            raise
        except Exception as error:
            # A mistake of ours, or of who judges evidence, costs this envelope alone.
            raise self._refusal(error) from error
        forming = self._forming[-1] if self._forming else None
        begun = forming is not None and self._fits(forming, envelope)
        if forming is None or not begun:
            forming = Forming(forming.height + 1 if forming is not None else self.head.height)
        # In this order a thread that is interrupted leaves no empty block, and no ticket that nobody settles.
        self.history.add(envelope, Position(forming.height, len(forming.envelopes)), ticket)
        forming.add(envelope, ticket)
        if not begun:
            self._forming.append(forming)
        ticket.placed = True

    def _check_open(self) -> None:
        if self._ended is not None:
            raise Unavailable(f"channel {self.channel} {self._ended}", advice="Open the channel again.")

    def _fits(self, forming: Forming, envelope: Envelope) -> bool:
        return (
            len(forming.envelopes) < self.limits.block_envelopes
            and forming.size + len(envelope.raw) <= self.limits.block_bytes
        )

    def _serve(self, ticket: Ticket, sleeper: Sleeper) -> None:
        """Lead or sleep until the ticket is settled."""
        ticket.sleeper = sleeper
        try:
            while not ticket.settled:
                if not self._leaving and self._leading.acquire(blocking=False):
                    try:
                        self._lead()
                    finally:
                        self._leading.release()
                elif self._leader == threading.get_ident():
                    raise Usage(
                        f"channel {self.channel}: submitted from within its own round, which would wait for itself",
                        advice="Submit from another thread, or when the round is over.",
                    )
                else:
                    sleeper.wait()
        finally:
            # Also if this thread was interrupted: nobody is to be called here any more.
            ticket.sleeper = None
            self._let_go()
            self._call_leader()

    def _let_go(self) -> None:
        """Wake the next of those who have their outcome; it will wake the one after it."""
        while self._leaving:
            try:
                ticket = self._leaving.popleft()
            except IndexError:  # another thread took the last one
                return
            if ticket.call():
                return

    def _call_leader(self) -> None:
        """Wake a sleeper if there is something to do, nobody is at it, and all who may go have gone."""
        if not self._leaving and not self._leading.locked():
            any(ticket.call() for ticket in self._waiting())

    def _waiting(self) -> Iterator[Ticket]:
        """All who are on their way, the first first. Others may come and go meanwhile."""
        for forming in self._forming:
            yield from forming.waiting()
        with contextlib.suppress(IndexError):
            for number in itertools.count():
                yield self._arrivals[number][1]

    def _lead(self) -> None:
        """One round: judge what has arrived, as much as fills a block, and write it."""
        more = False
        try:
            self._leader = threading.get_ident()
            if self._unknown:  # whoever led before was interrupted: nothing may be built on what is not known
                self._ended = STOPPED
                self._clear_away(Unavailable(f"channel {self.channel} {STOPPED}"))
                self._unknown = False
            if self.limits.linger_s:
                with self._company:
                    self._company.wait_for(self._fill, self.limits.linger_s)
            more = self._fill() and bool(self._arrivals)
        finally:  # where judging broke off, what was placed before is written all the same
            # With more to come, the last block is not full yet and can wait for it.
            full = len(self._forming) - more
            self._sealing, self._forming = self._forming[:full], self._forming[full:]
            try:
                self._write_sealing()
            finally:
                self._leader = None

    def _write_sealing(self) -> None:
        """Write what is to be sealed and give out the receipts, or tell everybody why there is none."""
        written: list[tuple[Forming, Block, Any]] = []
        error: RopewalkError | None = None
        self._unknown = True
        try:
            error = self._write(written)
        except BaseException as caught:
            error = self._refusal(caught)
            if error is not caught:
                written = self._synced(written)
                raise
            written = []
        finally:
            self._publish(written, error)

    def _synced(self, written: list[tuple[Forming, Block, Any]]) -> list[tuple[Forming, Block, Any]]:
        """What was appended before an interruption, made durable: the next block must stand on it. Else nothing."""
        try:
            self._blocks.sync()
        except BaseException:
            return []
        return written

    def _fill(self) -> bool:
        """Judge what has arrived, a part at a time; whether it filled a block and began another."""
        while self._arrivals and len(self._forming) < 2:
            batch: list[tuple[bytes, Ticket]] = []
            try:
                for _ in range(min(BATCH_MAX, len(self._arrivals))):
                    batch.append(self._arrivals[0])  # here or there at any moment, never nowhere
                    self._arrivals.popleft()
                self._judge(batch)
            except BaseException as error:
                self._refuse(batch, error)
                raise
        return len(self._forming) > 1

    def _write(self, written: list[tuple[Forming, Block, Any]]) -> RopewalkError | None:
        """Seal, append and sync; what could be appended before an error is still made durable."""
        if self._sealing:
            self._check_open()
        below, earliest = self.head.block_hash, self.head.timestamp_ns
        error: RopewalkError | None = None
        for forming in self._sealing:
            block = seal(
                self._key,
                channel=self.channel,
                height=forming.height,
                prev_block_hash=below,
                envelopes=[envelope.raw for envelope in forming.envelopes],
                timestamp_ns=max(self._now_ns(), earliest),
                policy_hash=self.policy.hash if self.policy is not None else None,
                leaves=[envelope.id for envelope in forming.envelopes],
            )
            try:
                place = self._blocks.append(block.height, block.lines())
            except RopewalkError as caught:
                error = caught
                break
            written.append((forming, block, place))
            below, earliest = block.hash, block.header.timestamp_ns
        if written:
            self._blocks.sync()
        return error

    def _publish(self, written: list[tuple[Forming, Block, Any]], error: RopewalkError | None) -> None:
        """Index, move the head, settle tickets; nobody is left waiting."""
        try:
            try:
                for forming, block, place in written:
                    self._take_in(forming.envelopes, block, place)
                self._unknown = False
            except BaseException:  # it stands on disk, and whoever opens the channel again finds it
                self._ended = STOPPED
                raise
            for forming, block, _ in written:
                for index, ticket in enumerate(forming.tickets):
                    receipt = Receipt(forming.envelopes[index].id, block.height, index, block.hash)
                    ticket.settle(receipt, self._leaving)
        except BaseException as caught:
            error = self._refusal(caught)
            raise
        finally:
            self._clear_away(error)

    def _clear_away(self, error: RopewalkError | None) -> None:
        """Forget what was on its way; if there was an error, all that has no receipt by now falls."""
        if error is not None:
            # What was placed meanwhile was judged as if the blocks below it stood: it falls with them.
            fallen = [ticket for forming in self._sealing + self._forming for ticket in forming.waiting()]
            self._sealing = self._forming = []
            self.history.clear()
            for ticket in fallen:
                if not ticket.settled:
                    ticket.settle(error, self._leaving)
        else:
            if self._forming:
                for forming in self._sealing:
                    self.history.drop(forming.envelopes)
            else:
                self.history.clear()
            self._sealing = []
        for _ in range(DOORS):
            self._let_go()

    def _take_in(self, envelopes: Sequence[Envelope], block: Block, place: Any) -> None:
        self._index.add(place, [len(line) for line in block.lines()], marks_of(block.header, envelopes))
        self.head = Head(
            block.height + 1,
            block.hash,
            block.header.timestamp_ns,
            self.head.envelopes + len(block.envelopes),
        )


def check_time(envelope: Envelope, now_ns: int, limits: Limits) -> None:
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
