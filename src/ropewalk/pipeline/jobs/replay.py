"""Replay over Spark: every channel verified in parallel ranges, then folded in order with the same pure reducer.

Folding is cheap compared with verifying, and its order is the channel's. So all workers verify ranges of all
channels first, and only then one of them folds each channel, with the same engine that replays in one process:
snapshots, alerts and reproductions are its own, and any number of partitions gives the same roots.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropewalk.disk.repository_paths import find_repository
from ropewalk.errors import BrokenLink, Damaged, RangeExceeded, RopewalkError, Unverified
from ropewalk.kernel.digest import blake3
from ropewalk.ledger.replay.encoded_state import state_root
from ropewalk.ledger.replay.reducers import REDUCERS, Reducer, find_reducer
from ropewalk.ledger.replay.replay import Replay, companion
from ropewalk.ledger.replay.snapshots import read_snapshots, resume_newest
from ropewalk.pipeline.jobs.parallel import spread
from ropewalk.pipeline.jobs.verify import verify_logs
from ropewalk.pipeline.source.ledger_logs import Ledgers
from ropewalk.pipeline.source.offsets import LogName, Offset, Point
from ropewalk.pipeline.tables.sql import damage_named
from ropewalk.pipeline.tables.warehouse import HOME, RECORDS, Warehouse, describe_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Fold = Callable[..., Any]
"""The function that folds one stored channel: `replay_channel` or `replay_signing` of `ropewalk.ledger.replay`,
with its keys bound. The caller of the job brings it."""

ANSWERS = (
    "channel string, reducer string, code string, height bigint, blocks bigint, envelopes bigint, "
    "block_hash string, state_root string, state string, from_snapshot bigint, snapshots bigint, "
    "compared bigint, refused string, kept boolean"
)


@dataclass(frozen=True, slots=True)
class ReplayedChannel:
    """What the fold of one channel came to; `state` is JSON. `kept` if the warehouse knew it already."""

    channel: str
    reducer: str
    code: str
    height: int
    blocks: int
    envelopes: int
    block_hash: str
    state_root: str
    state: str
    from_snapshot: int | None = None
    snapshots: int = 0
    compared: int = 0
    refused: str = "[]"
    kept: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return what `pipeline replay` prints."""
        value = {name: value for name, value in asdict(self).items() if name not in ("state", "code")}
        return {**value, "refused": json.loads(self.refused)}


def code_of(reducer: Reducer) -> str | None:
    """Return what distinguishes one reducer's code from another's of the same name; None if nothing does.

    Those that ship change with the evaluator's version, which snapshots carry; for others it is their module's bytes.

    >>> code_of(REDUCERS["counts"])
    ''
    """
    if REDUCERS.get(reducer.name) is reducer:
        return ""
    try:
        path = inspect.getsourcefile(reducer.fold)
        return None if path is None else blake3(Path(path).read_bytes()).hex()
    except (OSError, TypeError):
        return None


class Replays:
    """The table `replays` of a warehouse: a row for every new state a channel was folded to."""

    def __init__(self, warehouse: Warehouse) -> None:
        self.warehouse = warehouse.make()

    def last(self, reducer: str) -> dict[str, ReplayedChannel]:
        """Return the newest row of every channel by a reducer of this name, if its file is recorded and its root holds.

        Raise `Damaged` for a file that holds other bytes than were recorded.
        """
        import pyarrow.parquet as pq

        found: dict[str, ReplayedChannel] = {}
        paths = self.warehouse.noted("replays")
        records = self.warehouse.records()  # after the files: a file is recorded before it takes its place
        for path in reversed(paths):
            record = records.get(f"replays/{path.name}")
            if record is None:
                continue  # of a version that recorded nothing, or put there by others
            if describe_file(path) != record:
                raise Damaged(
                    f"replays/{path.name} holds other bytes than were recorded",
                    reason="table",
                    advice=f"Move {path} and its record {HOME}/{RECORDS}/replays.{path.stem}.json away: "
                    "the next replay folds from the log.",
                )
            with damage_named(path):
                rows = pq.read_table(path, partitioning=None).to_pylist()
            for row in rows:
                mine = row.get("reducer") == reducer and "code" in row and row.get("channel") not in found
                if mine and _holds(row):  # a root is made of the whole state: of the newest only
                    row.pop("made")
                    found[row["channel"]] = ReplayedChannel(**row)
        return found

    def keep(self, rows: list[ReplayedChannel], made: datetime) -> None:
        """Write down what is new."""
        import pyarrow as pa

        fresh = [{**asdict(each), "made": made} for each in rows if not each.kept]
        if not fresh:
            return
        kinds = {"string": pa.string(), "bigint": pa.int64(), "boolean": pa.bool_()}
        fields = [(name, kinds[kind]) for name, kind in map(str.split, ANSWERS.split(","))]
        schema = pa.schema([*fields, ("made", pa.timestamp("us", tz="UTC"))])
        name = f"replay-{int(made.timestamp() * 1e6):017d}"
        self.warehouse.note("replays", name, pa.Table.from_pylist(fresh, schema))


