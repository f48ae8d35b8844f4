"""Ingest: envelopes in, sealed blocks out, a receipt when the block is on disk.

Group commit without a thread of its own: the submitters share two duties. One of them judges what has arrived, many
envelopes at a time; one writes what was judged, with one sync for all of it; the others sleep until they have a receipt
or are called to a duty. While one half is on its way to the disk the other half is judged. Nobody waits for company
unless `linger_s` asks for it: under load the blocks grow by themselves.

No duty is left undone: whoever has done one looks again before it sleeps, and calls a sleeper before it goes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from ropewalk.errors import Conflict, InvalidEnvelope, RopewalkError, Unavailable, Unverified
from ropewalk.kernel import jcs
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
from ropewalk.ledger.marks import claim_key, marks_of
from ropewalk.ledger.policy import Decision, Policy
from ropewalk.ledger.ports import Blocks, Head, Index, Limits
from ropewalk.ledger.rules import (
    SUPPORTED_MINORS,
    Context,
    Finding,
    Position,
    Spread,
    check_signatures,
    judge,
    judge_alone,
    judge_in_place,
    one_hand,
)
from ropewalk.ledger.ticket import Forming, Pending, Receipt, Ticket

__all__ = ["Blocks", "Head", "Index", "Limits", "Log", "Receipt", "Ticket"]

BATCH_MAX: Final = (
    256  # so that envelopes of a long list are not all held in parsed form before the first is placed
)


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
        supported_minors: frozenset[str] = SUPPORTED_MINORS,
        keep_evidence: Callable[[str, bytes], None] | None = None,
        evidence: Callable[[Envelope], tuple[Status, str]] | None = None,
        spread: Spread = one_hand,
    ) -> None:
        self.channel, self.head, self.policy = channel, head, policy
        self.limits = limits or Limits()
        self._key, self._blocks, self._index, self._now_ns = key, blocks, index, now_ns
        self._keep_evidence = keep_evidence
        self._context = Context(self, policy, supported_minors, evidence=evidence)
        self._spread = spread
        self._judging, self._writing = threading.Lock(), threading.Lock()  # the duties; nobody waits for one
        self._mutex = threading.Lock()  # over all that follows but the arrivals
        self._full = threading.Condition(self._mutex)
        self._arrivals: deque[tuple[bytes, Ticket]] = deque()
        self._forming: list[Forming] = []
        self._sealing: list[Forming] = []
        self._pending = Pending()
        self._asked: tuple[bytes, Position | None] = b"", None

    # --- the way in -------------------------------------------------------------------------------------------------

    def submit(self, raw: bytes) -> Receipt:
        """Judge one envelope, place it in a block, and return its receipt once the block is durable."""
        ticket = Ticket(awaited=True)
        self._arrivals.append((raw, ticket))
        self._serve(ticket)
        return ticket.result()

    def submit_many(self, raws: Iterable[bytes]) -> list[Receipt | RopewalkError]:
        """Submit in order from one thread, sharing blocks and syncs; refusals stand in their places."""
        arrivals = [(raw, Ticket()) for raw in raws]
        last = Ticket(awaited=True)
        try:
            for first in range(0, len(arrivals), BATCH_MAX):
                with self._judging:
                    self._judge(arrivals[first : first + BATCH_MAX])
        finally:
            with self._mutex:
                placed = self._forming or self._sealing
                if placed:
                    # Its outcome will mean that all before it have theirs.
                    placed[-1].tickets[-1].twins.append(last)
            if placed:
                self._serve(last)
            else:
                self._call_judge(last)  # somebody may have come while this thread judged
        return [ticket.outcome for _, ticket in arrivals]

    def insert(self, block: Block) -> None:
        """Take a block sealed elsewhere by this channel's key, verified and linked. A fork is kept and refused."""
        record = block.record
        check_signature(record, (self._key.public,))
        check_contents(block)
        with self._mutex:
            if self._arrivals or self._judging.locked() or self._writing.locked() or self._forming:
                raise Conflict(f"channel {self.channel} is being appended to")
            if record.header.channel != self.channel:
                raise Conflict(f"block of channel {record.header.channel}, not {self.channel}")
            if record.height < self.head.height:
                ours = parse_record(self._index.lines_of(record.height, None)[0])
                fork = find_fork(ours, record)
                if fork is None:
                    return
                if self._keep_evidence is not None:
                    self._keep_evidence(
                        f"fork-{record.height}-{record.hash.hex()[:16]}.json", fork.to_bytes()
                    )
                raise fork.error()
            below = (
                parse_record(self._index.lines_of(self.head.height - 1, None)[0])
                if self.head.height
                else None
            )
            check_link(below.header if below else None, record.header)
            envelopes = self._judge_sealed(block)
            place = self._blocks.append(block.height, block.lines())
            self._blocks.sync()
            self._take_in(envelopes, block, place)

    def _judge_sealed(self, block: Block) -> list[Envelope]:
        """The envelopes of a block sealed elsewhere, each judged as if it came to the door. Holds the mutex."""
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
                self._pending.add(envelope, Position(block.height, index), Ticket())
                self._asked = b"", None
                envelopes.append(envelope)
        finally:
            self._pending.clear()
            self._asked = b"", None
        return envelopes

    # --- what the rules ask (History) -------------------------------------------------------------------------------

    def position(self, envelope_id: bytes) -> Position | None:
        """Where an envelope stands, also in a block not yet sealed."""
        pending = self._pending.ids.get(envelope_id)
        return pending[0] if pending is not None else _position(self._index.position(envelope_id))

    def chain(self, envelope_id: bytes) -> tuple[str, ...] | None:
        """The causality chain of an envelope in the channel."""
        pending = self._pending.ids.get(envelope_id)
        if pending is not None:
            height, index = pending[0]
            for forming in (*self._sealing, *self._forming):
                if forming.height == height:
                    return forming.envelopes[index].causality_chain
        place = self._index.position(envelope_id)
        if place is None:
            return None
        value = jcs.parse(self._index.lines_of(*place)[1])
        assert isinstance(value, dict)
        chain = value.get("causality_chain", [])
        return tuple(str(each) for each in chain) if isinstance(chain, list) else ()

    def claim(self, event_class: str, correlation_id: str) -> Position | None:
        """Where the first envelope of a class with a correlation id stands."""
        key = claim_key(event_class, correlation_id)
        return self._pending.claims.get(key) or _position(self._index.claim(key))

    def intent(self, intent: bytes) -> Position | None:
        """Where the same statement stands."""
        if self._asked[0] != intent:  # asked twice for every envelope, by `_place` and by rule 8
            found = self._pending.intents.get(intent) or _position(self._index.intent(intent))
            self._asked = intent, found
        return self._asked[1]

    def leaves(self, root: bytes) -> int | None:
        """How many envelopes the block with that root has."""
        return self._index.leaves(root)

    # --- inside -----------------------------------------------------------------------------------------------------

    def _judge(self, arrivals: Sequence[tuple[bytes, Ticket]]) -> None:
        """Judge envelopes that came together; each is placed, or its ticket is settled at once."""
        read: list[tuple[Envelope, Ticket]] = []
        judged: list[tuple[Envelope, dict[int, Finding], Decision | None, Ticket]] = []
        try:
            for raw, ticket in arrivals:
                try:
                    envelope = parse_wire(raw)
                    self._check_time(envelope)
                    read.append((envelope, ticket))
                except RopewalkError as error:
                    ticket.settle(error)
            signatures = self._spread(check_signatures, [envelope for envelope, _ in read])
            for (envelope, ticket), signature in zip(read, signatures, strict=True):
                try:
                    judged.append((envelope, *judge_alone(envelope, self._context, signature), ticket))
                except RopewalkError as error:
                    ticket.settle(error)
            with self._mutex:
                for each in judged:
                    try:
                        self._place(*each)
                    except RopewalkError as error:
                        each[3].settle(error)
        except BaseException as error:
            for _, ticket in arrivals:
                if not ticket.settled and not ticket.placed:
                    ticket.settle(Unavailable(f"channel {self.channel}: {error!r}"))
            raise

    def _check_time(self, envelope: Envelope) -> None:
        ahead = envelope.timestamp_ns - self._now_ns()
        if ahead > self.limits.future_ns:
            raise InvalidEnvelope(
                f"timestamp {envelope.timestamp} is {ahead // 10**9} s in the future; "
                f"at most {self.limits.future_ns // 10**9} s are allowed",
                where="/timestamp",
                advice="Set the author's clock, then sign again.",
            )

    def _place(
        self, envelope: Envelope, alone: dict[int, Finding], decision: Decision | None, ticket: Ticket
    ) -> None:
        """Judge what depends on the channel and put the envelope into the forming block. Holds the mutex."""
        known = self._pending.ids.get(envelope.id)
        if known is not None:
            known[1].twins.append(ticket)
            ticket.placed = True
            return
        # The id covers what was signed: where the statement is new, so is the envelope.
        stands = self._index.position(envelope.id) if self.intent(envelope.intent) is not None else None
        if stands is not None:
            ticket.settle(Receipt(envelope.id, *stands, self._index.block_hash(stands[0]), replayed=True))
            return
        judge_in_place(envelope, self._context, alone, decision).require()
        forming = self._forming[-1] if self._forming else None
        if forming is None or not self._fits(forming, envelope):
            last = self._forming or self._sealing
            forming = Forming(last[-1].height + 1 if last else self.head.height)
            self._forming.append(forming)
            self._full.notify()
        place = Position(forming.height, len(forming.envelopes))
        forming.envelopes.append(envelope)
        forming.tickets.append(ticket)
        ticket.placed = True
        forming.size += len(envelope.raw)
        self._pending.add(envelope, place, ticket)
        self._asked = b"", None

    def _fits(self, forming: Forming, envelope: Envelope) -> bool:
        return (
            len(forming.envelopes) < self.limits.block_envelopes
            and forming.size + len(envelope.raw) <= self.limits.block_bytes
        )

    def _serve(self, ticket: Ticket) -> None:
        """Do what falls to this thread until its ticket is settled."""
        try:
            while not ticket.settled:
                if self._forming and self._writing.acquire(blocking=False):
                    try:
                        self._call_judge(ticket)
                        self._write_forming()
                    finally:
                        self._writing.release()
                elif self._arrivals and self._judging.acquire(blocking=False):
                    try:
                        self._judge_arrivals(ticket)
                    finally:
                        self._judging.release()
                else:
                    ticket.wait()
        finally:
            # Also if this thread was interrupted: nobody is to be called here any more.
            ticket.awaited = False
            self._call_judge(ticket)
            self._call_writer(ticket)

    def _judge_arrivals(self, own: Ticket) -> None:
        """Judge what has arrived, a part at a time, until nothing is left or this thread may go."""
        while self._arrivals and not own.settled:
            batch = [self._arrivals.popleft() for _ in range(min(BATCH_MAX, len(self._arrivals)))]
            self._judge(batch)
            if self._arrivals:
                self._call_writer(own)

    def _call_judge(self, own: Ticket) -> None:
        """Wake a sleeper if something waits to be judged and nobody is at it."""
        if self._arrivals and not self._judging.locked():
            for number in range(len(self._arrivals)):  # by number: it may grow and shrink meanwhile
                try:
                    ticket = self._arrivals[number][1]
                except IndexError:
                    return
                if _call(own, ticket):
                    return

    def _call_writer(self, own: Ticket) -> None:
        """Wake a sleeper if something waits to be written and nobody is at it."""
        if self._forming and not self._writing.locked():
            with self._mutex:
                any(_call(own, ticket) for ticket in _placed(self._forming))

    def _write_forming(self) -> None:
        """Seal and write what was placed, give out the receipts, then let the next in line write."""
        with self._mutex:
            if self.limits.linger_s:
                self._full.wait_for(lambda: len(self._forming) > 1, self.limits.linger_s)
            self._sealing, self._forming = self._forming, []
        written: list[tuple[Forming, Block, Any]] = []
        error: RopewalkError | None = None
        try:
            error = self._write(written)
        except RopewalkError as caught:
            written, error = [], caught
        except BaseException as caught:
            written, error = [], Unavailable(f"channel {self.channel}: {caught!r}")
            raise
        finally:
            with self._mutex:
                self._publish(written, error)

    def _write(self, written: list[tuple[Forming, Block, Any]]) -> RopewalkError | None:
        """Seal, append and sync; what could be appended before an error is still made durable."""
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
        """Index, move the head, settle tickets. Holds the mutex."""
        self._asked = b"", None
        for forming, block, place in written:
            self._take_in(forming.envelopes, block, place)
            for index, ticket in enumerate(forming.tickets):
                ticket.settle(Receipt(forming.envelopes[index].id, block.height, index, block.hash))
        if error is not None:
            # What was placed meanwhile was judged as if the blocks below it stood: it falls with them.
            fallen = self._sealing[len(written) :] + self._forming
            self._sealing = self._forming = []
            self._pending.clear()
            for forming in fallen:
                for ticket in forming.tickets:
                    ticket.settle(error)
        else:
            for forming in self._sealing:
                self._pending.drop(forming.envelopes)
            self._sealing = []

    def _take_in(self, envelopes: Sequence[Envelope], block: Block, place: Any) -> None:
        self._asked = b"", None
        self._index.add(place, [len(line) for line in block.lines()], marks_of(block.header, envelopes))
        self.head = Head(
            block.height + 1,
            block.hash,
            block.header.timestamp_ns,
            self.head.envelopes + len(block.envelopes),
        )


def _call(own: Ticket, ticket: Ticket) -> bool:
    """Wake the thread of a ticket, if there is one and it is another."""
    if not ticket.awaited or ticket is own:
        return False
    ticket.wake()
    return True


def _placed(forming: Iterable[Forming]) -> Iterator[Ticket]:
    """Tickets of the placed envelopes, each with those that wait for the same outcome."""
    for one in forming:
        for ticket in one.tickets:
            yield ticket
            yield from ticket.twins


def _position(place: tuple[int, int] | None) -> Position | None:
    return None if place is None else Position(*place)
