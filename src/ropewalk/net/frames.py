"""Frames with a length of four bytes, big endian: on a pipe, and inside a frame for the parts it is made of."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from ropewalk.errors import Invalid, TooLarge

_LENGTH = struct.Struct(">I")


def frame(raw: bytes) -> bytes:
    """Return bytes behind their length.

    >>> frame(b"abc")
    b'\\x00\\x00\\x00\\x03abc'
    """
    return _LENGTH.pack(len(raw)) + raw


class FrameDecoder:
    """Cuts a stream of bytes into frames of at most `limit` bytes; the limit may change between frames.

    >>> frames = FrameDecoder(100)
    >>> frames.receive(b"\\0\\0\\0\\3ab"), frames.receive(b"c\\0\\0\\0\\0"), frames.held
    ([], [b'abc', b''], 0)
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._buffer = bytearray()

    @property
    def held(self) -> int:
        """How many bytes of an unfinished frame are held."""
        return len(self._buffer)

    def receive(self, data: bytes) -> list[bytes]:
        """Take bytes and return the frames they complete; a length beyond the limit raises after those."""
        self._buffer += data
        frames: list[bytes] = []
        at = 0
        while len(self._buffer) - at >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._buffer, at)
            if size > self.limit and frames:
                break
            if size > self.limit:
                raise TooLarge(f"a frame of {size} bytes; at most {self.limit}", size=size, limit=self.limit)
            end = at + _LENGTH.size + size
            if len(self._buffer) < end:
                break
            frames.append(bytes(memoryview(self._buffer)[at + _LENGTH.size : end]))
            at = end
        del self._buffer[:at]
        return frames


def pack_parts(parts: Sequence[bytes]) -> bytes:
    """Return the parts side by side, each after its length.

    >>> unpack_parts(pack_parts([b"a", b""]), 2)
    [b'a', b'']
    """
    return b"".join([piece for part in parts for piece in (_LENGTH.pack(len(part)), part)])


def unpack_parts(raw: bytes, count_max: int) -> list[bytes]:
    """Return the parts a frame is made of; refused where they do not fill it exactly.

    >>> unpack_parts(b"\\0\\0\\0\\2a", 1)
    Traceback (most recent call last):
    ropewalk.errors.Invalid: a part of 2 bytes where 1 are left
    """
    parts: list[bytes] = []
    at = 0
    while at < len(raw):
        left = len(raw) - at - _LENGTH.size
        if left < 0:
            raise Invalid("a frame ends in the middle of a length", reason="frame")
        (size,) = _LENGTH.unpack_from(raw, at)
        if size > left:
            raise Invalid(f"a part of {size} bytes where {left} are left", reason="frame")
        if len(parts) == count_max:
            raise TooLarge(f"a frame of more than {count_max} parts", limit=count_max)
        at += _LENGTH.size
        parts.append(raw[at : at + size])
        at += size
    return parts
