"""Answer SQL over the tables of a warehouse with Spark: views over exactly the files that its manifests name.

What readers of the files share is here, too: asking again while a writer replaces files, and naming a damaged file.
"""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ropewalk.errors import Damaged, Invalid, RopewalkError, Unavailable, Usage
from ropewalk.kernel.terminal_text import printable
from ropewalk.pipeline.source.refusals import refusals_raised
from ropewalk.pipeline.tables.warehouse import JOB_TABLES, Warehouse

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")
CELL_CHARS = 60
ATTEMPTS = 5  # while a writer replaces files under a reader
JSON_COLUMNS = ("payload", "entry", "trailer")  # canonical JSON text in the files
_DAMAGED = (
    "`ropewalk pipeline verify --tables` names damaged files; `pipeline ingest` fills another folder anew."
)


@dataclass(frozen=True, slots=True)
class Answer:
    """Columns and rows, as JSON can hold them."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    arrow: pa.Table | None = None  # the same with its types, where they were asked for

    def head(self, rows: int) -> tuple[Answer, bool]:
        """Return the first rows of the answer, and whether it has more."""
        arrow = None if self.arrow is None else self.arrow.slice(0, rows)
        return Answer(self.columns, self.rows[:rows], arrow), len(self.rows) > rows

    def to_json(self) -> dict[str, Any]:
        """Return the object that `pipeline sql --json` prints."""
        return {"columns": list(self.columns), "rows": [list(row) for row in self.rows]}

    def to_csv(self) -> str:
        """Return the answer as CSV, with a header line; nested values are JSON."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(
            [json.dumps(cell) if isinstance(cell, (list, dict, bool)) else cell for cell in row]
            for row in self.rows
        )
        return out.getvalue().removesuffix("\n")

    def to_json_lines(self) -> str:
        """Return the answer as one JSON object a row; raise where two columns have one name."""
        twice = sorted(name for name, count in Counter(self.columns).items() if count > 1)
        if twice:
            raise Usage(
                f"the answer has several columns with the name {', '.join(twice)}, an object has room for one",
                advice="Name each, as in `SELECT a.type AS one, b.type AS other`.",
            )
        return "\n".join(json.dumps(dict(zip(self.columns, row, strict=True))) for row in self.rows)

    def to_parquet(self) -> bytes:
        """Return the answer, which must have been asked for `as_arrow`, as the bytes of a Parquet file."""
        import pyarrow.parquet as pq

        assert self.arrow is not None
        out = io.BytesIO()
        pq.write_table(self.arrow, out)
        return out.getvalue()

    def to_text(self) -> str:
        """Return the answer as an aligned text table."""
        cells = [[_cell(value) for value in row] for row in self.rows]
        widths = [max([len(name), *(len(row[at]) for row in cells)]) for at, name in enumerate(self.columns)]
        lines = [
            "  ".join(name.ljust(width) for name, width in zip(self.columns, widths, strict=True)).rstrip()
        ]
        lines.append("  ".join("─" * width for width in widths))
        lines += ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells]
        return "\n".join([*lines, f"{len(cells)} rows"])


def make_views(spark: SparkSession, tables: dict[str, list[Path]]) -> None:
    """Make every table a temporary view. JSON columns become VARIANT: `payload:name::type`."""
    for name, paths in tables.items():
        # Files of one event type, and those of a job, may have further columns.
        merge = str(name.startswith("events__") or name in JOB_TABLES).lower()
        with damage_named(*paths):
            frame = spark.read.option("mergeSchema", merge).parquet(*map(str, paths))
        columns = [f"parse_json(`{c}`) AS `{c}`" if c in JSON_COLUMNS else f"`{c}`" for c in frame.columns]
        frame.selectExpr(*columns).createOrReplaceTempView(name)


def ask(
    spark: SparkSession,
    warehouse: Warehouse,
    query: str,
    limit: int,
    suggest: Callable[[str, Iterable[str]], str | None] = lambda _name, _names: None,
    *,
    as_arrow: bool = False,
) -> Answer:
    """Return the answer to a query; it is asked again where a writer has replaced files meanwhile.

    With `as_arrow` it also holds an Arrow table. `suggest` may say which of the tables a misspelt name means.
    """
    return ask_again(warehouse, lambda: _ask(spark, warehouse, query, limit, suggest, as_arrow))


