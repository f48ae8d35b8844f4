"""A ledger channel in a folder: segments, index, settings and writer.

<home>/ledger/<channel>/channel.json    its signer and policy: `settings`
<home>/ledger/<channel>/policy.json     the policy itself, if there is one
<home>/ledger/<channel>/evidence.json   roots, keys and builders that evidence must lead to, if it is checked
<home>/ledger/<channel>/keys.json       heights of key statements, if there are any
<home>/ledger/<channel>/witnesses.json  witnesses of its heads, if any are set
<home>/ledger/<channel>/segments/…      the blocks
<home>/ledger/<channel>/evidence/…      both sides of every known fork
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ropewalk.disk.closing import Closing
from ropewalk.disk.durable import Disk
from ropewalk.errors import Damaged, InvalidDigest, NotFound, RangeExceeded, Unavailable, Unverified
from ropewalk.kernel import merkle
from ropewalk.kernel.keys import SigningKey
from ropewalk.kernel.report import Report
from ropewalk.ledger.block.block import Block, Header, parse_record
from ropewalk.ledger.channel.guards import channel_evidence, check_fence, evidence_fault
from ropewalk.ledger.channel.index.index import LedgerIndex
from ropewalk.ledger.channel.key_heights import note_height, read_heights
from ropewalk.ledger.channel.losses import KnownHead, note_known, read_known
from ropewalk.ledger.channel.receipted import ReceiptMark, read_mark, repair_advice
from ropewalk.ledger.channel.segments.format import TornTail
from ropewalk.ledger.channel.segments.reader import Segments
from ropewalk.ledger.channel.segments.writer import SegmentWriter
from ropewalk.ledger.channel.settings import FOLDER, read_settings, write_file
from ropewalk.ledger.channel.verify import Watch, check_lines
from ropewalk.ledger.channel.witnessed import witness_gate
from ropewalk.ledger.envelope.envelope import parse_stored, parse_wire
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.ingest.log import ChannelWriter, check_time
from ropewalk.ledger.ingest.ports import Head, IngestLimits, WriterSetup
from ropewalk.ledger.ingest.sealer import foreign_channel, no_key
from ropewalk.ledger.ingest.thread_pool import ThreadPool
from ropewalk.ledger.keys.history import KeyHistory, KeyProof
from ropewalk.ledger.keys.statements import is_key_statement
from ropewalk.ledger.proof.proof import Consistency, Proof, RangeStatement
from ropewalk.ledger.proof.trust import Trust
from ropewalk.ledger.proof.verify import SeenEnvelopes
from ropewalk.ledger.rules.policy import Policy
from ropewalk.ledger.rules.rules import judge
from ropewalk.ledger.rules.verdict import Context
from ropewalk.ledger.versions.lifecycle import VersionGate, open_minors

_journal = logging.getLogger(__name__)


def check_first(home: Path, raw: bytes) -> None:
    """Raise if an envelope cannot be the first of a channel without a policy, so that none is created."""
    envelope, now = parse_wire(raw), time.time_ns()
    check_time(envelope, now, IngestLimits())
    judge(envelope, Context(SeenEnvelopes(), supported_minors=open_minors(home, None, now))).require()


class Channel(Closing):
    """One channel, for reading: blocks, envelopes, proofs. Close it, or use it in a `with`."""

    def __init__(self, home: Path, channel: str) -> None:
        self.settings = read_settings(home, channel)
        self.folder = home / FOLDER / channel
        self.segments = Segments(self.folder)
        self._index: LedgerIndex | None = None

    @property
    def index(self) -> LedgerIndex:
        """The index, brought up to date with the log when first read."""
        if self._index is None:
            self._index = LedgerIndex(self.segments)
            self._index.catch_up()
        return self._index

    def head(self) -> Head:
        state = self.index.state
        return Head(state.height, state.block_hash, state.timestamp_ns, state.envelopes)

    def lines(self, start: int = 0, end: int | None = None) -> Iterator[tuple[int, list[bytes]]]:
        """Yield heights and stored lines from `start` to `end`, inclusive; read from the log, without the index."""
        if end is not None and end < start:
            return
        if start == 0:
            records = self.segments.scan()
        else:
            first = self.segments.find(start)
            yield first.height, first.lines
            records = self.segments.scan(first.place, start + 1)
        for record in records:
            if end is not None and record.height > end:
                return
            yield record.height, record.lines
            if record.height == end:
                return

    def blocks(self, start: int = 0, end: int | None = None) -> Iterator[Block]:
        """Yield blocks from `start` to `end`, inclusive, parsed but not verified."""
        for _, lines in self.lines(start, end):
            yield Block.from_lines(lines)

    def envelope(self, envelope_id: bytes) -> Envelope:
        """Return one envelope by its id, which is checked."""
        return self.prove(envelope_id).envelope

    def prove(self, envelope_id: bytes) -> Proof:
        if not isinstance(envelope_id, bytes) or len(envelope_id) != 32:
            raise InvalidDigest(
                f"an envelope id must be 32 bytes, got {envelope_id!r:.80}", advice="Pass `envelope.id`."
            )
        place = self.index.position(envelope_id)
        if place is None:
            raise NotFound(
                f"no envelope {envelope_id.hex()} in {self.settings.channel}", id=envelope_id.hex()
            )
        height, leaf = place
        entry = self.index.block(height)
        envelope = parse_stored(self.index.line(entry, leaf + 1))
        if envelope.id != envelope_id:
            raise Damaged(
                f"channel {self.settings.channel}, block {height}: envelope {leaf} is not the one indexed",
                height=height,
            )
        record = parse_record(self.index.line(entry, 0))
        return Proof(envelope, leaf, entry.path(leaf), record, height, envelope.hex_id, self.key_proofs())

    def prove_range(self, start: int, end: int) -> RangeStatement:
        """Prove that the blocks from `start` to `end`, inclusive, follow one another under the outer root."""
        size = self.index.state.height
        self.check_last()
        tree = merkle.MerkleTree((hash_ for hash_, _ in self.index.tree_leaves(0, size)), merkle.RANGE)
        proof = tree.range(start, end + 1)
        hashes = tuple(tree.leaf(height) for height in range(start, end + 1))
        return RangeStatement(self.settings.channel, start, size, hashes, proof, tree.root())

    def prove_consistency(self, old: int, new: int) -> Consistency:
        """Prove that the channel at `new` blocks extends the channel at `old` blocks."""
        self.check_last()
        tree = merkle.MerkleTree((hash_ for hash_, _ in self.index.tree_leaves(0, new)), merkle.RANGE)
        return Consistency(
            self.settings.channel, old, new, tree.root(old), tree.root(new), tree.consistency(old, new)
        )

    def key_history(self) -> KeyHistory:
        """Return the keys of the channel: the signer of its first block, and all key statements since."""
        key_history = KeyHistory(self.settings.trust(), policy=self.settings.policy)
        key_history.follow(self.key_proofs())
        return key_history

    @property
    def policy(self) -> Policy | None:
        """The policy in force for the next block: that of the settings, or the one of the last rotation."""
        return self.key_history().policies.current

    def key_proofs(self) -> tuple[KeyProof, ...]:
        """Return the key statements, each with its block; not verified.

        Raise `Damaged` if `keys.json` lacks a statement: without it a replaced key would be valid again.
        """
        # Before the list: a height is listed before its block is written, and marked after.
        mark = self._mark()
        found = tuple(self.each_key_proof())
        if mark is not None and mark.statements is not None:
            written = (each for each in found if each.record.height < mark.blocks)
            count = sum(is_key_statement(each.envelope) for each in written)
            if count != mark.statements:
                raise Damaged(
                    f"channel {self.settings.channel}: keys.json names {count} blocks about keys, and "
                    f"{mark.statements} were written",
                    reason="keys",
                    advice="Make it again with `ropewalk ledger reindex`: the blocks hold all of it.",
                )
        return found

    def each_key_proof(self) -> Iterator[KeyProof]:
        """Yield the same one at a time, so that those before a damaged one can be read."""
        for height in read_heights(self.folder):
            with contextlib.suppress(NotFound, RangeExceeded):  # listed, but not written
                proof = KeyProof.of(Block.from_lines(self.segments.find(height).lines))
                if proof is not None:
                    yield proof

    def _mark(self) -> ReceiptMark | None:
        try:
            return read_mark(self.folder)
        except Damaged:
            return None  # the reader or writer of the blocks reports it

    def trust(self) -> Trust:
        """Return the trust that accepts this channel, with every key it had so far, each in its time."""
        trust, said = self.settings.trust(), self.key_proofs()
        key_history = KeyHistory(trust, policy=self.settings.policy)
        key_history.follow(said)
        key_history.channel = self.settings.channel
        keys = tuple(validity.key for validity in key_history.validities)
        # The end of a key applies above its own block only; a date in a file applies everywhere, so it is not earlier.
        times = {each.record.height: each.record.header.timestamp_ns for each in said}
        limits = {}
        for validity in key_history.validities:
            ends = [max(until_ns, times[height] + 1) for height, until_ns in validity.ends]
            if validity.since_ns or ends:
                limits[validity.key] = validity.since_ns, min(ends, default=None)
        return replace(trust, block_signers=keys, bundle_signers=keys, limits=limits, key_history=key_history)

    def header_head(self) -> tuple[int, bytes]:
        """Return size and root of the SHA-256 tree over the headers."""
        edge = merkle.Frontier.from_bytes(self.index.state.header_edge, merkle.SHA256)
        return edge.size, edge.root()

    def note_head(self, blocks: int, block_hash: bytes, source: str) -> None:
        """Record that a head was signed or archived: a log that ends below it is then an error.

        If the folder is not writable, nothing is recorded: its writer has the mark. A log of another channel raises.
        """
        self.check_last()
        with contextlib.suppress(OSError):
            note_known(self.folder, KnownHead(blocks, block_hash.hex(), source))

    def check_last(self) -> None:
        """Raise if the last block belongs to another channel."""
        if height := self.index.state.height:
            self.check_own(parse_record(self.index.lines_of(height - 1, None)[0]).header)

    def check_own(self, header: Header) -> None:
        """Raise if a stored block belongs to another channel: one key may seal several."""
        name = self.settings.channel
        if header.channel != name:
            raise Damaged(
                f'channel {name}: its blocks are of channel "{header.channel}"',
                height=header.height,
                reason="another channel",
                advice=repair_advice(name),
            )

    def close(self) -> None:
        if self._index is not None:
            self._index.close()
            self._index = None


class OpenLog(Closing):
    """A channel open for writing: `log` takes envelopes, `torn` is what a crash had left behind."""

    def __init__(
        self,
        channel: Channel,
        key: SigningKey,
        *,
        now_ns: Callable[[], int] = time.time_ns,
        limits: IngestLimits | None = None,
        wait_s: float = 0.0,
        disk: Disk | None = None,
        segment_bytes: int | None = None,
        also: Sequence[SigningKey] = (),
        prove_batch: Callable[[bytes], Any] | None = None,
    ) -> None:
        """Open the channel.

        `also` are further keys of the channel: a successor, or one that has not ended yet. `prove_batch` gets the
        merkle_root of each new block and returns the integrity_proof of its header, or None.
        """
        self.channel = channel
        # Checks that may raise come before resources that must be closed.
        gate = VersionGate(channel.folder.parent.parent, channel.policy, now_ns)
        witness = witness_gate(channel.folder)
        with contextlib.ExitStack() as opened:
            self.index = LedgerIndex(channel.segments)
            opened.callback(self.index.close)
            options: dict[str, Any] = {} if segment_bytes is None else {"segment_bytes": segment_bytes}
            state = self.index.state
            self.writer = SegmentWriter(
                channel.folder, after=state.place, height=state.height, wait_s=wait_s, disk=disk, **options
            )
            opened.callback(self.writer.close)
            self.index.catch_up(self.writer.found)
            self.torn: TornTail | None = self.writer.torn
            self.unindexed = ""  # why the index could not be written at the end
            state = self.index.state
            self._check_known()
            # Under the lock: no other process writes key statements meanwhile.
            key_history = channel.key_history()
            if self.writer.statements is None:
                self.writer.statements = sum(is_key_statement(each.envelope) for each in channel.key_proofs())
            self._check_keys((key, *also), key_history, max(now_ns(), state.timestamp_ns))
            evidence = channel_evidence(channel.folder, now_ns)
            opened.pop_all()  # from here on `close` closes them
        self._pool = ThreadPool()
        setup = WriterSetup(
            channel=channel.settings.channel,
            keys=(key, *also),
            blocks=self.writer,
            index=self.index,
            head=Head(state.height, state.block_hash, state.timestamp_ns, state.envelopes),
            key_history=key_history,
            now_ns=now_ns,
            limits=limits or IngestLimits(),
            keep_evidence=self._keep_evidence,
            note=lambda height: note_height(channel.folder, height),
            witness_gate=witness,
            prove_batch=prove_batch,
        )
        self.log = ChannelWriter(setup, supported_minors=gate, evidence=evidence, parallel_map=self._pool)
        _open_logs.add(self)

    def _check_known(self) -> None:
        """Raise unless the log is this channel's and has the head last signed or archived; its length was checked."""
        last = self.writer.last_header()
        if last is not None:
            self.channel.check_own(last)
        known = read_known(self.channel.folder)
        if known is not None and self.index.block_hash(known.blocks - 1).hex() != known.block_hash:
            name = self.channel.settings.channel
            raise Damaged(
                f"channel {name}: block {known.blocks - 1} is not the one that {known.source} was made of",
                height=known.blocks - 1,
                reason="another history",
                advice=repair_advice(name),
            )

    def _check_keys(self, keys: Sequence[SigningKey], key_history: KeyHistory, now_ns: int) -> None:
        """Raise unless one of the keys is valid now, and no other copy was promoted."""
        check_fence(self.channel)
        known = [validity for key in keys if (validity := key_history.validity(key.public)) is not None]
        if not known:
            raise foreign_channel(self.channel.settings.channel, key_history.current.key)
        if not any(validity.is_valid(self.index.state.height, now_ns) for validity in known):
            raise no_key(self.channel.settings.channel, key_history, now_ns)
        fault = evidence_fault(self.channel, key_history)
        if fault:
            raise Unverified(
                f"channel {self.channel.settings.channel}: {fault}",
                advice="Restore the file, or set the evidence again with `ropewalk ledger evidence set`.",
            )

    def _keep_evidence(self, name: str, raw: bytes) -> None:
        folder = self.channel.folder / "evidence"
        Disk().make_directories(folder)
        if not (folder / name).exists():
            write_file(folder / name, raw)

    def close(self) -> None:
        """Flush the index and release the lock.

        Sealed blocks are durable even if the index cannot be written; `unindexed` then has the reason.
        """
        self.log.end()
        self._pool.close()
        try:
            self._store_index()
        finally:
            self.writer.close()

    def _store_index(self) -> None:
        try:
            self.index.flush()
        except Unavailable as error:
            self.unindexed = error.detail
            _journal.info("%s; it is built again from the log when it is next used", error.detail)
        with contextlib.suppress(Unavailable):
            self.index.close()


