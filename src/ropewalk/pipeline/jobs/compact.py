"""Summaries of closed ranges of blocks, and few files instead of many.

A summary `{start_height, end_height, summary_root}` is derived from the blocks alone, so everybody who has them derives
the same; it travels as a signed envelope. An existing one is checked against the originals, never replaced.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ropewalk.disk.repository_paths import find_repository
from ropewalk.errors import DigestMismatch
from ropewalk.kernel import jcs
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.channel.summaries import SUMMARY_TYPE
from ropewalk.ledger.envelope.envelope import build, parse_stored
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.proof.proof import range_root
from ropewalk.ledger.rules.rules import judge
from ropewalk.ledger.rules.verdict import Context
from ropewalk.pipeline.jobs.parallel import spread
from ropewalk.pipeline.source.ledger_logs import Ledgers
from ropewalk.pipeline.source.offsets import Offset
from ropewalk.pipeline.tables.delta import schema_of
from ropewalk.pipeline.tables.derive import table_schema
from ropewalk.pipeline.tables.row_groups import (
    FILE_ROWS,
    PARTITIONED,
    holds_one_log,
    is_partitioned,
    write_grouped,
)
from ropewalk.pipeline.tables.table_files import is_replaced
from ropewalk.pipeline.tables.warehouse import GROWING, Manifest, StoredFile, Warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BLOCKS_PER_SUMMARY = 1_000
ANSWERS = "channel string, start bigint, end bigint, root string, envelopes bigint, time_ns bigint"


@dataclass(frozen=True, slots=True)
class Summary:
    """One closed range of a channel, by its root; `kept` if its envelope existed before and agrees."""

    channel: str
    start: int
    end: int
    root: str
    envelopes: int
    path: str
    kept: bool

    def to_json(self) -> dict[str, Any]:
        """Return what `pipeline compact` prints."""
        return {
            "channel": self.channel,
            "start_height": self.start,
            "end_height": self.end,
            "summary_root": self.root,
            "envelopes": self.envelopes,
            "path": self.path,
            "kept": self.kept,
        }


def summarise(
    spark: SparkSession,
    source: Path,
    warehouse: Warehouse,
    key: SigningKey,
    *,
    channels: str | None = None,
    blocks_per_summary: int = BLOCKS_PER_SUMMARY,
) -> list[Summary]:
    """Derive summaries of every full range in parallel, sign them, and keep them in `<warehouse>/summaries/`."""
    place = find_repository(source)
    ledgers = Ledgers(place)
    wanted = ledgers.topics() if channels is None else [name.strip() for name in channels.split(",")]
    rows = [
        {"channel": channel, "start": first, "end": first + blocks_per_summary - 1}
        for channel in wanted
        for first in range(
            0, ledgers.extent(channel).end.position - blocks_per_summary + 1, blocks_per_summary
        )
    ]
    git_dir = place.git_dir

    def work(row: dict[str, Any]) -> list[dict[str, Any]]:
        return [_derive(git_dir, row["channel"], row["start"], row["end"])]

    found = spread(spark, rows, "channel string, start bigint, end bigint", work, ANSWERS)
    return [
        _keep(warehouse, key, row) for row in sorted(found, key=lambda row: (row["channel"], row["start"]))
    ]


def merge_files(warehouse: Warehouse, now_ms: int, *, partitioned: bool | None = None) -> Manifest | None:
    """Write small files of growing tables as few, row for row the same; return None if nothing is to do.

    With `partitioned`, tables get folders for each day and log from now on, or none; otherwise they stay as they are.
    """
    with warehouse.writing():
        manifests = warehouse.manifests()
        current = warehouse.current_files(manifests)
        wanted = warehouse.is_partitioned(manifests) if partitioned is None else partitioned
        files = {
            table: chosen
            for table, found in current.items()
            if (chosen := _to_merge(warehouse, table, found, wanted))
        }
        if not files:
            return None
        for found in files.values():
            warehouse.require_unchanged(found)
        number = len(manifests) + 1
        merged: dict[str, tuple[StoredFile, ...]] = {}
        for table, found in files.items():
            newest = warehouse.paths(current[table])[-1]  # it has all columns
            schema = table_schema(table) if table in GROWING else schema_of(newest)
            folders = wanted and table in PARTITIONED
            write_grouped(warehouse.paths(found), warehouse.staging(table), schema, partitioned=folders)
            merged[table] = warehouse.put_in_place(table, number)
        manifest = Manifest(
            number,
            manifests[-1].digest,
            manifests[-1].source,
            manifests[-1].mode,
            now_ms,
            Offset(),
            Offset(),
            (),
            merged,
            replaces=tuple(sorted(file.name for found in files.values() for file in found)),
        )
        for table, found in files.items():
            before, after = sum(f.rows for f in found), sum(f.rows for f in merged[table])
            if before != after:
                raise DigestMismatch(f"{table}: {before} rows became {after}", expected=before, got=after)
        warehouse.commit(manifest, manifests)
        return manifest


def _to_merge(warehouse: Warehouse, table: str, files: list[StoredFile], wanted: bool) -> list[StoredFile]:
    """Return the files that lie in the wrong folders or mix logs, and small ones where a folder has several."""
    files = [file for file in files if not is_replaced(file.name)]
    warehouse.require_unchanged(files, deep=False)
    wanted = wanted and table in PARTITIONED
    small: dict[str, list[StoredFile]] = {}
    for file in files:
        if file.rows < FILE_ROWS // 2:
            small.setdefault(file.name.split("/", 2)[2].rpartition("/")[0], []).append(file)
    several = {file.name for found in small.values() if len(found) > 1 for file in found}
    return [
        file
        for file in files
        if file.name in several
        or is_partitioned(file.name) != wanted
        or not holds_one_log(warehouse.paths([file])[0])
    ]


def _derive(source: Path, channel: str, start: int, end: int) -> dict[str, Any]:
    found = Ledgers(find_repository(source)).channel(channel)
    hashes: list[bytes] = []
    envelopes = time_ns = 0
    for block in found.blocks(start, end):
        hashes.append(block.hash)
        envelopes, time_ns = envelopes + len(block.envelopes), block.header.timestamp_ns
    root = range_root(hashes).hex()
    return {
        "channel": channel,
        "start": start,
        "end": end,
        "root": root,
        "envelopes": envelopes,
        "time_ns": time_ns,
    }


def _keep(warehouse: Warehouse, key: SigningKey, row: dict[str, Any]) -> Summary:
    name = f"{row['start']:010d}-{row['end']:010d}.json"
    path = warehouse.inside("summaries", row["channel"], name)
    payload = {
        "channel": row["channel"],
        "start_height": row["start"],
        "end_height": row["end"],
        "summary_root": row["root"],
        "envelopes": row["envelopes"],
    }
    told = (row["channel"], row["start"], row["end"], row["root"], row["envelopes"], str(path))
    if path.exists():
        envelope = _read(path)
        if envelope.payload != payload:
            raise DigestMismatch(
                f"summary {path.name} of {row['channel']} must have root {row['root']}, got {envelope.payload}",
                expected=row["root"],
                where=str(path),
            )
        return Summary(*told, kept=True)
    seconds, nanos = divmod(row["time_ns"], 10**9)
    moment = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{nanos:09d}Z"
    made = build(
        key,
        domain="ropewalk.compaction",
        event_class="Observation",
        event_type=SUMMARY_TYPE,
        payload=cast(jcs.Json, payload),
        timestamp=moment,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = warehouse.inside("summaries", row["channel"], f".{name}.tmp")
    beside.write_bytes(made.raw)
    beside.replace(path)
    return Summary(*told, kept=False)


def _read(path: Path) -> Envelope:
    envelope = parse_stored(path.read_bytes())
    judge(envelope, Context()).require()
    return envelope
