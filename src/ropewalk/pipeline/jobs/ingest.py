"""Write logs to tables, exactly once: a manifest per batch records what was read, the roots and the files.

A batch is written under the next number and becomes part of the warehouse with its manifest; a writer that dies before
that leaves folders the next one sweeps away. Consumer cursors move after the manifest, never ahead of it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropewalk.disk.repository_paths import find_repository
from ropewalk.errors import Conflict, HeadMoved, OutOfOrder
from ropewalk.gitlog.consumers.cursor import move_cursor, read_cursor
from ropewalk.pipeline.jobs.lag import write_lag
from ropewalk.pipeline.source.git_logs import GitLogs
from ropewalk.pipeline.source.ledger_logs import Ledgers
from ropewalk.pipeline.source.logs import Mode
from ropewalk.pipeline.source.offsets import Offset, Range
from ropewalk.pipeline.source.query import Query, make_query
from ropewalk.pipeline.source.refusals import refusals_raised
from ropewalk.pipeline.tables.channel_state import (
    Condemned,
    KnownMarks,
    condemn,
    marked_failed,
    noted_in,
)
from ropewalk.pipeline.tables.declared import DeclaredKinds
from ropewalk.pipeline.tables.deployments import write_deployments
from ropewalk.pipeline.tables.recorded import is_there
from ropewalk.pipeline.tables.staging import Staged, join_ranges, stage_ranges, write_empty
from ropewalk.pipeline.tables.typed import PREFIX, write_typed
from ropewalk.pipeline.tables.warehouse import (
    EVENT_TABLES,
    GROWING,
    REMADE,
    Manifest,
    Warehouse,
    reached,
    write_plainly,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS_PER_BATCH = 500_000
ROWS_WITHOUT_SPARK = 20_000  # one process reads and verifies them before a JVM has started
FOLLOW_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True)
class Ingested:
    """What one run brought."""

    batches: int
    rows: int
    rejected: int
    end: Offset

    def to_json(self) -> dict[str, Any]:
        """Return what the command prints."""
        return {
            "batches": self.batches,
            "rows": self.rows,
            "rejected": self.rejected,
            "logs": self.end.to_json()["logs"],
        }


class Ingest:
    """Ingest one source into one warehouse.

    `spark` may be a function that starts a session, for a batch of more than `ROWS_WITHOUT_SPARK` rows or where
    envelopes have to be compared across blocks. `now_ms` is the clock. The callback `told` gets the manifest of
    every batch, `on_progress` about twice a second the rows that are written and about how many there will be: of the
    whole run of `once`, else of the batch.
    """

    def __init__(
        self,
        spark: SparkSession | Callable[[], SparkSession],
        source: Path,
        warehouse: Path,
        *,
        now_ms: Callable[[], int],
        mode: Mode = "strict",
        group: str | None = None,
        engine: str | None = None,
        topics: str | None = None,
        rows_per_batch: int = ROWS_PER_BATCH,
        typed: bool = False,
        schemas: Mapping[str, Any] | None = None,
        told: Callable[[Manifest], None] = lambda _: None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._session = spark
        self.source = find_repository(source).git_dir
        self.warehouse = Warehouse(warehouse)
        self.mode: Mode = mode
        self.group = group
        self.rows_per_batch = rows_per_batch
        self.typed = typed
        # What the last batch put into `_rest`, by table.
        self.rest: dict[str, list[str]] = {}
        self._declared = DeclaredKinds(schemas or {}, Ledgers(find_repository(self.source)))
        self.options = {"repository": str(self.source), "verify": mode}
        self.options |= {n: v for n, v in (("engine", engine), ("topics", topics)) if v is not None}
        self._now_ms, self._told, self._on_progress = now_ms, told, on_progress
        self.took_s = 0.0  # of the last batch, without the start of Spark
        self._progress = 0, 0  # rows of earlier batches of this run, and about how many the run will have
        self._standing = KnownMarks()

    @cached_property
    def spark(self) -> SparkSession:
        """The session; it is started now if it was not yet."""
        spark = self._session() if callable(self._session) else self._session
        write_plainly(spark)
        return spark

    def _spark_for(self, rows: int) -> SparkSession | None:
        """Return the session for so many rows; None where starting one takes longer than they do."""
        is_started = "spark" in self.__dict__ or not callable(self._session)
        return self.spark if is_started or rows > ROWS_WITHOUT_SPARK else None

    def once(self) -> Ingested:
        """Ingest everything that is in the logs now."""
        with self.warehouse.writing(), refusals_raised():
            manifests = self._known()
            query = self._query()
            before = len(manifests)
            self._type_recorded(manifests)
            goal = query.latest(Offset())
            while True:
                at = reached(manifests)
                end = query.latest(at, self.rows_per_batch).up_to(goal)
                if manifests and not self._ahead(at, end) and not self._faults_left(query, manifests):
                    break
                if self._on_progress is not None:
                    earlier = sum(each.rows for each in manifests[before:])
                    left = self._rows_between(query, at, goal) if self._ahead(end, goal) else 0
                    self._progress = earlier, earlier + left
                manifest = self.write(query, end, manifests)
                if manifest is None:
                    break
                manifests.append(manifest)
            self.move_cursors(reached(manifests))
            done = manifests[before:]
            return Ingested(
                len(done), _count(done, "events"), _count(done, "events_rejected"), reached(manifests)
            )

    def follow(self, stopped: Callable[[], bool], wait_s: float = FOLLOW_PAUSE_S) -> None:
        """Ingest new entries as they are appended, until `stopped` returns true. The manifests are the checkpoint."""
        with self.warehouse.writing(), refusals_raised():
            manifests = self._known()
            query = self._query()
            self._type_recorded(manifests)
            while not stopped():
                at = reached(manifests)
                # A log rewritten behind the recorded head need not show in what comes next.
                if self.mode != "off":
                    query.require(at)
                end = query.latest(at, self.rows_per_batch)
                found = None
                if self._ahead(at, end) or self._faults_left(query, manifests):
                    found = self.write(query, end, manifests)
                if found is None:
                    time.sleep(wait_s)
                    continue
                manifests.append(found)
                self.move_cursors(reached(manifests))

    def retry(self) -> tuple[int, int]:
        """Verify what was put aside again; return how many rows are in quarantine before and after.

        If any of it holds now, all tables are made anew from the logs, up to the recorded heads, by one manifest that
        replaces every file.
        """
        with self.warehouse.writing(), refusals_raised():
            manifests = self._known()
            before = self._put_aside_now(manifests)
            if not before:
                return 0, 0
            made = self.write(self._query(), reached(manifests), manifests, anew=True)
            return before, before if made is None else self._put_aside_now([*manifests, made])

    def _put_aside_now(self, manifests: list[Manifest]) -> int:
        return sum(file.rows for file in self.warehouse.current_files(manifests).get("events_rejected", []))

    def write(
        self, query: Query, end: Offset, recorded: list[Manifest], *, anew: bool = False
    ) -> Manifest | None:
        """Write one batch, up to an offset: rows into tables, then the manifest. Return None if nothing is new.

        With `anew`, the batch replaces everything recorded; nothing is new if as many rows are put aside as before.
        """
        number = len(recorded) + 1
        manifests = [] if anew else recorded
        at = reached(manifests)
        desk = self.warehouse.staging("")
        ranges = self._ranges(query, at, end, manifests)
        spark = self._spark_for(sum(part.rows for part in ranges))
        started = time.monotonic()
        staged = stage_ranges(spark, query, ranges, desk, None if self._on_progress is None else self._report)
        if not staged and manifests:
            return None
        folders = {name: self.warehouse.staging(name) for name in GROWING}
        if not manifests:
            write_empty(folders)
        logs, heads = join_ranges(staged, at)
        for each in self._look_across(manifests, folders, at):
            log = next(log for log in logs if (log["engine"], log["topic"]) == ("ledger", each.topic))
            log["rejected"] += 1
        replaced = self.warehouse.current_files(recorded) if anew else {}
        if anew and sum(map(_rows_in, folders["events_rejected"].glob("*.parquet"))) == self._put_aside_now(
            recorded
        ):
            return None
        remade = self._derive(manifests, folders, any(each.has_deployments for each in staged))
        self.typed = self.typed or any(name.startswith(PREFIX) for name in replaced)
        folders |= self._write_typed(manifests, folders["events"])
        written = [name for name, folder in folders.items() if folder.exists()]
        partitioned = self.warehouse.is_partitioned(recorded)
        files = {
            name: self.warehouse.put_in_place(name, number, partitioned=partitioned)
            for name in (*written, *remade)
        }
        manifest = Manifest(
            number,
            recorded[-1].digest if recorded else None,
            str(self.source),
            self.mode,
            self._now_ms(),
            Offset({log: at.at(log) for log in heads.points}),
            heads,
            tuple(logs),
            files,
            tuple(new_faults(staged)),
            tuple(sorted(file.name for name in replaced if name not in REMADE for file in replaced[name])),
        )
        self.warehouse.commit(manifest, recorded)
        self.took_s = time.monotonic() - started
        self._told(manifest)
        return manifest

    def _report(self, rows: int, total: int) -> None:
        """Report the progress of a batch as that of the run."""
        earlier, whole = self._progress
        if self._on_progress is not None:
            self._on_progress(earlier + rows, max(whole, earlier + total))

    def _write_typed(self, manifests: list[Manifest], events: Path) -> dict[str, Path]:
        """Write the tables of event types, if they are kept; a warehouse that has some keeps them."""
        current = self.warehouse.current_files(manifests)
        newest = {
            name: self.warehouse.paths(files[-1:])[0]
            for name, files in current.items()
            if name.startswith(PREFIX)
        }
        if not (self.typed or newest):
            return {}
        earlier = [] if newest else current.get("events", [])  # asked for only now
        self.warehouse.require_unchanged(earlier)
        paths = [*self.warehouse.paths(earlier), *sorted(events.glob("*.parquet"))]
        made, self.rest = write_typed(paths, newest, self.warehouse.staging(""), self._declared)
        return made

    def _type_recorded(self, manifests: list[Manifest]) -> None:
        """Write the typed tables of what is recorded, as a batch without logs, if they are asked for only now."""
        has_typed = any(name.startswith(PREFIX) for name in self.warehouse.current_files(manifests))
        if not self.typed or not manifests or has_typed:
            return
        last = manifests[-1]
        made = self._write_typed(manifests, self.warehouse.staging("events"))
        if not made:
            return
        number = last.number + 1
        files = {name: self.warehouse.put_in_place(name, number) for name in made}
        none = Offset()
        manifest = Manifest(
            number, last.digest, last.source, last.mode, self._now_ms(), none, none, (), files
        )
        self.warehouse.commit(manifest, manifests)
        self._told(manifest)
        manifests.append(manifest)

    def _ranges(self, query: Query, at: Offset, end: Offset, manifests: list[Manifest]) -> list[Range]:
        """Return the ranges from one offset to another, without damage that is recorded already."""
        known = faults_in(manifests)
        return [
            part
            for part in query.ranges_between(at, end)
            if not part.fault or (part.log.engine, part.log.topic, part.fault_entry) not in known
        ]

    def _look_across(
        self, manifests: list[Manifest], folders: Mapping[str, Path], at: Offset
    ) -> list[Condemned]:
        """Check what only shows between blocks, in this batch and against earlier ones; return what was put aside."""
        if self.mode == "off":
            return []
        staged = [path for name in EVENT_TABLES for path in sorted(folders[name].glob("*.parquet"))]
        noted = noted_in(staged)
        current = self.warehouse.current_files(manifests)
        recorded = [path for name in EVENT_TABLES for path in self.warehouse.paths(current.get(name, []))]
        unknown = [
            each for each in noted.column("topic").unique().to_pylist() if not self._standing.knows(each)
        ]
        if unknown:
            self._standing.learn(noted_in(recorded, unknown))
        odd = self._standing.add(noted)
        bad = condemn(lambda: self._read(*recorded, *staged), Ledgers(find_repository(self.source)), odd, at)
        if bad and self.mode == "strict":
            raise bad[0].refusal()
        if bad:
            self._put_aside(folders, bad)
        return bad

    def _put_aside(self, folders: Mapping[str, Path], bad: list[Condemned]) -> None:
        """Move condemned rows of a staged batch from the one table to the other."""
        present = [name for name in EVENT_TABLES if folders[name].exists()]
        rows = marked_failed(self.spark, self._read(*(folders[name] for name in present)), bad)
        for name, wanted in (("events", "verdict <> 'failed'"), ("events_rejected", "verdict = 'failed'")):
            rows.where(wanted).write.mode("overwrite").parquet(str(self.warehouse.staging(f"{name}.judged")))
        for name in EVENT_TABLES:
            shutil.rmtree(folders[name], ignore_errors=True)
            self.warehouse.staging(f"{name}.judged").rename(folders[name])

    def _derive(
        self, manifests: list[Manifest], folders: Mapping[str, Path], has_deployments: bool
    ) -> list[str]:
        """Make the tables that are made anew; return their names."""
        remade = ["consumer_lag"]
        about = {name: self.warehouse.staging(name) for name in ("deployments", "deployment_measures")}
        if has_deployments and folders["events"].exists():
            recorded = self.warehouse.current_files(manifests).get("deployments", [])
            self.warehouse.require_unchanged(recorded)  # the measures are taken of all of them
            events = sorted(folders["events"].glob("*.parquet"))
            write_deployments(events, self.warehouse.paths(recorded), *about.values())
            remade += about
        elif not manifests:
            write_empty(about)
            remade += about
        write_lag(
            GitLogs(find_repository(self.source)), self.warehouse.staging("consumer_lag"), self._now_ms()
        )
        return remade

    def move_cursors(self, at: Offset) -> None:
        """Put the group's cursors behind what is recorded, by compare-and-swap; a cursor further on stays."""
        if self.group is None:
            return
        logs = GitLogs(find_repository(self.source))
        for log, point in at.points.items():
            if log.engine != "gitlog" or not point.position:
                continue
            logs.extent(log.topic, tolerant=True)
            layout, topic = logs.locate(log.topic)
            place = logs.slot_at(log.topic, point.position - 1)
            if place is None:
                continue  # behind a damaged commit: there is nothing to point at
            for _ in range(5):
                old = read_cursor(logs.store, self.group, topic)
                if old is not None and old.ulid >= place.ulid:
                    break
                try:
                    move_cursor(logs.store, layout, self.group, topic, place, old)
                    break
                except HeadMoved:
                    continue  # another process moved it: read it again
                except OutOfOrder:
                    break

    def _query(self) -> Query:
        return make_query(self._columns())

    def _columns(self) -> dict[str, str]:
        from ropewalk.pipeline.tables.derive import INGESTED

        return {**self.options, "columns": INGESTED}

    def _known(self) -> list[Manifest]:
        """Return what is recorded, if the source still holds it."""
        self._standing = KnownMarks()  # others may have written since this one last did
        manifests = self.warehouse.manifests()
        # A repository that was moved is known by the heads that were recorded, below.
        if manifests and manifests[-1].source != str(self.source) and is_there(manifests[-1].source):
            raise Conflict(
                f"{self.warehouse.path} holds tables of {manifests[-1].source}, not of {self.source}",
                advice="Name another --warehouse.",
            )
        if manifests and (manifests[-1].mode == "off") != (self.mode == "off"):
            raise Conflict(
                f"{self.warehouse.path} was filled with --verify {manifests[-1].mode}, not {self.mode}",
                advice="A table is proven or it is not: name another --warehouse.",
            )
        make_query({"repository": str(self.source), "verify": "quarantine"}).require(reached(manifests))
        return manifests

    @staticmethod
    def _rows_between(query: Query, at: Offset, end: Offset) -> int:
        """Return about how many rows the entries between two offsets have."""
        return sum(
            int((point.position - at.at(log).position) * query.extent(log).rows_per_entry)
            for log, point in end.points.items()
        )

    @staticmethod
    def _ahead(at: Offset, end: Offset) -> bool:
        return any(point.position > at.at(log).position for log, point in end.points.items())

    def _faults_left(self, query: Query, manifests: list[Manifest]) -> bool:
        if self.mode != "quarantine":
            return False
        known = faults_in(manifests)
        return any(
            bool(extent.fault) and (name.engine, name.topic, extent.fault_entry) not in known
            for name in query.names()
            for extent in (query.extent(name),)
        )

    def _read(self, *folders: Path) -> DataFrame:
        return self.spark.read.parquet(*(str(folder) for folder in folders))


def _rows_in(path: Path) -> int:
    import pyarrow.parquet as pq

    return int(pq.read_metadata(path).num_rows)


def _count(manifests: list[Manifest], table: str) -> int:
    return sum(file.rows for each in manifests for file in each.files.get(table, ()))


def faults_in(manifests: Iterable[Manifest]) -> set[tuple[str, str, str]]:
    """Return the damage that is recorded already, by log and entry."""
    return {
        (fault["engine"], fault["topic"], fault["entry_id"]) for each in manifests for fault in each.faults
    }


def new_faults(staged: Iterable[Staged]) -> list[dict[str, str]]:
    """Return the damage in what was just written: rows that have no position in their log."""
    return [
        {"engine": each.log.engine, "topic": each.log.topic, "entry_id": entry}
        for each in staged
        for entry in each.faults
    ]
