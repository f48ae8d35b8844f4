"""Logs into tables, exactly once: what was read, under which roots, into which files stands in a manifest a batch.

A batch is written under the next number and becomes part of the warehouse with its manifest; a writer that dies before
that leaves folders the next one sweeps away. Consumer cursors move after the manifest, never ahead of it.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropewalk.errors import BrokenLink, Conflict, HeadMoved, OutOfOrder, RopewalkError
from ropewalk.gitlog.cursor import height_of, move_cursor, read_cursor, split_ref
from ropewalk.gitlog.layout import CONSUMERS
from ropewalk.kernel.digest import parse_cid
from ropewalk.kernel.merkle import SHA256, Frontier
from ropewalk.pipeline.gitlogs import GitLogs
from ropewalk.pipeline.logs import Mode
from ropewalk.pipeline.offsets import LogName, Offset, Point
from ropewalk.pipeline.query import Query, make_query
from ropewalk.pipeline.refusals import refusals_raised
from ropewalk.pipeline.warehouse import GROWING, Manifest, Warehouse
from ropewalk.stores.place import find_place

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Ingest", "Ingested", "content_root"]

ROWS_PER_BATCH = 500_000
FOLLOW_PAUSE = "300 milliseconds"


@dataclass(frozen=True, slots=True)
class Ingested:
    """What one run brought."""

    batches: int
    rows: int
    rejected: int
    end: Offset

    def to_json(self) -> dict[str, Any]:
        """As the command prints it."""
        return {
            "batches": self.batches,
            "rows": self.rows,
            "rejected": self.rejected,
            "logs": self.end.to_json()["logs"],
        }


class Ingest:
    """One source into one warehouse. `now_ms` is the clock, `told` hears of every batch that became part of it."""

    def __init__(
        self,
        spark: SparkSession,
        source: Path,
        warehouse: Path,
        *,
        now_ms: Callable[[], int],
        mode: Mode = "strict",
        group: str | None = None,
        engine: str | None = None,
        topics: str | None = None,
        rows_per_batch: int = ROWS_PER_BATCH,
        told: Callable[[Manifest], None] = lambda _: None,
    ) -> None:
        self.spark = spark
        spark.conf.set(
            "spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS"
        )  # what every other reader expects
        self.source = find_place(source).git_dir
        self.warehouse = Warehouse(warehouse)
        self.mode: Mode = mode
        self.group = group
        self.rows_per_batch = rows_per_batch
        self.options = {"repository": str(self.source), "verify": mode}
        self.options |= {n: v for n, v in (("engine", engine), ("topics", topics)) if v is not None}
        self._now_ms, self._told = now_ms, told

    def once(self) -> Ingested:
        """Take in everything that is there now."""
        with self.warehouse.writing(), refusals_raised():
            manifests = self._known()
            query = self._query()
            before = len(manifests)
            goal = query.latest(Offset())
            while True:
                at = self._at(manifests)
                end = query.latest(at, self.rows_per_batch)
                end = Offset({log: _lower(point, goal.at(log)) for log, point in end.points.items()})
                if manifests and not self._ahead(at, end) and not self._faults_left(query, manifests):
                    break
                manifest = self.write(self._frame(at, end), manifests)
                if manifest is None:
                    break
                manifests.append(manifest)
            self.move_cursors(self._at(manifests))
            done = manifests[before:]
            return Ingested(
                len(done), _count(done, "events"), _count(done, "events_rejected"), self._at(manifests)
            )

    def follow(self, stopped: Callable[[], bool], wait_s: float = 0.2) -> None:
        """Take in what comes, as it comes, until told to stop. What the manifests say is where it begins."""
        with self.warehouse.writing(), refusals_raised():
            manifests = self._known()
            checkpoint = self.warehouse.staging("follow")
            reader: Any = self.spark.readStream.format("ropewalk").options(**self._columns())
            reader = reader.option("start", json.dumps(self._at(manifests).to_json()))
            stream = reader.option("max_rows_per_batch", str(self.rows_per_batch)).load()

            def take(frame: DataFrame, _number: int) -> None:
                manifest = self.write(frame, manifests)
                if manifest is not None:
                    manifests.append(manifest)
                self.move_cursors(self._at(manifests))

            query = (
                stream.writeStream.foreachBatch(take)
                .option("checkpointLocation", str(checkpoint))
                .trigger(processingTime=FOLLOW_PAUSE)
                .start()
            )
            try:
                while not stopped() and query.isActive:
                    time.sleep(wait_s)  # here, not inside Spark, is where an interrupt is taken well
            finally:
                with contextlib.suppress(Exception):
                    query.stop()
            if query.exception() is not None:
                raise query.exception()

    def write(self, frame: DataFrame, manifests: list[Manifest]) -> Manifest | None:
        """One batch: its rows beyond what is recorded into tables, then its manifest. None if there was nothing new."""
        from ropewalk.pipeline import tables

        number = len(manifests) + 1
        at = self._at(manifests)
        fresh = frame.where(_beyond(at, _faults(manifests)))
        folders = {name: self.warehouse.staging(name) for name in GROWING}
        if self.mode == "quarantine":
            fresh = fresh.persist()
        try:
            good = fresh.where("verdict <> 'failed'") if self.mode == "quarantine" else fresh
            good.write.mode("overwrite").parquet(str(folders["events"]))
            if self.mode == "quarantine" or number == 1:
                bad = fresh if self.mode == "quarantine" else good.limit(0)
                bad.where("verdict = 'failed'").write.mode("overwrite").parquet(
                    str(folders["events_rejected"])
                )
        finally:
            if self.mode == "quarantine":
                fresh.unpersist()
        found = self._written(folders)
        if found.num_rows == 0 and number > 1:
            for folder in folders.values():
                shutil.rmtree(folder, ignore_errors=True)
            return None
        logs, end = _ranges(found, at)
        engines = {log["engine"] for log in logs}
        events = self._read(
            *(folders[name] for name in ("events", "events_rejected") if folders[name].exists())
        )
        for name, engine, derive in (
            ("blocks", "ledger", tables.blocks),
            ("commits", "gitlog", tables.commits),
            ("gossip_dag", "gossip", tables.gossip_dag),
        ):
            if engine in engines or number == 1:
                derive(events).coalesce(1).write.mode("overwrite").parquet(str(folders[name]))
        remade = ["consumer_lag"]
        if number == 1 or ("gitlog" in engines and tables.has_deployments(events)):
            self._remake_deployments(manifests, folders["events"])
            remade += ["deployments", "deployment_measures"]
        self._remake_lag()
        written = {
            name: self.warehouse.batch_folder(name, number)
            for name, staged in folders.items()
            if staged.exists()
        }
        written |= {name: self.warehouse.path / name for name in remade}
        for name, folder in written.items():
            self.warehouse.put_in_place(name, folder)
        manifest = Manifest(
            number,
            manifests[-1].digest if manifests else None,
            str(self.source),
            self.mode,
            self._now_ms(),
            Offset({log: at.at(log) for log in end.points}),
            end,
            tuple(logs),
            {name: self.warehouse.files_in(folder) for name, folder in written.items()},
            tuple(_new_faults(found)),
        )
        self.warehouse.commit(manifest)
        self._told(manifest)
        return manifest

    def move_cursors(self, at: Offset) -> None:
        """Put the group's cursors behind what is recorded, by compare-and-swap; a cursor further on stays."""
        if self.group is None:
            return
        logs = GitLogs(find_place(self.source))
        for log, point in at.points.items():
            if log.engine != "gitlog" or not point.position:
                continue
            layout, topic = logs.locate(log.topic)
            place = logs.index.span(layout.head_ref(topic), point.position - 1, point.position)[0]
            for _ in range(5):
                old = read_cursor(logs.store, self.group, topic)
                if old is not None and old.ulid >= place.ulid:
                    break
                try:
                    move_cursor(logs.store, layout, self.group, topic, place, old)
                    break
                except HeadMoved:
                    continue  # somebody moved it meanwhile: look again
                except OutOfOrder:
                    break

    def _query(self) -> Query:
        return make_query(self._columns())

    def _columns(self) -> dict[str, str]:
        from ropewalk.pipeline.tables import INGESTED

        return {**self.options, "columns": INGESTED}

    def _known(self) -> list[Manifest]:
        """What is recorded, if the source still holds it."""
        manifests = self.warehouse.manifests()
        if manifests and manifests[-1].source != str(self.source):
            raise Conflict(
                f"{self.warehouse.path} holds tables of {manifests[-1].source}, not of {self.source}",
                advice="Name another --warehouse.",
            )
        make_query({"repository": str(self.source), "verify": "quarantine"}).require(self._at(manifests))
        return manifests

    @staticmethod
    def _at(manifests: list[Manifest]) -> Offset:
        at = Offset()
        for manifest in manifests:
            at = at.merged(manifest.end)
        return at

    @staticmethod
    def _ahead(at: Offset, end: Offset) -> bool:
        return any(point.position > at.at(log).position for log, point in end.points.items())

    def _faults_left(self, query: Query, manifests: list[Manifest]) -> bool:
        if self.mode != "quarantine":
            return False
        known = _faults(manifests)
        return any(
            bool(extent.fault) and (name.engine, name.topic, extent.fault_entry) not in known
            for name in query.names()
            for extent in (query.extent(name),)
        )

    def _frame(self, start: Offset, end: Offset) -> DataFrame:
        reader: Any = self.spark.read.format("ropewalk").options(**self._columns())
        reader = reader.option("start", json.dumps(start.to_json()))
        if self.mode != "quarantine":  # a reader that tolerates damage must be allowed to look behind the end
            reader = reader.option("end", json.dumps(end.to_json()))
        frame: DataFrame = reader.load()
        return frame

    def _read(self, *folders: Path) -> DataFrame:
        return self.spark.read.parquet(*(str(folder) for folder in folders))

    def _written(self, folders: Mapping[str, Path]) -> pa.Table:
        """What was just written, read back by another library: which entries, in which order."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns = ["engine", "topic", "position", "leaf_index", "entry_id", "content_id", "verdict"]
        found = [
            pq.read_table(path, columns=columns, partitioning=None)
            for name in ("events", "events_rejected")
            for path in sorted(folders[name].glob("*.parquet"))
        ]
        return pa.concat_tables(found).sort_by([(n, "ascending") for n in columns[:4]])

    def _remake_deployments(self, manifests: list[Manifest], latest: Path) -> None:
        from ropewalk.pipeline import tables

        files = self.warehouse.current_files(manifests).get("events", [])
        before = [self.warehouse.path / file.name for file in files]
        history = tables.deployments(self._read(*before, latest)).persist()
        try:
            for name, frame in (
                ("deployments", history.orderBy("topic", "height")),
                ("deployment_measures", tables.deployment_measures(history).orderBy("env", "service")),
            ):
                frame.coalesce(1).write.mode("overwrite").parquet(str(self.warehouse.staging(name)))
        finally:
            history.unpersist()

    def _remake_lag(self) -> None:
        """Where every consumer group stands; a few rows, so no Spark."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        logs = GitLogs(find_place(self.source))
        rows: list[dict[str, Any]] = []
        for ref in logs.store.heads(CONSUMERS):
            group, topic = split_ref(ref)
            with contextlib.suppress(RopewalkError):
                layout, name = logs.locate(topic)
                extent = logs.extent(topic)
                cursor = read_cursor(logs.store, group, topic)
                height = height_of(_Line(logs, layout.head_ref(name), extent.end.position), cursor)  # type: ignore[arg-type]
                rows.append(
                    {
                        "group": group,
                        "topic": topic,
                        "ulid": cursor.ulid if cursor else None,
                        "height": height,
                        "head": extent.end.head,
                        "head_height": extent.end.position - 1,
                        "behind": extent.end.position - 1 - height,
                        "measured": self._now_ms() * 1_000,
                    }
                )
        schema = pa.schema(
            [
                ("group", pa.string()),
                ("topic", pa.string()),
                ("ulid", pa.string()),
                ("height", pa.int64()),
                ("head", pa.string()),
                ("head_height", pa.int64()),
                ("behind", pa.int64()),
                ("measured", pa.timestamp("us", tz="UTC")),
            ]
        )
        folder = self.warehouse.staging("consumer_lag")
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows, schema), folder / "part-00000.parquet")


