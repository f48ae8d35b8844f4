"""Checking a channel again, block by block, in any number of pieces.

`check_block` looks at one block alone and returns a `Span`; `join` puts neighbouring spans together and finds what
only shows between blocks. Joining is associative, so a channel may be cut anywhere and its pieces checked anywhere.
The first fault, by height, survives every join: it names the block, the envelope and the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Final

from ropewalk.errors import RopewalkError
from ropewalk.ledger.block import GENESIS, Block, Header, check_contents, check_signature
from ropewalk.ledger.envelope import Envelope, envelope_id, parse_stored
from ropewalk.ledger.marks import CLAIMING, claim_key
from ropewalk.ledger.policy import Policy
from ropewalk.ledger.rules import Context, Position, Verdict, judge
from ropewalk.ledger.steps import Report, Step
from ropewalk.ledger.trust import Trust

__all__ = ["EMPTY", "STEPS", "Fault", "Seen", "Span", "check_block", "check_channel", "join", "to_report"]

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
    """The first thing that is wrong: in which block, in which envelope of it, found by which step."""

    height: int
    step: str
    detail: str
    index: int | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """A run of blocks that was looked at: what it stands on, what it offers, and its first fault."""

    channel: str
    first: int
    last: int
    below: bytes
    above: bytes
    first_ns: int
    last_ns: int
    blocks: int
    envelopes: int
    unchecked: int  # findings of rules that could not be judged
    fault: Fault | None = None


EMPTY: Final = Span("", 0, -1, b"", b"", 0, 0, 0, 0, 0)
"""The span of no blocks: joining it changes nothing."""

Judge = Callable[[Envelope, int, Header], Verdict]


def check_block(
    lines: Sequence[bytes], height: int, *, trust: Trust | None = None, judge_envelope: Judge | None = None
) -> Span:
    """One block alone: form, contents, seal, policy, and, where a judge is given, every envelope.

    `height` is where it was found; it names the fault if the block cannot even say who it is.
    """
    span = replace(EMPTY, first=height, last=height, blocks=1, envelopes=max(0, len(lines) - 1))
    step = "block_form"
    try:
        block = Block.from_lines(lines)
        header = block.header
        span = Span(
            header.channel,
            header.height,
            header.height,
            header.prev_block_hash,
            header.hash,
            header.timestamp_ns,
            header.timestamp_ns,
            1,
            len(block.envelopes),
            0,
        )
        step = "block_hashes"
        ids = [envelope_id(raw) for raw in block.envelopes]
        check_contents(block, ids)
        step = "block_signatures"
        check_signature(block.record, trust.block_signers if trust is not None else None)
    except RopewalkError as error:
        return replace(span, fault=Fault(height, step, error.detail))
    if trust is not None and trust.policy_hash is not None and header.policy_hash != trust.policy_hash:
        return replace(span, fault=Fault(height, "policy_hash", f"block {height}: another policy"))
    return span if judge_envelope is None else _check_envelopes(block, ids, span, judge_envelope)


def join(lower: Span, upper: Span) -> Span:
    """Two spans as one; a gap, a broken link or a step back in time becomes a fault of the upper one's first block.

    >>> join(EMPTY, EMPTY) == EMPTY
    True
    """
    if not lower.blocks:
        return upper
    if not upper.blocks:
        return lower
    fault = lower.fault or _between(lower, upper) or upper.fault
    return Span(
        lower.channel,
        lower.first,
        upper.last,
        lower.below,
        upper.above,
        lower.first_ns,
        upper.last_ns,
        lower.blocks + upper.blocks,
        lower.envelopes + upper.envelopes,
        lower.unchecked + upper.unchecked,
        fault,
    )


def check_channel(
    blocks: Iterable[tuple[int, Sequence[bytes]]],
    *,
    trust: Trust | None = None,
    deep: bool = True,
    policy: Policy | None = None,
) -> Span:
    """A channel from its first block, streamed: what `check_block` sees, the links, and with `deep` all eight rules."""
    seen = Seen(policy)
    judge_envelope = seen.judge if deep else None
    spans = (
        check_block(lines, height, trust=trust, judge_envelope=judge_envelope) for height, lines in blocks
    )
    whole = reduce(join, _until_fault(spans), EMPTY)
    if whole.blocks and whole.fault is None and (whole.first, whole.below) != (0, GENESIS):
        return replace(
            whole, fault=Fault(whole.first, "links", "the channel does not begin with its first block")
        )
    return whole


def to_report(span: Span, *, deep: bool, trust: Trust | None = None) -> Report:
    """The span as steps. What lies behind the first fault was not looked at, and the report says so."""
    steps: list[Step] = []
    for name in STEPS:
        if span.fault is not None and span.fault.step == name:
            facts = {"height": span.fault.height, "index": span.fault.index}
            steps.append(
                Step(name, "failed", span.fault.detail, {k: v for k, v in facts.items() if v is not None})
            )
        elif name == "policy_hash" and (trust is None or trust.policy_hash is None):
            steps.append(Step(name, "not_checked", "no policy is pinned"))
        elif name == "envelopes" and not deep:
            steps.append(Step(name, "not_checked", "signatures and rules of envelopes need --deep"))
        else:
            detail = f"up to block {span.fault.height}" if span.fault is not None else _counted(name, span)
            steps.append(Step(name, "passed", detail))
    return Report.of(steps, entries=span.envelopes, blocks=span.blocks)


class Seen:
    """What a channel held so far, kept in memory while it is checked; keys are cut to half, which nobody can forge."""

    def __init__(self, policy: Policy | None = None) -> None:
        self._policy = policy
        self._contexts: dict[bytes | None, Context] = {}
        self._ids: dict[bytes, int] = {}
        self._claims: dict[bytes, int] = {}
        self._intents: dict[bytes, int] = {}
        self._roots: dict[bytes, int] = {}

    def judge(self, envelope: Envelope, leaf: int, header: Header) -> Verdict:
        """All eight rules over the next envelope, which is remembered."""
        verdict = judge(envelope, self._context(header.policy_hash))
        at = header.height << 13 | leaf
        self._ids.setdefault(envelope.id[:16], at)
        self._intents.setdefault(envelope.intent[:16], at)
        if envelope.correlation_id is not None and envelope.event_class in CLAIMING:
            self._claims.setdefault(claim_key(envelope.event_class, envelope.correlation_id)[:16], at)
        return verdict

    def _context(self, policy_hash: bytes | None) -> Context:
        if policy_hash not in self._contexts:
            known = self._policy is not None and self._policy.hash == policy_hash
            self._contexts[policy_hash] = Context(
                self, self._policy if known else None, policy_hash=policy_hash
            )
        return self._contexts[policy_hash]

    def remember_root(self, root: bytes, height: int) -> None:
        """A block is complete; later proofs may lead to it."""
        self._roots.setdefault(root[:16], height)

    def position(self, envelope_id: bytes) -> Position | None:
        """Where an envelope stands."""
        return _position(self._ids.get(envelope_id[:16]))

    def chain(self, _envelope_id: bytes) -> tuple[str, ...] | None:
        """Not kept; it was compared when the envelope was accepted."""
        return None

    def claim(self, event_class: str, correlation_id: str) -> Position | None:
        """Where a class with a correlation id was first seen."""
        return _position(self._claims.get(claim_key(event_class, correlation_id)[:16]))

    def intent(self, intent: bytes) -> Position | None:
        """Where a statement was first seen."""
        return _position(self._intents.get(intent[:16]))

    def root(self, root: bytes) -> int | None:
        """The height of the block with that root."""
        return self._roots.get(root[:16])


def _check_envelopes(block: Block, ids: Sequence[bytes], span: Span, judge_envelope: Judge) -> Span:
    unchecked = 0
    height = block.height
    for index, raw in enumerate(block.envelopes):
        try:
            verdict = judge_envelope(parse_stored(raw, ids[index]), index, block.header)
            if not verdict.ok:
                verdict.require()
        except RopewalkError as error:
            detail = f"block {height}, envelope {index}: {error.detail}"
            return replace(span, fault=Fault(height, "envelopes", detail, index))
        unchecked += sum(finding.status == "not_checked" for finding in verdict.findings)
    owner = getattr(judge_envelope, "__self__", None)
    if isinstance(owner, Seen):
        owner.remember_root(block.header.merkle_root, height)
    return replace(span, unchecked=unchecked)


def _between(lower: Span, upper: Span) -> Fault | None:
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


def _until_fault(spans: Iterable[Span]) -> Iterable[Span]:
    """Stop after the first fault inside a block; nothing above it can be believed."""
    for span in spans:
        yield span
        if span.fault is not None:
            return


def _counted(name: str, span: Span) -> str:
    if name == "envelopes":
        rest = f", {span.unchecked} findings not checked" if span.unchecked else ""
        return f"{span.envelopes} envelopes{rest}"
    return f"{span.blocks} blocks"


def _position(at: int | None) -> Position | None:
    return None if at is None else Position(at >> 13, at & 0x1FFF)
