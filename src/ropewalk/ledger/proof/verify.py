"""Verify a channel block by block, in any number of parts.

`check_block` checks one block and returns a `BlockSpan`; `kernel.entry.join` joins adjacent spans and checks the links
between them, so a channel may be split anywhere and its parts checked anywhere. The first fault, by height, survives
every join: it names the block, the envelope and the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ropewalk.errors import BrokenLink, RopewalkError, Unverified
from ropewalk.kernel.entry import join
from ropewalk.kernel.report import Report, Step
from ropewalk.ledger.block.block import GENESIS, Block, Header, check_contents
from ropewalk.ledger.block.leaves import leaf_hashes, split_hashes
from ropewalk.ledger.envelope.envelope import parse_run, parse_stored
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.envelope.run import EnvelopeRun
from ropewalk.ledger.keys.history import KeyHistory, KeyProof
from ropewalk.ledger.keys.statements import is_key_statement
from ropewalk.ledger.proof.seen import SeenEnvelopes as SeenEnvelopes
from ropewalk.ledger.proof.trust import Trust
from ropewalk.ledger.rules.policy import Policy
from ropewalk.ledger.rules.rules import (
    ParallelMap,
    check_signatures,
    judge,
    map_serially,
    passes_by_template,
)
from ropewalk.ledger.rules.verdict import PASSED, Context, EnvelopeHistory, RuleFinding

PIECE_ENVELOPES: Final = 128
STEPS: Final = (
    "storage",
    "block_form",
    "block_hashes",
    "block_signatures",
    "links",
    "envelopes",
    "policy_hash",
)


@dataclass(frozen=True, slots=True)
class Fault:
    """The first fault: its block, its envelope, and the step that found it."""

    height: int
    step: str
    detail: str
    index: int | None = None


@dataclass(frozen=True, slots=True)
class BlockSpan:
    """A checked run of blocks: the hash below, the hash at its top, and its first fault."""

    channel: str = ""
    first: int = 0
    last: int = -1
    below: bytes = b""
    above: bytes = b""
    first_ns: int = 0
    last_ns: int = 0
    blocks: int = 0
    envelopes: int = 0
    unchecked: int = 0  # findings of rules that could not be checked
    fault: Fault | None = None
    audited: int = 0  # envelopes that a policy accepted under audit

    def __bool__(self) -> bool:
        return self.blocks > 0

    def joined(self, upper: BlockSpan) -> BlockSpan:
        """Join two spans; a gap, a broken link or a decreasing time becomes a fault of the upper one's first block."""
        return replace(
            self,
            last=upper.last,
            above=upper.above,
            last_ns=upper.last_ns,
            blocks=self.blocks + upper.blocks,
            envelopes=self.envelopes + upper.envelopes,
            unchecked=self.unchecked + upper.unchecked,
            fault=self.fault or _between(self, upper) or upper.fault,
            audited=self.audited + upper.audited,
        )


Found = tuple[int, Sequence[bytes]]
"""A height, and the lines stored for it."""


@dataclass(frozen=True, slots=True)
class BlockPart:
    """A part of one block during the checks, so that few envelopes are held at once.

    The last part closes the block.
    """

    span: BlockSpan
    header: Header | None = None
    first: int = 0
    envelopes: Sequence[Envelope] = ()
    fault: Fault | None = None  # fault in what follows these envelopes
    closes: bool = True


EnvelopeCallback = Callable[[Header, int, Sequence[Envelope]], None]
"""Receives envelopes of a block: its header, the index of the first, and the envelopes."""


