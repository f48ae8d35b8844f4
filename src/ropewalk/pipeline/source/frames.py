"""Logs as Arrow tables, pandas and Polars frames, without a JVM: for notebooks and small data."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
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


def to_arrow(repository: str | Path, **options: str) -> pa.Table:
    """The rows of a repository's logs as an Arrow table; options as for Spark. VARIANT columns are JSON texts."""
    _require("pyarrow")
    import pyarrow as pa

    query = make_query({"repository": str(repository), **options})
    schema = arrow_schema(query.columns, text=True)
    return pa.Table.from_batches(_batches(query, schema), schema)


def to_pandas(repository: str | Path, **options: str) -> pd.DataFrame:
    """The same as a pandas frame."""
    _require("pandas")
    return to_arrow(repository, **options).to_pandas()


def to_polars(repository: str | Path, **options: str) -> pl.DataFrame:
    """The same as a Polars frame."""
    _require("polars", "pip install polars")
    import polars as pl

    frame = pl.from_arrow(to_arrow(repository, **options))
    assert isinstance(frame, pl.DataFrame)
    return frame


def _batches(query: Query, schema: pa.Schema) -> Iterator[Any]:
    for part in query.ranges():
        for rows in query.logs(part.log.engine).read(part, query.want):
            yield arrow_batch(rows, schema)


def _require(name: str, line: str = INSTALL_LINE) -> None:
    if importlib.util.find_spec(name) is None:
        raise Unavailable(f"this needs {name}, which is not installed", name=name, advice=f"Run: {line}")
