"""A minimal tar for bundles: one format to write, and a streaming reader that writes nothing.

The reader uses a header's name, size and checksum. Times, owners and modes are ignored because nothing is extracted;
links, devices, folders, extensions and unsafe names are rejected.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ropewalk.errors import Damaged, Invalid

RECORD_BYTES: Final = 512
END: Final = bytes(2 * RECORD_BYTES)
NAME_BYTES_MAX: Final = 99
ZEROS_MAX: Final = 1 << 20  # other programs pad the last record with zeros; this much is enough

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*(?:/[A-Za-z0-9_][A-Za-z0-9._-]*)*")
_OCTAL = re.compile(rb" *([0-7]+)[ \0]*")


@dataclass(frozen=True, slots=True)
class Member:
    """A file inside: its name and size."""

    name: str
    size: int


def member_header(name: str, size: int) -> bytes:
    """Return the 512-byte header of a file: mode 0644, owner and time zero, so the same files give the same archive.

    >>> len(member_header("headers.jsonl", 10)), list(TarReader().feed(member_header("a", 0)))
    (512, [Member(name='a', size=0), b''])
    """
    raw = name.encode("ascii")
    assert len(raw) <= NAME_BYTES_MAX and 0 <= size < 8**11
    fields = (
        raw.ljust(100, b"\0"),
        b"0000644\0" + b"0000000\0" * 2,
        b"%011o\0" % size,
        b"00000000000\0",
        b" " * 8,  # the checksum counts its own field as blanks
        b"0" + bytes(100),
        b"ustar\00000",
    )
    header = b"".join(fields).ljust(RECORD_BYTES, b"\0")
    return header[:148] + b"%06o\0 " % sum(header) + header[156:]


def padding(size: int) -> bytes:
    """Return the padding of a file of that size up to a whole record.

    >>> len(padding(1)), padding(512)
    (511, b'')
    """
    return bytes(-size % RECORD_BYTES)


class TarReader:
    """Feed it bytes in chunks; it yields members and chunks of their contents, in order.

    Every member is followed by its contents as chunks; an empty chunk ends it.

    >>> reader = TarReader()
    >>> list(reader.feed(member_header("a", 2) + b"hi" + padding(2) + END))
    [Member(name='a', size=2), b'hi', b'']
    >>> reader.finish()
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._left = 0  # bytes of the member that are still to come
        self._skip = 0  # padding after it
        self._open = False
        self._zeros = 0

    def feed(self, chunk: bytes) -> Iterator[Member | bytes]:
        """Yield what these bytes complete; items before a fault are yielded before it is raised."""
        self._buffer += chunk
        yield from self._events()

    def finish(self) -> None:
        """Raise unless the archive ended properly."""
        if self._open or self._left or self._skip or self._zeros < len(END) or self._buffer:
            raise Damaged("the archive ends too early", reason="truncated")

    def _events(self) -> Iterator[Member | bytes]:
        buffer = self._buffer
        while True:
            if self._open:
                if self._left:
                    if not buffer:
                        return
                    piece = bytes(buffer[: self._left])
                    del buffer[: len(piece)]
                    self._left -= len(piece)
                    yield piece
                    continue
                if len(buffer) < self._skip:
                    return
                if any(buffer[: self._skip]):
                    raise Damaged("padding must be zero bytes", reason="padding")
                del buffer[: self._skip]
                self._open, self._skip = False, 0
                yield b""
            if len(buffer) < RECORD_BYTES:
                return
            record = bytes(buffer[:RECORD_BYTES])
            del buffer[:RECORD_BYTES]
            if not any(record):
                self._zeros += RECORD_BYTES
                if self._zeros > ZEROS_MAX:
                    raise Damaged("the archive goes on after its end", reason="trailing bytes")
                continue
            if self._zeros:
                raise Damaged("the archive goes on after its end", reason="trailing bytes")
            member = _parse(record)
            self._left, self._skip, self._open = member.size, -member.size % RECORD_BYTES, True
            yield member


def _parse(record: bytes) -> Member:
    checksum = sum(record[:148]) + 8 * 32 + sum(record[156:])
    if record[257:262] != b"ustar" or _octal(record[148:156]) != checksum:
        raise Damaged("invalid header checksum in the archive", reason="header")
    text = record[:100].rstrip(b"\0").decode("ascii", "replace")
    if record[156:157] not in (b"0", b"\0"):
        raise Invalid(
            f"member {text[:80]!r} is not a regular file (type {record[156:157]!r})",
            name=text[:80],
            reason="type",
        )
    if len(text) > NAME_BYTES_MAX or any(record[345:500]) or _NAME.fullmatch(text) is None:
        raise Invalid(f"member name {text[:80]!r} is not allowed", name=text[:80], reason="name")
    size = _octal(record[124:136])
    if size is None:
        raise Invalid(f"member {text!r} has an invalid size", name=text, reason="size")
    return Member(text, size)


def _octal(field: bytes) -> int | None:
    found = _OCTAL.fullmatch(field)
    return int(found[1], 8) if found is not None else None
