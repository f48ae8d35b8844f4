"""A query over the tables of a warehouse: exactly the files its manifests name, as views, and a readable answer."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from ropewalk.errors import Invalid
from ropewalk.pipeline.source.refusals import refusals_raised
from ropewalk.pipeline.tables.warehouse import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CELL_CHARS = 60
ATTEMPTS = 5  # while a writer replaces files under a reader
NOTED = ("verdicts", "replays", "health")  # what jobs noted beside the tables, a file a run


@dataclass(frozen=True, slots=True)
class Answer:
    """Columns and rows, as JSON can hold them."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def to_json(self) -> dict[str, Any]:
        """As `pipeline sql --json` prints it."""
        return {"columns": list(self.columns), "rows": [list(row) for row in self.rows]}

    def to_text(self) -> str:
        """As a table for people."""
        cells = [[_cell(value) for value in row] for row in self.rows]
        widths = [max([len(name), *(len(row[at]) for row in cells)]) for at, name in enumerate(self.columns)]
        lines = [
            "  ".join(name.ljust(width) for name, width in zip(self.columns, widths, strict=True)).rstrip()
        ]
        lines.append("  ".join("─" * width for width in widths))
        lines += ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells]
        return "\n".join([*lines, f"{len(cells)} rows"])


def make_views(spark: SparkSession, warehouse: Warehouse) -> list[str]:
    """Make every table a temporary view and return their names.

    Spark follows every path that it gets, so all of them are checked before the first is handed over.
    """
    current = warehouse.current_files(warehouse.manifests())
    recorded = {name: warehouse.paths(files) for name, files in current.items()}
    noted = {name: paths for name in NOTED if (paths := warehouse.noted(name))}
    for name, paths in recorded.items():
        spark.read.parquet(*map(str, paths)).createOrReplaceTempView(name)
    for name, paths in noted.items():
        frame = spark.read.option("mergeSchema", "true").parquet(*map(str, paths))
        frame.createOrReplaceTempView(name)
    return [*recorded, *noted]


def ask(
    spark: SparkSession,
    warehouse: Warehouse,
    query: str,
    limit: int,
    suggest: Callable[[str, Iterable[str]], str | None] = lambda _name, _names: None,
) -> Answer:
    """Return the answer to a query; it is asked again where a writer has replaced files meanwhile.

    `suggest` may say which of the tables a misspelt name means.
    """
    for attempt in range(ATTEMPTS):
        known = len(warehouse.manifests())
        try:
            return _ask(spark, warehouse, query, limit, suggest)
        except Exception:
            if attempt + 1 == ATTEMPTS or len(warehouse.manifests()) == known:
                raise
    raise AssertionError("the last attempt answers or raises")


def _ask(
    spark: SparkSession,
    warehouse: Warehouse,
    query: str,
    limit: int,
    suggest: Callable[[str, Iterable[str]], str | None],
) -> Answer:
    from pyspark.errors import AnalysisException, ParseException

    from ropewalk.pipeline.tables.tables import comparable

    names: list[str] = []
    try:
        with refusals_raised():
            names = make_views(spark, warehouse)
            found = comparable(spark.sql(query)).limit(limit)
            rows = found.collect()
    except Exception as error:
        cause = error.__cause__ or error
        if isinstance(cause, (AnalysisException, ParseException)):
            tables = f"The tables are {', '.join(sorted(names)) or 'none yet'}."
            if cause.getCondition() == "TABLE_OR_VIEW_NOT_FOUND":
                typed = (cause.getMessageParameters() or {}).get("relationName", "").replace("`", "")
                advice = " ".join(filter(None, (suggest(typed, names), tables)))
                raise Invalid(f"there is no table {typed!r}", name=typed, advice=advice) from error
            reason = next(line for line in str(cause).splitlines() if line.strip())
            raise Invalid(reason[:300], advice=tables) from error
        raise
    return Answer(tuple(found.columns), tuple(tuple(map(_plain, row)) for row in rows))


def _plain(value: Any) -> Any:
    if isinstance(value, (dt.datetime, dt.date)):
        return value.isoformat()
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).hex()
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    return value


def _cell(value: Any) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= CELL_CHARS else text[: CELL_CHARS - 1] + "…"