def ask_again(warehouse: Warehouse, read: Callable[[], T]) -> T:
    """Return what `read` returns; call it again if it failed and there are more batches than before it.

    After the last attempt, raise `Unavailable` where files were missing: a writer that replaces them is no damage.
    """
    for attempt in range(1, ATTEMPTS + 1):
        known = warehouse.batch_count()
        try:
            return read()
        except Exception as error:
            if warehouse.batch_count() == known:
                raise
            if attempt < ATTEMPTS:
                continue
            if not isinstance(error, Damaged):
                raise
            raise Unavailable(
                f"a writer replaced files of {warehouse.path} during all of {ATTEMPTS} attempts to read them"
            ) from error
    raise AssertionError("the last attempt answers or raises")


@contextmanager
def damage_named(*paths: Path) -> Iterator[None]:
    """If the block fails and one of these Parquet files cannot be read, raise `Damaged` with its name."""
    try:
        yield
    except RopewalkError:
        raise
    except Exception as error:
        # DuckDB's: a time or memory limit says nothing about files, and reading them all may take long.
        if type(error).__name__ not in ("InterruptException", "OutOfMemoryException"):
            require_readable(paths, error)
        raise


def require_readable(paths: Iterable[Path], cause: BaseException) -> None:
    """Read these Parquet files to their ends; raise `Damaged` from `cause`, with the name of one that cannot be.

    Of files that the cause names, these alone are read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    paths, text = list(paths), str(cause)
    for path in [path for path in paths if str(path) in text] or paths:
        try:
            with pq.ParquetFile(path) as file:
                for _ in file.iter_batches():
                    pass
        except (pa.ArrowException, OSError) as error:
            if (
                isinstance(error, OSError)
                and error.errno is not None
                and not isinstance(error, FileNotFoundError)
            ):
                continue  # no rights, too many open files: not damage
            raise Damaged(
                f"{path} cannot be read: {str(error).splitlines()[0][:300]}", reason="table", advice=_DAMAGED
            ) from cause


def _ask(
    spark: SparkSession,
    warehouse: Warehouse,
    query: str,
    limit: int,
    suggest: Callable[[str, Iterable[str]], str | None],
    as_arrow: bool,
) -> Answer:
    from pyspark.errors import AnalysisException, ParseException

    tables = warehouse.tables()  # all are checked before Spark, which follows every path, gets the first
    try:
        with refusals_raised():
            make_views(spark, tables)
            found = _comparable(spark.sql(query)).limit(limit)
            arrow = found.toArrow() if as_arrow else None
            rows = found.collect() if arrow is None else arrow_rows(arrow)
    except Exception as error:
        cause = error.__cause__ or error
        if isinstance(cause, (AnalysisException, ParseException)):
            advice = f"The tables are {', '.join(sorted(tables)) or 'none yet'}."
            if cause.getCondition() == "TABLE_OR_VIEW_NOT_FOUND":
                typed = (cause.getMessageParameters() or {}).get("relationName", "").replace("`", "")
                advice = " ".join(filter(None, (suggest(typed, tables), advice)))
                raise Invalid(f"there is no table {typed!r}", name=typed, advice=advice) from error
            reason = next(line for line in str(cause).splitlines() if line.strip())
            raise Invalid(reason[:300], advice=advice) from error
        if "FAILED_READ_FILE" in str(cause):  # views are made from the footer of one file of a table
            require_readable(chain(*tables.values()), cause)
        raise
    return Answer(tuple(found.columns), tuple(tuple(map(plain, row)) for row in rows), arrow)


def _comparable(table: DataFrame) -> DataFrame:
    """Return the table with VARIANT columns as texts."""
    from pyspark.sql import functions as F

    return table.select(
        *(
            F.expr(f"to_json(`{field.name}`)").alias(field.name)
            if field.dataType.typeName() == "variant"
            else F.col(field.name)
            for field in table.schema.fields
        )
    )


def arrow_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    """Return the rows of a table; two columns may have the same name."""
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def plain(value: Any) -> Any:
    """Return a value of a result as JSON can hold it."""
    if isinstance(value, (dt.datetime, dt.date)):
        return value.isoformat()
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).hex()
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    return value


def _cell(value: Any) -> str:
    return "" if value is None else printable(str(value), CELL_CHARS)
