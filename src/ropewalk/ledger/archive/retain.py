"""Bounded storage (S4 §13): drop closed segments whose blocks are archived, verified and, if asked, witnessed.

What is dropped is left as a small file with its digest (`segments.cold`); reads go through to the archives. Summaries
of what was dropped are sealed in the channel itself, so its key signs them and its heads anchor them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from blake3 import blake3

from ropewalk.disk.durable import Disk, file_errors
from ropewalk.disk.folder_lock import hold_folder
from ropewalk.errors import RangeExceeded
from ropewalk.kernel import merkle
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.archive.cold import cold_store
from ropewalk.ledger.archive.write import hot_from
from ropewalk.ledger.channel.channel import Channel
from ropewalk.ledger.channel.key_heights import read_heights
from ropewalk.ledger.channel.segments.cold import ColdSegment, cold_path, segment_pieces
from ropewalk.ledger.channel.segments.packed import packed_path
from ropewalk.ledger.channel.summaries import SUMMARY_TYPE
from ropewalk.ledger.channel.witnessed import read_witness_policy, read_witnessed
from ropewalk.ledger.envelope.envelope import build
from ropewalk.ledger.envelope.fields import format_timestamp
from ropewalk.ledger.json_form import members_of
from ropewalk.ledger.keys.rotate import open_sealing
from ropewalk.ledger.versions.lifecycle import version_to_write

DOMAIN: Final = "ropewalk.compaction"
WRITER_WAIT_S: Final = 30.0
PIECE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class RetainResult:
    """What was dropped: segments, their bytes, the first height that stays, and the summary of it."""

    channel: str
    archived: int
    dropped: int
    size: int
    hot_from: int
    limited_by: str | None
    summary: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form that `ledger retain` prints."""
        return members_of(self, archived="archived_blocks", dropped="dropped_segments", size="dropped_bytes")


def retain_channel(
    home: Path,
    channel: str,
    keys: Callable[[], Sequence[SigningKey]],
    location: str,
    *,
    keep_blocks: int | None = None,
    keep_days: float | None = None,
    lock_days: float | None = None,
    summary: bool = True,
    now_ns: Callable[[], int] = time.time_ns,
    disk: Disk | None = None,
) -> RetainResult:
    """Archive what is old, then drop the closed segments that hold nothing else.

    A segment is dropped only if the archives give its exact bytes back. Blocks above the newest witnessed head of a
    channel with witnesses stay, and so do segments with statements about keys: without them nothing could be verified.
    """
    if keep_blocks is not None and keep_days is not None:
        raise RangeExceeded("keep_blocks and keep_days must not be given together")
    store, disk = cold_store(location), disk or Disk()
    limits: dict[str, Any] = {"keep_blocks": keep_blocks, "keep_days": keep_days, "now_ns": now_ns}
    done = store.archive(home, channel, keys()[0], lock_days=lock_days, **limits)
    place = location if "://" in location else str(Path(location).absolute())
    with Channel(home, channel) as reading, hold_folder(reading.segments.files_folder, 0, disk):
        hot, limited = _boundary(
            reading, min(done.blocks, hot_from(reading, reading.head().height, **limits))
        )
        starts = reading.segments.starts()
        kept = set(read_heights(reading.folder))
        cold = [
            _measured(reading, start, after - 1, place)
            for start, after in pairwise(starts)
            if after <= hot and not kept & set(range(start, after)) and _is_here(reading, start)
        ]
        for each in cold:  # all of them, before any is dropped
            for _ in segment_pieces(each):
                pass
        told = None
        if cold and summary:
            first, last = cold[0].start, cold[-1].end
            hashes = [found for found, _ in reading.index.tree_leaves(first, last + 1)]
            told = range_summary(channel, first, last, hashes)
    if told is not None:
        told["height"] = seal_summary(home, channel, keys, told, now_ns)
    with Channel(home, channel) as reading, hold_folder(reading.segments.files_folder, 0, disk):
        size = sum(_drop(reading, each, disk) for each in cold)
    return RetainResult(channel, done.blocks, len(cold), size, hot, limited, told)


def _boundary(reading: Channel, hot: int) -> tuple[int, str | None]:
    """Return the first height that stays, and what made it lower than the retention asks."""
    policy = read_witness_policy(reading.folder)
    if policy is None:
        return hot, None
    witnessed = policy.covered(read_witnessed(reading.folder))
    if witnessed >= hot:
        return hot, None
    return witnessed, f"only {witnessed} blocks are under a witnessed head"


def _is_here(reading: Channel, start: int) -> bool:
    path = reading.segments.path(start)
    return path.exists() or packed_path(path).exists()


def _measured(reading: Channel, start: int, end: int, location: str) -> ColdSegment:
    """Return a local segment as it will be described once dropped."""
    hasher, size = blake3(), 0
    with reading.segments.open(start) as stream:
        while piece := stream.read(PIECE_BYTES):
            hasher.update(piece)
            size += len(piece)
    return ColdSegment(reading.settings.channel, start, end, size, hasher.hexdigest(), location)


def _drop(reading: Channel, cold: ColdSegment, disk: Disk) -> int:
    """Put the small file in the place of a segment; return how many bytes that frees."""
    path = reading.segments.path(cold.start)
    freed = 0
    with file_errors(f"dropping segment {cold.start} of {cold.channel}"):
        disk.replace(cold_path(path), cold.to_bytes())  # durable first: the block is always found somewhere
        for each in (path, packed_path(path)):
            if each.exists():
                freed += each.stat().st_size
                disk.unlink(each)
        disk.fsync_directory(path.parent)
    return freed


def range_summary(channel: str, start: int, end: int, hashes: Sequence[bytes]) -> dict[str, Any]:
    """Return the summary of a range, derived from its blocks alone.

    >>> range_summary("ops", 0, 0, [bytes(32)])["end_height"]
    0
    """
    root = merkle.root(hashes, merkle.RANGE).hex()
    return {"channel": channel, "start_height": start, "end_height": end, "summary_root": root}


def seal_summary(
    home: Path,
    channel: str,
    keys: Callable[[], Sequence[SigningKey]],
    payload: dict[str, Any],
    now_ns: Callable[[], int] = time.time_ns,
) -> int:
    """Seal a summary in its channel, signed by the channel's key; return its height."""
    with open_sealing(home, channel, keys, wait_s=WRITER_WAIT_S, now_ns=now_ns) as opened:
        made = build(
            keys()[0],
            domain=DOMAIN,
            event_class="Observation",
            event_type=SUMMARY_TYPE,
            payload=payload,
            timestamp=format_timestamp(now_ns()),
            protocol_version=version_to_write(home, opened.log.policy, now_ns()),
        )
        return opened.log.submit(made.raw).height
