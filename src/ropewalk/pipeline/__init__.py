"""The data pipeline: verified logs as rows and tables, in Spark, DuckDB, Arrow, pandas and Polars.

source/   rows, columns and offsets; readers of each engine's logs; the Spark data source "ropewalk"
tables/   staging by the workers, the warehouse and its manifests, derived and typed tables, SQL, Delta
jobs/     ingest, verify, replay, export, compact, health
report/   the HTML report
launch/   Java, the Spark session, packages for executors

Only `launch`, `source` and the jobs import pyspark, on first use; everything else runs without a JVM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk._lazy import lazy_exports

if TYPE_CHECKING:
    from ropewalk.pipeline.source.frames import read as read
    from ropewalk.pipeline.source.frames import sql as sql
    from ropewalk.pipeline.source.frames import start_spark as start_spark
    from ropewalk.pipeline.source.frames import to_arrow as to_arrow
    from ropewalk.pipeline.source.frames import to_pandas as to_pandas
    from ropewalk.pipeline.source.frames import to_polars as to_polars

__getattr__, __dir__ = lazy_exports(__name__, __file__)
