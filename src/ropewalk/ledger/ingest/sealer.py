"""Seal blocks: checked envelopes are placed in an open block, then sealed, written and indexed.

Only the leader of a round (`ingest.log`) runs this. It may be interrupted between any two steps, so the next leader
can tell what was done: it never builds on a block of unknown state, and no ticket is left unsettled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from ropewalk.errors import Conflict, Forked, RopewalkError, Unavailable, Unverified
from ropewalk.kernel import jcs
from ropewalk.kernel.keys import PublicKey, SigningKey
from ropewalk.ledger.block.block import Block, check_link, find_fork, parse_record, seal
from ropewalk.ledger.block.index_keys import index_keys_of
from ropewalk.ledger.envelope.envelope import parse_stored
from ropewalk.ledger.envelope.fields import format_timestamp
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.ingest.pending_history import PendingHistory
from ropewalk.ledger.ingest.ports import Head, WriterSetup
from ropewalk.ledger.ingest.ticket import EnvelopeTicket, LedgerReceipt, OpenBlock
from ropewalk.ledger.keys.history import KeyHistory, KeyProof
from ropewalk.ledger.keys.lifetimes import Lifetime, check_lifetimes
from ropewalk.ledger.keys.promotion import is_promotion
from ropewalk.ledger.keys.statement_check import check_approved, check_statement
from ropewalk.ledger.keys.statements import is_key_statement, parse_key_statement
from ropewalk.ledger.keys.validity import KeyValidity
from ropewalk.ledger.rules.rules import judge
from ropewalk.ledger.rules.verdict import Context, Position, RuleFinding

FENCE: Final = "promotion.json"  # in the evidence of a copy that another one has replaced as writer
STOPPED: Final = "was interrupted while a block was written"
Written = tuple[OpenBlock, Block, Any]


class BlockSealer:
    """The blocks of one channel that are not yet durable, and its head. Settled tickets go to `settled_queue`."""

    def __init__(self, setup: WriterSetup, settled_queue: deque[EnvelopeTicket]) -> None:
        self.head, self.key_history = setup.head, setup.key_history
        self.policy = setup.key_history.policies.current
        self.history = PendingHistory(setup.index)
        self.ended: str | None = None  # the reason why no more envelopes are taken
        self._setup, self._settled_queue = setup, settled_queue
        self._keys = {key.public: key for key in setup.keys}
        self._validities: tuple[KeyValidity, tuple[Lifetime, ...]] | None = None
        self._channel, self._blocks, self._index = setup.channel, setup.blocks, setup.index
        self._now_ns, self._limits = setup.now_ns, setup.limits
        self._open_blocks: list[OpenBlock] = []
        self._writing: list[OpenBlock] = []
        self._unknown = False  # whether blocks may have been written that the index and the head do not have

    @property
    def open_block(self) -> int:
        """The number of blocks that take envelopes or wait to be sealed."""
        return len(self._open_blocks)

    def waiting(self) -> Iterator[EnvelopeTicket]:
        """Yield the tickets of placed envelopes in order."""
        for open_block in self._open_blocks:
            yield from open_block.waiting()

    def check_open(self) -> None:
        if self.ended is not None:
            raise Unavailable(f"channel {self._channel} {self.ended}", advice="Open the channel again.")

    def refusal(self, error: BaseException) -> RopewalkError:
        """Return the error to deliver to all waiting submitters."""
        return (
            error if isinstance(error, RopewalkError) else Unavailable(f"channel {self._channel}: {error!r}")
        )

    # --- placing ----------------------------------------------------------------------------------------------------

    def place(
        self, envelope: Envelope, signature: RuleFinding, context: Context, ticket: EnvelopeTicket
    ) -> None:
        """Put an envelope into the open block if it is new and passes the rules."""
        duplicate = self.history.pending(envelope.id)
        if duplicate is not None and not duplicate.settled:
            duplicate.duplicates.append(ticket)
            ticket.placed = True
            return
        stored_at = self.history.stored_at(envelope)
        if stored_at is not None:
            ticket.settle(
                LedgerReceipt(envelope.id, *stored_at, self._index.block_hash(stored_at[0]), replayed=True)
            )
            return
        open_block = self._open_blocks[-1] if self._open_blocks else None
        alone = is_key_statement(envelope)
        if alone:
            self._check_statement(envelope)
            # the policy binds authors; the key history has checked this statement
            context = replace(context, policy=None)
        elif self.key_history.revoked:
            self.key_history.check_author(envelope, self.head.height, self._now_ns())
        try:
            verdict = judge(envelope, context, signature)
            verdict.require()
        except RopewalkError:
            raise
        except Exception as error:
            # A defect of ours, or of an evidence verifier, fails this envelope only.
            raise self.refusal(error) from error
        if verdict.decision is not None:
            ticket.audit = verdict.decision.audits
        begun = open_block is not None and not alone and self._fits(open_block, envelope)
        if open_block is None or not begun:
            height = open_block.height + 1 if open_block is not None else self.head.height
            if self._setup.witness_gate is not None:
                self._setup.witness_gate(height)
            open_block = OpenBlock(height, alone=alone)
        # In this order an interrupted thread leaves no empty block and no unsettled ticket.
        self.history.add(envelope, Position(open_block.height, len(open_block.envelopes)), ticket)
        open_block.add(envelope, ticket)
        if not begun:
            self._open_blocks.append(open_block)
        ticket.placed = True

    def _fits(self, open_block: OpenBlock, envelope: Envelope) -> bool:
        return (
            not open_block.alone
            and len(open_block.envelopes) < self._limits.block_envelopes
            and open_block.size + len(envelope.raw) <= self._limits.block_bytes
        )

    # --- keys -------------------------------------------------------------------------------------------------------

    def check_key_lifetimes(self, now_ns: int) -> None:
        """Raise if the policy has ended, or the lifetime it gives to the key."""
        if self.policy is None:
            return
        current = self.key_history.current
        if self._validities is None or self._validities[0] is not current:
            self._validities = current, self._lifetimes(current.since_ns)
        if self._validities[1]:
            check_lifetimes(self._validities[1], now_ns)

    def _lifetimes(self, since_ns: int) -> tuple[Lifetime, ...]:
        """Return the lifetimes by the policy; the first key is as old as the channel."""
        assert self.policy is not None
        first_ns = self._now_ns()
        if self.head.height:
            first_ns = parse_record(self._index.lines_of(0, None)[0]).header.timestamp_ns
        return self.policy.lifetimes(since_ns or first_ns)

    def _check_statement(self, envelope: Envelope) -> None:
        """Raise unless a key statement is valid now and no other one is pending."""
        if any(each.alone for each in self._open_blocks):
            raise Conflict(
                f"channel {self._channel}: another key statement is being written",
                advice="Check `ropewalk ledger key ls`, then try again.",
            )
        # If none of our keys signed it, the key history raises with the reason.
        sealer = envelope.public_key if envelope.public_key in self._keys else self.key_history.current.key
        check_statement(self.key_history, envelope, sealer, self._channel, self.policy)

    def _signing_key(self, open_block: OpenBlock, timestamp_ns: int) -> SigningKey:
        """Return our newest key that is valid now; a key statement is sealed by its own signer."""
        newest = self.key_history.current
        if (
            not open_block.alone
            and newest.key in self._keys
            and newest.is_valid(open_block.height, timestamp_ns)
        ):
            return self._keys[newest.key]
        validities = [
            validity
            for validity in reversed(self.key_history.validities)
            if validity.is_valid(open_block.height, timestamp_ns)
        ]
        if open_block.alone:
            validities = [
                validity for validity in validities if validity.key == open_block.envelopes[0].public_key
            ]
        for validity in validities:
            if validity.key in self._keys:
                return self._keys[validity.key]
        raise no_key(self._channel, self.key_history, timestamp_ns)

    # --- writing ----------------------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Close the channel if the previous leader was interrupted while writing: the stored state is unknown."""
        if self._unknown:
            self.ended = STOPPED
            self._discard_pending(Unavailable(f"channel {self._channel} {STOPPED}"))
            self._unknown = False

    def write(self, *, more: bool) -> None:
        """Seal and write the placed envelopes and deliver receipts, or the error.

        With `more` to come, the last block is not full and stays open.
        """
        written: list[Written] = []
        error: RopewalkError | None = None
        full = len(self._open_blocks) - more
        if full > 1:  # what follows a key statement may need another key
            full = next(
                (number for number, each in enumerate(self._open_blocks[:full], 1) if each.alone), full
            )
        self._unknown = True  # from here on, an interruption leaves work for the next leader's `recover`
        self._writing, self._open_blocks = self._open_blocks[:full], self._open_blocks[full:]
        try:
            error = self._write(written)
        except BaseException as caught:
            error = self.refusal(caught)
            if error is not caught:
                written = self._synced(written)
                raise
            written = []
        finally:
            self._publish(written, error)

    def _write(self, written: list[Written]) -> RopewalkError | None:
        """Seal, append and sync; blocks appended before an error are still made durable."""
        if self._writing:
            self.check_open()
        below, earliest = self.head.block_hash, self.head.timestamp_ns
        error: RopewalkError | None = None
        for open_block in self._writing:
            timestamp_ns = max(self._now_ns(), earliest)
            try:
                if open_block.alone:
                    self._setup.note(open_block.height)
                block = seal(
                    self._signing_key(open_block, timestamp_ns),
                    channel=self._channel,
                    height=open_block.height,
                    prev_block_hash=below,
                    envelopes=[envelope.raw for envelope in open_block.envelopes],
                    timestamp_ns=timestamp_ns,
                    policy_hash=self.policy_hash,
                    leaves=[envelope.id for envelope in open_block.envelopes],
                    prove=self._setup.prove_batch,
                )
                place = self._blocks.append(
                    block.height, block.lines(), block.hash, statement=open_block.alone
                )
            except RopewalkError as caught:
                error = caught
                break
            written.append((open_block, block, place))
            below, earliest = block.hash, block.header.timestamp_ns
        if written:
            self._blocks.sync()
        return error

    def _synced(self, written: list[Written]) -> list[Written]:
        """Sync blocks appended before an interruption, for the next block follows them; return none if it fails."""
        try:
            self._blocks.sync()
        except BaseException:
            return []
        return written

    def _publish(self, written: list[Written], error: RopewalkError | None) -> None:
        """Index the blocks, move the head and settle the tickets; leave no ticket unsettled."""
        try:
            try:
                for open_block, block, place in written:
                    self._index_block(open_block.envelopes, block, place)
                self._unknown = False
            except BaseException:  # the block is on disk; opening the channel again finds it
                self.ended = STOPPED
                raise
            for open_block, block, _ in written:
                for index, ticket in enumerate(open_block.tickets):
                    receipt = LedgerReceipt(
                        open_block.envelopes[index].id, block.height, index, block.hash, audit=ticket.audit
                    )
                    ticket.settle(receipt, self._settled_queue)
        except BaseException as caught:
            error = self.refusal(caught)
            raise
        finally:
            self._discard_pending(error)

    def _discard_pending(self, error: RopewalkError | None) -> None:
        """Drop pending state; after an error, fail every envelope without a receipt."""
        if error is not None:
            # Envelopes placed meanwhile were checked against the failed blocks: fail them too.
            fallen = [
                ticket for open_block in self._writing + self._open_blocks for ticket in open_block.waiting()
            ]
            self._writing = self._open_blocks = []
            self.history.clear()
            for ticket in fallen:
                if not ticket.settled:
                    ticket.settle(error, self._settled_queue)
        else:
            if self._open_blocks:
                for open_block in self._writing:
                    self.history.drop(open_block.envelopes)
            else:
                self.history.clear()
            self._writing = []

    def _index_block(self, envelopes: Sequence[Envelope], block: Block, place: Any) -> None:
        self._index.add(place, [len(line) for line in block.lines()], index_keys_of(block.header, envelopes))
        if self.key_history.take(block):
            self.policy = self.key_history.policies.current or self.policy
            self._validities = None
        self.head = Head(
            block.height + 1,
            block.hash,
            block.header.timestamp_ns,
            self.head.envelopes + len(block.envelopes),
        )

    # --- blocks sealed by other processes --------------------------------------------------------------------------

    def insert(self, block: Block, context: Context) -> None:
        """Insert a block sealed by another process, if it is the next one. A fork is stored and rejected."""
        record = block.record
        if record.header.channel != self._channel:
            raise Conflict(f"block of channel {record.header.channel}, not {self._channel}")
        statement = KeyProof.of(block)
        promotion = statement if statement is not None and is_promotion(statement.envelope) else None
        if record.height < self.head.height:
            ours = parse_record(self._index.lines_of(record.height, None)[0])
            fork = find_fork(ours, record)
            if fork is None:
                return
            if promotion is not None:  # without approvals it is no evidence of anything
                said = parse_key_statement(promotion.envelope)
                check_approved(self.key_history, said, promotion.envelope, record)
            keep = self._setup.keep_evidence
            keep(f"fork-{record.height}-{record.hash.hex()[:16]}.json", fork.to_bytes())
            if promotion is not None and said.act.epoch > self.key_history.epoch:
                keep(FENCE, jcs.encode(promotion.to_json()))
                raise fenced(self._channel, promotion)
            raise fork.error()
        below = (
            parse_record(self._index.lines_of(self.head.height - 1, None)[0]) if self.head.height else None
        )
        check_link(below.header if below else None, record.header)
        if record.header.policy_hash != self.policy_hash:
            raise Unverified(
                f"block {block.height}: policy_hash must be that of this channel's policy",
                height=block.height,
            )
        if statement is not None:
            check_statement(
                self.key_history, statement.envelope, record.signer, self._channel, self.policy, record
            )
            self._setup.note(block.height)
            context = replace(context, policy=None)
        envelopes = self._judged(block, context)
        self._unknown = True
        try:
            place = self._blocks.append(
                block.height, block.lines(), block.hash, statement=statement is not None
            )
            self._blocks.sync()
        except RopewalkError:
            self._unknown = False
            raise
        self._index_block(envelopes, block, place)
        self._unknown = False

    def _judged(self, block: Block, context: Context) -> list[Envelope]:
        """Return the envelopes of a block from another process, each checked by the rules of ingest."""
        envelopes = []
        try:
            for index, raw in enumerate(block.envelopes):
                envelope = parse_stored(raw)
                judge(envelope, context).require()
                self.history.add(envelope, Position(block.height, index), EnvelopeTicket())
                envelopes.append(envelope)
        finally:
            self.history.clear()
        return envelopes

    @property
    def policy_hash(self) -> bytes | None:
        """The hash of the policy in force for the next block."""
        return self.policy.hash if self.policy is not None else None


