"""Write the rows of ranges of logs as Parquet files, each in the worker that reads and verifies the range.

Rows never pass through the JVM: a worker writes Arrow batches and returns only what the manifest needs. File
names are unique, and the driver takes only the files that finished tasks name, so a task may run twice or die halfway.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropewalk.errors import BrokenLink, RopewalkError
from ropewalk.kernel.digest import parse_cid
from ropewalk.kernel.merkle import SHA256, root
from ropewalk.pipeline.source.offsets import ROWS_PER_RANGE, LogName, Offset, Point, Range, group_ranges
from ropewalk.pipeline.source.query import Query
from ropewalk.pipeline.source.refusals import marked
from ropewalk.pipeline.source.rows import Columns, GitEntry
from ropewalk.pipeline.source.schemas import arrow_batch
from ropewalk.pipeline.tables.derive import derive_rows, events_schema, table_schema
from ropewalk.pipeline.tables.row_groups import open_writer

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

POLL_S = 0.5  # between two reports of progress
ANSWER = "facts string, leaves binary"


@dataclass(frozen=True, slots=True)
class Staged:
    """What one task wrote of one range. `leaves` are the RFC 6962 leaf hashes of its content ids, end to end."""

    log: LogName
    start: int
    end: int
    head: str
    rows: int
    rejected: int
    files: Mapping[str, str]  # file name by table
    faults: Sequence[str] = ()
    has_deployments: bool = False
    leaves: bytes = b""

    def to_row(self) -> tuple[str, bytes]:
        """Return the values of a row of `ANSWER`."""
        facts = {name: getattr(self, name) for name in self.__slots__ if name not in ("log", "leaves")}
        return json.dumps({"engine": self.log.engine, "topic": self.log.topic, **facts}), self.leaves

    @classmethod
    def from_row(cls, facts: str, leaves: bytes) -> Staged:
        """Read what `to_row` wrote."""
        value = json.loads(facts)
        return cls(LogName(value.pop("engine"), value.pop("topic")), **value, leaves=leaves)


@contextmanager
def _reported(folder: Path, total: int, report: Callable[[int, int], None] | None) -> Iterator[None]:
    """Report how many rows the workers have written, while the block runs."""
    if report is None:
        yield
        return
    report(0, total)
    ended = threading.Event()

    def poll() -> None:
        while not ended.wait(POLL_S):
            done = 0
            for path in folder.glob("*.rows"):
                with suppress(OSError, ValueError):
                    done += int(path.read_text(encoding="ascii"))
            report(min(done, total), total)

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    report(total, total)


def stage_ranges(
    spark: SparkSession | None,
    query: Query,
    ranges: Sequence[Range],
    folder: Path,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Staged]:
    """Read, verify and write ranges in Spark's workers; return what was written below `folder`, ordered by log.

    Without a session, this process does it.
    """
    if not ranges:
        return []
    (folder / "tasks").mkdir(parents=True, exist_ok=True)
    groups = group_ranges(ranges, ROWS_PER_RANGE)

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as arrow

        schema = arrow.schema([("facts", arrow.string()), ("leaves", arrow.binary())])
        for batch in batches:
            for number in batch.column(0).to_pylist():
                try:
                    done = stage_group(query, groups[number], folder / "tasks")
                except RopewalkError as error:
                    raise marked(error) from None
                columns = zip(*(each.to_row() for each in done), strict=True)
                arrays = [
                    arrow.array(list(values), field.type)
                    for values, field in zip(columns, schema, strict=True)
                ]
                yield arrow.RecordBatch.from_arrays(arrays, schema=schema)

    with _reported(folder / "tasks", sum(part.rows for part in ranges), on_progress):
        if spark is None:
            found = [each for group in groups for each in stage_group(query, group, folder / "tasks")]
        else:
            frame = spark.range(0, len(groups), 1, len(groups)).mapInArrow(work, ANSWER)
            found = [Staged.from_row(row["facts"], bytes(row["leaves"])) for row in frame.collect()]
    for counted in (folder / "tasks").glob("*.rows"):
        counted.unlink(missing_ok=True)
    for each in found:
        for table, name in each.files.items():
            (folder / table).mkdir(exist_ok=True)
            (folder / "tasks" / name).rename(folder / table / name)
    return sorted(found, key=lambda each: (each.log, each.start, each.end))


def stage_group(query: Query, parts: Sequence[Range], folder: Path) -> list[Staged]:
    """Read, verify and write some ranges into one file for each table; the last of the answers names the files."""
    stage = _Stage(folder, f"part-{parts[0].start:010d}-{uuid.uuid4().hex}")
    found = []
    try:
        for part in parts:
            stage.begin()
            for rows in query.logs(part.log.engine).read(part, query.want):
                stage.add(rows, part)
            found.append(stage.end(part))
    finally:
        files = stage.close()
    return [*found[:-1], replace(found[-1], files=files)]


class _Stage:
    """The open files of one range, a Parquet file for each table."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._writers: dict[str, Any] = {}
        self._schema = events_schema()
        self._all_rows = 0
        self.begin()

    def begin(self) -> None:
        """Count anew, for the next range."""
        self.rows = self.rejected = 0
        self.head = ""
        self.faults: list[str] = []
        self.has_deployments = False
        self.leaves: list[bytes] = []

    def end(self, part: Range) -> Staged:
        """Return what was counted."""
        return Staged(
            part.log,
            part.start,
            part.end,
            self.head,
            self.rows,
            self.rejected,
            {},
            self.faults,
            self.has_deployments,
            b"".join(self.leaves),
        )

    def add(self, rows: Columns, part: Range) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        batch = arrow_batch(rows, _source_schema(self._schema)).rename_columns(self._schema.names)
        failed = rows.values["verdict"].count("failed")
        if failed:
            bad = pc.equal(batch.column("verdict"), "failed")
            self._write("events_rejected", batch.filter(bad))
            self._write("events", batch.filter(pc.invert(bad)))
        else:
            self._write("events", batch)
        table, derived = derive_rows(rows, part.log.engine)
        if derived:
            schema = table_schema(table)
            columns = zip(*derived, strict=True)
            arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
            self._write(table, pa.RecordBatch.from_arrays(arrays, schema=schema))
        self._count(rows, failed)
        self._all_rows += rows.count
        (self._folder / f"{self._name}.rows").write_text(str(self._all_rows), encoding="ascii")

    def _count(self, rows: Columns, failed: int) -> None:
        values = rows.values
        if min(values["position"]) < 0:  # damage that hides the rest of a log has no position in it
            self.faults += [entry or "" for entry in values["entry_id"]]
            return
        self.rows += rows.count
        self.rejected += failed
        self.head = values["entry_id"][-1] or ""
        leaf = SHA256.leaf
        self.leaves.append(b"".join([leaf(digest_of(name)) for name in values["content_id"]]))
        self.has_deployments = self.has_deployments or any(map(_names_service, values["entry"]))

    def _write(self, table: str, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        if table not in self._writers:
            self._writers[table] = open_writer(self._folder / f"{self._name}-{table}.parquet", batch.schema)
        self._writers[table].write_batch(batch)

    def close(self) -> dict[str, str]:
        for writer in self._writers.values():
            try:
                writer.close()
            except OSError:
                writer.is_open = False  # else it tries again when it is collected, and prints a traceback
                raise
        return {table: f"{self._name}-{table}.parquet" for table in self._writers}


def write_empty(folders: Mapping[str, Path]) -> None:
    """Write an empty file for every table that has none, so that readers find its columns."""
    import pyarrow.parquet as pq

    for table, folder in folders.items():
        if not folder.exists():
            folder.mkdir(parents=True)
            pq.write_table(table_schema(table).empty_table(), folder / "part-empty.parquet")


def _source_schema(schema: pa.Schema) -> pa.Schema:
    at = schema.get_field_index("payload")
    return schema.set(at, schema.field(at).with_name("payload_json"))


def _names_service(entry: object) -> bool:
    what = entry.said.get("what") if isinstance(entry, GitEntry) else None
    return isinstance(what, dict) and what.get("service") is not None


def digest_of(name: str | None) -> bytes:
    """Return the digest that a content id names; an entry without one has an empty digest."""
    if name is None:
        return b""
    if name.startswith("blake3:"):
        return bytes.fromhex(name[7:])
    return bytes.fromhex(name) if len(name) == 64 else parse_cid(name)


def join_ranges(staged: Iterable[Staged], at: Offset) -> tuple[list[dict[str, Any]], Offset]:
    """Return the range, root and head of every log in a batch; raise `BrokenLink` at a gap or an overlap."""
    logs: list[dict[str, Any]] = []
    points: dict[LogName, Point] = {}
    leaves: dict[LogName, list[bytes]] = {}
    by_log: dict[LogName, dict[str, Any]] = {}
    for each in staged:
        if each.start == each.end:
            continue  # damage behind the last readable entry
        expected = points[each.log].position if each.log in points else at.at(each.log).position
        if each.start != expected:
            raise BrokenLink(
                f"{each.log.engine} log {each.log.topic}: the batch continues at {each.start}, "
                f"but entry {expected} is next",
                topic=each.log.topic,
            )
        if each.log not in by_log:
            by_log[each.log] = {
                "engine": each.log.engine,
                "topic": each.log.topic,
                "start": each.start,
                "rows": 0,
                "rejected": 0,
            }
            logs.append(by_log[each.log])
        log = by_log[each.log]
        log |= {"end": each.end, "head": each.head or None}
        log["rows"] += each.rows
        log["rejected"] += each.rejected
        leaves.setdefault(each.log, []).append(each.leaves)
        points[each.log] = Point(each.end, each.head)
    for name, log in by_log.items():
        packed = b"".join(leaves[name])
        log["root"] = root([packed[at : at + 32] for at in range(0, len(packed), 32)], SHA256).hex()
    return logs, Offset(points)
