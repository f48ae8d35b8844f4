"""One subscriber, as a server has it: text in, texts out, and a close in the end. It does no I/O and reads no clock.

Frames are pulled: the owner of the socket calls `take` when there is room for more. What was not taken yet stays in the
window, so a slow reader costs no memory; when the window must drop a frame the reader still wants, the reader is
closed with a reason, since a gap would be worse.

Credit bounds what is under way. A client that sends how many frames it wants (`credit`) gets no more. A client
that knows only S2's own frames answers pings, and since a connection keeps order, its pong confirms that it has taken
everything before the ping: that is credit, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from ropewalk.errors import RangeExceeded, RopewalkError
from ropewalk.stream.core.access import EVERYBODY, Access
from ropewalk.stream.core.frames import (
    Ack,
    Credit,
    ErrorFrame,
    Ping,
    Pong,
    Sub,
    Unsub,
    encode,
    parse_client,
    timestamp,
)
from ropewalk.stream.core.patterns import Kind, Pattern, parse_pattern
from ropewalk.stream.core.window import KeptFrame, Window

GOING_AWAY: Final = 1001
POLICY: Final = 1008
REASON_BYTES_MAX: Final = 123  # RFC 6455 §5.5
CONTROL_MAX: Final = 256  # errors and pongs that are not taken
DENIED_MAX: Final = 1_000  # names we remember having refused
NAMES_MAX: Final = 4_096  # names whose verdict is remembered
PINGS_MAX: Final = 8
TAKE_BYTES_MAX: Final = 256 << 10  # what may lie between the window and a socket that does not drain


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """The numbers of S2, for those who need others."""

    refs_max: int = 20  # §2
    topics_max: int = 20  # §2
    outstanding_max: int = 1_000  # §7
    ping_ms: int = 30_000  # §7
    pong_ms: int = 10_000  # §7
    stall_ms: int = 5_000  # federation §1: how often a stalled connection gets a notice
    idle_ms: int = 30_000  # federation §1: silence of a stalled connection


LIMITS: Final = StreamLimits()
SEALED: Final = ErrorFrame(
    "POLICY_DENIED",
    "the server cannot read its policy: nothing is shown until it can, and what happens waits",
)


@dataclass(frozen=True, slots=True)
class Close:
    """How a connection ends."""

    code: int
    reason: str


@dataclass(slots=True)
class _Subscription:
    pattern: Pattern
    floor: int  # frames up to here are not meant


class Connection:
    """One subscriber of a window.

    >>> window = Window("01HF", 100)
    >>> connection = Connection(window, now_ms=0)
    >>> connection.receive('{"op":"sub","refs":["refs/gatos/**"]}', 0)
    >>> from ropewalk.stream.core.frames import RefUpdate
    >>> _ = window.publish(RefUpdate("refs/gatos/x", None, "8b1c"), 0)
    >>> for text in connection.take(0): print(text[:58])
    {"credit":1000,"kind":"ack","seq":100,"stream":"01HF","ts"
    {"kind":"ref.update","new":"8b1c","old":null,"ref":"refs/g
    """

    def __init__(
        self, window: Window, *, now_ms: int, limits: StreamLimits = LIMITS, access: Access = EVERYBODY
    ) -> None:
        self.window = window
        self.limits = limits
        self.cursor = window.seq  # the last frame we are done with, sent or not wanted
        self.sent_seq = 0  # the last frame sent
        self.sent = 0  # how many
        self.credit = limits.outstanding_max
        self.closing: Close | None = None
        self._access = access
        self._explicit = False  # it speaks of credit itself
        self._subscriptions: dict[tuple[Kind, str], _Subscription] = {}
        self._floors: dict[tuple[Kind, str], int | None] = {}  # by name: from where it is wanted, None if not
        self._told: set[tuple[Kind, str]] = set()
        self._told_sealed = False  # that nothing can be seen for now
        self._control: deque[str] = deque()
        self._pings: deque[tuple[int, int]] = deque()  # not answered: when, and how many frames went before
        self._ping_due = now_ms + limits.ping_ms
        self._heard_ms = now_ms
        self._say(Ack(window.stream, window.seq, self.credit, timestamp(now_ms)))
        window.readers.add(self)

    # What comes in

    def receive(self, data: str | bytes, now_ms: int) -> None:
        """Take one frame of the client. What breaks the protocol ends the connection (S2 §8)."""
        if self.closing is not None:
            return
        self._heard_ms = now_ms
        try:
            self._act(data, now_ms)
        except RopewalkError as error:
            self.refuse(error.detail)

    def refuse(self, reason: str) -> None:
        """End the connection because of what the client did."""
        self._say(ErrorFrame("INVALID_SUB", reason))
        self.close(POLICY, reason)

    def close(self, code: int, reason: str) -> None:
        """End the connection, once what was said before has been taken."""
        if self.closing is None:
            short = reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore")
            self.closing = Close(code, short)
            self.leave()

    def leave(self) -> None:
        """End the connection: the socket is gone, and nothing more is sent."""
        self.window.readers.discard(self)

    def set_access(self, access: Access) -> None:
        """Apply changed rules from the next frame on."""
        self._access = access
        self._floors.clear()
        if not access.sealed:
            self._told_sealed = False
        elif self._subscriptions:
            self.tell_sealed(SEALED)

    def tell_sealed(self, error: ErrorFrame) -> None:
        """Say that nothing can be seen for now, once for each time."""
        if not self._told_sealed:
            self._told_sealed = True
            self._say(error)

    def withhold(self, kind: Kind, name: str) -> None:
        """Say that something may not be seen: who asked for it by a pattern learns once that there is such."""
        for key, subscription in self._subscriptions.items():
            if key[0] == kind and key not in self._told and subscription.pattern.matches(name):
                self._deny(subscription.pattern, f"some of what {subscription.pattern.text} matches")

    def warn(self, error: ErrorFrame) -> None:
        """Tell of trouble with a topic, if it is one the client asked for."""
        if error.topic is not None and self._floor("topic", error.topic) is not None:
            self._say(error)

    # What goes out

    def take(self, now_ms: int, limit: int = 64) -> list[str]:
        """Return what to send now, in order: at most so many frames, and what we have to say of ourselves.

        Nothing: wait until `has_more`, until the client speaks, or until `due_ms`. If `closing` is set afterwards,
        close the socket that way once these are sent.
        """
        if self.closing is None:
            self._beat(now_ms)
        texts = list(self._control)
        self._control.clear()
        if self.closing is None:
            self._frames(texts, now_ms, limit)
        return texts

    @property
    def has_word(self) -> bool:
        """Whether there is something to send that needs no credit, or the end of it."""
        return bool(self._control) or self.closing is not None

    @property
    def has_more(self) -> bool:
        """Whether a frame it wants is there, sent as soon as there is credit for it."""
        if self.closing is not None:
            return False
        while self.cursor < self.window.seq:
            if self._wants(self.window[self.cursor + 1]):
                return True
            self.cursor += 1
        return False

    @property
    def due_ms(self) -> int:
        """When `take` must be called again though nothing has happened."""
        due = self._ping_due
        if not self.credit:
            return min(due, self._heard_ms + self.limits.idle_ms)
        return min(due, self._pings[0][0] + self.limits.pong_ms) if self._pings else due

    def lose(self, kept: KeptFrame) -> None:
        """Note that the window drops a frame; close the connection if this reader still wanted it."""
        if self._wants(kept):
            reason = f"slow reader: frame {kept.seq} left the window before it was taken"
            self._say(ErrorFrame("SLOW_READER", reason, missing_seq=kept.seq))
            self.close(POLICY, reason)
        else:
            self.cursor = kept.seq

    def _frames(self, texts: list[str], now_ms: int, limit: int) -> None:
        size = 0
        while self.has_more and self.credit and limit and size < TAKE_BYTES_MAX:
            kept = self.window[self.cursor + 1]
            size += kept.size
            limit -= 1
            self.cursor = kept.seq
            self._give(kept.seq, kept.text, texts, now_ms)

    def _give(self, seq: int, text: str, texts: list[str], now_ms: int) -> None:
        """Send one frame, for which there is credit."""
        self.credit -= 1
        self.sent_seq = seq
        self.sent += 1
        if self.credit * 10 > self.limits.outstanding_max:
            return texts.append(text)
        texts.append(f'{text[:-1]},"credit":{self.credit}}}')
        if not self.credit:
            texts.append(self._ping(now_ms))
        return None

    def _wants(self, kept: KeptFrame) -> bool:
        floor = self._floor(kept.kind, kept.name)
        return floor is not None and kept.seq > floor

    def _floor(self, kind: Kind, name: str) -> int | None:
        key = (kind, name)
        if key in self._floors:
            return self._floors[key]
        floors = [
            subscription.floor
            for (of, _), subscription in self._subscriptions.items()
            if of == kind and subscription.pattern.matches(name)
        ]
        floor = min(floors) if floors and self._access.sees(kind, name) else None
        if len(self._floors) >= NAMES_MAX:
            self._floors.clear()
        self._floors[key] = floor
        return floor

    # Heartbeat (S2 §7)

    def _beat(self, now_ms: int) -> None:
        if not self.credit:
            if now_ms >= self._heard_ms + self.limits.idle_ms:
                return self.close(GOING_AWAY, "idle: no credit and no word")
        elif self._pings and now_ms >= self._pings[0][0] + self.limits.pong_ms:
            return self.close(POLICY, "pong timeout")
        if now_ms >= self._ping_due:
            self._control.append(self._ping(now_ms))
        return None

    def _ping(self, now_ms: int) -> str:
        if len(self._pings) < PINGS_MAX:
            self._pings.append((now_ms, self.sent))
        self._ping_due = now_ms + (self.limits.ping_ms if self.credit else self.limits.stall_ms)
        low = self.credit * 10 <= self.limits.outstanding_max
        return encode(Ping(self.credit if low else None))

    def _answered(self, pong: Pong, now_ms: int) -> None:
        ping = self._pings.popleft() if self._pings else None
        if pong.credit is not None:
            self._grant(pong.credit, now_ms)
        elif ping is not None and not self._explicit:
            self._set_credit(max(self.credit, self.limits.outstanding_max - (self.sent - ping[1])), now_ms)

    def _grant(self, credit: int, now_ms: int) -> None:
        self._explicit = True
        self._set_credit(min(self.limits.outstanding_max, self.credit + credit), now_ms)

    def _set_credit(self, credit: int, now_ms: int) -> None:
        if credit and not self.credit:
            # A stalled client has not read our pings yet; the time to answer them begins now.
            self._pings = deque((now_ms, sent) for _, sent in self._pings)
        self.credit = credit

    # Subscriptions (S2 §2)

    def _act(self, data: str | bytes, now_ms: int) -> None:
        match parse_client(data):
            case Sub() as sub:
                self._subscribe(sub, now_ms)
            case Unsub() as unsub:
                for key in keys(unsub):
                    parse_pattern(*key)
                    self._subscriptions.pop(key, None)
                self._floors.clear()
            case Credit() as credit:
                self._grant(credit.credit, now_ms)
            case Ping():
                self._say(Pong())
            case pong:
                self._answered(pong, now_ms)

    def _subscribe(self, sub: Sub, now_ms: int) -> None:
        wanted = {key: parse_pattern(*key) for key in keys(sub)}
        self._check_count("ref", wanted, self.limits.refs_max)
        self._check_count("topic", wanted, self.limits.topics_max)
        allowed = {key: pattern for key, pattern in wanted.items() if not self._denied(pattern)}
        if self._access.sealed:
            self.tell_sealed(SEALED)
        floor = self.window.seq if sub.since_seq is None else self._catch_up(sub.since_seq, now_ms)
        self.cursor = min(self.cursor, floor) if self._subscriptions else floor
        for key, pattern in allowed.items():
            known = self._subscriptions.get(key)
            self._subscriptions[key] = _Subscription(pattern, min(floor, known.floor) if known else floor)
        self._floors.clear()
        self._recall(allowed.values(), floor)

    def _recall(self, patterns: Collection[Pattern], floor: int) -> None:
        """Tell of trouble with topics that lasts, or that was over only after the frame they go on from."""
        for topic, trouble in self.window.troubles.items():
            missed = trouble.until_seq is None or trouble.until_seq >= floor
            asked = any(pattern.kind == "topic" and pattern.matches(topic) for pattern in patterns)
            if missed and asked and self._access.sees("topic", topic):
                self._say(trouble.error)

    def _check_count(self, kind: Kind, wanted: dict[tuple[Kind, str], Pattern], most: int) -> None:
        count = sum(1 for key in {*self._subscriptions, *wanted} if key[0] == kind)
        if count > most:
            raise RangeExceeded(f"{count} {kind} patterns; at most {most} fit one connection", limit=most)

    def _catch_up(self, since: int, now_ms: int) -> int:
        """Return the frame to go on from: the one asked for, or the one before the oldest that is kept.

        The client learns what it has missed; frames that are still kept are sent.
        """
        window = self.window
        window.prune(now_ms)
        oldest = window.oldest
        start = oldest - 1 if since == 0 else since  # nought asks for all there is, and misses nothing
        if start > window.seq:
            reason = f"this stream is at {window.seq} and has not seen {start}; it may have begun anew"
        elif start + 1 < oldest:
            reason = f"frames {start + 1} to {oldest - 1} are no longer kept"
        elif start < self.sent_seq:
            oldest = self.sent_seq + 1
            reason = f"this connection is past {self.sent_seq} already; to go back, open another"
        else:
            return start
        go_on = max(oldest - 1, self.sent_seq)
        message = f"{reason}. Read the refs and topics themselves; frames after {go_on} follow"
        self._say(ErrorFrame("REPLAY_EXPIRED", message, since + 1, oldest, go_on))
        return go_on

    # What may not be seen (S2 §6)

    def _denied(self, pattern: Pattern) -> bool:
        if self._access.denies(pattern):
            self._deny(pattern, pattern.text, dropped=True)
            return True
        below = self.window.refs_below
        if pattern.kind == "ref" and not pattern.reaches(below):
            message = f"refs must be below {below}; {pattern.text} matches none of them"
            self._tell_once(pattern_error("NOT_WATCHED", message, pattern, dropped=True), pattern)
            return True
        return False

    def _deny(self, pattern: Pattern, what: str, *, dropped: bool | None = None) -> None:
        error = pattern_error("POLICY_DENIED", f"{what} may not be seen here", pattern, dropped=dropped)
        self._tell_once(error, pattern)

    def _tell_once(self, error: ErrorFrame, pattern: Pattern) -> None:
        key = (pattern.kind, pattern.text)
        if key in self._told:
            return None
        if len(self._told) >= DENIED_MAX:
            return self.refuse(f"more than {DENIED_MAX} names that may not be seen")
        self._told.add(key)
        return self._say(error)

    def _say(self, frame: Ack | ErrorFrame | Pong) -> None:
        if self.closing is not None:
            return
        self._control.append(encode(frame))
        if len(self._control) > CONTROL_MAX:
            self.close(POLICY, "slow reader: answers are not taken")


def pattern_error(code: str, message: str, pattern: Pattern, *, dropped: bool | None = None) -> ErrorFrame:
    """Return an error about one pattern."""
    ref, topic = (pattern.text, None) if pattern.kind == "ref" else (None, pattern.text)
    return ErrorFrame(code, message, ref=ref, topic=topic, dropped=dropped)


def keys(frame: Sub | Unsub) -> list[tuple[Kind, str]]:
    """Return the patterns a frame names, each with its kind.

    >>> keys(Sub(("refs/gatos/**",), ("jobs",)))
    [('ref', 'refs/gatos/**'), ('topic', 'jobs')]
    """
    refs: list[tuple[Kind, str]] = [("ref", name) for name in frame.refs]
    return [*refs, *(("topic", name) for name in frame.topics)]
