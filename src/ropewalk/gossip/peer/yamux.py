"""Yamux: many streams over one, as a session that takes bytes and gives bytes.

The header has twelve bytes, big endian: version 0, type, flags, stream, length. Each side may send as much on a
stream as the other has granted; here a stream's window opens again only as its reader takes bytes out, so the memory a
peer can claim is the window times the number of streams.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum, IntFlag

from ropewalk.errors import Invalid, TooLarge, Unavailable

WINDOW_BYTES = 256 << 10  # the window every stream starts with, on both sides, by the protocol
DATA_BYTES_MAX = (64 << 10) - 12  # what the JavaScript side sends and takes in one frame
SEND_WINDOW_MAX = 0xFFFFFFFF
CONTROL_BYTES_MAX = 256 << 10  # answers to pings and resets that wait because the peer does not read
OWN_STREAMS_MAX = 256  # begun here and not yet ended by both
_HEADER = struct.Struct(">BBHII")


class _Type(IntEnum):
    DATA = 0
    WINDOW = 1
    PING = 2
    GO_AWAY = 3


class _Flag(IntFlag):
    SYN = 1
    ACK = 2
    FIN = 4
    RST = 8


_FLAGS = 0xF


@dataclass(frozen=True, slots=True)
class YamuxLimits:
    """What one peer may claim."""

    streams: int = 64  # open at once, begun by the peer; more are reset at once


@dataclass(frozen=True, slots=True)
class Opened:
    """The peer began a stream."""

    stream: int


@dataclass(frozen=True, slots=True)
class Received:
    """Bytes came on a stream; give their number to `consumed` once a reader has taken them."""

    stream: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Finished:
    """The peer will send nothing more on a stream."""

    stream: int


@dataclass(frozen=True, slots=True)
class Reset:
    """The peer gave a stream up, in both directions."""

    stream: int


@dataclass(frozen=True, slots=True)
class Writable:
    """The peer opened a stream's window further."""

    stream: int


@dataclass(frozen=True, slots=True)
class Closed:
    """The peer ends the session; code 0 is a normal end, 1 our protocol error, 2 an internal error."""

    reason: int


Event = Opened | Received | Finished | Reset | Writable | Closed


class _Stream:
    __slots__ = ("finished_here", "finished_there", "owed", "receivable", "sendable", "waiting")

    def __init__(self) -> None:
        self.sendable = WINDOW_BYTES
        self.receivable = WINDOW_BYTES
        self.owed = 0  # taken by the reader and not yet granted again
        self.waiting = bytearray()  # to be sent when the window allows
        self.finished_here = False
        self.finished_there = False