def check_block(
    lines: Sequence[bytes],
    height: int,
    *,
    trust: Trust | None = None,
    policy: Policy | None = None,
    deep: bool = True,
    on_envelopes: EnvelopeCallback | None = None,
) -> BlockSpan:
    """Check one block: form, contents, signature, policy, and with `deep` each envelope by the rules that need no
    channel.

    `height` is the expected height; it names the fault if the block cannot be parsed. `on_envelopes` receives every
    envelope before it is checked, for later checks across blocks.

    One block does not show which keys came before: the trust has the key history (`Trust.key_history`), or names all
    keys.
    """
    span = BlockSpan()
    key_history = _key_history(trust, policy)
    for piece in _pieces((height, lines), trust, deep, key_history):
        if on_envelopes is not None and piece.header is not None and piece.envelopes:
            on_envelopes(piece.header, piece.first, piece.envelopes)
        span = _close(span, piece, policy, key_history=key_history)
        if span.fault is not None:
            break
    return span


def _key_history(trust: Trust | None, policy: Policy | None) -> KeyHistory:
    if trust is not None and trust.key_history is not None:
        return trust.key_history
    return KeyHistory(trust, policy=policy)


def _look(
    lines: Sequence[bytes], height: int, trust: Trust | None, key_history: KeyHistory
) -> tuple[BlockSpan, Block | None, bytes]:
    """Check a block without its envelopes."""
    span = BlockSpan(first=height, last=height, blocks=1, envelopes=max(0, len(lines) - 1))
    step = "block_form"
    try:
        block = Block.from_lines(lines)
        header = block.header
        span = BlockSpan(
            header.channel,
            header.height,
            header.height,
            header.prev_block_hash,
            header.hash,
            header.timestamp_ns,
            header.timestamp_ns,
            blocks=1,
            envelopes=len(block.envelopes),
        )
        if key_history.channel not in (None, header.channel):
            raise BrokenLink(
                f'block {height}: channel must be "{key_history.channel}", got "{header.channel}"'
            )
        step = "block_hashes"
        ids = leaf_hashes(block.envelopes)
        check_contents(block, ids)
        step = "block_signatures"
        key_history.check(block.record, KeyProof.of(block))
        listed = not key_history.complete or header.height in key_history.heights
        if key_history.take(block) and not listed:
            raise Unverified("it changes keys but is not in the list of key blocks")
    except RopewalkError as error:
        return replace(span, fault=Fault(height, step, error.detail)), None, b""
    pinned = trust.policy_hash if trust is not None else None
    if not key_history.policies.fits(header.height, header.policy_hash, pinned):
        fault = Fault(height, "policy_hash", f"block {height}: policy_hash must be the pinned one")
        return replace(span, fault=fault), None, b""
    return span, block, ids


def _pieces(found: Found, trust: Trust | None, deep: bool, key_history: KeyHistory) -> Iterator[BlockPart]:
    """Yield the block in parts; one part without envelopes if they are not to be checked."""
    height, lines = found
    span, block, packed = _look(lines, height, trust, key_history)
    if block is None or not deep:
        yield BlockPart(span, block.header if block is not None else None)
        return
    count, ids = len(block.envelopes), split_hashes(packed)
    for first in range(0, count, PIECE_ENVELOPES):
        last = min(first + PIECE_ENVELOPES, count)
        run = parse_run(block.envelopes[first:last], ids[first:last])
        envelopes: list[Envelope] = []
        fault: Fault | None = None
        try:
            for envelope in () if isinstance(run, EnvelopeRun) else run:
                envelopes.append(envelope)  # noqa: PERF402 — kept at a fault
        except RopewalkError as error:
            fault = _fault_in(height, first + len(envelopes), error)
        whole = run if isinstance(run, EnvelopeRun) else envelopes
        yield BlockPart(span, block.header, first, whole, fault, closes=last == count)
        if fault is not None:
            return