def replay_channels(
    spark: SparkSession,
    source: Path,
    reducer: str,
    fold: Fold,
    *,
    channels: str | None = None,
    until: int | None = None,
    resume: bool | None = None,
    snapshot_every: int | None = None,
    unsafe_no_guard: bool = False,
    known: Mapping[str, ReplayedChannel] | None = None,
    partitions: int | None = None,
    rows_per_range: int | None = None,
) -> list[ReplayedChannel]:
    """Return the state roots of channels. A channel that does not verify is refused before anything is folded.

    `known` are states a warehouse has recorded: a channel that has not grown since, under the same code, is not folded
    again. `resume` goes on from the newest snapshot that holds; None does so where the same code made it, so that a
    changed reducer is always held against every snapshot.
    """
    from pyspark import cloudpickle

    found = find_reducer(reducer)
    code = code_of(found)
    if reducer not in REDUCERS:  # it may live where no executor looks: it travels as it is
        cloudpickle.register_pickle_by_value(inspect.getmodule(found.fold))  # type: ignore[no-untyped-call]
    place = find_repository(source)
    ledgers = Ledgers(place)
    rows: list[dict[str, Any]] = []
    kept: list[ReplayedChannel] = []
    for channel in _wanted(ledgers, channels):
        before = (known or {}).get(channel)
        same = code is not None and (code == "" or (before is not None and before.code == code))
        head = _head(ledgers, channel, until)
        if before is not None and same and resume is not False and before.block_hash == head.head:
            kept.append(_kept(before))
            continue
        go_on = same if resume is None else resume
        begin = _begin(ledgers, channel, found, head.position - 1) if go_on else -1
        rows.append({"channel": channel, "begin": begin, "resume": go_on})
    heads = _verify(spark, place.git_dir, ledgers, rows, until, rows_per_range)
    home, options = place.home, {"snapshot_every": snapshot_every, "unsafe_no_guard": unsafe_no_guard}

    def work(row: dict[str, Any]) -> list[dict[str, Any]]:
        verified = range(row["begin"] + 1, row["until"] + 1)
        done = fold(
            home,
            row["channel"],
            found,
            until=row["until"] if row["until"] >= 0 else None,
            from_snapshot=row["resume"],
            verified=verified,
            **options,
        )
        return [_answer(done, row["head"], code or "")]

    rows = [
        {**row, "head": heads[row["channel"]].head, "until": heads[row["channel"]].position - 1}
        for row in rows
    ]
    types = "channel string, begin bigint, resume boolean, head string, until bigint"
    told = spread(spark, rows, types, work, ANSWERS, partitions)
    return sorted([*kept, *(ReplayedChannel(**row) for row in told)], key=lambda each: each.channel)


def _wanted(ledgers: Ledgers, channels: str | None) -> list[str]:
    """Return the channels that were named, else all but those that hold others' snapshots."""
    if channels is not None:
        return [name.strip() for name in channels.split(",")]
    names = ledgers.topics()
    return [name for name in names if not any(name == companion(other) for other in names)]


