"""One client of a proxy: a connection that may be given what the window no longer has, fetched from the upstream."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Final

from ropewalk.kernel import jcs
from ropewalk.stream.core.access import Access
from ropewalk.stream.core.connection import Connection, StreamLimits, keys, pattern_error
from ropewalk.stream.core.frames import BusEvent, ErrorFrame, RefUpdate, Sub, encode, relayed
from ropewalk.stream.core.patterns import Kind, Pattern, parse_pattern
from ropewalk.stream.core.subscriber import Lost, Subscriber
from ropewalk.stream.core.window import KeptFrame
from ropewalk.stream.proxy.relay import GAP, RelayWindow
from ropewalk.stream.proxy.upstream_subscriptions import UpstreamSubscription

if TYPE_CHECKING:
    from ropewalk.stream.proxy.proxy import Proxy

FETCH_MS: Final = 30_000  # how long the upstream may take for the next frame that was missed
ATTEMPTS_MAX: Final = 3
QUEUE_MAX: Final = 1_000  # frames fetched and not yet taken; an honest upstream sends no more without credit
ADVICE: Final = "Read the refs and topics themselves, then go on from here"


class CatchUp:
    """Frames one client missed and the window has dropped, fetched from the upstream on a separate connection.

    Text in, texts to send; what arrives gets the numbers it had when it first came by.
    """

    def __init__(
        self, client: ProxyConnection, upstream: str | None, wanted: dict[int, int], sub: Sub, now_ms: int
    ) -> None:
        self.client = client
        self.subscriber = Subscriber(refs=sub.refs, topics=sub.topics, since_seq=min(wanted) - 1)
        self.subscriber.stream = upstream  # another run of it knows nothing of these numbers
        self.ready: deque[tuple[int, str]] = deque()
        self.ended = False
        self._wanted = dict(wanted)
        self._last = max(wanted)
        self._attempts = 0
        self._heard_ms = now_ms

    def connected(self) -> None:
        """Begin a connection to the upstream."""
        self.subscriber.connected()

    def dropped(self, now_ms: int) -> None:
        """Note that it ended; another one continues, for a limited number of attempts."""
        self._attempts += 1
        if not self.ended and self._attempts >= ATTEMPTS_MAX:
            self.fail("the upstream could not be asked", now_ms)

    @property
    def reading(self) -> bool:
        """Whether there is room for more."""
        return not self.ended and len(self.ready) < QUEUE_MAX

    @property
    def next(self) -> int | None:
        """The number of the first frame the client has not been sent yet; None if it was sent all."""
        return min([*(number for number, _ in self.ready), *self._wanted.values()], default=None)

    def receive(self, data: str | bytes, now_ms: int) -> list[ErrorFrame]:
        """Take one frame of the upstream. What is returned is for the journal."""
        for item in self.subscriber.receive(data):
            if isinstance(item, ErrorFrame):
                return [item]
            if self.ended:
                break
            if isinstance(item, Lost):
                self.fail("the upstream has them no more either", now_ms)
            else:
                self._take(item, now_ms)
        return []

    def outgoing(self) -> list[str]:
        """Return what to send to the upstream."""
        return self.subscriber.outgoing()

    def tick(self, now_ms: int) -> None:
        """Give up if the upstream is silent, unless we are the side that does not read."""
        if not self.ended and not self.ready and now_ms >= self._heard_ms + FETCH_MS:
            self.fail("the upstream did not send them", now_ms)

    def taken(self) -> tuple[int, str]:
        """Return the next frame, which is under way to the client from now on: the upstream may send one more."""
        self.subscriber.consumed(1)
        return self.ready.popleft()

    def extend(self, upstream: int | None, number: int) -> None:
        """Fetch a further frame, newer than all before, that the window dropped meanwhile."""
        if upstream is None:  # it cannot be sent again, which is reported after the others
            self._wanted[-number] = number
        else:
            self._wanted[upstream] = number
            self._last = upstream

    def fail(self, reason: str, now_ms: int) -> None:
        """Give up: report which frames are missing, and go on with what the window has."""
        self.ended = True
        missing = self.next or self.client.cursor + 1
        self.ready.clear()
        self.client.give_up(missing, reason, now_ms)

    def _take(self, frame: RefUpdate | BusEvent, now_ms: int) -> None:
        self._heard_ms = now_ms
        number = self._wanted.pop(frame.seq, None)
        if number is None:
            self.subscriber.consumed(1)
        else:
            self.ready.append((number, encode(relayed(frame, number))))
        if frame.seq >= self._last:
            if self._wanted:  # it passed over some: they may not be seen any more, for example
                return self.fail("the upstream did not send them all", now_ms)
            self.ended = True
        return None


class ProxyConnection(Connection):
    """A client of a proxy.

    It differs from a client of an origin in this: patterns the proxy does not carry yet are asked of the upstream,
    frames the window has dropped are fetched, and `ack` names the streams that lie behind this one.
    """

    window: RelayWindow

    def __init__(
        self,
        window: RelayWindow,
        host: Proxy,
        *,
        now_ms: int,
        limits: StreamLimits,
        access: Access,
        via: tuple[str, ...],
    ) -> None:
        self._host = host
        self._catching: CatchUp | None = None
        self._waiting: list[Pattern] = []  # asked of the upstream, which does not know of it yet
        super().__init__(window, now_ms=now_ms, limits=limits, access=access)
        if via:
            names = jcs.encode(list(via)).decode()
            self._control[0] = f'{self._control[0][:-1]},"via":{names}}}'

    @property
    def subscribed(self) -> bool:
        """Whether it asked for anything."""
        return bool(self._subscriptions)

    def wants_of(self, pattern: Pattern) -> bool:
        """Return whether it is subscribed to something that this pattern covers."""
        return any(pattern.covers(each.pattern) for each in self._subscriptions.values())

    def leave(self) -> None:
        super().leave()
        if self._catching is not None:
            self._catching.ended = True
        self._host.left()

    @property
    def has_more(self) -> bool:
        if self._waiting:  # first it learns from where on it misses nothing
            return False
        if self._catching is not None:
            return self.closing is None and (bool(self._catching.ready) or self._catching.ended)
        more = super().has_more
        if self._subscriptions and self.closing is None:
            self._host.reached(self.cursor)
        return more

    def lose(self, kept: KeptFrame) -> None:
        catching = self._catching
        if catching is None or catching.ended or not self._wants(kept):
            return super().lose(kept)
        self.cursor = kept.seq
        return catching.extend(self.window.place(kept.seq).upstream, kept.seq)

    # What the proxy has to tell

    def in_effect(self, carried: UpstreamSubscription) -> None:
        """Note that the upstream has a pattern now; answer the clients that waited for it."""
        if any(carried.pattern.covers(each) for each in self._waiting):
            self._waiting = [each for each in self._waiting if not carried.pattern.covers(each)]
            self._begin_late(f"this proxy carries {carried.pattern.text} from here on, not before")

    def deny_of(self, carried: UpstreamSubscription) -> None:
        """Tell the client, once, that the upstream hides some or all of what it subscribed to.

        Of a pattern that is hidden in part, a narrower one may be shown in full: only the upstream's answer to that
        very pattern shows whether something of it is hidden (see `hear_of_name`).
        """
        assert carried.denied is not None
        for subscription in list(self._subscriptions.values()):
            pattern = subscription.pattern
            if pattern.covers(carried.pattern):
                self._deny(pattern, f"some of what {pattern.text} matches")
            elif carried.denied.dropped and carried.pattern.covers(pattern):
                self._deny(pattern, pattern.text)

    def hear_of_name(self, pattern: Pattern, error: ErrorFrame) -> None:
        """Pass on the upstream's error about a pattern to a subscribed client; drop a refused subscription."""
        key = (pattern.kind, pattern.text)
        if key not in self._subscriptions:
            return
        if error.dropped:
            del self._subscriptions[key]
            self._floors.clear()
        self._tell_once(error, pattern)

    def names(self) -> list[Pattern]:
        """Return what it is subscribed to."""
        return [each.pattern for each in self._subscriptions.values()]

    def give_up(self, missing_seq: int, reason: str, now_ms: int) -> None:
        """Report frames that cannot be fetched, and go on with live ones."""
        self._catching = None
        self.cursor = self.window.seq
        self._expire(missing_seq, f"frame {missing_seq} is no longer kept, and {reason}")
        self._host.missed(missing_seq, reason, now_ms)

    # Subscribing

    def _act(self, data: str | bytes, now_ms: int) -> None:
        super()._act(data, now_ms)
        if self._waiting:  # not for what it has taken back
            self._waiting = [each for each in self._waiting if (each.kind, each.text) in self._subscriptions]

    def _subscribe(self, sub: Sub, now_ms: int) -> None:
        since = self.window.base if sub.since_seq == 0 else sub.since_seq
        missing = None if since is None else self._missing(since, sub, now_ms)
        super()._subscribe(sub if missing is None else replace(sub, since_seq=self.window.oldest - 1), now_ms)
        if missing:
            self._catching = CatchUp(self, self._host.upstream, missing, sub, now_ms)
            self._host.fetch(self._catching)
        for key in keys(sub):
            self._carry(parse_pattern(*key), since if missing is not None else None, now_ms)
        if self._host.sealed is not None:
            self.tell_sealed(self._host.sealed)

    def _missing(self, since: int, sub: Sub, now_ms: int) -> dict[int, int] | None:
        """Return what must be fetched for this; None if the window has it all, or if that is not known."""
        self.window.prune(now_ms)
        if since + 1 >= self.window.oldest or since < self.sent_seq or self._catching is not None:
            return None
        patterns = [parse_pattern(*key) for key in keys(sub)]
        if len(patterns) > self.limits.refs_max + self.limits.topics_max:
            return None  # too many: it will be refused

        @cache  # of many frames, few names
        def wanted(kind: Kind, name: str) -> bool:
            asked = any(pattern.kind == kind and pattern.matches(name) for pattern in patterns)
            return asked and self._access.sees(kind, name)

        return self.window.dropped_since(since, wanted)

    def _carry(self, pattern: Pattern, since: int | None, now_ms: int) -> None:
        key = (pattern.kind, pattern.text)
        subscription = self._subscriptions.get(key)
        if subscription is None:  # it may not be seen
            return
        carried = self._host.carry(pattern, now_ms)
        if carried is None:
            del self._subscriptions[key]
            self._floors.clear()
            self._refuse(pattern)
        elif carried.floor is None:
            self._waiting.append(pattern)
        elif (subscription.floor if since is None else since) < carried.floor:
            self._begin_late(f"this proxy carries {carried.pattern.text} only since {carried.floor}")
        if carried is not None and carried.denied is not None:
            self.deny_of(carried)

    def _catch_up(self, since: int, now_ms: int) -> int:
        self.window.prune(now_ms)
        ahead = since > self.window.seq
        if since != 0 and (ahead or since + 1 < self.window.oldest):
            # Recorded first: what is published of it may be what pushes the oldest frame out of the window.
            self._host.missed(since + 1, "it is not known here any more", now_ms)
        return super()._catch_up(max(since, self.window.seq + 1) if ahead else since, now_ms)

    def _refuse(self, pattern: Pattern) -> None:
        message = f"this proxy is subscribed to as much as its upstream allows; {pattern.text} does not fit"
        self._say(pattern_error("PROXY_FULL", message, pattern))

    def _begin_late(self, reason: str) -> None:
        """Report that wanted frames were never here, and go on with new ones."""
        missing = self.cursor + 1
        if self._catching is not None:
            missing = self._catching.next or missing
            self._catching.ended = True
            self._catching = None
        self.cursor = self.window.seq
        self._expire(missing, reason)

    def _expire(self, missing_seq: int, reason: str) -> None:
        oldest = self.window.oldest
        self._say(ErrorFrame("REPLAY_EXPIRED", f"{reason}. {ADVICE}", missing_seq, oldest, self.cursor))

    # Sending

    def _wants(self, kept: KeptFrame) -> bool:
        if kept.name == GAP:
            return any(each.floor < kept.seq for each in self._subscriptions.values())
        return super()._wants(kept)

    def _frames(self, texts: list[str], now_ms: int, limit: int) -> None:
        catching = None if self._waiting else self._catching
        while catching is not None and catching.ready and self.credit and limit:
            seq, text = catching.taken()
            self._give(seq, text, texts, now_ms)
            limit -= 1
        if catching is not None:
            if catching.ready or not catching.ended:
                return
            self._catching = None
        super()._frames(texts, now_ms, limit)

    def _give(self, seq: int, text: str, texts: list[str], now_ms: int) -> None:
        if seq >= self.window.oldest and self.window[seq].name == GAP:
            self.sent_seq = seq
            texts.append(text)  # a notice is no frame, and costs no credit
        else:
            super()._give(seq, text, texts, now_ms)
