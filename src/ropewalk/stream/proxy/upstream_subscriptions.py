"""What a proxy is subscribed to upstream: what its configuration names, and what its clients ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from ropewalk.errors import RangeExceeded
from ropewalk.stream.core.connection import LIMITS
from ropewalk.stream.core.frames import ErrorFrame
from ropewalk.stream.core.patterns import Kind, Pattern, parse_pattern

MOST: Final[dict[Kind, int]] = {
    "ref": LIMITS.refs_max,
    "topic": LIMITS.topics_max,
}  # that an upstream takes


@dataclass(slots=True)
class UpstreamSubscription:
    """One pattern. Every frame it matches has a number, if it happened after number `floor` was given."""

    pattern: Pattern
    pinned: bool  # configured; others are kept while a client wants them, and a while longer
    floor: int | None  # None: the upstream does not know of it yet
    wanted_ms: int
    denied: ErrorFrame | None = None  # what the upstream said, if it shows us nothing of it or not everything


class UpstreamSubscriptions:
    """The patterns of one link upstream, no more than S2 §2 allows.

    >>> carried = UpstreamSubscriptions(("refs/gatos/**",), (), floor=0)
    >>> carried.covering(parse_pattern("ref", "refs/gatos/state/*")).pattern.text
    'refs/gatos/**'
    """

    def __init__(self, refs: Iterable[str], topics: Iterable[str], *, floor: int) -> None:
        self._found: dict[tuple[Kind, str], UpstreamSubscription] = {}
        for pattern in (
            *(parse_pattern("ref", text) for text in refs),
            *(parse_pattern("topic", text) for text in topics),
        ):
            if self.full(pattern.kind):
                most = MOST[pattern.kind]
                raise RangeExceeded(
                    f"more than {most} {pattern.kind} patterns; an upstream takes no more",
                    limit=most,
                    advice="Name fewer, broader ones: jobs.** for jobs.a, jobs.b and so on.",
                )
            self._found[pattern.kind, pattern.text] = UpstreamSubscription(pattern, True, floor, 0)

    def __iter__(self) -> Iterator[UpstreamSubscription]:
        return iter(self._found.values())

    def texts(self, kind: Kind) -> tuple[str, ...]:
        """Return the patterns of one kind, as a `sub` names them."""
        return tuple(text for of, text in self._found if of == kind)

    def named(self, kind: Kind, text: str) -> UpstreamSubscription | None:
        """Return the one of that text."""
        return self._found.get((kind, text))

    def covering(self, pattern: Pattern) -> UpstreamSubscription | None:
        """Return the oldest subscription that matches all the pattern matches."""
        found = [each for each in self._found.values() if each.pattern.covers(pattern)]
        return min(found, key=lambda each: (each.floor is None, each.floor or 0), default=None)

    def full(self, kind: Kind) -> bool:
        """Return whether no further pattern of the kind fits."""
        return sum(1 for of, _ in self._found if of == kind) >= MOST[kind]

    def add(self, pattern: Pattern, now_ms: int) -> UpstreamSubscription:
        """Carry one more; there must be room."""
        carried = UpstreamSubscription(pattern, False, None, now_ms)
        self._found[pattern.kind, pattern.text] = carried
        return carried

    def drop(self, carried: UpstreamSubscription) -> None:
        """Carry it no more."""
        del self._found[carried.pattern.kind, carried.pattern.text]

    def idle(self, now_ms: int, age_ms: int, wanted: Callable[[Pattern], bool]) -> list[UpstreamSubscription]:
        """Return those no client has wanted for so long, the longest first."""
        found = []
        for each in self._found.values():
            if each.pinned or wanted(each.pattern):
                each.wanted_ms = now_ms
            elif each.wanted_ms + age_ms <= now_ms:
                found.append(each)
        return sorted(found, key=lambda each: each.wanted_ms)
