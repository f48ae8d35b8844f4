"""Work spread over Spark's hands: one call a row, answers as rows, refusals with their facts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ropewalk.errors import RopewalkError
from ropewalk.pipeline.source.refusals import marked, refusals_raised

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


def spread(
    spark: SparkSession,
    rows: Sequence[dict[str, Any]],
    types: str,
    act: Callable[[dict[str, Any]], Sequence[dict[str, Any]]],
    answers: str,
    partitions: int | None = None,
) -> list[dict[str, Any]]:
    """Call `act` on every row, on as many hands as there are; `types` and `answers` are schemas in Spark's words."""
    if not rows:
        return []

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as arrow

        kinds = {
            "string": arrow.string(),
            "bigint": arrow.int64(),
            "double": arrow.float64(),
            "boolean": arrow.bool_(),
        }
        schema = arrow.schema([(name, kinds[kind]) for name, kind in map(str.split, answers.split(","))])
        for batch in batches:
            for row in batch.to_pylist():
                try:
                    done = list(act(row))
                except RopewalkError as error:
                    raise marked(error) from error
                yield arrow.RecordBatch.from_pylist(done, schema)

    names = [each.split()[0] for each in types.split(",")]
    frame = spark.createDataFrame([tuple(row[name] for name in names) for row in rows], types)
    with refusals_raised():
        found = frame.repartition(partitions or len(rows)).mapInArrow(work, answers).collect()
    return [row.asDict() for row in found]
