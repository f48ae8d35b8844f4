"""What the channels of a warehouse hold, from the notes its rows carry: how a batch is looked across blocks.

Eight bytes of every note are held in memory, in sorted runs: they say at once that a batch repeats nothing. Of what is
claimed the whole key is held, for two claims can be made to share eight bytes: it shows that every Result of a batch
has its Command before it. That is nearly always all there is to say. Where it is not, the tables themselves are asked,
and the ledger's rules judge.
An envelope stays in its channel even if its row was put aside: blocks are sealed. So the verdict about an
envelope depends on what lies before it, and never on how the log was cut into batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropewalk.errors import BrokenLink
from ropewalk.pipeline.jobs.across import find_suspects, judge_suspects, opened_rows
from ropewalk.pipeline.jobs.sorted_runs import Runs
from ropewalk.pipeline.source.ledger_logs import Ledgers
from ropewalk.pipeline.source.notes import ANSWERS, CLAIM, FOLLOWS, INTENT, KEY, ROOT, ROW_NOTE
from ropewalk.pipeline.source.offsets import LogName, Offset
from ropewalk.pipeline.tables.sql import damage_named

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

SAYS = list(INTENT + CLAIM)
SETTLED = list(INTENT + CLAIM + ROOT + ANSWERS + FOLLOWS)  # what memory alone may settle; see `_is_plain`
NOTE_TYPE = [("what", "u1"), ("key", f"S{KEY}"), ("number", ">u4")]  # `ROW_NOTE`, as numpy reads it


@dataclass(frozen=True, slots=True)
class Condemned:
    """An envelope that its channel speaks against."""

    topic: str
    position: int
    leaf_index: int
    detail: str

    def refusal(self) -> BrokenLink:
        """Return the error that a strict reader raises."""
        return BrokenLink(
            f"channel {self.topic}, {self.detail}", topic=self.topic, height=self.position, step="envelopes"
        )


@dataclass(frozen=True, slots=True)
class _Notes:
    """The notes of some rows of one channel, as columns: what each is, its key, its number, the place of its row."""

    what: Any
    key: Any
    number: Any
    place: Any

    @property
    def marks(self) -> Any:
        """Eight bytes of what is said, and may be said once."""
        import numpy as np

        said = self.key[np.isin(self.what, SAYS)]
        return np.ascontiguousarray(said).view(">u8").reshape(-1, 2)[:, 0].astype(np.uint64)

    def of(self, what: bytes) -> tuple[Any, Any]:
        """Return the keys of one kind, and their places."""
        mine = self.what == what[0]
        return self.key[mine], self.place[mine]


class KnownMarks:
    """The marks of channels that were read before."""

    def __init__(self) -> None:
        self._runs: dict[str, Runs] = {}
        self._claims: dict[str, Runs] = {}

    def knows(self, topic: str) -> bool:
        """Return whether a channel was looked at before."""
        return topic in self._runs

    def learn(self, noted: pa.Table) -> None:
        """Take in rows, as `noted_in` reads them, that were looked at when they were written."""
        for topic, notes in _notes(noted):
            self._learn(topic, notes)

    def add(self, noted: pa.Table) -> set[str]:
        """Take in the rows behind all those before; the channels among them about which the tables must be asked."""
        odd: set[str] = set()
        for topic, notes in _notes(noted):
            plain = _is_plain(notes, self._claims.get(topic, Runs()))
            if self._learn(topic, notes) or not plain:
                odd.add(topic)
        return odd

    def _learn(self, topic: str, notes: _Notes) -> bool:
        self._claims.setdefault(topic, Runs()).add(notes.of(CLAIM)[0])
        return self._runs.setdefault(topic, Runs()).add(notes.marks)


def noted_in(paths: Iterable[Path], topics: Iterable[str] | None = None) -> pa.Table:
    """Place and `notes` of the rows that have notes, from files of the tables."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    wanted = pc.field("notes").is_valid()
    if topics is not None:
        wanted = wanted & pc.field("topic").isin(list(topics))
    schema = pa.schema(
        [("topic", pa.string()), ("notes", pa.binary()), ("position", pa.int64()), ("leaf_index", pa.int32())]
    )
    columns = schema.names
    found = []
    for path in paths:
        with damage_named(path):
            found.append(pq.read_table(path, columns=columns, filters=wanted, partitioning=None))
    return pa.concat_tables(found) if found else schema.empty_table()


def condemn(
    spark_rows: Callable[[], DataFrame], ledgers: Ledgers, odd: Iterable[str], at: Offset
) -> list[Condemned]:
    """Return the envelopes from an offset on that their channels speak against, in order."""
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
    """Return the rows with those that are condemned marked so, and why."""
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


def _is_plain(notes: _Notes, claimed: Runs) -> bool:
    """Return whether the tables need not be asked: every Result follows its Command, no envelope names more than one
    ancestor, whose order would matter, and none proves something about another block."""
    import numpy as np

    if not np.isin(notes.what, SETTLED).all() or (notes.number[notes.what == FOLLOWS[0]] > 0).any():
        return False
    asked, places = notes.of(ANSWERS)
    here = ~claimed.holds(asked)
    asked, places = asked[here], places[here]
    if not asked.size:
        return True
    keys, stand = notes.of(CLAIM)
    order = np.argsort(stand, kind="stable")
    known, first = np.unique(keys[order], return_index=True)
    if not known.size:
        return False
    at = np.minimum(np.searchsorted(known, asked), known.size - 1)
    return bool(((known[at] == asked) & (stand[order][first[at]] < places)).all())


def _notes(noted: pa.Table) -> Iterator[tuple[str, _Notes]]:
    """Yield the notes by topic."""
    import numpy as np
    import pyarrow.compute as pc

    for topic in noted.column("topic").unique().to_pylist():
        mine = noted.filter(pc.equal(noted.column("topic"), topic))
        texts = mine.column("notes").to_pylist()
        notes = np.frombuffer(b"".join(texts), dtype=NOTE_TYPE)
        places = mine.column("position").to_numpy().astype(np.uint64) << np.uint64(32)
        places |= mine.column("leaf_index").to_numpy().astype(np.uint64)
        each = np.repeat(places, [len(text) // ROW_NOTE.size for text in texts])
        yield topic, _Notes(notes["what"], notes["key"], notes["number"], each)