def foreign_channel(channel: str, sealer: PublicKey) -> Conflict:
    """Return the error for a channel none of whose keys is available here, as in a replica."""
    return Conflict(
        f"no available key may sign channel {channel}; it is signed by {sealer.did()}",
        channel=channel,
        advice="Work in the repository that has its key. Update a replica with `ropewalk ledger pull`; "
        "`ropewalk ledger send` appends to its origin.",
    )


def fenced(channel: str, promotion: KeyProof) -> Forked:
    """Return the error for a copy that went on after another one was promoted."""
    act = parse_key_statement(promotion.envelope).act
    assert act.new_key is not None
    return Forked(
        f"channel {channel} has another writer, {act.new_key.did()}: it was promoted in epoch {act.epoch} at block "
        f"{act.height}, on {act.since}; block {act.height} and later ones here are not part of the channel",
        height=act.height,
        advice="Nothing can be sealed here. `ropewalk ledger pull --forks longest` takes the promoted history and puts "
        "this one aside; append lost envelopes again with `ropewalk ledger send`.",
    )


def no_key(channel: str, key_history: KeyHistory, at_ns: int) -> Conflict:
    """Return the error for a channel none of whose available keys is valid now."""
    current = key_history.current
    since = f" since {format_timestamp(current.since_ns)}" if current.since_ns else ""
    since += f", promoted in epoch {key_history.epoch}" if key_history.epoch else ""
    return Conflict(
        f"channel {channel} is signed by {current.key.did()}{since}; no available key is valid on "
        f"{format_timestamp(at_ns)}",
        channel=channel,
        advice="Open it with the valid key: `ropewalk ledger key ls --channel C` names it.",
    )
