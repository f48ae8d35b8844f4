"""The data source "ropewalk": rows that carry their proof, checked in the worker that reads them.

`spark.read.format("ropewalk")` finds it without registration, through the module `pyspark_ropewalk`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from ropewalk.errors import RopewalkError
from ropewalk.pipeline.logs import Bounds
from ropewalk.pipeline.offsets import Offset, Range
from ropewalk.pipeline.query import Query, make_query
from ropewalk.pipeline.refusals import marked
from ropewalk.pipeline.schemas import CHECK_COLUMNS, COLUMNS, arrow_batch, arrow_schema, ddl

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["LogStreamReader", "RopewalkSource"]

# Spark refuses a reader with pushFilters where pushdown is off; it plans such reads in a process of this module.
PUSHING = "pyspark.sql.worker.data_source_pushdown_filters"
ROWS_PER_ARROW_BATCH = 10_000


class RopewalkSource(DataSource):
    """Logs of a repository. Options: repository, engine, topics (or channels), start, end, verify, columns."""

    @classmethod
    def name(cls) -> str:
        return "ropewalk"

    def _query(self) -> Query:
        try:
            return make_query(dict(self.options))
        except RopewalkError as error:
            raise marked(error) from error

    def schema(self) -> str:
        query = self._query()
        return ddl(CHECK_COLUMNS, CHECK_COLUMNS) if query.check else ddl(query.columns)

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark's
        kind = PushingReader if PUSHING in sys.modules else LogReader
        return kind(self._query())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002 - Spark's
        return LogStreamReader(self._query())


class LogPartition(InputPartition):
    """One range of one log."""

    def __init__(self, part: Range) -> None:
        self.part = part


class LogReader(DataSourceReader):
    """A batch read. It travels to the workers with its query."""

    def __init__(self, query: Query) -> None:
        self.query = query

    def partitions(self) -> Sequence[InputPartition]:
        with _refusals_marked():
            return [LogPartition(part) for part in self.query.ranges()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self.query, partition)


class PushingReader(LogReader):
    """The same, narrowed by what the query filters on. Spark applies every filter again, so this only saves work."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for each in filters:
            self.query = narrow(self.query, each)
        return filters


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


def narrow(query: Query, told: Filter) -> Query:
    """The query with what one filter says about topic, type, height or time; other filters change nothing."""
    if not isinstance(told, (EqualTo, In, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)):
        return query
    if len(told.attribute) != 1:
        return query
    name, value = told.attribute[0], told.value
    if name in ("topic", "type") and isinstance(told, (EqualTo, In)):
        values = frozenset(value if isinstance(told, In) else (value,))
        if name == "topic":
            return replace(query, only=values if query.only is None else query.only & values)
        old = query.bounds.types
        return replace(query, bounds=replace(query.bounds, types=values if old is None else old & values))
    if name == "height" and isinstance(value, int):
        return replace(query, bounds=_bounded(query.bounds, told, value, "height"))
    if name == "time" and isinstance(value, datetime):
        time_us = round(value.timestamp() * 1_000_000)
        return replace(query, bounds=_bounded(query.bounds, told, time_us, "time"))
    return query


def _bounded(bounds: Bounds, told: Filter, value: int, name: str) -> Bounds:
    unit = "_us" if name == "time" else ""
    low, high = f"{name}_from{unit}", f"{name}_to{unit}"
    changes: dict[str, int] = {}
    if isinstance(told, (GreaterThan, GreaterThanOrEqual, EqualTo)):
        floor = value + isinstance(told, GreaterThan)
        changes[low] = max(floor, getattr(bounds, low) or 0)
    if isinstance(told, (LessThan, LessThanOrEqual, EqualTo)):
        ceiling = value + (not isinstance(told, LessThan))
        known = getattr(bounds, high)
        changes[high] = ceiling if known is None else min(ceiling, known)
    return replace(bounds, **changes)  # type: ignore[arg-type]


def _read(query: Query, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, LogPartition):
        return  # Spark's stand-in where there is nothing to read
    with _refusals_marked():
        if query.check:
            yield from _verdicts(query, partition.part)
            return
        schema = arrow_schema(query.columns, COLUMNS)
        held: list[Any] = []
        for rows in query.logs(partition.part.log.engine).read(partition.part, query.want):
            held += rows
            if len(held) >= ROWS_PER_ARROW_BATCH:
                yield arrow_batch(held, schema)
                held = []
        if held:
            yield arrow_batch(held, schema)


def _verdicts(query: Query, part: Range) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    schema = arrow_schema(CHECK_COLUMNS, CHECK_COLUMNS)
    checked = list(query.logs(part.log.engine).check(part, deep=query.check == "deep"))
    columns: list[Sequence[Any]] = [
        [each.log.engine for each in checked],
        [each.log.topic for each in checked],
        [each.start for each in checked],
        [each.end for each in checked],
        [each.entries for each in checked],
        ["passed" if each.detail is None else "failed" for each in checked],
        [each.fault_entry for each in checked],
        [each.detail for each in checked],
        [each.span for each in checked],
        [each.marks for each in checked],
        [each.asked for each in checked],
    ]
    arrays = [pa.array(column, type=field.type) for column, field in zip(columns, schema, strict=True)]
    yield pa.RecordBatch.from_arrays(arrays, schema=schema)


class _refusals_marked:
    """Errors of ours leave a worker with their facts in the text."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, RopewalkError):
            raise marked(error) from error
