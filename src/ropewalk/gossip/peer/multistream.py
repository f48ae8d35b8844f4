"""Multistream-select 1.0: two sides of a stream agree on what it is for.

Every message is a varint length and a line of text. Both sides begin with the name of this protocol; then the one
that began the stream proposes, and the other repeats the proposal, or answers "na".
"""

from __future__ import annotations

from collections.abc import Iterator

from ropewalk.errors import Invalid, TooLarge, Unavailable

NAME = "/multistream/1.0.0"
LINE_BYTES_MAX = 1024  # a protocol's name; topics have at most 200 characters
PROPOSALS_MAX = 16  # before the listener gives up on a dialer that only guesses


def _line(text: str) -> bytes:
    raw = text.encode("utf-8") + b"\n"
    return (bytes((len(raw),)) if len(raw) < 128 else bytes((len(raw) & 127 | 128, len(raw) >> 7))) + raw


class _Side:
    """The lines of one side; what follows the agreement is left in `rest`."""

    def __init__(self) -> None:
        self.chosen: str | None = None
        self.rest = b""
        self._buffer = bytearray()
        self._out = bytearray(_line(NAME))
        self._greeted = False

    def data_to_send(self) -> bytes:
        """Return the next bytes for the other side."""
        out, self._out = bytes(self._out), bytearray()
        return out

    def receive(self, data: bytes) -> None:
        """Take bytes of the other side; `chosen` is set when both agree."""
        self._buffer += data
        for text in self._lines():
            if not self._greeted:
                if text != NAME:
                    raise Invalid(f"{text[:40]!r} where {NAME} was expected", reason="multistream")
                self._greeted = True
            else:
                self._receive_line(text)
            if self.chosen is not None:
                self.rest, self._buffer = bytes(self._buffer), bytearray()
                return

    def _receive_line(self, text: str) -> None:
        raise NotImplementedError

    def _lines(self) -> Iterator[str]:
        while self._buffer:
            size, at = self._buffer[0], 1
            if size >= 128:
                if len(self._buffer) < 2:
                    return
                size, at = size & 127 | self._buffer[1] << 7, 2
            if size > LINE_BYTES_MAX:
                raise TooLarge(f"a protocol name of {size} bytes", size=size, limit=LINE_BYTES_MAX)
            if len(self._buffer) < at + size:
                return
            raw = bytes(self._buffer[at : at + size])
            del self._buffer[: at + size]
            try:
                text = raw.decode("utf-8")
            except UnicodeDecodeError:
                text = ""
            if not text.endswith("\n"):
                raise Invalid(
                    "a line of multistream-select does not end with a line feed", reason="multistream"
                )
            yield text[:-1]


class Dialer(_Side):
    """Proposes one protocol, at once: greeting and proposal travel together.

    >>> dialer, listener = Dialer("/chat"), ProtocolListener(["/echo", "/chat"])
    >>> listener.receive(dialer.data_to_send())
    >>> dialer.receive(listener.data_to_send())
    >>> dialer.chosen, listener.chosen
    ('/chat', '/chat')
    """

    def __init__(self, protocol: str) -> None:
        super().__init__()
        self._protocol = protocol
        self._out += _line(protocol)

    def _receive_line(self, text: str) -> None:
        if text != self._protocol:
            raise Unavailable(
                f"the peer does not speak {self._protocol}",
                advice="Check the topic: both sides must name the same one.",
            )
        self.chosen = text


class ProtocolListener(_Side):
    """Takes the first proposal it knows."""

    def __init__(self, protocols: list[str]) -> None:
        super().__init__()
        self._protocols = protocols
        self._proposals = 0

    def _receive_line(self, text: str) -> None:
        self._proposals += 1
        if self._proposals > PROPOSALS_MAX:
            raise TooLarge(f"more than {PROPOSALS_MAX} proposals", limit=PROPOSALS_MAX)
        known = text in self._protocols
        self._out += _line(text if known else "na")
        if known:
            self.chosen = text
