"""The data pipeline: logs as rows that carry their proof, and Spark jobs that refuse a log that does not verify.

rows, schemas, offsets     pure: an entry as a row, the types of columns, how far a reader has got
gitlogs, ledgers, gossips  how each engine's logs are measured, cut into ranges and read
query, frames              what a read asks for; Arrow, pandas and Polars without a JVM
launch, source             Java and Spark; the data source "ropewalk", batch and stream
ingest, verify, ...        one file, one job
warehouse, delta           what was written, from where, with which root; the same for readers of Delta
across                     what only shows between ranges of a ledger
report, plots              one page for people

Only `launch`, `source` and the jobs import pyspark, on first use; everything else runs without a JVM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk._lazy import lazy_exports

if TYPE_CHECKING:
    from ropewalk.pipeline.source.frames import to_arrow as to_arrow
    from ropewalk.pipeline.source.frames import to_pandas as to_pandas
    from ropewalk.pipeline.source.frames import to_polars as to_polars

__getattr__, __dir__ = lazy_exports(__name__, __file__)
