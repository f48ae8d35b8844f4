"""What only shows between blocks: a thing said twice, an answer without its command, a cause behind its effect.

A range checked by one hand cannot know what stands in another's. So every hand marks each envelope with eight bytes of
what it says, and Spark counts equal marks. Only where one comes twice, or an envelope needs another to stand before it,
a second pass notes more, finds the first envelope about which the channel has something to say, and has the ledger's
own rules judge it, with what the channel holds before it: the verdict is that of a single process.

A note is 33 bytes: what it is (1), height (8), index (4), key (16), a number (4). Keys are cut to half, which nobody
can forge; big-endian, places compare as bytes do.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ropewalk.errors import RopewalkError
from ropewalk.kernel import jcs
from ropewalk.ledger.block import Block, Header
from ropewalk.ledger.envelope import Envelope, decode_base64, parse_stored
from ropewalk.ledger.marks import CLAIMING, claim_key
from ropewalk.ledger.rules import Context, Position, judge
from ropewalk.ledger.verify import Fault
from ropewalk.stores.place import find_place

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from ropewalk.pipeline.ledgers import Channel

__all__ = [
    "Marks",
    "Notes",
    "Suspect",
    "find_suspects",
    "is_behind",
    "judge_suspect",
    "keys_of",
    "look_up",
    "note_ranges",
    "repeating",
]

NOTE: Final = struct.Struct(">cQI16sI")
KEY: Final = 16
NOTHING: Final = bytes(KEY)
ID, INTENT, CLAIM, ROOT = b"E", b"I", b"C", b"B"  # what stands in the channel
ANSWERS, FOLLOWS, PROVES = b"R", b"N", b"T"  # what an envelope needs to stand there
MEANT: Final = {ANSWERS: CLAIM, FOLLOWS: ID, PROVES: ROOT}
NUMBER_MAX: Final = (1 << 32) - 1
AGAIN: Final = 1  # the number of a claim that may be made again


class Marks:
    """What one hand marks while it checks a run of blocks: short enough to cost nothing, never missing a repetition."""

    def __init__(self) -> None:
        self.made: list[int] = []
        self.asked = 0

    def take(self, _header: Header, _first: int, envelopes: Sequence[Envelope]) -> None:
        """Mark some envelopes of a block; as `check_block` hands them over."""
        mark = self.made.append
        for envelope in envelopes:
            mark(int.from_bytes(envelope.intent[:8], "big", signed=True))
            fields = envelope.fields
            correlation_id, kind = fields.get("correlation_id"), fields["event_class"]
            if correlation_id is not None and kind in CLAIMING:
                mark(int.from_bytes(claim_key(kind, correlation_id)[:8], "big", signed=True))
            if kind == "Result" or "causality_chain" in fields or "integrity_proof" in fields:
                self.asked += len(_needs(envelope))


class Notes:
    """What the second pass notes of a run of blocks."""

    def __init__(self) -> None:
        self.made: list[bytes] = []

    def take(self, header: Header, first: int, envelopes: Sequence[Envelope]) -> None:
        """Note some envelopes of a block."""
        height, pack, note = header.height, NOTE.pack, self.made.append
        if not first:
            note(pack(ROOT, height, 0, header.merkle_root[:KEY], min(header.envelope_count, NUMBER_MAX)))
        for index, envelope in enumerate(envelopes, first):
            note(pack(ID, height, index, envelope.id[:KEY], 0))
            note(pack(INTENT, height, index, envelope.intent[:KEY], 0))
            fields = envelope.fields
            correlation_id, kind = fields.get("correlation_id"), fields["event_class"]
            if correlation_id is not None and kind in CLAIMING:
                again = AGAIN if _may_repeat(envelope) else 0
                note(pack(CLAIM, height, index, claim_key(kind, correlation_id)[:KEY], again))
            for what, key, number in _needs(envelope):
                note(pack(what, height, index, key, number))


@dataclass(frozen=True, slots=True, order=True)
class Suspect:
    """An envelope about which its channel has something to say."""

    topic: str
    height: int
    index: int


@dataclass(slots=True)
class _Known:
    """What stands before an envelope, as far as its rules ask for it."""

    before: Position
    first: dict[tuple[bytes, bytes], tuple[Position, int]] = field(default_factory=dict)

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
    """The channels in which a mark comes twice, from a frame with `topic` and `marks`."""
    marks = checked.selectExpr("topic", "explode(marks) as mark")
    rows = marks.groupBy("topic", "mark").count().where("count > 1").select("topic").distinct().collect()
    return {row["topic"] for row in rows}


def note_ranges(spark: SparkSession, source: Path, ranges: Sequence[tuple[str, int, int]]) -> DataFrame:
    """The notes of ranges of channels, each with its topic; what cannot be read was told of before."""
    from ropewalk.pipeline.ledgers import Ledgers

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as arrow

        ledgers = Ledgers(find_place(source))
        for batch in batches:
            for row in batch.to_pylist():
                notes = _noted(ledgers.channel(row["topic"]), row["start"], row["end"])
                topics = [row["topic"]] * len(notes)
                yield arrow.RecordBatch.from_arrays(
                    [arrow.array(topics, arrow.string()), arrow.array(notes, arrow.binary())],
                    names=["topic", "note"],
                )

    frame = spark.createDataFrame(list(ranges), "topic string, start bigint, end bigint")
    return frame.repartition(len(ranges)).mapInArrow(work, "topic string, note binary")


def find_suspects(noted: DataFrame) -> list[Suspect]:
    """The first envelope of every channel that repeats or lacks something, from frames of `note_ranges`."""
    from pyspark.sql import functions as F

    notes = _opened(noted)
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
    rows = twice.union(_lacking(notes)).groupBy("topic").agg(F.min("at").alias("at")).collect()
    return sorted(Suspect(row["topic"], *struct.unpack(">QI", bytes(row["at"]))) for row in rows)


def look_up(
    noted: DataFrame, wanted: Iterable[tuple[str, bytes, bytes]]
) -> dict[str, dict[tuple[bytes, bytes], tuple[Position, int]]]:
    """Where keys stand first, by topic."""
    from pyspark.sql import functions as F

    keys = sorted(set(wanted))
    if not keys:
        return {}
    listed = ", ".join(sorted({_hex(key) for _, _, key in keys}))
    rows = (
        _opened(noted)
        .where(f"key in ({listed}) and what in ({', '.join(map(_hex, (ID, INTENT, CLAIM, ROOT)))})")
        .groupBy("topic", "what", "key")
        .agg(F.min("at").alias("at"), F.min_by("number", "at").alias("number"))
        .collect()
    )
    found: dict[str, dict[tuple[bytes, bytes], tuple[Position, int]]] = {}
    for row in rows:
        place = Position(*struct.unpack(">QI", bytes(row["at"])))
        number = int.from_bytes(bytes(row["number"]), "big")
        found.setdefault(row["topic"], {})[bytes(row["what"]), bytes(row["key"])] = (place, number)
    return found


def judge_suspect(
    channel: Channel, suspect: Suspect, known: dict[tuple[bytes, bytes], tuple[Position, int]]
) -> Fault | None:
    """What the ledger's rules say of a suspect, knowing where everything it needs stands first."""
    block = _block(channel, suspect.height)
    policy = channel.policy
    context = Context(
        _Known(Position(suspect.height, suspect.index), known),
        policy if policy is not None and policy.hash == block.header.policy_hash else None,
        policy_hash=block.header.policy_hash,
        sealed=True,
    )
    try:
        judge(parse_stored(block.envelopes[suspect.index]), context).require()
    except RopewalkError as error:
        where = f"block {suspect.height}, envelope {suspect.index}"
        return Fault(suspect.height, "envelopes", f"{where}: {error.detail}", suspect.index)
    return None


