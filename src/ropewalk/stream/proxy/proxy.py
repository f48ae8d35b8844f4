"""A proxy (S2, federation): a client of its upstream and a server for its own clients. It does no I/O.

Frames come in on one link, get numbers of the proxy's own (`seq`, repeated as `seq_proxy`, with the origin's inside as
`seq_origin`), and stay in a window from which every client takes at its own pace.

Credit goes hop by hop. The upstream gets it for a frame once a client has taken that frame, the fastest one that wants
it: so a slow client delays no other, and when all are slow, the upstream waits. While no client takes anything, the
link is not read; the upstream may close it, and it is opened again once a client has taken something.

What is lost is reported in its place: a gap in the upstream's frames is a notice in the window, with a number, so
that clients who come back later learn of it as well.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from ropewalk.errors import Invalid, Usage
from ropewalk.kernel import jcs
from ropewalk.stream.core.access import EVERYBODY, Access
from ropewalk.stream.core.connection import LIMITS, StreamLimits
from ropewalk.stream.core.frames import (
    BusEvent,
    ErrorFrame,
    Ping,
    Pong,
    RefUpdate,
    Sub,
    Unsub,
    encode,
    parse_server,
)
from ropewalk.stream.core.patterns import Pattern
from ropewalk.stream.core.subscriber import Lost, Subscriber
from ropewalk.stream.core.window import PROXY_BOUNDS, WindowBounds
from ropewalk.stream.proxy.client import ADVICE, CatchUp, ProxyConnection
from ropewalk.stream.proxy.probes import Probes
from ropewalk.stream.proxy.relay import PLACES_MAX, RelayWindow
from ropewalk.stream.proxy.upstream_subscriptions import UpstreamSubscription, UpstreamSubscriptions

EVERYTHING: Final = (("refs/**",), ("**",))
HOPS_MAX: Final = 8  # proxies between an origin and us
NAME_CHARS_MAX: Final = 128  # of a stream; we pass it on to everybody
MISSES_MAX: Final = 60  # reported in a minute; a faulty client must not fill the window of all
MISS_TOPIC: Final = "stream.replay.miss"


@dataclass(frozen=True, slots=True)
class MissedFrames:
    """Frames a client asked for that are no longer available."""

    missing_seq: int
    oldest_seq: int
    reason: str
    at_ms: int
    untold: int = 0  # how many more there were that were not reported

    def payload(self) -> dict[str, Any]:
        """Return what is recorded and published of it."""
        return {
            "missingSeq": self.missing_seq,
            "oldestSeq": self.oldest_seq,
            "reason": self.reason,
            "untold": self.untold,
        }


class Proxy:
    """One upstream, any number of clients. `stream` names this run, `base` is the number before its first frame.

    >>> proxy = Proxy("proxy-1", 100)
    >>> proxy.receive('{"kind":"ack","stream":"origin-1","seq":7,"credit":1000}', 0)
    []
    >>> proxy.outgoing()
    ['{"op":"sub","refs":["refs/**"],"sinceSeq":7,"topics":["**"]}']
    >>> client = proxy.connect(0)
    >>> client.receive('{"op":"sub","refs":["refs/gatos/**"]}', 0)
    >>> proxy.receive('{"kind":"ref.update","ref":"refs/gatos/x","old":null,"new":"8b1c","seq":9,"ts":""}', 0)
    []
    >>> client.take(0)[1]
    '{"kind":"ref.update","new":"8b1c","old":null,"ref":"refs/gatos/x","seq":101,"seq_origin":9,"seq_proxy":101,"ts":""}'
    """

    def __init__(
        self,
        stream: str,
        base: int = 0,
        *,
        refs: tuple[str, ...] = (),
        topics: tuple[str, ...] = (),
        bounds: WindowBounds = PROXY_BOUNDS,
        places_max: int = PLACES_MAX,
        limits: StreamLimits = LIMITS,
        access: Access = EVERYBODY,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        if not refs and not topics:
            refs, topics = EVERYTHING
        self.window = RelayWindow(stream, base, bounds, places_max=places_max)
        self.carried = UpstreamSubscriptions(refs, topics, floor=base)
        self.via: tuple[str, ...] = ()  # the upstream, what lies behind it, and the origin last
        self.misses: deque[MissedFrames] = deque(maxlen=MISSES_MAX)
        self.catch_ups: list[CatchUp] = []  # to be asked of the upstream, each on a separate connection
        self.sealed: ErrorFrame | None = None  # what the upstream said, while nothing of it can be seen
        self._probes = Probes()
        self._missed_ms: deque[int] = deque(maxlen=MISSES_MAX)
        self._untold = 0
        self._limits = limits
        self._access = access
        self._changed = changed  # called when there may be something to send upstream, or to record
        self._subscriber = Subscriber(refs=refs, topics=topics)
        self._extra: list[str] = []
        # Patterns whose `sub` is followed by a ping, by ping.
        self._asked: deque[list[UpstreamSubscription]] = deque()
        self._granted = limits.outstanding_max  # what the upstream may send without more credit
        self._owed: deque[int] = deque()  # numbers of frames no client has taken
        self._link_base = base  # the last number before this link; it is owed no credit for frames of others
        self._lead = base  # the furthest any client has come

    # Clients

    def connect(self, now_ms: int) -> ProxyConnection:
        """Add a client."""
        return ProxyConnection(
            self.window, self, now_ms=now_ms, limits=self._limits, access=self._access, via=self.via
        )

    @property
    def upstream(self) -> str | None:
        """The stream our numbers stand for; None before it was first reached."""
        return self._subscriber.stream

    @property
    def clients(self) -> list[ProxyConnection]:
        """Those who are connected."""
        return [reader for reader in self.window.readers if isinstance(reader, ProxyConnection)]

    def carry(self, pattern: Pattern, now_ms: int) -> UpstreamSubscription | None:
        """See to it that what the pattern matches comes here; None if the upstream takes no more patterns."""
        carried = self.carried.covering(pattern)
        if carried is None:
            if self.carried.full(pattern.kind) and not self._make_room(pattern, now_ms):
                return None
            self._unsubscribe(self._probes.give_way(pattern.kind))
            carried = self.carried.add(pattern, now_ms)
            self._name_carried()
            if self.via:  # otherwise the first `sub` of the link has it
                self._extra.append(encode(Sub(*_named(carried.pattern))))
                self._ask([carried])
        elif carried.pattern.text != pattern.text:
            if self._probes.full:
                self._probes.keep({name for client in self.clients for name in client.names()})
            self._probes.wonder(pattern)
            self._probe(now_ms)
        return carried

    def fetch(self, catch_up: CatchUp) -> None:
        """Fetch what the window has dropped, for a client."""
        self.catch_ups.append(catch_up)
        self._changed()

    def missed(self, missing_seq: int, reason: str, now_ms: int) -> None:
        """Record that a client could not get what it asked for."""
        if len(self._missed_ms) == MISSES_MAX and now_ms < self._missed_ms[0] + 60_000:
            self._untold += 1
            return
        self._missed_ms.append(now_ms)
        miss = MissedFrames(missing_seq, self.window.oldest, reason, now_ms, self._untold)
        self._untold = 0
        self.misses.append(miss)
        self.window.publish(BusEvent(MISS_TOPIC, miss.payload()), now_ms)
        self._changed()

    def reached(self, seq: int) -> None:
        """Note that a client has taken all frames it wants up to this one."""
        if seq <= self._lead:
            return
        self._lead = seq
        due = 0
        while self._owed and self._owed[0] <= seq:
            due += self._owed.popleft() > self._link_base
        self._subscriber.consumed(due)
        self._changed()

    def left(self) -> None:
        """Note that a client has disconnected."""
        if not self._anybody():
            # No client to wait for; the window is kept for those that come back.
            self.reached(self.window.seq)

    # The upstream

    ended = False  # unlike a catch-up, it goes on for ever

    @property
    def reading(self) -> bool:
        """Whether the link is to be read: not while a whole credit of frames waits for the first client to take it.

        If clients themselves wait for an answer of the upstream, it is read for that.
        """
        return len(self._owed) < self._granted or bool(self._asked)

    def connected(self) -> None:
        """Begin a new link."""
        self._subscriber.connected()
        self._name_carried()
        self._extra.clear()
        self._asked.clear()
        self._link_base = self.window.seq
        self._probes.forget()
        self._unseal()
        self.via = ()

    def receive(self, data: str | bytes, now_ms: int) -> list[ErrorFrame]:
        """Take one frame of the upstream. What is returned is for the journal: errors that concern the link."""
        began = not self.via and self._begin(data, now_ms)
        for item in self._subscriber.receive(data):
            match item:
                case RefUpdate() | BusEvent():
                    self._relay(item, now_ms)
                case Lost():
                    self._lose(item, now_ms)
                case ErrorFrame():
                    if not self._pass_on(item):
                        return [item]
        if began:
            self._ask([each for each in self.carried if each.floor is None])
            self._wonder_anew(now_ms)
        elif self._asked and isinstance(parse_server(data), Pong):
            self._take_effect(self._asked.popleft())
        return []

    def outgoing(self) -> list[str]:
        """Return what to send to the upstream."""
        extra, self._extra = self._extra, []
        return [*self._subscriber.outgoing(), *extra]

    def tick(self, now_ms: int) -> None:
        """Drop subscriptions that no client wants, and fetches that time out."""
        self.window.prune(now_ms)
        for carried in self.carried.idle(now_ms, self.window.bounds.age_ms_max, self._wanted):
            self._let_go(carried)
        self._unsubscribe(self._probes.end(now_ms))
        self._probe(now_ms)
        for catch_up in self.catch_ups:
            catch_up.tick(now_ms)
        self.catch_ups = [each for each in self.catch_ups if not each.ended]

    def _begin(self, data: str | bytes, now_ms: int) -> bool:
        """Take the stream id from the first frame of a link."""
        document: Any = jcs.parse_foreign(
            data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
        )
        if not isinstance(document, dict) or document.get("kind") != "ack":
            raise Invalid("the upstream did not begin with ack", reason="ack")
        said = document.get("via")
        behind = [str(name) for name in said] if isinstance(said, list) else []
        via = (str(document.get("stream") or "?"), *behind)
        if max(map(len, via)) > NAME_CHARS_MAX:
            raise Invalid(
                f"the upstream names a stream with more than {NAME_CHARS_MAX} characters", reason="ack"
            )
        if self.window.stream in via:
            raise Usage(
                f"a loop: {' → '.join(via)} leads back here",
                advice="Give the address of a stream that does not come through this proxy.",
            )
        if len(via) > HOPS_MAX:
            raise Usage(
                f"{len(via)} streams lie behind one another; at most {HOPS_MAX} may",
                advice="Give the address of a proxy nearer to the origin.",
            )
        if self._subscriber.stream is None and self._anybody():
            self.window.tell_gap(f"the upstream was not reached before this moment. {ADVICE}", now_ms)
        credit = document.get("credit")
        most = self._limits.outstanding_max  # at most, for any credit a client grants
        self._granted = min(credit, most) if isinstance(credit, int) and credit > 0 else most
        self.via = via
        return True

    def _relay(self, frame: RefUpdate | BusEvent, now_ms: int) -> None:
        self._unseal()
        kept = self.window.relay(frame, now_ms)
        self._owed.append(kept.seq)
        self.left()

    def _lose(self, lost: Lost, now_ms: int) -> None:
        if lost.reason == "restarted":
            self.window.forget_upstream()
            reason = "the upstream began anew"
        else:
            reason = "the upstream no longer keeps them"
        kept = self.window.tell_gap(f"frames of the upstream are missing here: {reason}. {ADVICE}", now_ms)
        self.missed(kept.seq, reason, now_ms)

    def _pass_on(self, error: ErrorFrame) -> bool:
        if (probed := self._probes.found(error)) is not None:
            for client in self.clients:
                client.hear_of_name(probed, error)
            return True
        if error.code == "POLICY_DENIED" and error.ref is None and error.topic is None:
            self.sealed = error
            for client in self.clients:
                if client.subscribed:
                    client.tell_sealed(error)
            return True
        if error.code == "POLICY_DENIED":
            found = (
                self.carried.named("ref", error.ref)
                if error.ref is not None
                else self.carried.named("topic", error.topic or "")
            )
            if found is not None:
                found.denied = error
                for client in self.clients:
                    client.deny_of(found)
            return True
        if error.topic is not None:
            for client in self.clients:
                client.warn(error)
            return True
        return False

    # Subscriptions upstream. A `sub` has no answer, but a ping has: when its pong comes, the sub has arrived.

    def _ask(self, patterns: list[UpstreamSubscription]) -> None:
        if patterns:
            self._asked.append(patterns)
            self._extra.append(encode(Ping()))
        self._changed()

    def _take_effect(self, patterns: list[UpstreamSubscription]) -> None:
        for carried in patterns:
            carried.floor = self.window.seq
            for client in self.clients:
                client.in_effect(carried)

    def _make_room(self, pattern: Pattern, now_ms: int) -> bool:
        idle = [
            each for each in self.carried.idle(now_ms, 0, self._wanted) if each.pattern.kind == pattern.kind
        ]
        if idle:
            self._let_go(idle[0])
        return bool(idle)

    def _let_go(self, carried: UpstreamSubscription) -> None:
        self.carried.drop(carried)
        self._name_carried()
        self._unsubscribe([carried.pattern])

    def _unsubscribe(self, patterns: Iterable[Pattern]) -> None:
        for pattern in patterns:
            if self.carried.named(pattern.kind, pattern.text) is None:
                self._extra.append(encode(Unsub(*_named(pattern))))
                self._changed()

    def _probe(self, now_ms: int) -> None:
        """Ask for what clients want by name, where the link has a place for it."""
        if self.via:
            for pattern in self._probes.begin(self.carried, now_ms):
                self._extra.append(encode(Sub(*_named(pattern))))
                self._changed()

    def _wonder_anew(self, now_ms: int) -> None:
        for client in self.clients:
            for pattern in client.names():
                if self.carried.named(pattern.kind, pattern.text) is None:
                    self._probes.wonder(pattern)
        self._probe(now_ms)

    def _unseal(self) -> None:
        """Forget what the upstream said of its rules: it shows something, or is another one."""
        if self.sealed is not None:
            self.sealed = None
            for client in self.clients:
                client.set_access(self._access)

    def _name_carried(self) -> None:
        self._subscriber.refs = self.carried.texts("ref")
        self._subscriber.topics = self.carried.texts("topic")

    def _anybody(self) -> bool:
        return any(
            isinstance(reader, ProxyConnection) and reader.subscribed for reader in self.window.readers
        )

    def _wanted(self, pattern: Pattern) -> bool:
        return any(client.wants_of(pattern) for client in self.clients)


def _named(pattern: Pattern) -> tuple[tuple[str, ...], tuple[str, ...]]:
    names = (pattern.text,)
    return (names, ()) if pattern.kind == "ref" else ((), names)
