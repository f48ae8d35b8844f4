"""The live protocol as a state machine: what two connected peers push to each other, and when one pulls.

Each side announces its heads when the push stream opens and once per round of anti-entropy, and pushes every message
that arrives. A side that lacks an announced head, or a parent of a pushed message, pulls. The machine reads the log
and writes what was pushed into it. It reads no clock and no socket: time and randomness are arguments.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ropewalk.errors import DigestMismatch, RopewalkError
from ropewalk.gossip.core.ids import id_of, key_of
from ropewalk.gossip.core.log import GossipLog
from ropewalk.gossip.core.message import SignedMessage
from ropewalk.gossip.sync import wire

OUTBOX_MAX = 256  # pushes queued for a slow peer; beyond, it gets our heads and pulls
OUTBOX_BYTES_MAX = 8 << 20
SEEN_MAX = 4096  # messages known to be on the other side, so that they are not pushed back
ANTI_ENTROPY_S = 30.0  # mean time between two rounds, each half early or late at random
RETRY_FIRST_S = 0.5
RETRY_S_MAX = 60.0

Relay = Callable[[list[SignedMessage]], None]


class LiveSession:
    """One live connection, without its transport.

    `offer` and `announce` queue, `next_event` returns what to send next, `receive` takes what the peer sent and returns
    whether to pull. `is_due` starts a round of anti-entropy: announce and pull. Threads may share it.

    `relay` gets pushed messages as soon as the rules have passed them, to offer them to other sessions while this log
    still writes. A push promises nothing about the sender's store; heads are announced only of what is stored. What
    was stored must be offered again after the commit: a session offers nothing twice.
    """

    def __init__(
        self,
        log: GossipLog,
        name: str,
        *,
        now_s: float,
        random: Callable[[], float],
        interval_s: float = ANTI_ENTROPY_S,
        relay: Relay | None = None,
    ) -> None:
        self.received = 0  # messages that the peer sent and we stored
        self.sent = 0  # messages that the peer got from us
        self.pushing = False  # the push stream is open
        self._log = log
        self._name = name
        self._random = random
        self._interval_s = interval_s
        self._relay = relay
        self._due_s = now_s + self._jittered()
        self._outbox: deque[SignedMessage] = deque()
        self._outbox_bytes = 0
        self._announcing = False
        self._seen: OrderedDict[bytes, None] = OrderedDict()
        # Of the queue, the seen keys and the counters; never held while the log is.
        self._lock = threading.RLock()

    # What we send

    def open_push(self) -> None:
        """Start to push: the heads first."""
        self.pushing = True
        self.announce()

    def announce(self) -> None:
        """Queue our heads, as they are when they are sent."""
        self._announcing = self.pushing

    def offer(self, messages: Iterable[SignedMessage]) -> None:
        """Queue new messages, except those that the peer has. If it is too slow for them, announce heads instead."""
        if not self.pushing:
            return
        with self._lock:
            for signed in messages:
                if signed.key not in self._seen:
                    self._outbox.append(signed)
                    self._outbox_bytes += len(signed.raw)
            if len(self._outbox) > OUTBOX_MAX or self._outbox_bytes > OUTBOX_BYTES_MAX:
                self._outbox.clear()
                self._outbox_bytes = 0
                self.announce()

    @property
    def queued_bytes(self) -> int:
        """Bytes of the messages that are queued."""
        return self._outbox_bytes

    def next_event(self) -> wire.PushEvent | None:
        """Return what to send next, or None."""
        with self._lock:
            while self._outbox:
                signed = self._outbox.popleft()
                self._outbox_bytes -= len(signed.raw)
                if self._mark(signed.key):
                    self.sent += 1
                    return wire.Insert(signed.key, signed.raw)
            if not self._announcing:
                return None
            self._announcing = False
        return wire.Update(tuple(key_of(id) for id in self._log.heads()[: wire.HEADS_MAX]))

    def served(self, keys: Sequence[bytes]) -> None:
        """Note messages that the peer pulled."""
        with self._lock:
            self.sent += sum(map(self._mark, keys))

    def has_sent(self, keys: Sequence[bytes]) -> None:
        """Note messages that we pulled from the peer: they are not pushed back."""
        for key in keys:
            self._mark(key)

    def count_received(self, count: int) -> None:
        """Note messages of the peer that were stored."""
        with self._lock:
            self.received += count

    # What the peer sends

    def receive(self, frames: Sequence[bytes]) -> bool:
        """Store pushed messages and return whether to pull. The good ones before a bad one are kept; it raises."""
        events = [wire.decode_event(raw) for raw in frames]
        inserts = [event for event in events if isinstance(event, wire.Insert)]
        for event in inserts:
            self._mark(event.key)
        heads = [head for event in events if isinstance(event, wire.Update) for head in event.heads]
        return self._insert(inserts) or any(not self._log.has(id_of(head)) for head in heads)

    def _insert(self, inserts: Sequence[wire.Insert]) -> bool:
        """Store what was pushed; return whether a message lacks parents."""
        checked: list[SignedMessage] = []
        error: RopewalkError | None = None
        for event in inserts:
            try:
                if not self._log.has(id_of(event.key)):
                    checked.append(self._check(event))
            except RopewalkError as found:
                error = found
                break
        outcomes = self._log.insert_checked(checked, peer=self._name, relay=self._relay) if checked else []
        self.count_received(sum(outcome.status == "stored" for outcome in outcomes))
        if error is not None:
            raise error
        return any(outcome.missing for outcome in outcomes)

    def _check(self, event: wire.Insert) -> SignedMessage:
        signed = self._log.check(event.value)
        if signed.key != event.key:
            raise DigestMismatch(
                f"{self._name} pushed message {signed.id} under the key {id_of(event.key)}",
                expected=event.key.hex(),
                got=signed.key.hex(),
                where="push",
            )
        return signed

    # Anti-entropy

    @property
    def due_s(self) -> float:
        """When the next round of anti-entropy starts."""
        return self._due_s

    def is_due(self, now_s: float) -> bool:
        """Start a round of anti-entropy if it is time: announce our heads, and return True to pull."""
        if now_s < self._due_s:
            return False
        self._due_s = now_s + self._jittered()
        self.announce()
        return True

    def _jittered(self) -> float:
        return self._interval_s * (0.5 + self._random())

    def _mark(self, key: bytes) -> bool:
        """Note that the peer has a message; return whether that is new."""
        with self._lock:
            new = key not in self._seen
            self._seen[key] = None
            self._seen.move_to_end(key)
            if len(self._seen) > SEEN_MAX:
                self._seen.popitem(last=False)
            return new


@dataclass(slots=True)
class Backoff:
    """How long to wait before connecting again: twice as long each time, up to a limit, with full jitter.

    A peer that broke the protocol waits for the limit at once.

    >>> backoff = Backoff(lambda: 0.999)
    >>> [round(backoff.failed(), 1) for _ in range(9)]
    [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    >>> backoff.succeeded()
    >>> round(backoff.failed(), 1), round(backoff.failed(broken=True), 1)
    (0.5, 60.0)
    """

    random: Callable[[], float]
    first_s: float = RETRY_FIRST_S
    limit_s: float = RETRY_S_MAX
    _next_s: float = 0.0

    def failed(self, *, broken: bool = False) -> float:
        """Return the seconds to wait after a failed or lost connection."""
        ceiling = self.limit_s if broken else min(self.limit_s, self._next_s or self.first_s)
        self._next_s = min(self.limit_s, 2 * ceiling)
        return ceiling * (0.5 + self.random() / 2)

    def succeeded(self) -> None:
        """Start again with the shortest wait."""
        self._next_s = 0.0
