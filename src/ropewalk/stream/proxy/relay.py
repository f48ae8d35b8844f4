"""The window of a proxy: frames of an upstream under new numbers, and which upstream frame each number was.

The frames themselves are kept within the bounds of S2; what each number refers to is kept for longer, since it is
small. So a client that was away for long can be given what it missed under the numbers it knows, if the upstream still
has it, and learns exactly whether it missed anything at all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from ropewalk.stream.core.frames import BusEvent, ErrorFrame, RefUpdate, encode
from ropewalk.stream.core.patterns import Kind
from ropewalk.stream.core.window import PROXY_BOUNDS, KeptFrame, Window, WindowBounds

PLACES_MAX: Final = 100_000  # numbers whose meaning is kept: ten windows
GAP: Final = ""  # the name of a notice that frames are missing here; no ref and no topic is called so


@dataclass(frozen=True, slots=True)
class RelayPosition:
    """What a number refers to; `upstream` is None where there is nothing the upstream could send again."""

    upstream: int | None
    kind: Kind
    name: str


class RelayWindow(Window):
    """A window whose frames come from an upstream.

    >>> window = RelayWindow("01HF", 100)
    >>> window.relay(RefUpdate("refs/gatos/x", None, "8b1c", 7, ""), 0).seq
    101
    >>> window.relay(RefUpdate("refs/gatos/y", None, "8b1c", 9, ""), 0).seq
    102
    """

    def __init__(
        self, stream: str, base: int = 0, bounds: WindowBounds = PROXY_BOUNDS, *, places_max: int = PLACES_MAX
    ) -> None:
        super().__init__(stream, base, bounds)
        self._places: deque[RelayPosition] = deque(maxlen=max(places_max, bounds.frames_max))

    def relay(self, frame: RefUpdate | BusEvent, now_ms: int) -> KeptFrame:
        """Keep a frame of the upstream under the next number."""
        kept = super().relay(frame, now_ms)
        self._places.append(RelayPosition(frame.seq, kept.kind, kept.name))
        return kept

    def publish(self, frame: RefUpdate | BusEvent, now_ms: int) -> KeptFrame:
        """Keep a frame of the proxy's own."""
        kept = super().publish(frame, now_ms)
        self._places.append(RelayPosition(None, kept.kind, kept.name))
        return kept

    def tell_gap(self, message: str, now_ms: int) -> KeptFrame:
        """Report missing frames at this point, in order, to every client that passes it, now or later."""
        seq = self.seq + 1
        text = encode(ErrorFrame("REPLAY_EXPIRED", message, missing_seq=seq, seq=seq))
        kept = self._hold(KeptFrame(seq, "ref", GAP, text, now_ms))
        self._places.append(RelayPosition(None, "ref", GAP))
        return kept

    def forget_upstream(self) -> None:
        """Forget the numbers of the upstream, which starts to count again."""
        self._places = deque((replace(place, upstream=None) for place in self._places), self._places.maxlen)

    def place(self, seq: int) -> RelayPosition:
        """Return what a kept number refers to."""
        return self._places[seq - self.seq - 1]

    def dropped_since(self, seq: int, wanted: Callable[[Kind, str], bool]) -> dict[int, int] | None:
        """Return which wanted frames after `seq` were dropped: our numbers by the upstream's.

        None if that is not known, or if one of them cannot be asked for.

        >>> window = RelayWindow("01HF", 100, WindowBounds(frames_max=1), places_max=10)
        >>> for at, name in enumerate("xyz"):
        ...     _ = window.relay(RefUpdate(f"refs/{name}", None, "8b1c", 7 + at, ""), 0)
        >>> window.dropped_since(100, lambda kind, name: name != "refs/x"), window.dropped_since(99, lambda *_: True)
        ({8: 102}, None)
        """
        first = self.seq - len(self._places) + 1  # the oldest number whose meaning is known
        if seq + 1 < first or seq > self.seq:
            return None
        found: dict[int, int] = {}
        places = islice(self._places, seq + 1 - first, self.oldest - first)
        for number, place in enumerate(places, seq + 1):
            if place.name == GAP or wanted(place.kind, place.name):
                if place.upstream is None:
                    return None
                found[place.upstream] = number
        return found
