"""Find intact records in damaged segments: every record with valid checksums, also after damage."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from ropewalk.errors import Damaged
from ropewalk.ledger.channel.segments.format import ALIGN, RECORD_MAGIC, BlockPlace, parse_head
from ropewalk.ledger.channel.segments.packed import PackedSegment, packed_path
from ropewalk.ledger.channel.segments.reader import Segments


def find_records(segments: Segments, start: int = 0) -> dict[int, BlockPlace]:
    """Return the places of all intact records by height, in the segments that begin at `start` or later."""
    found: dict[int, BlockPlace] = {}
    for each in segments.starts():
        if each >= start:
            for height, place in _candidates(segments, each):
                with contextlib.suppress(Damaged, OSError):
                    segments.read(place, height)
                    found.setdefault(height, place)
    return found


def _candidates(segments: Segments, start: int) -> Iterator[tuple[int, BlockPlace]]:
    """Yield every place in a segment with a valid header; bodies are not checked."""
    try:
        stream = segments.path(start).open("rb", buffering=0)
    except FileNotFoundError:
        path = packed_path(segments.path(start))
        with contextlib.suppress(Damaged, OSError), contextlib.closing(PackedSegment(path, start)) as packed:
            yield from list(packed.places())
        return
    with stream:
        size, offset = os.fstat(stream.fileno()).st_size, ALIGN
        while offset + ALIGN <= size:
            head = parse_head(os.pread(stream.fileno(), ALIGN, offset))
            if head is not None:
                yield head[0], BlockPlace(start, offset, head[1])
                offset += ALIGN + head[1]
                continue
            rest = os.pread(stream.fileno(), size - offset, offset)
            at = ALIGN
            while (at := rest.find(RECORD_MAGIC, at)) >= 0 and at % ALIGN:
                at += 1
            if at < 0:
                return
            offset += at
