"""What only shows between blocks: a thing said twice, an answer without its command, a cause behind its effect.

The worker that checks one range cannot know what another range holds. So each worker marks every envelope with eight
bytes of its content, and Spark counts equal marks. Only where a mark repeats, or an envelope needs an earlier one, a
second pass takes longer notes (`notes`), finds the suspect envelopes, and has the ledger's own rules judge them, with
what the channel holds before them: the verdict is that of a single process.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from ropewalk.disk.repository_paths import find_repository
from ropewalk.errors import RopewalkError
from ropewalk.ledger.block.block import Block
from ropewalk.ledger.block.index_keys import claim_key
from ropewalk.ledger.envelope.envelope import parse_stored
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.proof.verify import Fault, sealed_context
from ropewalk.ledger.rules.rules import judge
from ropewalk.ledger.rules.verdict import Position
from ropewalk.pipeline.source.notes import (
    AGAIN,
    ANSWERS,
    CLAIM,
    FOLLOWS,
    ID,
    INTENT,
    KEY,
    MEANT,
    PROVES,
    ROOT,
    ROW_NOTE,
    Notes,
    keys_asked,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from ropewalk.pipeline.source.ledger_logs import ChannelReader, Ledgers

Places: TypeAlias = "dict[tuple[bytes, bytes], tuple[Position, int]]"


@dataclass(frozen=True, slots=True, order=True)
class Suspect:
    """An envelope about which its channel has something to say."""

    topic: str
    height: int
    index: int


@dataclass(slots=True)
class _Known:
    """What precedes an envelope in its channel, as far as its rules ask for it."""

    before: Position
    first: Places = field(default_factory=dict)

    def position(self, envelope_id: bytes) -> Position | None:
        return self._before(ID, envelope_id)

    def chain(self, _envelope_id: bytes) -> tuple[str, ...] | None:
        return None  # as `Seen`: it was compared when the envelope was accepted

    def claim(self, event_class: str, correlation_id: str) -> Position | None:
        return self._before(CLAIM, claim_key(event_class, correlation_id))

    def intent(self, intent: bytes) -> Position | None:
        return self._before(INTENT, intent)

    def leaves(self, root: bytes) -> int | None:
        place, count = self.first.get((ROOT, root[:KEY]), (None, 0))
        return count if place is not None and place.height < self.before.height else None

    def _before(self, what: bytes, key: bytes) -> Position | None:
        place, _ = self.first.get((what, key[:KEY]), (None, 0))
        return place if place is not None and place < self.before else None


def repeating(checked: DataFrame) -> set[str]:
    """Return the channels in which a mark comes twice, from a frame of checked ranges."""
    marks = checked.where("engine = 'ledger'").selectExpr("topic", "explode(marks) as mark")
    rows = marks.groupBy("topic", "mark").count().where("count > 1").select("topic").distinct().collect()
    return {row["topic"] for row in rows}


def repeating_here(checked: pa.Table) -> set[str]:
    """Return the same from a table in memory: for few marks, a shuffle takes longer than fetching them."""
    import pyarrow.compute as pc

    found = set()
    ledger = checked.filter(pc.equal(checked["engine"], "ledger"))
    for topic in pc.unique(ledger["topic"]).to_pylist():
        marks = pc.list_flatten(ledger.filter(pc.equal(ledger["topic"], topic))["marks"])
        if pc.count_distinct(marks).as_py() < len(marks):
            found.add(topic)
    return found


def note_ranges(spark: SparkSession, source: Path, ranges: Sequence[tuple[str, int, int]]) -> DataFrame:
    """Return the notes of ranges of channels, each with its topic; unreadable blocks were reported before."""
    from ropewalk.pipeline.source.ledger_logs import Ledgers

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as arrow

        ledgers = Ledgers(find_repository(source))
        for batch in batches:
            for row in batch.to_pylist():
                notes = _noted(ledgers.channel(row["topic"]), row["start"], row["end"])
                topics = [row["topic"]] * len(notes)
                yield arrow.RecordBatch.from_arrays(
                    [arrow.array(topics, arrow.string()), arrow.array(notes, arrow.binary())],
                    names=["topic", "note"],
                )

    hands = int(spark.conf.get("spark.sql.shuffle.partitions") or 200)
    frame = spark.createDataFrame(list(ranges), "topic string, start bigint, end bigint")
    return frame.repartition(min(len(ranges), hands)).mapInArrow(work, "topic string, note binary")


def find_suspects(notes: DataFrame) -> list[Suspect]:
    """Return the envelopes that repeat or lack something, in order, from opened notes."""
    from pyspark.sql import functions as F

    twice = (
        notes.where(f"what in ({_hex(INTENT)}, {_hex(CLAIM)})")
        .groupBy("topic", "what", "key")
        .agg(
            F.count("*").alias("n"),
            F.min("at").alias("first"),
            F.collect_list(F.struct("at", "number")).alias("all"),
        )
        .where("n > 1")
        .select("topic", F.explode("all").alias("each"), "first")
        .where(f"each.at > first and each.number <> {_hex(AGAIN.to_bytes(4, 'big'))}")
        .select("topic", "each.at")
    )
    rows = twice.union(_lacking(notes)).distinct().collect()
    return sorted(Suspect(row["topic"], *struct.unpack(">QI", bytes(row["at"]))) for row in rows)


def first_of_each(suspects: Iterable[Suspect]) -> list[Suspect]:
    """Return the first suspect of every channel."""
    found: dict[str, Suspect] = {}
    for each in sorted(suspects):
        found.setdefault(each.topic, each)
    return list(found.values())


def judge_suspects(
    ledgers: Ledgers, notes: DataFrame, suspects: Sequence[Suspect]
) -> dict[Suspect, Fault | None]:
    """Judge suspects by the ledger's rules, with the first position of everything they need."""
    opened = {each: _envelope(ledgers.channel(each.topic), each) for each in suspects}
    known = _look_up(notes, [key for _, envelope in opened.values() for _, key in keys_asked(envelope)])
    return {
        each: _judge(ledgers.channel(each.topic), each, block, envelope, known.get(each.topic, {}))
        for each, (block, envelope) in opened.items()
    }


