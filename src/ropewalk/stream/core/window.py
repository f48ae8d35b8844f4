"""The newest frames of a stream, kept for clients that missed some, within bounds on number, age and bytes.

Every frame is encoded once and kept once. A connection holds no frames, only its position: a slow
reader costs nothing until the window must drop what it has not taken, and then it gets an error.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ropewalk.stream.core.frames import BusEvent, ErrorFrame, RefUpdate, encode, relayed, timestamp
from ropewalk.stream.core.patterns import Kind

if TYPE_CHECKING:
    from ropewalk.stream.core.connection import Connection

TROUBLES_MAX: Final = 64  # topics; all of them may have to be sent at once


@dataclass(frozen=True, slots=True)
class WindowBounds:
    """How much is kept; the first bound that is reached counts."""

    frames_max: int = 1_000  # S2 §5
    age_ms_max: int = 600_000  # S2 §5: ten minutes
    bytes_max: int = 64 << 20  # a message may be large; a thousand of them must still fit


BOUNDS: Final = WindowBounds()
PROXY_BOUNDS: Final = WindowBounds(10_000, 900_000, 256 << 20)  # S2, federation §2


@dataclass(frozen=True, slots=True)
class KeptFrame:
    """A frame as the window keeps it: what it is about, and the text that travels."""

    seq: int
    kind: Kind
    name: str
    text: str
    at_ms: int

    @property
    def size(self) -> int:
        """The bytes it takes in memory; of a text in some scripts these are four times its letters."""
        return self.text.__sizeof__()


@dataclass(frozen=True, slots=True)
class TopicProblem:
    """What is wrong with a topic, for later clients. `until_seq` is the position of the stream when it was over."""

    error: ErrorFrame
    until_seq: int | None = None


class Window:
    """The frames of one stream. `stream` names this run of it; `base` is the number before its first frame.

    A base that is higher on every start (a clock will do) makes numbers of an earlier run fall before the window, so
    that even a client that looks at nothing but numbers learns that it has missed something.

    >>> window = Window("01HF", 100)
    >>> window.publish(RefUpdate("refs/gatos/x", None, "8b1c"), 0).seq, window.seq, window.oldest
    (101, 101, 101)
    """

    def __init__(
        self, stream: str, base: int = 0, bounds: WindowBounds = BOUNDS, *, refs_below: str = "refs/"
    ) -> None:
        self.stream = stream
        self.refs_below = refs_below  # no other refs are published
        self.base = base
        self.seq = base  # of the newest frame
        self.bounds = bounds
        self.readers: set[Connection] = set()
        self.troubles: dict[str, TopicProblem] = {}  # by topic
        self._kept: deque[KeptFrame] = deque()
        self._bytes = 0

    @property
    def oldest(self) -> int:
        """The number of the oldest frame that is kept; that of the next one, if none is."""
        return self.seq - len(self._kept) + 1

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, seq: int) -> KeptFrame:
        """Return the frame of that number, which must be kept."""
        at = seq - self.oldest
        if not 0 <= at < len(self._kept):
            raise IndexError(f"frame {seq} is not kept")
        return self._kept[at]

    def publish(self, frame: RefUpdate | BusEvent, now_ms: int) -> KeptFrame:
        """Give a frame the next number and the time, and keep it."""
        return self._keep(replace(frame, seq=self.seq + 1, ts=timestamp(now_ms)), now_ms)

    def relay(self, frame: RefUpdate | BusEvent, now_ms: int) -> KeptFrame:
        """Keep a frame of another stream under a number of this one, with the other's inside."""
        return self._keep(relayed(frame, self.seq + 1), now_ms)

    def _keep(self, frame: RefUpdate | BusEvent, now_ms: int) -> KeptFrame:
        return self._hold(KeptFrame(frame.seq, frame.subject, frame.name, encode(frame), now_ms))

    def _hold(self, kept: KeptFrame) -> KeptFrame:
        self.prune(kept.at_ms, room=kept.size)
        self.seq = kept.seq
        self._kept.append(kept)
        self._bytes += kept.size
        return kept

    def prune(self, now_ms: int, *, room: int = 0) -> None:
        """Drop what is too old, and what must make room for one more frame of that size."""
        bounds, coming = self.bounds, 1 if room else 0
        while self._kept and (
            len(self._kept) + coming > bounds.frames_max
            or self._bytes + room > bounds.bytes_max
            or self._kept[0].at_ms <= now_ms - bounds.age_ms_max
        ):
            self._drop()

    def trouble(self, error: ErrorFrame) -> None:
        """Note that something is wrong with a topic, until `calm`."""
        assert error.topic is not None
        self.troubles.pop(error.topic, None)
        while len(self.troubles) >= TROUBLES_MAX:
            del self.troubles[next(iter(self.troubles))]
        self.troubles[error.topic] = TopicProblem(error)

    def calm(self, topic: str) -> None:
        """Clear the problem of a topic. Clients that were away still learn that its history changed."""
        trouble = self.troubles.pop(topic, None)
        if trouble is not None and trouble.error.code == "HISTORY_REWRITTEN":
            self.troubles[topic] = replace(trouble, until_seq=self.seq)

    def forget(self) -> None:
        """Keep none of the frames; numbers go on."""
        while self._kept:
            self._drop()

    def _drop(self) -> None:
        gone = self._kept[0]
        for reader in list(self.readers):  # one that is too slow leaves
            if reader.cursor < gone.seq:
                reader.lose(gone)
        self._kept.popleft()
        self._bytes -= gone.size