@dataclass(frozen=True, slots=True)
class _Line:
    """Just enough of a line to find a cursor's height."""

    logs: GitLogs
    ref: str
    count: int

    def find(self, wanted: Any) -> Any:
        slot = self.logs.index.find(self.ref, wanted)
        return slot if slot is not None and slot.height < self.count else None

    def first_above(self, floor: Any) -> int:
        return min(self.logs.index.first_above(self.ref, floor), self.count)


def content_root(content_ids: list[str | None]) -> str:
    """The RFC 6962 root over content ids in order; an entry without one counts as an empty leaf."""
    frontier = Frontier(SHA256)
    for name in content_ids:
        frontier.append(SHA256.leaf(_digest_of(name)))
    return frontier.root().hex()


def _digest_of(name: str | None) -> bytes:
    if name is None:
        return b""
    if name.startswith("blake3:"):
        return bytes.fromhex(name[7:])
    return bytes.fromhex(name) if len(name) == 64 else parse_cid(name)


def _ranges(found: pa.Table, at: Offset) -> tuple[list[dict[str, Any]], Offset]:
    """The range, root and head of every log in a batch; a gap or a double is refused before it is recorded."""
    grouped: dict[LogName, list[tuple[int, str | None, str | None, str]]] = {}
    columns = [
        found.column(n).to_pylist()
        for n in ("engine", "topic", "position", "entry_id", "content_id", "verdict")
    ]
    seen: set[tuple[Any, ...]] = set()
    leaves = found.column("leaf_index").to_pylist()
    for index, (engine, topic, position, entry, content, verdict) in enumerate(zip(*columns, strict=True)):
        if position < 0:
            continue
        mark = (engine, topic, position, leaves[index])
        if mark in seen:
            raise BrokenLink(f"{engine} log {topic}: entry {position} came twice", topic=topic)
        seen.add(mark)
        grouped.setdefault(LogName(engine, topic), []).append((position, entry, content, verdict))
    logs, points = [], {}
    for log, rows in sorted(grouped.items()):
        first, last = rows[0][0], rows[-1][0]
        if first != at.at(log).position or len({row[0] for row in rows}) != last - first + 1:
            raise BrokenLink(
                f"{log.engine} log {log.topic}: the batch begins at {first}, recorded is {at.at(log).position}",
                topic=log.topic,
            )
        points[log] = Point(last + 1, rows[-1][1] or "")
        logs.append(
            {
                "engine": log.engine,
                "topic": log.topic,
                "start": first,
                "end": last + 1,
                "head": rows[-1][1],
                "rows": len(rows),
                "rejected": sum(row[3] == "failed" for row in rows),
                "root": content_root([row[2] for row in rows]),
            }
        )
    return logs, Offset(points)


