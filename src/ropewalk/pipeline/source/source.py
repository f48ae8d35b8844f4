"""The data source "ropewalk": rows that carry their proof, checked in the worker that reads them.

`spark.read.format("ropewalk")` finds it without registration, through the module `pyspark_ropewalk`.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)

from ropewalk.errors import Invalid, InvalidName, RopewalkError, Unavailable
from ropewalk.pipeline.source.offsets import Offset, Range
from ropewalk.pipeline.source.query import Query, make_query
from ropewalk.pipeline.source.refusals import marked
from ropewalk.pipeline.source.schemas import CHECK_COLUMNS, COLUMNS, arrow_batch, arrow_schema, ddl
from ropewalk.pipeline.source.table_options import is_table, parse_options, pick_options, schema_with_options

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    HAS_STREAMS = True
except ModuleNotFoundError:
    # PySpark before 4.2 does not say where a batch starts, so a log rewritten behind a stream would go unnoticed.
    HAS_STREAMS = False

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Stand in for the base class."""


WRITE_OPTIONS = ("repository", "path", "topic", "topics", "engine")

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class RopewalkSource(DataSource):
    """Logs of a repository. Options: repository, engine, topics (or channels), start, end, verify, columns."""

    @classmethod
    def name(cls) -> str:
        return "ropewalk"

    def _query(self, kept: Mapping[str, str] | None = None) -> Query:
        with _refusals_marked():
            return make_query({**(kept or {}), **pick_options(self.options)})

    def schema(self) -> str:
        query = self._query()
        if query.check:
            return ddl(CHECK_COLUMNS, CHECK_COLUMNS)
        found = ddl(query.columns)
        return schema_with_options(found, pick_options(self.options)) if is_table(self.options) else found

    def reader(self, schema: StructType) -> DataSourceReader:
        return LogReader(self._query(_kept_options(schema)))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        with _refusals_marked():
            return LogWriter(pick_options(self.options), schema, overwrite)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        with _refusals_marked():
            if not HAS_STREAMS:
                raise Unavailable(
                    "streams of logs need PySpark 4.2 or newer",
                    advice="Use `ropewalk pipeline ingest --follow`, or install a newer PySpark.",
                )
        return LogStreamReader(self._query(_kept_options(schema)))


@dataclass
class WrittenRows(WriterCommitMessage):
    """What one task wrote: events by ULID. They become part of the log when the driver commits."""

    events: dict[str, dict[str, Any]]


class LogWriter(DataSourceWriter):
    """Append rows with `ulid`, `type` and `payload` (JSON text or VARIANT) to one git log.

    The driver appends all rows in order of their ULIDs. An event that the log holds already is not appended again, so
    a job may be repeated; a ULID with another content, or below the log's last, is refused.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        topic = options.get("topic") or options.get("topics") or ""
        repository = options.get("repository") or options.get("path")
        for name in options:
            if name not in WRITE_OPTIONS:
                raise InvalidName(
                    f"there is no option {name!r}", name=name, advice=f"Options: {', '.join(WRITE_OPTIONS)}."
                )
        if overwrite:
            raise Invalid("a log cannot be overwritten", advice='Use .mode("append").')
        if not repository or not topic or "," in topic:
            raise Invalid(
                "a write must name one repository and one topic", advice='Add .option("topic", NAME).'
            )
        if options.get("engine", "gitlog") != "gitlog":
            raise Invalid(
                f"engine must be gitlog, got {options['engine']}",
                advice="Ledger and gossip events are signed.",
            )
        if missing := {"ulid", "type", "payload"} - set(schema.names):
            raise Invalid(
                f"rows must have the columns ulid, type and payload; missing: {', '.join(sorted(missing))}"
            )
        self.repository, self.topic = Path(repository), topic

    def write(self, iterator: Iterator[Any]) -> WrittenRows:
        events: dict[str, dict[str, Any]] = {}
        with _refusals_marked():
            for row in iterator:
                payload = row["payload"]
                text = payload if isinstance(payload, str) or payload is None else payload.toJson()
                event = {
                    "ulid": row["ulid"],
                    "type": row["type"],
                    "payload": _parse_payload(text, row["ulid"]),
                }
                if events.setdefault(row["ulid"], event) != event:
                    raise Invalid(f"two rows with the ULID {row['ulid']} differ")
        return WrittenRows(events)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        from ropewalk.gitlog.core.envelope import Draft
        from ropewalk.gitlog.repository.opening import open_repository

        found = [each.events for each in messages if isinstance(each, WrittenRows)]
        events = {ulid: event for each in found for ulid, event in each.items()}
        if sum(map(len, found)) != len(events):
            raise marked(Invalid("a ULID is in rows of several partitions; it must be unique"))
        with _refusals_marked(), open_repository(self.repository) as log:
            for outcome in log.append_all(self.topic, [Draft(events[ulid]) for ulid in sorted(events)]):
                if isinstance(outcome, RopewalkError):
                    raise outcome


def _parse_payload(text: str | None, ulid: str) -> Any:
    try:
        return None if text is None else orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise Invalid(
            f"the payload of the row with the ULID {ulid} must be JSON: {error}",
            advice="Write it with to_json(struct(...)), or as a VARIANT.",
        ) from error


def _kept_options(schema: StructType) -> dict[str, str]:
    """Return the options that a table of Spark's catalog was made with."""
    return parse_options(schema.fields[0].metadata.get("comment")) if schema.fields else {}