def keys_of(channel: Channel, suspect: Suspect) -> list[tuple[str, bytes, bytes]]:
    """Everything the rules will ask the channel about a suspect."""
    envelope = parse_stored(_block(channel, suspect.height).envelopes[suspect.index])
    keys = [(INTENT, envelope.intent[:KEY])]
    if envelope.correlation_id is not None and envelope.event_class in CLAIMING:
        keys.append((CLAIM, claim_key(envelope.event_class, envelope.correlation_id)[:KEY]))
    keys += [(MEANT[what], key) for what, key, _ in _needs(envelope)]
    return [(suspect.topic, what, key) for what, key in keys]


def _needs(envelope: Envelope) -> list[tuple[bytes, bytes, int]]:
    """What must stand in the channel before an envelope: its command, its ancestors, the root of its proof."""
    fields = envelope.fields
    kind, chain, proof = fields["event_class"], fields.get("causality_chain"), fields.get("integrity_proof")
    found: list[tuple[bytes, bytes, int]] = []
    if kind == "Result":
        found.append((ANSWERS, claim_key("Command", fields.get("correlation_id") or "")[:KEY], 0))
    if chain is not None and len(chain) > 1:
        found += [(FOLLOWS, _key(text), number) for number, text in enumerate(chain[:-1])]
    if proof is not None and proof["type"] == "merkle":
        try:
            value: Any = jcs.parse(decode_base64(proof["proof"], "/integrity_proof/proof"))
            if value["root"] != fields["payload_hash"]:  # a proof about its own payload needs no channel
                found.append((PROVES, _key(value["root"]), min(max(0, int(value["size"])), NUMBER_MAX)))
        except (RopewalkError, KeyError, TypeError, ValueError):
            pass  # the rule says so itself, without the channel
    return found


