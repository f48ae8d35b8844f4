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

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ropewalk.pipeline.source.frames import to_arrow, to_pandas, to_polars

__all__ = ["to_arrow", "to_pandas", "to_polars"]


def __getattr__(name: str) -> Any:
    # Arrow is heavy: it is loaded by whoever asks for a table (PEP 562).
    if name in __all__:
        from ropewalk.pipeline.source import frames

        return getattr(frames, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
