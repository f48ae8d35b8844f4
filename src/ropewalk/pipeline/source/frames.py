"""Read logs as Arrow tables, pandas and Polars frames without a JVM, and as Spark DataFrames; tables by SQL."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropewalk.errors import Unavailable
from ropewalk.pipeline.launch.java import INSTALL_LINE
from ropewalk.pipeline.source.query import Query, make_query
from ropewalk.pipeline.source.schemas import arrow_batch, arrow_schema

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

Option = str | int | date | Sequence[str] | None
SPARK_NAMES = {"since": "start", "until": "end"}


def start_spark(master: str = "local[*]", memory_mb: int = 1024, **options: str) -> SparkSession:
    """Return a Spark session with the Java of `JAVA_HOME`, of `PATH` or of the extra `spark`; end it with `stop()`.

    `options` are settings of Spark, such as `**{"spark.sql.shuffle.partitions": "8"}`. Errors arrive as exceptions;
    Spark's own log is off, unless `ROPEWALK_DEBUG` is set.
    """
    from ropewalk.pipeline.launch.launch import Setting, launch

    level = "warn" if os.environ.get("ROPEWALK_DEBUG") else "off"
    setting = Setting(master, memory_mb=memory_mb, quick=False, log_level=level, options=options)
    return launch(setting, os.environ)


def read(
    spark: SparkSession,
    repository: str | Path,
    *,
    engine: str | None = None,
    topics: Sequence[str] | str | None = None,
    columns: Sequence[str] | str | None = None,
    since: str | int | date | None = None,
    until: str | int | date | None = None,
    verify: str = "strict",
) -> DataFrame:
    """Return the rows of a repository's logs as a Spark DataFrame, narrowed before Spark sees them.

    `since` and `until` take a height, a time (UTC if it names no zone) or a cursor, as the options `start` and `end`
    do. Spark 4.3 prunes no columns of a Python source, so naming `columns` is what saves work.
    """
    given = {"engine": engine, "topics": topics, "columns": columns, "since": since, "until": until}
    place = str(Path(repository).absolute())
    options = _option_texts({**given, "repository": place, "verify": verify})
    return spark.read.format("ropewalk").options(**options).load()


def to_arrow(repository: str | Path, **options: Option) -> pa.Table:
    """Return the rows of a repository's logs as an Arrow table; VARIANT columns are JSON text.

    Takes the options of the Spark source and the arguments of `read`.
    """
    _require("pyarrow")
    import pyarrow as pa

    query = make_query(_option_texts({**options, "repository": str(repository)}))
    schema = arrow_schema(query.columns, text=True)
    return pa.Table.from_batches(_batches(query, schema), schema)


def to_pandas(repository: str | Path, **options: Option) -> pd.DataFrame:
    """Return the rows as a pandas frame; options as for `to_arrow`."""
    _require("pandas")
    return to_arrow(repository, **options).to_pandas()


def to_polars(repository: str | Path, **options: Option) -> pl.DataFrame:
    """Return the rows as a Polars frame; options as for `to_arrow`."""
    _require("polars", "pip install polars")
    import polars as pl

    frame = pl.from_arrow(to_arrow(repository, **options))
    assert isinstance(frame, pl.DataFrame)
    return frame


def sql(warehouse: str | Path, query: str) -> pa.Table:
    """Return DuckDB's answer to one SELECT over the tables of a warehouse, as an Arrow table.

    It sees what `ropewalk pipeline sql` sees: the files that the manifests name, and nothing else.
    """
    from ropewalk.pipeline.tables.duck import ask_arrow
    from ropewalk.pipeline.tables.warehouse import Warehouse

    return ask_arrow(Warehouse(Path(warehouse)).require(), query)


def _option_texts(given: Mapping[str, Option]) -> dict[str, str]:
    """Return options as the Spark source takes them; those that are None are left out.

    >>> _option_texts({"since": date(2024, 11, 1), "until": 7, "topics": ["prod", "dev"], "columns": None})
    {'start': '2024-11-01', 'end': '7', 'topics': 'prod,dev'}
    """
    texts = {}
    for name, value in given.items():
        if isinstance(value, (str, int)):
            text = str(value)
        elif isinstance(value, date):
            text = value.isoformat()
        elif value is not None:
            text = ",".join(value)
        else:
            continue
        texts[SPARK_NAMES.get(name, name)] = text
    return texts


def _batches(query: Query, schema: pa.Schema) -> Iterator[Any]:
    for part in query.ranges():
        for rows in query.logs(part.log.engine).read(part, query.want):
            yield arrow_batch(rows, schema)


def _require(name: str, line: str = INSTALL_LINE) -> None:
    if importlib.util.find_spec(name) is None:
        raise Unavailable(f"this needs {name}, which is not installed", name=name, advice=f"Run: {line}")
