"""What a proxy asks its upstream only to hear whether it would be refused.

A proxy that carries everything gets no refusal for a single name, and so could not refuse a client that asks for
one. Such a name is subscribed to by itself, for a little while: the upstream then sends its refusal. Frames come once
all the same: each has its number. Asking takes one of the patterns an upstream allows; who needs that place gets it.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from ropewalk.stream.core.frames import ErrorFrame
from ropewalk.stream.core.patterns import Kind, Pattern
from ropewalk.stream.proxy.upstream_subscriptions import MOST, UpstreamSubscriptions

PROBE_MS: Final = 5_000  # how long an upstream, which may have to ask its own, has to answer
DUE_MAX: Final = 1_000  # that wait for a slot; more are not probed


class Probes:
    """The patterns that are asked for, and those that wait for a place.

    >>> from ropewalk.stream.core.patterns import parse_pattern
    >>> probes, carried = Probes(), UpstreamSubscriptions((), ("**",), floor=0)
    >>> probes.wonder(parse_pattern("topic", "payroll"))
    >>> [pattern.text for pattern in probes.begin(carried, 0)]
    ['payroll']
    >>> probes.found(ErrorFrame("POLICY_DENIED", "no", topic="payroll", dropped=True)).text
    'payroll'
    >>> [pattern.text for pattern in probes.end(PROBE_MS)]
    ['payroll']
    """

    def __init__(self) -> None:
        self._asked: dict[Pattern, int] = {}  # since when
        self._due: dict[Pattern, None] = {}

    @property
    def full(self) -> bool:
        """Tell whether the queue is full; the next name would not be probed."""
        return len(self._due) >= DUE_MAX

    def wonder(self, pattern: Pattern) -> None:
        """Queue a name that a client wants, to be asked of the upstream."""
        if pattern not in self._asked and not self.full:
            self._due.setdefault(pattern)

    def keep(self, wanted: Container[Pattern]) -> None:
        """Drop waiting names that no client wants any more, so that one client cannot keep out all others."""
        self._due = {pattern: None for pattern in self._due if pattern in wanted}

    def begin(self, carried: UpstreamSubscriptions, now_ms: int) -> list[Pattern]:
        """Return which to ask for now: those with a free slot next to the subscriptions."""
        room = {kind: most - len(carried.texts(kind)) - self._count(kind) for kind, most in MOST.items()}
        begun: list[Pattern] = []
        for pattern in self._due:
            if room[pattern.kind] > 0:
                room[pattern.kind] -= 1
                self._asked[pattern] = now_ms
                begun.append(pattern)
        for pattern in begun:
            del self._due[pattern]
        return begun

    def end(self, now_ms: int) -> list[Pattern]:
        """Return which were asked for long enough."""
        over = [pattern for pattern, since in self._asked.items() if since + PROBE_MS <= now_ms]
        for pattern in over:
            del self._asked[pattern]
        return over

    def give_way(self, kind: Kind) -> list[Pattern]:
        """Ask for none of this kind any more: its place is needed."""
        gone = [pattern for pattern in self._asked if pattern.kind == kind]
        for pattern in gone:
            del self._asked[pattern]
        return gone

    def found(self, error: ErrorFrame) -> Pattern | None:
        """Return the pattern that this error of the upstream denies, wholly or in part, if it was asked for."""
        if not error.dropped and error.code != "POLICY_DENIED":
            return None
        if (error.ref is None) == (error.topic is None):
            return None
        kind: Kind = "ref" if error.ref is not None else "topic"
        text = error.ref if error.ref is not None else error.topic
        return next((each for each in self._asked if (each.kind, each.text) == (kind, text)), None)

    def forget(self) -> None:
        """Forget what was asked: another link begins."""
        self._asked.clear()
        self._due.clear()

    def _count(self, kind: Kind) -> int:
        return sum(1 for pattern in self._asked if pattern.kind == kind)
