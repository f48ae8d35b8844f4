"""Ingest: envelopes in, sealed blocks out, a receipt when the block is on disk.

Submitters share rounds by group commit (`kernel.group_commit`). A round checks the submitted envelopes in batches,
writes them with one sync, and delivers the receipts. Envelopes that arrive meanwhile go into the next round, so blocks
grow under load. A submitter waits for others only if `linger_s` is set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from ropewalk.errors import InvalidEnvelope, RopewalkError
from ropewalk.kernel.group_commit import GroupCommit
from ropewalk.kernel.report import Status
from ropewalk.ledger.block.block import Block, check_contents
from ropewalk.ledger.envelope.envelope import parse_wire, recast_run
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.ingest.pending_history import PendingHistory
from ropewalk.ledger.ingest.ports import Head, IngestLimits, WriterSetup
from ropewalk.ledger.ingest.sealer import BlockSealer
from ropewalk.ledger.ingest.ticket import EnvelopeTicket, LedgerReceipt
from ropewalk.ledger.keys.history import KeyHistory, KeyProof
from ropewalk.ledger.keys.promotion import is_promotion
from ropewalk.ledger.keys.statements import is_key_statement
from ropewalk.ledger.rules.policy import Policy
from ropewalk.ledger.rules.rules import ParallelMap, check_signatures
from ropewalk.ledger.rules.verdict import Context

BATCH_MAX: Final = 256  # envelopes of a long list that are parsed before the first is placed


class ChannelWriter:
    """One channel open for writing."""

    def __init__(
        self,
        setup: WriterSetup,
        *,
        supported_minors: Callable[[], frozenset[str]],
        evidence: Callable[[Envelope], tuple[Status, str]] | None,
        parallel_map: ParallelMap,
    ) -> None:
        self.channel, self.limits = setup.channel, setup.limits
        self._now_ns, self._parallel_map = setup.now_ns, parallel_map
        # its leader has the use of everything below
        self._commit: GroupCommit[EnvelopeTicket] = GroupCommit(
            f"channel {self.channel}", self._write_round, placed=lambda: self._sealer.waiting()
        )
        self._sealer = BlockSealer(setup, self._commit.settled)
        self._minors = supported_minors
        self._context = Context(self.history, self.policy, self._minors(), evidence=evidence)

    @property
    def head(self) -> Head:
        """The head: everything with a receipt is below it."""
        return self._sealer.head

    @property
    def policy(self) -> Policy | None:
        """The policy in force."""
        return self._sealer.policy

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
        (ticket,) = self._submit((raw,))
        return ticket.result()

    def submit_many(self, raws: Iterable[bytes]) -> list[LedgerReceipt | RopewalkError]:
        """Submit in order from one thread, sharing blocks and syncs; errors are returned in place of receipts."""
        return [ticket.outcome for ticket in self._submit(raws)]

    def _submit(self, raws: Iterable[bytes]) -> list[EnvelopeTicket]:
        tickets = [EnvelopeTicket(check_wire(raw)) for raw in raws]
        self._sealer.check_open()
        self._commit.submit(tickets)
        return tickets

    def insert(self, block: Block) -> None:
        """Insert a block sealed by another process with this channel's key, verified and linked. A fork is stored and
        rejected.
        """
        statement = KeyProof.of(block)
        if statement is None or not is_promotion(statement.envelope):  # the sealer looks at a promotion
            self._sealer.key_history.check(block.record)
        check_contents(block)
        with self._commit.exclusive():
            self._sealer.recover()
            self._sealer.check_open()
            if self._sealer.open_block:
                raise self._commit.busy()
            self._commit.check_idle()
            # A sealed block was accepted by its writer's version gate; a copy reads every version it knows.
            known = Context().supported_minors
            context = replace(
                self._context,
                policy=self.policy,
                policy_hash=self._sealer.policy_hash,
                sealed=True,
                supported_minors=known,
            )
            self._sealer.insert(block, context)

    def end(self) -> None:
        """Stop taking envelopes because the store is about to be closed. Finish a running round first."""
        self._sealer.ended = "was closed"
        self._commit.finish()

    def abandon_after_fork(self) -> None:
        """Close it in a forked child: leader and waiters are threads of the parent and never return here."""
        self._sealer.ended = "was closed"
        self._commit.reset_after_fork()

    # --- inside -----------------------------------------------------------------------------------------------------

    def _judge(self, arrivals: Sequence[EnvelopeTicket]) -> None:
        """Check envelopes of one batch; place each one or settle its ticket with the error."""
        read: list[tuple[Envelope, EnvelopeTicket]] = []
        try:
            self._sealer.check_open()
            context = self._current_context()
            now_ns = self._now_ns()
            ended = self._lifetime_error(now_ns) if self.policy is not None else None
            run = recast_run([ticket.item for ticket in arrivals])
            for ticket, known in zip(arrivals, run, strict=True):
                if ticket.abandoned:
                    continue
                try:
                    envelope = parse_wire(ticket.item) if known is None else known
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

    def _refuse(self, arrivals: Sequence[EnvelopeTicket], error: BaseException) -> None:
        refusal = self._sealer.refusal(error)
        for ticket in arrivals:
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
        """Return the current context; supported versions and the policy may change while a channel is open."""
        minors = self._minors()
        if minors != self._context.supported_minors or self._context.policy is not self.policy:
            self._context = replace(self._context, supported_minors=minors, policy=self.policy)
        return self._context

    def _write_round(self) -> None:
        """Check what has arrived, up to one full block, and write it."""
        more = False
        try:
            self._sealer.recover()
            if self.limits.linger_s:
                self._commit.linger(self._fill, self.limits.linger_s)
            more = self._fill() and bool(self._commit.arrivals)
        finally:  # after an error, what was placed before is still written
            self._sealer.write(more=more)

    def _fill(self) -> bool:
        """Check what has arrived, in batches; return whether it filled a block and began another."""
        arrivals = self._commit.arrivals
        while arrivals and self._sealer.open_block < 2:
            batch: list[EnvelopeTicket] = []
            try:
                for _ in range(min(BATCH_MAX, len(arrivals))):
                    self._commit.take(batch)
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