class LogPartition(InputPartition):
    """One range of one log."""

    def __init__(self, part: Range) -> None:
        self.part = part


class LogReader(DataSourceReader):
    """A batch read. It travels to the workers with its query.

    It takes no filters from Spark: Spark 4.3 keeps a reader for later plans of the same frame, which would then see the
    filters of the first. Options and columns narrow a read instead.
    """

    def __init__(self, query: Query) -> None:
        self.query = query

    def partitions(self) -> Sequence[InputPartition]:
        with _refusals_marked():
            return [LogPartition(part) for part in self.query.ranges()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self.query, partition)


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream over several logs; its offsets are positions in the logs, computed from them."""

    def __init__(self, query: Query) -> None:
        self.query = query
        self.target: Offset | None = None

    def initialOffset(self) -> dict[str, Any]:
        with _refusals_marked():
            return self.query.first().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        rows = self.query.rows_per_batch
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def prepareForTriggerAvailableNow(self) -> None:
        with _refusals_marked():
            self.target = self.query.latest(Offset())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        with _refusals_marked():
            begin = Offset.from_json(start)
            if self.query.mode != "off":  # a log rewritten behind a stream need not show in what comes next
                self.query.require(begin)
            rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
            end = self.query.latest(begin, rows)
            if self.target is not None:
                end = Offset(
                    {
                        log: point if point.position <= self.target.at(log).position else self.target.at(log)
                        for log, point in end.points.items()
                    }
                )
            return end.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        with _refusals_marked():
            parts = self.query.ranges_between(Offset.from_json(start), Offset.from_json(end))
            return [LogPartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self.query, partition)


def _read(query: Query, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, LogPartition):
        return  # Spark's stand-in where there is nothing to read
    with _refusals_marked():
        if query.check:
            yield from _verdicts(query, partition.part)
            return
        schema = arrow_schema(query.columns, COLUMNS)
        logs = query.logs(partition.part.log.engine)
        _freeze_imports()
        for rows in logs.read(partition.part, query.want):
            yield arrow_batch(rows, schema)


@cache
def _freeze_imports() -> None:
    """Take the modules of a worker out of garbage collection: Spark's workers collect everything after every task."""
    gc.collect()
    gc.freeze()


def _verdicts(query: Query, part: Range) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    schema = arrow_schema(CHECK_COLUMNS, CHECK_COLUMNS)
    checked = query.logs(part.log.engine).check(part, deep=query.check == "deep")
    yield pa.RecordBatch.from_pylist([each.to_row() for each in checked], schema)


class _refusals_marked:
    """Errors of ours leave a worker with their facts in the text."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, RopewalkError):
            raise marked(error) from None  # one story, not two: Spark prints the whole chain
