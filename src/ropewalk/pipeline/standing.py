"""What the channels of a warehouse hold, from the notes its rows carry: how a batch is looked across blocks.

Eight bytes of every note are held in memory, in sorted runs. They say at once that a batch repeats nothing and needs
nothing, which is nearly always so. Where they do not, the tables themselves are asked, and the ledger's rules judge.
What stands in a channel stands there whether it was put aside or not: blocks are sealed. So the verdict about an
envelope depends on what lies before it, and never on how the log was cut into batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropewalk.errors import BrokenLink
from ropewalk.pipeline.across import find_suspects, judge_suspects, opened_rows
from ropewalk.pipeline.ledgers import Ledgers
from ropewalk.pipeline.notes import CLAIM, INTENT, ROOT, ROW_NOTE
from ropewalk.pipeline.offsets import LogName, Offset
from ropewalk.pipeline.runs import Runs

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["NOTED", "Condemned", "Standing", "condemn", "marked_failed", "noted_in"]

NOTED = ("events", "events_rejected")  # the tables whose rows carry notes
SAYS = frozenset(INTENT + CLAIM)
ASKS_NOTHING = SAYS | frozenset(ROOT)


@dataclass(frozen=True, slots=True)
class Condemned:
    """An envelope that its channel speaks against."""

    topic: str
    position: int
    leaf_index: int
    detail: str

    def refusal(self) -> BrokenLink:
        """What a strict reader says of it."""
        return BrokenLink(
            f"channel {self.topic}, {self.detail}", topic=self.topic, height=self.position, step="envelopes"
        )


class Standing:
    """What is known to stand in channels, mark by mark."""

    def __init__(self) -> None:
        self._runs: dict[str, Runs] = {}

    def knows(self, topic: str) -> bool:
        """Whether a channel was looked at before."""
        return topic in self._runs

    def add(self, noted: pa.Table) -> set[str]:
        """Take in rows with `topic` and `notes`; the channels among them that repeat something, or need something."""
        import numpy as np

        odd: set[str] = set()
        for topic, kinds, marks in _marks(noted):
            twice = self._runs.setdefault(topic, Runs()).add(marks[np.isin(kinds, list(SAYS))])
            if twice or not np.isin(kinds, list(ASKS_NOTHING)).all():
                odd.add(topic)
        return odd


def noted_in(paths: Iterable[Path], topics: Iterable[str] | None = None) -> pa.Table:
    """`topic` and `notes` of the rows that have notes, from files of the tables."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    wanted = pc.field("notes").is_valid()
    if topics is not None:
        wanted = wanted & pc.field("topic").isin(list(topics))
    columns = ["topic", "notes"]
    found = [pq.read_table(path, columns=columns, filters=wanted, partitioning=None) for path in paths]
    schema = pa.schema([("topic", pa.string()), ("notes", pa.binary())])
    return pa.concat_tables(found) if found else schema.empty_table()


def condemn(
    spark_rows: Callable[[], DataFrame], ledgers: Ledgers, odd: Iterable[str], at: Offset
) -> list[Condemned]:
    """The envelopes from an offset on that their channels speak against, in order."""
    topics = sorted(odd)
    if not topics:
        return []
    from pyspark.sql import functions as F

    notes = opened_rows(spark_rows().where(F.col("topic").isin(topics))).persist()
    try:
        suspects = [
            each
            for each in find_suspects(notes)
            if each.height >= at.at(LogName("ledger", each.topic)).position
        ]
        judged = judge_suspects(ledgers, notes, suspects)
    finally:
        notes.unpersist()
    return [
        Condemned(each.topic, each.height, each.index, fault.detail)
        for each, fault in sorted(judged.items())
        if fault is not None
    ]


def marked_failed(spark: SparkSession, rows: DataFrame, condemned: Iterable[Condemned]) -> DataFrame:
    """The rows with those that are condemned marked so, and why."""
    from pyspark.sql import functions as F

    told = spark.createDataFrame(
        [(each.topic, each.position, each.leaf_index, each.detail) for each in condemned],
        "topic string, position bigint, leaf_index int, _reason string",
    )
    known = rows.columns
    engine = told.withColumn("engine", F.lit("ledger"))
    joined = rows.join(F.broadcast(engine), ["engine", "topic", "position", "leaf_index"], "left")
    return joined.withColumns(
        {
            "verdict": F.when(F.col("_reason").isNotNull(), F.lit("failed")).otherwise(F.col("verdict")),
            "detail": F.coalesce("_reason", "detail"),
        }
    ).select(*known)


def _marks(noted: pa.Table) -> Iterator[tuple[str, Any, Any]]:
    """By topic: what each note is, and the first eight bytes of its key."""
    import numpy as np
    import pyarrow.compute as pc

    for topic in noted.column("topic").unique().to_pylist():
        mine = noted.filter(pc.equal(noted.column("topic"), topic)).column("notes")
        raw = b"".join(mine.to_pylist())
        notes = np.frombuffer(raw, dtype=np.uint8).reshape(-1, ROW_NOTE.size)
        yield topic, notes[:, 0], np.ascontiguousarray(notes[:, 1:9]).view(">u8").ravel().astype(np.uint64)