class OpenReplica(OpenLog):
    """A replica open for blocks sealed by its origin. It seals none."""

    def __init__(self, channel: Channel, **options: Any) -> None:
        super().__init__(channel, SigningKey.generate("ed25519", os.urandom(32)), **options)

    def _check_keys(self, keys: Sequence[SigningKey], key_history: Any, now_ns: int) -> None:
        """Accept any keys: without a key of the channel no block can be sealed here."""


# Threads that lead or wait in a log are not in a forked child: close it there.
_open_logs: weakref.WeakSet[OpenLog] = weakref.WeakSet()


def _after_fork() -> None:
    for each in list(_open_logs):
        each.log.abandon_after_fork()


os.register_at_fork(after_in_child=_after_fork)


def open_channel(home: Path, channel: str) -> Channel:
    """Open a channel for reading."""
    return Channel(home, channel)


def current_policy(home: Path, channel: str) -> Policy | None:
    """Return the policy in force in a channel."""
    with Channel(home, channel) as reading:
        return reading.policy


def open_log(home: Path, channel: str, key: SigningKey, **options: Any) -> OpenLog:
    """Open a channel for writing; see `OpenLog`."""
    return OpenLog(Channel(home, channel), key, **options)


def verify_blocks(
    home: Path,
    channel: str,
    *,
    trust: Trust | None = None,
    deep: bool = False,
    watch: Watch | None = None,
) -> Report:
    """Check the stored blocks of a channel from the first one.

    `maintenance.verify_stored` also checks evidence and the index; commands use that.
    """
    reading = Channel(home, channel)
    return check_lines(reading.settings, reading.lines(), trust=trust, deep=deep, watch=watch)