def _key(text: Any) -> bytes:
    """The key of an id, which has one spelling; what is none stands nowhere."""
    try:
        raw = bytes.fromhex(text)
    except (TypeError, ValueError):
        return NOTHING
    return raw[:KEY] if len(raw) == 32 and raw.hex() == text else NOTHING


def _may_repeat(envelope: Envelope) -> bool:
    """S4 §7.8: an Alert, where its policy tag allows it."""
    fields = envelope.fields
    return fields["event_class"] == "Alert" and (fields.get("policy_tag") or {}).get("decision") == "allow"


def _block(channel: Channel, height: int) -> Block:
    return Block.from_lines(channel.segments.find(height).lines)


def is_behind(suspect: Suspect, fault: Fault) -> bool:
    """Whether a fault comes first: it stands before the suspect, or condemns the whole block."""
    if suspect.height != fault.height:
        return suspect.height > fault.height
    return fault.index is None or suspect.index > fault.index


def _noted(channel: Channel, start: int, end: int) -> list[bytes]:
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


def _opened(noted: DataFrame) -> DataFrame:
    return noted.selectExpr(
        "topic",
        "substring(note, 1, 1) as what",
        "substring(note, 2, 12) as at",
        "substring(note, 14, 16) as key",
        "substring(note, 30, 4) as number",
    )


def _lacking(notes: DataFrame) -> DataFrame:
    """Envelopes whose command or root does not stand before them, or whose ancestors do not stand in order."""
    from pyspark.sql import functions as F

    meant = " ".join(f"when {_hex(what)} then {_hex(stands)}" for what, stands in MEANT.items())
    asked = notes.where(f"what in ({', '.join(map(_hex, MEANT))})").selectExpr(
        "topic", "what as asks", "at", "key", "number", f"case what {meant} end as what"
    )
    first = (
        notes.where(f"what in ({', '.join(map(_hex, set(MEANT.values())))})")
        .groupBy("topic", "what", "key")
        .agg(F.min("at").alias("stands"), F.min_by("number", "at").alias("leaves"))
    )
    both = asked.join(first, ["topic", "what", "key"], "left")
    alone = both.where(
        f"(asks = {_hex(ANSWERS)} and (stands is null or stands >= at)) or "
        f"(asks = {_hex(PROVES)} and (stands is null or substring(stands, 1, 8) >= substring(at, 1, 8) "
        "or leaves <> number))"
    ).select("topic", "at")
    ordered = (
        both.where(f"asks = {_hex(FOLLOWS)} and stands < at")
        .groupBy("topic", "at")
        .agg(
            F.expr("transform(array_sort(collect_list(struct(number, stands))), each -> each.stands)").alias(
                "s"
            )
        )
        .where("s <> array_sort(array_distinct(s))")
        .select("topic", "at")
    )
    return alone.union(ordered)


def _hex(raw: bytes) -> str:
    return f"X'{raw.hex()}'"