def _close(
    before: BlockSpan,
    piece: BlockPart,
    policy: Policy | None,
    seen: SeenEnvelopes | None = None,
    parallel_map: ParallelMap = map_serially,
    *,
    key_history: KeyHistory,
) -> BlockSpan:
    """Check the envelopes of a part, each alone and against the channel."""
    span, header, unchecked, audited = piece.span, piece.header, 0, 0
    if before and before.last == span.last:
        span = before  # further parts of the same block
    if piece.span.fault is not None or header is None:
        return piece.span
    policy = key_history.policies.find(header.policy_hash) or policy
    context = sealed_context(header, policy, piece.envelopes, seen)
    signatures = parallel_map(check_signatures, piece.envelopes)
    done = 0 if key_history.revoked else _pass_run(piece, signatures, context, seen)
    unchecked = 0 if context.history is not None else done  # rule 8 needs a channel
    usual, usual_unchecked = PASSED, 0  # findings that no rule failed, as almost all envelopes have the same
    rest = zip(piece.envelopes[done:], signatures[done:], strict=True)
    for index, (envelope, signature) in enumerate(rest, piece.first + done):
        verdict = judge(envelope, context, signature)
        if key_history.revoked:
            try:
                key_history.check_author(envelope, header.height, header.timestamp_ns)
            except RopewalkError as error:
                return replace(span, fault=_fault_in(header.height, index, error))
        if verdict.decision is None and verdict.findings == usual:
            unchecked += usual_unchecked
        else:
            try:
                verdict.require()
            except RopewalkError as error:
                return replace(span, fault=_fault_in(header.height, index, error))
            usual = verdict.findings
            usual_unchecked = sum(finding.status == "not_checked" for finding in usual)
            unchecked += usual_unchecked
            audited += verdict.decision is not None and verdict.decision.outcome == "audit"
        if seen is not None:
            seen.remember(envelope, header.height, index)
    if piece.fault is not None:
        return replace(span, fault=piece.fault)
    if seen is not None and piece.closes:
        seen.remember_root(header.merkle_root, header.envelope_count)
    if unchecked or audited:
        return replace(span, unchecked=span.unchecked + unchecked, audited=span.audited + audited)
    return span


def _pass_run(
    piece: BlockPart, signatures: Sequence[RuleFinding], context: Context, seen: SeenEnvelopes | None
) -> int:
    """Return how many envelopes at the front of a run surely pass, and remember them; the rest are judged one by one.

    Rule 8 asks whether the same statement was made before; correlation ids do not occur in a run.
    """
    run = piece.envelopes
    if not isinstance(run, EnvelopeRun) or signatures.count(PASSED[1]) != len(run) or piece.header is None:
        return 0
    if not all(passes_by_template(envelope, context) for envelope in run.one_of_each()):
        return 0
    if context.history is None:
        return len(run)
    if seen is None:
        return 0
    for done, (name, intent) in enumerate(zip(run.ids(), split_hashes(run.intents()), strict=True)):
        if seen.intent(intent) is not None:
            return done
        seen.remember_statement(name, intent, piece.header.height, piece.first + done)
    return len(run)


def sealed_context(
    header: Header,
    policy: Policy | None,
    envelopes: Sequence[Envelope],
    history: EnvelopeHistory | None = None,
) -> Context:
    """Return the context for checking envelopes of a sealed block."""
    known = policy if policy is not None and policy.hash == header.policy_hash else None
    if header.envelope_count == 1 and envelopes and is_key_statement(envelopes[0]):
        # The key history has checked it; rules for authors do not bind the channel's own key.
        known = None
    return Context(history, known, policy_hash=header.policy_hash, sealed=True)


def judge_each(block: Block, trust: Trust | None, policy: Policy | None) -> dict[int, str]:
    """Check every envelope of a block alone; return the faults by index."""
    found: dict[int, str] = {}
    key_history = _key_history(trust, policy)
    for index, raw in enumerate(block.envelopes):
        try:
            envelope = parse_stored(raw)
        except RopewalkError as error:
            found[index] = _fault_in(block.height, index, error).detail
            continue
        piece = BlockPart(BlockSpan(blocks=1), block.header, index, [envelope], closes=False)
        fault = _close(BlockSpan(), piece, policy, key_history=key_history).fault
        if fault is not None:
            found[index] = fault.detail
    return found


def _fault_in(height: int, index: int, error: RopewalkError) -> Fault:
    return Fault(height, "envelopes", f"block {height}, envelope {index}: {error.detail}", index)


