"""The warm tier (S4 §13): closed segments of a channel compressed in place; readers are not affected.

Hot are the last blocks or days, as written. Older segments are packed as a whole: each block is verified first, and
the packed form is read back before the segment is removed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from ropewalk.disk.durable import Disk, file_errors
from ropewalk.disk.folder_lock import hold_folder
from ropewalk.errors import RangeExceeded
from ropewalk.ledger.archive.files import Watch
from ropewalk.ledger.archive.write import hot_from, verified_blocks
from ropewalk.ledger.channel.channel import Channel
from ropewalk.ledger.channel.segments.format import BlockPlace
from ropewalk.ledger.channel.segments.packed import packed_path, write_packed_segment
from ropewalk.ledger.json_form import members_of


@dataclass(frozen=True, slots=True)
class PackResult:
    """Packing result: segments packed now, all packed ones, and the sizes before and after."""

    channel: str
    made: int
    segments: int
    size: int
    packed: int
    hot_from: int

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form that `ledger pack` prints."""
        return members_of(self, segments="packed_segments", size="bytes", packed="packed_bytes")


def pack_channel(
    home: Path,
    channel: str,
    *,
    keep_blocks: int | None = None,
    keep_days: float | None = None,
    now_ns: Callable[[], int] = time.time_ns,
    watch: Watch | None = None,
    disk: Disk | None = None,
) -> PackResult:
    """Pack the closed segments that hold only blocks older than the last `keep_blocks` or `keep_days`.

    Without either, all closed segments; the last one is always open. Writers and readers may keep running.
    """
    if keep_blocks is not None and keep_days is not None:
        raise RangeExceeded("keep_blocks and keep_days must not be given together")
    disk = disk or Disk()
    with Channel(home, channel) as reading, hold_folder(reading.segments.files_folder, 0, disk):
        segments, size = reading.segments, reading.head().height
        hot = hot_from(reading, size, keep_blocks=keep_blocks, keep_days=keep_days, now_ns=now_ns)
        closed = [start for start, after in pairwise(segments.starts()) if after <= hot]
        cold = [start for start in closed if segments.path(start).exists()]
        before = after = 0
        for start in cold:
            records = _verified(reading, start, watch)
            with file_errors(f"packing segment {start} of {channel}"):
                sizes = write_packed_segment(segments.path(start), start, records, disk)
            before, after = before + sizes[0], after + sizes[1]
        packed = sum(packed_path(segments.path(start)).exists() for start in segments.starts())
    return PackResult(channel, len(cold), packed, before, after, hot)


def _verified(reading: Channel, start: int, watch: Watch | None) -> list[tuple[BlockPlace, bytes]]:
    """Yield the records of a closed segment with their block hashes, each verified and linked."""
    count = next(after for after in reading.segments.starts() if after > start) - start
    blocks = verified_blocks(reading, start, count, watch=watch)
    places = reading.segments.places(start)
    return [(place, one.above) for (_, one), (_, place) in zip(blocks, places, strict=False)]