def _look_up(notes: DataFrame, wanted: Iterable[bytes]) -> dict[str, Places]:
    """Return where keys stand first, by topic."""
    from pyspark.sql import functions as F

    listed = ", ".join(sorted(map(_hex, set(wanted))))
    if not listed:
        return {}
    rows = (
        notes.where(f"key in ({listed}) and what in ({', '.join(map(_hex, (ID, INTENT, CLAIM, ROOT)))})")
        .groupBy("topic", "what", "key")
        .agg(F.min("at").alias("at"), F.min_by("number", "at").alias("number"))
        .collect()
    )
    found: dict[str, Places] = {}
    for row in rows:
        place = Position(*struct.unpack(">QI", bytes(row["at"])))
        number = int.from_bytes(bytes(row["number"]), "big")
        found.setdefault(row["topic"], {})[bytes(row["what"]), bytes(row["key"])] = (place, number)
    return found


def _judge(
    channel: ChannelReader, suspect: Suspect, block: Block, envelope: Envelope, known: Places
) -> Fault | None:
    history = _Known(Position(suspect.height, suspect.index), known)
    context = sealed_context(block.header, channel.policy, [envelope], history)
    try:
        judge(envelope, context).require()
    except RopewalkError as error:
        where = f"block {suspect.height}, envelope {suspect.index}"
        return Fault(suspect.height, "envelopes", f"{where}: {error.detail}", suspect.index)
    return None


def _envelope(channel: ChannelReader, suspect: Suspect) -> tuple[Block, Envelope]:
    block = Block.from_lines(channel.segments.find(suspect.height).lines)
    return block, parse_stored(block.envelopes[suspect.index])


