"""How blocks lie in a segment file: headers, records, and what of them adds up. Bytes only; no file is touched."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from ropewalk.kernel.digest import blake3

ALIGN = 64
RECORD = struct.Struct(">4sIQ32s16s")
RECORD_MAGIC = b"RWB1"
SEGMENT = struct.Struct(">8sQ32s16s")
SEGMENT_MAGIC = b"RWSEGM01"
BODY_BYTES_MAX = 16 << 20  # a block is at most 4 MiB of envelopes; a length beyond this is damage, not a wish


@dataclass(frozen=True, slots=True)
class BlockPlace:
    """Where a record stands: the first height of its segment, its offset, the length of its body."""

    segment: int
    offset: int
    length: int

    @property
    def end(self) -> int:
        """The offset after the record."""
        return self.offset + ALIGN + self.length


@dataclass(frozen=True, slots=True)
class Record:
    """One block as stored: its lines (block record, then envelopes) without newlines."""

    height: int
    lines: list[bytes]
    place: BlockPlace


@dataclass(frozen=True, slots=True)
class TornTail:
    """A tail that no crash-free writer leaves: where it begins, how long it is, where the bytes were kept."""

    segment: int
    offset: int
    size: int
    kept: Path | None = None


def record_at(raw: bytes, height: int) -> list[bytes] | None:
    """The lines of one record held in memory, or None if the bytes are not the record of that height."""
    head = parse_head(raw[:ALIGN])
    body = raw[ALIGN:]
    if head is None or head[:2] != (height, len(body)) or blake3(body) != head[2]:
        return None
    return lines_of(body)


def lines_of(body: bytes) -> list[bytes]:
    """The lines of a body, without what fills it up."""
    return body.rstrip(b"\n").split(b"\n")


def record_head(height: int, body: bytes) -> bytes:
    """The header of a record with that body."""
    head = struct.pack(">4sIQ32s", RECORD_MAGIC, len(body), height, blake3(body))
    return head + blake3(head)[:16]


def parse_head(raw: bytes) -> tuple[int, int, bytes] | None:
    """(height, body length, body digest) of a record header whose checksum holds."""
    if len(raw) != ALIGN:
        return None
    magic, length, height, digest, check = RECORD.unpack(raw)
    if magic != RECORD_MAGIC or blake3(raw[:48])[:16] != check or length > BODY_BYTES_MAX or length % ALIGN:
        return None
    return height, length, digest


def digest_in(head: bytes) -> bytes:
    """The body digest in the header of a record."""
    return head[16:48]


def segment_head(start: int) -> bytes:
    """The header of the segment that begins at a height."""
    head = struct.pack(">8sQ32s", SEGMENT_MAGIC, start, bytes(32))
    return head + blake3(head)[:16]


def segment_head_holds(raw: bytes, start: int) -> bool:
    """Whether these bytes are that header."""
    return raw == segment_head(start)


def has_unwritten_sector(body: bytes) -> bool:
    """Whether a run of zeros shows that a crash left a sector unwritten."""
    # Records are aligned to 64 bytes, so any unwritten sector covers at least one aligned unit of the body.
    zeros = bytes(ALIGN)
    return zeros in body and any(body[i : i + ALIGN] == zeros for i in range(0, len(body), ALIGN))
