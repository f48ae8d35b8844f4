"""A ledger channel as the source of a mirror: every block is verified before its envelopes become events."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ropewalk.bridge.envelope_event import channel_mark, document_of, mark_of, ulid_of
from ropewalk.bridge.event_copy import EventCopy, named
from ropewalk.bridge.mirror import MirrorTarget, RefusedCopy
from ropewalk.errors import HistoryRewritten, NotFound, RopewalkError, Unverified
from ropewalk.gitlog.core.envelope import Draft, Event, seal_foreign
from ropewalk.gitlog.core.objects import GitSignature
from ropewalk.gitlog.core.reading import CHUNK, events
from ropewalk.kernel.entry import join
from ropewalk.ledger.block.block import GENESIS, Header
from ropewalk.ledger.channel.channel import Channel
from ropewalk.ledger.channel.segments.format import Record
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.proof.verify import BlockSpan, Fault, check_block


class ChannelSource:
    """The envelopes of a channel, each as one event.

    Where to go on is read from the target: its newest event of this channel names a block by its hash, and that hash
    vouches for everything below it.
    """

    def __init__(self, channel: str, target: MirrorTarget) -> None:
        self._channel = Channel(target.log.store.place.home, channel)
        self._name, self._target = channel, target
        self.progress = target.progress(f"ledger/{channel}")
        self._copied = 0  # envelopes of the channel in the target
        self._last: Event | None = None  # the newest event that was mirrored before we began
        self._span: BlockSpan = BlockSpan()
        self._at: Record | None = None  # the last block that was read

    def is_current(self) -> bool:
        """Return True: each block names the one below it, and is compared with what was read."""
        return True

    def skip(self) -> int:
        """Count the events of this channel in the target, and find the newest, looking from its head down."""
        line = self._target.line()
        self._last, self._span, self._at = None, BlockSpan(), None
        mark, count = channel_mark(self._name), 0
        for stop in range(line.count, 0, -CHUNK):
            for place in reversed(line.span(max(0, stop - CHUNK), stop)):
                if mark_of(place.ulid) != mark:
                    continue
                count += 1
                if self._last is None:
                    (event,) = events(self._target.log.store, line, place.height, place.height + 1)
                    # A mark is rarely met by chance, and then by an event without a reference to this channel.
                    self._last = event if _said(event, "channel") == self._name else None
        self._copied = count if self._last is not None else 0
        return self._copied

    def copies(self, until_ms: int | None) -> Iterator[EventCopy | RefusedCopy]:
        """Yield every envelope from where the last call ended, once its block has passed every check."""
        settings, trust = self._channel.settings, self._channel.trust()  # which learns on, block by block
        for record in self._records():
            found: list[tuple[Header, int, Envelope]] = []

            def note(header: Header, first: int, envelopes: Sequence[Envelope], found: Any = found) -> None:
                found.extend((header, index, each) for index, each in enumerate(envelopes, first))

            block = check_block(
                record.lines, record.height, trust=trust, policy=settings.policy, on_envelopes=note
            )
            if until_ms is not None and block.last_ns // 1_000_000 > until_ms:
                return
            self._check(join(self._span, block))
            self._at = record
            done = self._seen_before(found) if self._last is not None else 0
            for header, index, envelope in found[done:]:
                try:
                    made = self._copy(header, index, envelope)
                except RopewalkError as error:
                    yield RefusedCopy(ulid_of(header, index), error)
                    return
                yield made
                self._copied += 1
            self._last = None

    def waiting(self) -> int:
        """Return how many envelopes there are beyond what was copied."""
        return sum(len(record.lines) - 1 for record in self._records())

    def remember(self, _is_current: Callable[[], bool]) -> None:
        """Record the block for operators. The next run asks the target instead, which names a block by its hash."""
        said = self.progress.read().get("height")
        known = said if type(said) is int else 0
        if self._at is None or known == self._copied:
            self.progress.seen()
            return
        with contextlib.suppress(OSError):
            moved, at = max(0, self._copied - known), str(self._at.height)
            self.progress.write(moved=moved, position=at, height=self._copied)

    def _records(self) -> Iterator[Record]:
        segments = self._channel.segments
        if self._at is not None:
            yield from segments.scan(self._at.place, self._at.height + 1)
            return
        if self._last is None:
            yield from segments.scan()
            return
        height = _said(self._last, "height")
        try:
            first = segments.find(height if isinstance(height, int) else -1)
        except NotFound as error:
            raise self._rewritten(f"block {height} was mirrored and is no longer there") from error
        yield first
        yield from segments.scan(first.place, first.height + 1)

    def _check(self, whole: BlockSpan) -> None:
        """Stop before the first block that does not hold."""
        fault = whole.fault
        if fault is None and whole.channel != self._name:
            fault = Fault(whole.last, "links", f"block {whole.last} is of channel {whole.channel}")
        begins = self._at is None and self._last is None
        if fault is None and begins and (whole.first, whole.below) != (0, GENESIS):
            fault = Fault(0, "links", "the channel does not begin with its first block")
        if fault is not None:
            raise Unverified(
                f"channel {self._name}: {fault.detail}",
                channel=self._name,
                height=fault.height,
                step=fault.step,
                advice="Everything before that block was mirrored. Run `ropewalk ledger verify --deep` for details.",
            )
        self._span = whole

    def _seen_before(self, found: Sequence[tuple[Header, int, Envelope]]) -> int:
        """Return how many envelopes of the block were mirrored before; a block that is another than then is refused."""
        assert self._last is not None
        index = _said(self._last, "index")
        known = found[index] if isinstance(index, int) and 0 <= index < len(found) else None
        if known is None or (ulid_of(known[0], known[1]), known[2].hex_id, known[0].hash.hex()) != (
            self._last.ulid,
            _said(self._last, "envelope_id"),
            _said(self._last, "block_hash"),
        ):
            raise self._rewritten(f"block {_said(self._last, 'height')} is not the one that was mirrored")
        return known[1] + 1

    def _rewritten(self, what: str) -> HistoryRewritten:
        assert self._last is not None
        return HistoryRewritten(
            f"channel {self._name}: {what} (event {self._last.ulid})",
            channel=self._name,
            expected=_said(self._last, "block_hash"),
            advice="Find out which channel is the true one; mirror the other one into a separate log.",
        )

    def _copy(self, header: Header, index: int, envelope: Envelope) -> EventCopy:
        target, origin = self._target, f"channel:{self._name}"
        # A namespace is the log's own name; in a topic, which may take several, the channel's.
        ns = target.topic if target.layout.topic_is_ns else self._name
        document = document_of(header, index, envelope, ns, target.log.privacy.policy())
        with named(origin, document["ulid"]):
            sealed = seal_foreign(target.layout, target.topic, document, document["ulid"])
        # Who mirrors adds nothing, so the commit is the channel's own: two clones get the same one.
        author = GitSignature(self._name, self._channel.settings.signer.did(), header.timestamp_ns // 10**9)
        return EventCopy(sealed, Draft({}, author=author), origin, withheld="withheld" in document["payload"])


def _said(event: Event, name: str) -> object:
    """Return the reference of an event to its envelope, None where it has none."""
    payload = event.envelope.get("payload")
    return payload.get(name) if isinstance(payload, dict) else None
