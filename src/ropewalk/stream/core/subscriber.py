"""One subscription, as a client has it, over any number of connections: text in, items out, texts to send.

It drops duplicates, answers pings, gives credit for what its owner has consumed, and after a new connection asks for
what it has missed. Where frames are no longer available, it reports `Lost` instead of skipping them silently.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from ropewalk.stream.core.frames import (
    Ack,
    BusEvent,
    Credit,
    ErrorFrame,
    Ping,
    Pong,
    RefUpdate,
    Sub,
    encode,
    parse_server,
)

CREDIT_STEP = 250  # frames consumed before we say so: a quarter of the usual window


@dataclass(frozen=True, slots=True)
class Lost:
    """Frames were missed and will not come: read the refs and topics themselves, then go on.

    `expired`: the server no longer keeps them. `restarted`: it is another run of the server.
    """

    reason: Literal["expired", "restarted"]
    since_seq: int
    seq: int  # everything after this will come
    message: str


Item: TypeAlias = RefUpdate | BusEvent | ErrorFrame | Lost


class Subscriber:
    """What one client wants and how far it has come.

    >>> subscriber = Subscriber(topics=("jobs.*",))
    >>> subscriber.receive('{"kind":"ack","stream":"01HF","seq":77,"credit":1000}')
    []
    >>> subscriber.outgoing()
    ['{"op":"sub","refs":[],"sinceSeq":77,"topics":["jobs.*"]}']
    """

    def __init__(
        self, *, refs: tuple[str, ...] = (), topics: tuple[str, ...] = (), since_seq: int | None = None
    ) -> None:
        self.refs = refs
        self.topics = topics
        self.seq = since_seq  # the last frame handed out, or the position of the stream when we connected
        self.start = since_seq  # where it all began
        self.stream: str | None = None
        self.begun = False  # whether this connection's ack has come
        self.duplicates = 0
        self._ack_seq = 0  # the position of the stream at this connection's ack
        self._step: int | None = CREDIT_STEP
        self._consumed = 0
        self._out: list[str] = []

    def connected(self) -> None:
        """Begin a new connection; drop what was to be sent on the last one."""
        self.begun = False
        self._out.clear()
        self._consumed = 0

    def receive(self, data: str | bytes) -> list[Item]:
        """Take one frame of the server; what it means for the owner."""
        match parse_server(data):
            case Ack() as ack:
                return self._begin(ack)
            case RefUpdate() | BusEvent() as frame:
                if self.seq is not None and frame.seq <= self.seq:
                    self.duplicates += 1
                    self.consumed(1)
                    return []
                self.seq = frame.seq
                return [frame]
            case Ping():
                # Zero is sent, too: an empty pong would count as having consumed everything.
                self._out.append(encode(Pong(self._consumed if self._step is not None else None)))
                self._consumed = 0
            case ErrorFrame(code="REPLAY_EXPIRED") as error:
                self._ack_seq = self._ack_seq if error.seq is None else error.seq
                return [self._lose("expired", error.message)]
            case ErrorFrame() as error:
                return [error]
            case _:
                pass
        return []

    def consumed(self, count: int) -> None:
        """Count frames the owner is done with; report them to the server now and then."""
        if self._step is None:
            return
        self._consumed += count
        if self._consumed >= self._step:
            self._out.append(encode(Credit(self._consumed)))
            self._consumed = 0

    def outgoing(self) -> list[str]:
        """Return what to send now."""
        out, self._out = self._out, []
        return out

    def _begin(self, ack: Ack) -> list[Item]:
        lost: list[Item] = []
        self.begun = True
        self._ack_seq = ack.seq if ack.seq is not None else self.seq or 0
        # A server that does not speak of credit knows no such frame; it counts our pongs.
        self._step = max(1, min(CREDIT_STEP, ack.credit // 4)) if ack.credit is not None else None
        if self.stream is not None and ack.stream != self.stream:
            lost.append(self._lose("restarted", f"the server began anew; it was {self.stream}"))
        self.stream = ack.stream
        if self.seq is None:
            # From here on nothing is missed, also not what comes before our `sub` arrives.
            self.seq = self.start = ack.seq
        self._out.append(encode(Sub(self.refs, self.topics, self.seq)))
        return lost

    def _lose(self, reason: Literal["expired", "restarted"], message: str) -> Lost:
        since, self.seq = self.seq or 0, self._ack_seq
        return Lost(reason, since, self._ack_seq, message)
