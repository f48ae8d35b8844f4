"""Proof bundles by ranges of heights, in parallel: one file a range, named by range and root, skipped if it is there.

The name describes the content, and a file appears under its name only when it is whole. So a run that was killed is
simply run again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropewalk.disk.key_files import load_signing
from ropewalk.disk.repository_paths import find_repository
from ropewalk.errors import RangeExceeded
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.block.block import Block, parse_record
from ropewalk.ledger.keys.history import KeyProof
from ropewalk.ledger.proof.proof import range_root
from ropewalk.pipeline.jobs.parallel import spread
from ropewalk.pipeline.source.ledger_logs import Ledgers
from ropewalk.pipeline.tables.table_files import safe_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BLOCKS_PER_BUNDLE = 1_000
ANSWERS = "channel string, start bigint, end bigint, root string, path string, bytes bigint, kept boolean"
Write = Callable[[Iterable[Block], SigningKey, Path, tuple[KeyProof, ...]], int]
"""How blocks and statements about keys become a bundle file; the caller provides it."""


@dataclass(frozen=True, slots=True)
class ExportedRange:
    """One bundle; `kept` if it was there already."""

    channel: str
    start: int
    end: int
    root: str
    path: str
    bytes: int
    kept: bool

    def to_json(self) -> dict[str, Any]:
        """Return what `pipeline export` prints."""
        return {name: getattr(self, name) for name in self.__slots__}


def export_channels(
    spark: SparkSession,
    source: Path,
    folder: Path,
    write: Write,
    *,
    key_folder: Path,
    key_name: str,
    channels: str | None = None,
    start: int = 0,
    end: int | None = None,
    blocks_per_bundle: int = BLOCKS_PER_BUNDLE,
) -> list[ExportedRange]:
    """Export ranges of channels, from `start` up to and with `end`. The key is read where the work is done."""
    place = find_repository(source)
    ledgers = Ledgers(place)
    rows: list[dict[str, Any]] = []
    wanted = ledgers.topics() if channels is None else [name.strip() for name in channels.split(",")]
    for channel in wanted:
        size = ledgers.extent(channel).end.position
        last = size - 1 if end is None else end
        if last >= size:
            raise RangeExceeded(f"block {last} of a channel of {size} blocks", height=last, size=size)
        rows += [
            {"channel": channel, "start": first, "end": min(first + blocks_per_bundle - 1, last)}
            for first in range(start, last + 1, blocks_per_bundle)
        ]
    folder.mkdir(parents=True, exist_ok=True)
    target, git_dir = folder.absolute(), place.git_dir

    def work(row: dict[str, Any]) -> list[dict[str, Any]]:
        key = load_signing(key_folder, key_name)
        return [_export(git_dir, target, row["channel"], row["start"], row["end"], key, write).to_json()]

    found = spread(spark, rows, "channel string, start bigint, end bigint", work, ANSWERS)
    return sorted((ExportedRange(**row) for row in found), key=lambda each: (each.channel, each.start))


def _export(
    source: Path, folder: Path, channel: str, start: int, end: int, key: SigningKey, write: Write
) -> ExportedRange:
    found = Ledgers(find_repository(source)).channel(channel)
    hashes = [
        parse_record(found.segments.read(place, height).lines[0]).hash
        for height, place in _places(found.segments.places(start), end)
    ]
    root = range_root(hashes).hex()
    path = safe_path(folder, f"{channel}-{start:010d}-{end:010d}-{root[:32]}.tar.zst")
    if path.exists():
        return ExportedRange(channel, start, end, root, str(path), path.stat().st_size, True)

    return ExportedRange(
        channel,
        start,
        end,
        root,
        str(path),
        write(found.blocks(start, end), key, path, found.key_proofs),
        False,
    )


def _places(places: Iterator[tuple[int, Any]], end: int) -> Iterator[tuple[int, Any]]:
    for height, place in places:
        if height > end:
            return
        yield height, place