def _head(ledgers: Ledgers, channel: str, until: int | None) -> Point:
    end = ledgers.extent(channel, tolerant=True).end
    if until is None:
        return end
    if until >= end.position:
        raise RangeExceeded(
            f"block {until} of a channel of {end.position} blocks", height=until, size=end.position
        )
    return Point(until + 1, ledgers.id_at(channel, until))


def _begin(ledgers: Ledgers, channel: str, reducer: Reducer, last: int) -> int:
    """Return the height a replay will go on from, by the same choice the fold makes; −1 for the first block.

    If the fold chooses otherwise after all, it verifies by itself what was not verified here.
    """
    name = companion(channel)
    if name not in ledgers.topics():
        return -1
    found, beside = ledgers.channel(channel), ledgers.channel(name).segments
    lines = ((height, beside.read(place, height).lines) for height, place in beside.places())
    snapshots, _ = read_snapshots(channel, found.trust.block_signers, lines)
    states = beside.folder / "states"

    def state_of(root: bytes) -> bytes | None:
        path = states / f"{root.hex()}.json"
        return path.read_bytes() if path.exists() else None

    replay = Replay(reducer, channel, policy=found.policy)
    started, _ = resume_newest(
        replay,
        snapshots,
        last=last,
        state_of=state_of,
        block_at=lambda height: bytes.fromhex(ledgers.id_at(channel, height)),
    )
    return -1 if started is None else started


def _verify(
    spark: SparkSession,
    git_dir: Path,
    ledgers: Ledgers,
    rows: list[dict[str, Any]],
    until: int | None,
    rows_per_range: int | None,
) -> dict[str, Point]:
    """Check what will be folded, in parallel; the heads it was checked up to."""
    if not rows:
        return {}
    names = {row["channel"]: LogName("ledger", row["channel"]) for row in rows}
    start = {names[row["channel"]]: Point(row["begin"] + 1, _id(ledgers, row)) for row in rows}
    end = None if until is None else Offset({log: _head(ledgers, log.topic, until) for log in start})
    report, ranges = verify_logs(
        spark,
        git_dir,
        engine="ledger",
        topics=",".join(names),
        start=Offset(start),
        end=end,
        rows_per_range=rows_per_range,
    )
    heads = {log.topic: point for log, point in start.items()}
    for log in report.logs:
        if log.detail is not None:
            raise Unverified(
                f"channel {log.log.topic}, {log.entry}: {log.detail}", topic=log.log.topic, entry=log.entry
            )
    for row in ranges:
        if row["end"] > heads[row["topic"]].position:
            heads[row["topic"]] = Point(row["end"], json.loads(row["span"])["above"])
    return heads


def _id(ledgers: Ledgers, row: dict[str, Any]) -> str:
    return ledgers.id_at(row["channel"], row["begin"]) if row["begin"] >= 0 else ""


def _holds(row: dict[str, Any]) -> bool:
    """Return whether a row is one of this version, and its state has the root that stands beside it."""
    try:
        return row.keys() == {*(each.name for each in fields(ReplayedChannel)), "made"} and bool(
            state_root(json.loads(row["state"])).hex() == row["state_root"]
        )
    except (TypeError, ValueError, RecursionError, RopewalkError):
        return False


def _kept(row: ReplayedChannel) -> ReplayedChannel:
    told = {**asdict(row), "blocks": 0, "snapshots": 0, "compared": 0, "refused": "[]", "kept": True}
    return ReplayedChannel(**{**told, "from_snapshot": None})


def _answer(done: Any, head: str, code: str) -> dict[str, Any]:
    told = done.to_json()
    if head and told["block_hash"] != head:
        raise BrokenLink(
            f"channel {done.channel}: block {head[:16]}… that was verified is gone", topic=done.channel
        )
    return asdict(
        ReplayedChannel(
            done.channel,
            done.reducer,
            code,
            done.height,
            done.blocks,
            done.envelopes,
            told["block_hash"],
            told["state_root"],
            json.dumps(done.state, ensure_ascii=False, sort_keys=True),
            done.started_from,
            len(done.snapshots),
            done.compared,
            json.dumps(told["refused"]),
        )
    )
