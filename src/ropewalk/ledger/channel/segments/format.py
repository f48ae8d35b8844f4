"""Format of a segment file: headers, records, and their checksums. Bytes only; no file is read."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ropewalk.kernel.digest import blake3

ALIGN = 64
RECORD = struct.Struct(">4sIQ32s16s")
RECORD_MAGIC = b"RWB1"
SEGMENT_MAGIC = b"RWSEGM01"
BODY_BYTES_MAX = 16 << 20  # a block has at most 4 MiB of envelopes; a larger length is damage


@dataclass(frozen=True, slots=True)
class BlockPlace:
    """Where a record is stored: the first height of its segment, its offset, the length of its body."""

    segment: int
    offset: int
    length: int

    @property
    def end(self) -> int:
        """The offset after the record."""
        return self.offset + ALIGN + self.length


@dataclass(frozen=True)
class Record:
    """One block as stored."""

    height: int
    place: BlockPlace
    body: bytes = field(repr=False)

    @cached_property
    def lines(self) -> list[bytes]:
        """Return the block record, then the envelopes, without newlines."""
        return lines_of(self.body)


@dataclass(frozen=True, slots=True)
class TornTail:
    """The tail that a crash left: its offset, its length, and where its bytes were saved."""

    segment: int
    offset: int
    size: int
    kept: Path | None = None


def lines_of(body: bytes) -> list[bytes]:
    """Return the lines of a body, without padding."""
    lines = body.split(b"\n")
    while len(lines) > 1 and not lines[-1]:
        lines.pop()  # cheaper than a copy without the padding
    return lines


def record_head(height: int, body: bytes) -> bytes:
    """Return the header of a record with that body."""
    head = struct.pack(">4sIQ32s", RECORD_MAGIC, len(body), height, blake3(body))
    return head + blake3(head)[:16]


def parse_head(raw: bytes) -> tuple[int, int, bytes] | None:
    """Return (height, body length, body digest) of a record header with a valid checksum."""
    if len(raw) != ALIGN:
        return None
    magic, length, height, digest, check = RECORD.unpack(raw)
    if magic != RECORD_MAGIC or blake3(raw[:48])[:16] != check or length > BODY_BYTES_MAX or length % ALIGN:
        return None
    return height, length, digest


def digest_in(head: bytes) -> bytes:
    """Return the body digest in the header of a record."""
    return head[16:48]


def segment_head(start: int) -> bytes:
    """Return the header of the segment that begins at a height."""
    head = struct.pack(">8sQ32s", SEGMENT_MAGIC, start, bytes(32))
    return head + blake3(head)[:16]


def has_unwritten_sector(body: bytes) -> bool:
    """Return whether a run of zeros shows that a crash left a sector unwritten."""
    # Records are aligned to 64 bytes, so any unwritten sector covers at least one aligned unit of the body.
    zeros = bytes(ALIGN)
    return zeros in body and any(body[i : i + ALIGN] == zeros for i in range(0, len(body), ALIGN))