def _beyond(at: Offset, faults: set[tuple[str, str, str]]) -> str:
    """Rows that are not recorded yet, as a condition. Re-reading a batch then changes nothing."""
    known = " ".join(
        f"when engine = '{log.engine}' and topic = {_quoted(log.topic)} then {point.position}"
        for log, point in at.points.items()
    )
    condition = f"position >= (case {known} else 0 end)" if known else "position >= 0"
    told = " or ".join(
        f"(engine = '{engine}' and topic = {_quoted(topic)} and entry_id = {_quoted(entry)})"
        for engine, topic, entry in sorted(faults)
    )
    return f"({condition}) or (position < 0{f' and not ({told})' if told else ''})"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _faults(manifests: list[Manifest]) -> set[tuple[str, str, str]]:
    return {
        (fault["engine"], fault["topic"], fault["entry_id"]) for each in manifests for fault in each.faults
    }


def _new_faults(found: pa.Table) -> list[dict[str, str]]:
    names = ("engine", "topic", "position", "entry_id")
    columns = [found.column(name).to_pylist() for name in names]
    return [
        {"engine": engine, "topic": topic, "entry_id": entry or ""}
        for engine, topic, position, entry in zip(*columns, strict=True)
        if position < 0
    ]


def _lower(one: Point, other: Point) -> Point:
    return one if one.position <= other.position else other


def _count(manifests: list[Manifest], table: str) -> int:
    return sum(file.rows for each in manifests for file in each.files.get(table, ()))