def check_channel(
    blocks: Iterable[Found],
    *,
    trust: Trust | None = None,
    policy: Policy | None = None,
    deep: bool = True,
    parallel_map: ParallelMap = map_serially,
    seen: SeenEnvelopes | None = None,
    key_history: KeyHistory | None = None,
) -> BlockSpan:
    """Check a channel from its first block, streamed: every block, the links, and with `deep` all eight rules.

    `seen` stores what was read; in memory unless the caller passes another store. `key_history` is a fresh one for
    checking signatures; the caller can read from it afterwards who signed what.
    """
    seen = (seen or SeenEnvelopes()) if deep else None
    key_history = key_history or KeyHistory(trust, policy=policy, lenient=True)
    pieces = (piece for found in blocks for piece in _pieces(found, trust, deep, key_history))
    whole = block = BlockSpan()
    for piece in pieces:
        block = _close(block, piece, policy, seen, parallel_map, key_history=key_history)
        if piece.closes or block.fault is not None:
            whole, block = join(whole, block), BlockSpan()
        if whole.fault is not None:  # nothing above it can be believed
            break
    if key_history.stranger is not None and (
        whole.fault is None or whole.fault.height >= key_history.stranger[0]
    ):
        height, key = key_history.stranger
        return replace(
            whole,
            fault=Fault(height, "block_signatures", f"block {height}: signer {key.did()} is not trusted"),
        )
    if whole.blocks and whole.fault is None and (whole.first, whole.below) != (0, GENESIS):
        return replace(
            whole, fault=Fault(whole.first, "links", "the channel does not begin with its first block")
        )
    return whole


def to_report(
    span: BlockSpan, *, deep: bool, trust: Trust | None = None, key_history: KeyHistory | None = None
) -> Report:
    """Return the span as steps. What lies behind the first fault was not looked at, and the report says so.

    `line` is the one by which seals were judged, to say who sealed what.
    """
    steps: list[Step] = []
    for name in STEPS:
        if span.fault is not None and span.fault.step == name:
            facts = {"height": span.fault.height, "index": span.fault.index}
            steps.append(
                Step(name, "failed", span.fault.detail, {k: v for k, v in facts.items() if v is not None})
            )
        elif name == "policy_hash" and (trust is None or trust.policy_hash is None):
            steps.append(Step.optional(name, "no policy is pinned"))
        elif name == "envelopes" and not deep:
            steps.append(Step.optional(name, "signatures and rules of envelopes need --deep"))
        elif (
            name == "block_signatures"
            and key_history is not None
            and key_history.unjudged
            and span.fault is None
        ):
            steps.append(Step(name, "not_checked", key_history.unjudged))
        else:
            detail = f"up to block {span.fault.height}" if span.fault is not None else _counted(name, span)
            said = key_history.summary() if key_history is not None and name == "block_signatures" else ""
            steps.append(Step(name, "passed", f"{detail} ({said})" if said else detail))
    return Report.of(steps, entries=span.envelopes, blocks=span.blocks)


def _between(lower: BlockSpan, upper: BlockSpan) -> Fault | None:
    if lower.fault is not None and lower.fault.step == "block_form":
        return None
    if upper.fault is not None and upper.fault.step == "block_form" and upper.fault.height == upper.first:
        return None
    if upper.first != lower.last + 1:
        return Fault(lower.last + 1, "links", f"block {upper.first} follows block {lower.last}")
    if upper.below != lower.above:
        return Fault(upper.first, "links", f"block {upper.first} does not stand on block {lower.last}")
    if upper.channel != lower.channel:
        return Fault(upper.first, "links", f"block {upper.first} is of channel {upper.channel}")
    if upper.first_ns < lower.last_ns:
        return Fault(upper.first, "links", f"block {upper.first} is earlier than block {lower.last}")
    return None


def _counted(name: str, span: BlockSpan) -> str:
    if name == "envelopes":
        audited = f", {span.audited} audited by the policy" if span.audited else ""
        rest = f", {span.unchecked} findings not checked" if span.unchecked else ""
        return f"{span.envelopes} envelopes{audited}{rest}"
    return f"{span.blocks} blocks"
