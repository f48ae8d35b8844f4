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

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import IntegralType, StringType, VariantType

from ropewalk.errors import Invalid, InvalidJson, InvalidName, RopewalkError, Unavailable
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import blake3
from ropewalk.kernel.ulid import ENTROPY_BYTES, make, parse
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


WRITE_OPTIONS = ("repository", "path", "topic", "topics", "engine", "time", "keys")
STREAM_OPTIONS = ("checkpointlocation", "queryname")  # Spark's own, handed on with ours

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

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        options = pick_options(self.options)
        with _refusals_marked():
            ours = {name: value for name, value in options.items() if name not in STREAM_OPTIONS}
            return LogWriter(ours, schema, overwrite)


@dataclass
class WrittenRows(WriterCommitMessage):
    """What one task wrote: events by ULID. They become part of the log when the driver commits."""

    events: dict[str, dict[str, Any]]

    def add(self, event: dict[str, Any]) -> None:
        """Add an event; the same one again changes nothing."""
        if self.events.setdefault(event["ulid"], event) != event:
            raise Invalid(f"two rows with the ULID {event['ulid']} differ")


class LogWriter(DataSourceWriter, DataSourceStreamWriter):
    """Append rows with `ulid`, `type` and `payload` (JSON text or VARIANT) to one git log, of a frame or a micro-batch.

    The driver appends all rows in order of their ULIDs. An event that the log holds already is not appended again, so
    a job or a micro-batch may be repeated; a ULID with another content, or below the log's last, is refused. With the
    options `time` and `keys` the ULID is made from those columns.
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
            raise Invalid("a log cannot be overwritten", advice='Use the mode "append".')
        if not repository or not topic or "," in topic:
            raise Invalid(
                "a write must name one repository and one topic", advice='Add .option("topic", NAME).'
            )
        if options.get("engine", "gitlog") != "gitlog":
            raise Invalid(
                f"engine must be gitlog, got {options['engine']}",
                advice="Ledger and gossip events are signed.",
            )
        self.time = options.get("time", "")
        self.keys = [name.strip() for name in options.get("keys", "").split(",") if name.strip()]
        if bool(self.time) != bool(self.keys):
            raise Invalid('the options "time" and "keys" must be given together')
        wanted = ["type", "payload", *([self.time, *self.keys] if self.time else ["ulid"])]
        if missing := sorted(set(wanted) - set(schema.names)):
            names = f"{', '.join(wanted[2:])}, type and payload"
            raise Invalid(f"rows must have the columns {names}; missing: {', '.join(missing)}")
        if self.time and not isinstance(kind := schema[self.time].dataType, IntegralType):
            raise Invalid(
                f"column {self.time} must be milliseconds since 1970, got a {kind.simpleString()}",
                advice=f"Make it with unix_millis({self.time}).",
            )
        if not isinstance(kind := schema["payload"].dataType, (StringType, VariantType)):
            raise Invalid(
                f"column payload must be JSON text or a VARIANT, got a {kind.simpleString()}",
                advice="Make it with to_json(struct(...)).",
            )
        for name in self.keys:
            if not isinstance(kind := schema[name].dataType, (StringType, IntegralType)):
                raise Invalid(
                    f"column {name} must be a string or an integer to be a key, got a {kind.simpleString()}",
                    advice="Cast it to a string.",
                )
        self.repository, self.topic = Path(repository), topic

    def write(self, iterator: Iterator[Any]) -> WrittenRows:
        from ropewalk.gitlog.core.envelope import seal
        from ropewalk.gitlog.core.layout import SHIPLOG

        found = WrittenRows({})
        with _refusals_marked():
            for row in iterator:
                ulid = self._row_ulid(row)
                payload = row["payload"]
                text = payload if isinstance(payload, str) or payload is None else payload.toJson()
                event = {"ulid": ulid, "type": row["type"], "payload": _parse_payload(text, ulid)}
                # What cannot be an event must fail before the driver appends the others: it would be below them then.
                seal(SHIPLOG, self.topic, event, parse(ulid))
                found.add(event)
        return found

    def commit(
        self,
        messages: Sequence[WriterCommitMessage | None],
        batchId: int | None = None,  # noqa: ARG002 - the ULIDs say what the log holds already
    ) -> None:
        from ropewalk.gitlog.core.envelope import Draft
        from ropewalk.gitlog.privacy.screening import screen_drafts
        from ropewalk.gitlog.repository.opening import open_repository

        with _refusals_marked(), open_repository(self.repository) as log:
            found = WrittenRows({})
            for each in messages:
                for event in each.events.values() if isinstance(each, WrittenRows) else ():
                    found.add(event)
            drafts = [Draft(found.events[ulid]) for ulid in sorted(found.events)]
            policy = log.privacy.policy()
            _raise_first(screen_drafts([log.privacy.apply(draft, policy) for draft in drafts]))
            _raise_first(log.append_all(self.topic, drafts))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int | None = None) -> None:
        """Do nothing: before the commit no row is in the log."""

    def _row_ulid(self, row: Any) -> str:
        """Return the row's ULID: its own, or the milliseconds of its time and 80 bits of BLAKE3 over the keys."""
        if not self.time:
            return row["ulid"]  # type: ignore[no-any-return]
        for name in (self.time, *self.keys):
            if row[name] is None:
                raise Invalid(f"column {name} must not be null: the ULID is made from it")
        keys = [str(row[name]) for name in self.keys]
        return make(row[self.time], blake3(jcs.encode(keys))[:ENTROPY_BYTES])


def _raise_first(outcomes: Sequence[object]) -> None:
    for outcome in outcomes:
        if isinstance(outcome, RopewalkError):
            raise outcome


def _parse_payload(text: str | None, ulid: str) -> Any:
    try:
        return None if text is None else jcs.parse(text.encode())
    except InvalidJson as error:
        raise Invalid(
            f"the payload of the row with the ULID {ulid} must be JSON: {error.detail}",
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
            return (end if self.target is None else end.up_to(self.target)).to_json()

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