class YamuxSession:
    """One side of a yamux session. It does no I/O: feed `receive`, send what `data_to_send` returns.

    >>> here, there = YamuxSession(client=True), YamuxSession(client=False)
    >>> stream = here.open()
    >>> here.send(stream, b"hello")
    >>> there.receive(here.data_to_send())
    [Opened(stream=1), Received(stream=1, data=b'hello')]
    """

    def __init__(self, *, client: bool, limits: YamuxLimits = YamuxLimits()) -> None:  # noqa: B008 - frozen
        self._next = 1 if client else 2
        self._limits = limits
        self._streams: dict[int, _Stream] = {}
        self._theirs_last = 0  # the newest stream the peer began
        self._received = bytearray()
        self._control = bytearray()
        self._turn: list[int] = []  # streams with bytes to send, the next to go first
        self.closed = False

    def open(self) -> int:
        """Begin a stream."""
        if self.closed:
            raise Unavailable("the peer has ended the session")
        if sum(not self._is_theirs(each) for each in self._streams) >= OWN_STREAMS_MAX:
            raise Unavailable(f"{OWN_STREAMS_MAX} streams are open and the peer ends none of them")
        stream, self._next = self._next, self._next + 2
        self._streams[stream] = _Stream()
        self._put(_Type.WINDOW, _Flag.SYN, stream, 0)
        return stream

    def send(self, stream: int, data: bytes) -> None:
        """Send bytes on a stream, as soon as its window allows."""
        state = self._state(stream)
        if state.finished_here:
            raise Unavailable(f"stream {stream} was finished here")
        state.waiting += data
        if stream not in self._turn:
            self._turn.append(stream)

    def waiting(self, stream: int) -> int:
        """Return how many bytes of a stream are queued; none for one that has ended."""
        state = self._streams.get(stream)
        return 0 if state is None else len(state.waiting)

    def knows(self, stream: int) -> bool:
        """Return whether a stream is open in some direction."""
        return stream in self._streams

    def consumed(self, stream: int, count: int) -> None:
        """Note that a reader took bytes: the peer may send as many again."""
        state = self._streams.get(stream)
        if state is None or state.finished_there:
            return
        state.owed += count
        if state.owed >= WINDOW_BYTES // 2:
            self._put(_Type.WINDOW, _Flag(0), stream, state.owed)
            state.receivable += state.owed
            state.owed = 0

    def finish(self, stream: int) -> None:
        """Send nothing more on a stream, after what still waits."""
        state = self._streams.get(stream)
        if state is None or state.finished_here:
            return
        state.finished_here = True
        if not state.waiting:
            self._finish(stream, state)

    def reset(self, stream: int) -> None:
        """Give a stream up."""
        if self._streams.pop(stream, None) is not None:
            self._put(_Type.WINDOW, _Flag.RST, stream, 0)

    def ping(self, value: int) -> None:
        """Ask for a sign of life."""
        self._put(_Type.PING, _Flag.SYN, 0, value & 0xFFFFFFFF)

    def go_away(self, reason: int = 0) -> None:
        """Say goodbye."""
        self._put(_Type.GO_AWAY, _Flag(0), 0, reason)

    def data_to_send(self, limit: int = 1 << 17) -> bytes:
        """Return the next bytes for the peer: control frames first, then one frame of each stream in turn."""
        out, self._control = self._control, bytearray()
        while self._turn and len(out) < limit:
            for stream in list(self._turn):
                if not self._send_some(stream, out):
                    self._turn.remove(stream)
        return bytes(out)

    def _send_some(self, stream: int, out: bytearray) -> bool:
        state = self._streams.get(stream)
        if state is None:
            return False
        size = min(len(state.waiting), state.sendable, DATA_BYTES_MAX)
        if not size:
            return False
        out += _HEADER.pack(0, _Type.DATA, 0, stream, size)
        out += state.waiting[:size]
        del state.waiting[:size]
        state.sendable -= size
        if not state.waiting and state.finished_here:
            out += _HEADER.pack(0, _Type.WINDOW, _Flag.FIN, stream, 0)
            self._forget(stream, state)
        return bool(state.waiting)

    def receive(self, data: bytes) -> list[Event]:
        """Take bytes of the peer and say what they mean. What breaks the protocol raises: end the connection."""
        self._received += data
        events: list[Event] = []
        at = 0
        while len(self._received) - at >= _HEADER.size:
            version, kind, flags, stream, length = _HEADER.unpack_from(self._received, at)
            if version != 0 or kind > _Type.GO_AWAY or flags & ~_FLAGS:
                raise Invalid(f"not a yamux frame: {self._received[at : at + 12].hex()}", reason="yamux")
            body = 0
            if kind == _Type.DATA:
                if length > WINDOW_BYTES:
                    raise TooLarge(
                        f"a yamux frame of {length} bytes; no window is that wide",
                        size=length,
                        limit=WINDOW_BYTES,
                    )
                body = length
                if len(self._received) - at - _HEADER.size < body:
                    break
            at += _HEADER.size
            payload = bytes(self._received[at : at + body])
            at += body
            events.extend(self._frame(_Type(kind), _Flag(flags), stream, length, payload))
        del self._received[:at]
        if len(self._control) > CONTROL_BYTES_MAX:
            raise TooLarge("the peer asks for more answers than it reads", limit=CONTROL_BYTES_MAX)
        return events

    def _frame(self, kind: _Type, flags: _Flag, stream: int, length: int, payload: bytes) -> Iterator[Event]:
        if kind == _Type.PING:
            if flags & _Flag.SYN:
                self._put(_Type.PING, _Flag.ACK, 0, length)
            return
        if kind == _Type.GO_AWAY:
            self.closed = True
            yield Closed(length)
            return
        if stream == 0:
            raise Invalid("a yamux frame for stream 0, which is the session itself", reason="yamux")
        if flags & _Flag.SYN:
            if not self._accept(stream):
                return
            yield Opened(stream)
        state = self._streams.get(stream)
        if state is None:
            if stream > (self._theirs_last if self._is_theirs(stream) else self._next - 1):
                raise Invalid(f"a yamux frame for stream {stream}, which no side opened", reason="yamux")
            return  # it has ended here, and the peer does not know yet
        if flags & _Flag.RST:
            del self._streams[stream]
            yield Reset(stream)
            return
        if kind == _Type.WINDOW:
            state.sendable = min(state.sendable + length, SEND_WINDOW_MAX)
            if state.waiting and stream not in self._turn:
                self._turn.append(stream)
            if length:
                yield Writable(stream)
        elif payload:
            if len(payload) > state.receivable or state.finished_there:
                raise Invalid(f"more bytes on stream {stream} than its window allows", reason="yamux window")
            state.receivable -= len(payload)
            yield Received(stream, payload)
        if flags & _Flag.FIN and not state.finished_there:
            state.finished_there = True
            self._forget(stream, state)
            yield Finished(stream)

    def _accept(self, stream: int) -> bool:
        if not self._is_theirs(stream) or stream <= self._theirs_last:
            raise Invalid(f"the peer may not begin stream {stream}", reason="yamux")
        self._theirs_last = stream
        if self.closed or sum(map(self._is_theirs, self._streams)) >= self._limits.streams:
            self._put(_Type.WINDOW, _Flag.RST, stream, 0)
            return False
        self._streams[stream] = _Stream()
        self._put(_Type.WINDOW, _Flag.ACK, stream, 0)
        return True

    def _is_theirs(self, stream: int) -> bool:
        return stream % 2 != self._next % 2

    def _state(self, stream: int) -> _Stream:
        try:
            return self._streams[stream]
        except KeyError:
            raise Unavailable(f"stream {stream} has ended") from None

    def _finish(self, stream: int, state: _Stream) -> None:
        self._put(_Type.WINDOW, _Flag.FIN, stream, 0)
        self._forget(stream, state)

    def _forget(self, stream: int, state: _Stream) -> None:
        if state.finished_here and state.finished_there and not state.waiting:
            self._streams.pop(stream, None)

    def _put(self, kind: _Type, flags: _Flag, stream: int, length: int) -> None:
        self._control += _HEADER.pack(0, kind, flags, stream, length)