def is_behind(suspect: Suspect, fault: Fault) -> bool:
    """Return whether a fault comes first: it precedes the suspect, or the whole block is bad."""
    if suspect.height != fault.height:
        return suspect.height > fault.height
    return fault.index is None or suspect.index > fault.index


def _noted(channel: ChannelReader, start: int, end: int) -> list[bytes]:
    notes = Notes()
    for height, place in channel.segments.places(start):
        if height >= end:
            break
        envelopes: list[Envelope] = []
        with suppress(RopewalkError):
            block = Block.from_lines(channel.segments.read(place, height).lines)
            with suppress(RopewalkError):
                envelopes.extend(map(parse_stored, block.envelopes))  # those before one that is none
            notes.take(block.header, 0, envelopes)
    return notes.made


def opened_notes(noted: DataFrame) -> DataFrame:
    """Return notes in columns, from frames of `note_ranges`."""
    return noted.selectExpr(
        "topic",
        "substring(note, 1, 1) as what",
        "substring(note, 2, 12) as at",
        "substring(note, 14, 16) as key",
        "substring(note, 30, 4) as number",
    )


def opened_rows(events: DataFrame) -> DataFrame:
    """Return notes in columns, from rows of the tables."""
    place = "concat(unhex(lpad(hex(position), 16, '0')), unhex(lpad(hex(cast(leaf_index as bigint)), 8, '0'))) as at"
    rows = events.where("notes is not null").selectExpr("topic", place, "content_id", "notes")
    size = ROW_NOTE.size
    each = f"transform(sequence(0, length(notes) div {size} - 1), n -> substring(notes, int(n * {size} + 1), {size}))"
    notes = rows.selectExpr("topic", "at", f"explode({each}) as note").selectExpr(
        "topic",
        "substring(note, 1, 1) as what",
        "at",
        "substring(note, 2, 16) as key",
        "substring(note, 18, 4) as number",
    )
    ids = rows.selectExpr(
        "topic",
        f"{_hex(ID)} as what",
        "at",
        f"unhex(substring(content_id, 1, {2 * KEY})) as key",
        "X'00000000' as number",
    )
    return notes.unionByName(ids)


def _lacking(notes: DataFrame) -> DataFrame:
    """Return envelopes whose command or root is not before them, or whose ancestors are not in order."""
    from pyspark.sql import functions as F

    meant = " ".join(f"when {_hex(what)} then {_hex(first_at)}" for what, first_at in MEANT.items())
    asked = notes.where(f"what in ({', '.join(map(_hex, MEANT))})").selectExpr(
        "topic", "what as asks", "at", "key", "number", f"case what {meant} end as what"
    )
    first = (
        notes.where(f"what in ({', '.join(map(_hex, set(MEANT.values())))})")
        .groupBy("topic", "what", "key")
        .agg(F.min("at").alias("first_at"), F.min_by("number", "at").alias("leaves"))
    )
    both = asked.join(first, ["topic", "what", "key"], "left")
    alone = both.where(
        f"(asks = {_hex(ANSWERS)} and (first_at is null or first_at >= at)) or "
        f"(asks = {_hex(PROVES)} and (first_at is null or substring(first_at, 1, 8) >= substring(at, 1, 8) "
        "or leaves <> number))"
    ).select("topic", "at")
    ordered = (
        both.where(f"asks = {_hex(FOLLOWS)} and first_at < at")
        .groupBy("topic", "at")
        .agg(
            F.expr(
                "transform(array_sort(collect_list(struct(number, first_at))), each -> each.first_at)"
            ).alias("s")
        )
        .where("s <> array_sort(array_distinct(s))")
        .select("topic", "at")
    )
    return alone.union(ordered)


def _hex(raw: bytes) -> str:
    return f"X'{raw.hex()}'"
