"""Tables held against the logs they were made from: exactly their fold up to the recorded heads, file by file."""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropewalk.disk.repository_paths import find_repository
from ropewalk.errors import BrokenLink, Conflict, Damaged, RopewalkError
from ropewalk.kernel.report import Step
from ropewalk.pipeline.jobs.verify import ACROSS, LogsReport, hold_recorded
from ropewalk.pipeline.source.ledger_logs import Ledgers
from ropewalk.pipeline.source.offsets import Offset, Point
from ropewalk.pipeline.source.query import make_query
from ropewalk.pipeline.source.refusals import find_refusal, refusals_raised
from ropewalk.pipeline.tables.channel_state import KnownMarks, condemn, marked_failed, noted_in
from ropewalk.pipeline.tables.delta import check_delta
from ropewalk.pipeline.tables.deployments import write_deployments
from ropewalk.pipeline.tables.derive import INGESTED
from ropewalk.pipeline.tables.iceberg import check_iceberg
from ropewalk.pipeline.tables.recorded import recorded_source
from ropewalk.pipeline.tables.sql import ask_again, damage_named
from ropewalk.pipeline.tables.staging import Staged, join_ranges, stage_ranges, write_empty
from ropewalk.pipeline.tables.typed import PREFIX, check_typed
from ropewalk.pipeline.tables.warehouse import (
    EVENT_TABLES,
    GROWING,
    HOME,
    JOB_TABLES,
    Manifest,
    Warehouse,
    describe_file,
    made_anew,
    reached,
    table_paths,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SHOWN = 20  # rows that are named; the rest is counted
TABLES_AT_ONCE = 3  # small ones wait for Spark's driver more than for its cores


def verify_tables(spark: SparkSession, warehouse: Warehouse, source: Path | None = None) -> LogsReport:
    """Prove that tables are exactly the fold of the logs up to their recorded heads.

    The logs are those of `source`, else of the repository that the warehouse was filled from. What a writer replaced
    meanwhile is no damage: then it is all looked at again, and `Conflict` raised where the writer is faster each time.
    """

    def look() -> LogsReport:
        known = warehouse.batch_count()
        report = _verified(spark, warehouse, source)
        failed = [step.detail for step in report.steps if step.status == "failed"]
        if failed and warehouse.batch_count() > known:
            raise Conflict(
                f"a writer added batches while the tables were compared, so this may be no damage: {failed[0]}",
                advice="Verify again while nothing writes to the warehouse.",
            )
        return report

    return ask_again(warehouse, look)


def _verified(spark: SparkSession, warehouse: Warehouse, named: Path | None) -> LogsReport:
    steps: list[Step] = []
    try:
        manifests = warehouse.require().manifests()
    except (BrokenLink, RopewalkError) as error:
        if error.exit_code != 5:
            raise
        return LogsReport((), (Step("manifests", "failed", error.detail),))
    odd = _odd_range(manifests)
    told = odd or f"{len(manifests)} batches, each on the one before"
    steps.append(Step("manifests", "failed" if odd else "passed", told))
    try:
        steps += check_files(warehouse, manifests)
    except Damaged as error:  # a link, and what lies behind it is not read, or a file that is no table
        return LogsReport((), (*steps, Step("files", "failed", error.detail)))
    for name, mark, check, told in (
        ("delta", warehouse.delta_mark, check_delta, "the Delta logs name the same files"),
        ("iceberg", warehouse.iceberg_mark, check_iceberg, "the Iceberg tables name the same files"),
    ):
        if mark.exists():
            try:
                odd = check(warehouse, manifests)
            except Damaged as error:
                odd = f"{error.detail}. {error.advice_now}"
            steps.append(Step(name, "failed" if odd else "passed", odd or told))
    if not manifests:
        return LogsReport((), tuple(steps))
    place = recorded_source(manifests[-1].source) if named is None else find_repository(named).git_dir
    source = str(place)
    steps.append(hold_recorded(source, reached(manifests)))
    if steps[-1].status == "passed":
        try:
            with refusals_raised():
                steps += _folds(spark, warehouse, manifests, source)
        except Exception:
            if all(step.status != "failed" for step in steps):
                raise  # else a damaged or missing file, which is named already, cannot be compared row by row
    current = warehouse.current_files(manifests)
    rows = sum(file.rows for table in EVENT_TABLES for file in current.get(table, ()))
    return LogsReport((), tuple(steps), rows=rows)


def _odd_range(manifests: list[Manifest]) -> str | None:
    """Return what is wrong with the ranges of batches: entries between two, in both, or left out by tables made anew.

    Each batch is compared with the log in its own range, so such entries would not be missed.
    """
    at = Offset()
    for each in manifests:
        is_anew = bool(each.replaces and each.logs)
        for log in each.end.points.keys() | (at.points.keys() if is_anew else ()):
            start, before, end = each.start.at(log), at.at(log), each.end.at(log)
            wanted = Point() if is_anew else before
            if start != wanted or end.position < before.position:
                return (
                    f"batch {each.number} must continue {log.engine} log {log.topic} at {wanted.position}, up to "
                    f"{before.position} or further, got {start.position} to {end.position}"
                )
        at = Offset({**at.points, **each.end.points})
    return None


def check_files(warehouse: Warehouse, manifests: list[Manifest]) -> list[Step]:
    """Return whether the files that manifests name, and those that jobs noted, are there as written, and no others."""
    return [*_check_named(warehouse, manifests), *_check_noted(warehouse)]


def _check_noted(warehouse: Warehouse) -> list[Step]:
    """Compare the files that jobs noted with their records.

    A job that dies leaves a record and a hidden file, which no reader sees: they are no damage.
    """
    present = {f"{table}/{path.name}" for table in JOB_TABLES for path in warehouse.noted(table)}
    records = warehouse.records()
    for name in sorted(present - records.keys()):
        return [Step("noted", "failed", f"{name} has no record: no job of this warehouse wrote it")]
    recorded = {name: record for name, record in records.items() if record is not None}
    for name, record in sorted(recorded.items()):
        path = warehouse.inside(*name.split("/"))
        waiting = path.with_name(f".{path.name}.tmp").exists()  # asked first: it may take its place meanwhile
        if not path.exists():
            if not waiting:
                return [Step("noted", "failed", f"{name} is missing")]
        elif describe_file(path) != record:
            return [Step("noted", "failed", f"{name} holds other bytes than were recorded")]
    old = sorted(present - recorded.keys())
    told = f"{len(old)} files of jobs are from before there were records, as {old[0]}" if old else ""
    return [
        *([Step("noted", "passed", f"{len(recorded)} files of jobs have their digests")] if recorded else []),
        *([Step.optional("unrecorded", told)] if old else []),
    ]


def _check_named(warehouse: Warehouse, manifests: list[Manifest]) -> list[Step]:
    """Return whether the files that manifests name are there as written, and no others.

    A writer that dies leaves files of the batch it was at, or of a table it had made anew; they are reported, but they
    are no damage: no manifest names them, and the next writer removes them.
    """
    import pyarrow.parquet as pq

    tables = warehouse.current_files(manifests)
    named = {file.name: file for files in tables.values() for file in files}
    warehouse.paths(named.values())  # raises where one is behind a link
    # By digest first: a damaged file is not parsed.
    present = {
        path.relative_to(warehouse.path).as_posix(): path
        for table in warehouse.table_names()
        for path in table_paths(warehouse.inside(table))
    }
    for name in sorted(named.keys() - present.keys()):
        return [Step("files", "failed", f"{name} is missing")]
    left = [name for name in sorted(present.keys() - named.keys()) if _is_left(name, manifests)]
    for name in sorted(present.keys() - named.keys() - set(left)):
        return [Step("files", "failed", f"{name} is in no manifest")]
    for _, file in sorted(named.items()):
        if fault := warehouse.fault_of(file):
            return [Step("files", "failed", fault)]
        path = present[file.name]
        with damage_named(path):
            rows = pq.read_metadata(path).num_rows
        if rows != file.rows:
            return [Step("files", "failed", f"{file.name} has {rows} rows, its manifest says {file.rows}")]
    told = (
        f"{len(left)} files of a writer that did not end, as {left[0]}; the next removes them" if left else ""
    )
    return [
        Step("files", "passed", f"{len(named)} files of {len(tables)} tables have their digests"),
        *([Step.optional("leftovers", told)] if left else []),
    ]


def _is_left(name: str, manifests: list[Manifest]) -> bool:
    """Return whether a file is of the batch that would come next, or was part of a table before."""
    number = len(manifests) + 1
    if name.split("/")[1] in (f"batch={number}", f"batch-{number}.parquet"):
        return True
    return any(file.name == name for each in manifests for files in each.files.values() for file in files)


def _folds(spark: SparkSession, warehouse: Warehouse, manifests: list[Manifest], source: str) -> list[Step]:
    """Derive every table from the log again, into a temporary folder, and compare."""
    quarantined = any(each.mode == "quarantine" for each in manifests)
    mode = "quarantine" if quarantined else manifests[-1].mode
    query = make_query({"repository": source, "verify": mode, "columns": INGESTED})
    live = made_anew(manifests)
    batches = [(each, query.ranges_between(each.start, each.end)) for each in live]
    with tempfile.TemporaryDirectory(prefix="verify-", dir=warehouse.make().inside(HOME)) as folder:
        desk = Path(folder)
        staged = stage_ranges(spark, query, [part for _, parts in batches for part in parts], desk)
        steps = [_roots(live, staged)]
        paths = {name: desk / name for name in GROWING}
        write_empty(paths)
        found = {name: spark.read.parquet(str(path)) for name, path in paths.items()}
        rows = found["events"].unionByName(found["events_rejected"])
        marked, looked = _looked_across(spark, rows, paths, source, manifests)
        kept = marked.where("verdict <> 'failed'")
        steps.append(looked)
        about = {name: desk / name for name in ("deployments", "deployment_measures")}
        # What is found across blocks marks envelopes of ledgers, never events of git logs.
        write_deployments(sorted(paths["events"].glob("*.parquet")), [], *about.values())
        wanted = {
            **found,
            "events": kept,
            "events_rejected": marked.where("verdict = 'failed'"),
            **{name: spark.read.parquet(str(path)) for name, path in about.items()},
        }
        with ThreadPoolExecutor(TABLES_AT_ONCE) as pool:
            for held in pool.map(partial(_held, spark, warehouse, manifests), wanted, wanted.values()):
                steps += held
        steps += _typed_tables(warehouse, manifests)
    steps.append(Step.optional("consumer_lag", "no log keeps how far consumers had read at that time"))
    return steps


def _typed_tables(warehouse: Warehouse, manifests: list[Manifest]) -> list[Step]:
    """Compare the tables of event types with `events`, which was compared with the log."""
    current = warehouse.current_files(manifests)
    typed = {name: warehouse.paths(files) for name, files in current.items() if name.startswith(PREFIX)}
    if not typed:
        return []
    odd = check_typed(typed, warehouse.paths(current["events"]))
    return [
        Step("typed_tables", "failed" if odd else "passed", odd or f"{len(typed)} tables agree with `events`")
    ]


def _looked_across(
    spark: SparkSession, rows: DataFrame, paths: dict[str, Path], source: str, manifests: list[Manifest]
) -> tuple[DataFrame, Step]:
    """Return the rows with what only shows between blocks marked in them, as ingest marks it."""
    if manifests[-1].mode == "off":
        return rows, Step(ACROSS, "not_checked", "the tables were made without looking")
    noted = noted_in(path for name in EVENT_TABLES for path in sorted(paths[name].glob("*.parquet")))
    bad = condemn(lambda: rows, Ledgers(find_repository(Path(source))), KnownMarks().add(noted), Offset())
    if not bad:
        return rows, Step(
            ACROSS, "passed", f"{noted.num_rows} envelopes: none repeats or lacks an earlier one"
        )
    if not any(each.mode == "quarantine" for each in manifests):
        return rows, Step(ACROSS, "failed", str(bad[0].refusal().detail))
    return marked_failed(spark, rows, bad), Step(ACROSS, "passed", f"{len(bad)} envelopes are put aside")


def _held(
    spark: SparkSession, warehouse: Warehouse, manifests: list[Manifest], name: str, expected: DataFrame
) -> list[Step]:
    """Compare one table with its fold. In a table that Spark cannot read, find the row that was changed."""
    try:
        stored = _stored(spark, warehouse, manifests, name)
        rows = sum(file.rows for file in warehouse.current_files(manifests).get(name, []))
        return [] if stored is None else [_compare(name, stored, expected, rows)]
    except Exception as error:
        if find_refusal(str(error)) is not None:
            raise  # the log itself does not verify
        reason = next((line.strip() for line in str(error).splitlines()[1:] if line.strip()), str(error))
        odd = _odd_row(warehouse, manifests, name, expected) if name in EVENT_TABLES else None
        return [Step(name, "failed", odd or f"the table cannot be read: {reason[:200]}")]


def _odd_row(warehouse: Warehouse, manifests: list[Manifest], name: str, expected: DataFrame) -> str | None:
    """Return the first row whose plain columns are not those of the log, read without Spark."""
    import pyarrow.parquet as pq

    columns = [
        "engine",
        "topic",
        "position",
        "leaf_index",
        "entry_id",
        "content_id",
        "height",
        "type",
        "author",
    ]
    rows = expected.select(*columns).toArrow().to_pylist()
    wanted = {tuple(row.values())[:4]: row for row in rows}
    for file in warehouse.current_files(manifests).get(name, []):
        (path,) = warehouse.paths([file])
        if not path.exists():
            continue
        try:
            found = pq.read_table(path, columns=columns, partitioning=None).to_pylist()
        except Exception as error:
            return f"{file.name} cannot be read: {error}"
        for row in found:
            if wanted.get(tuple(row.values())[:4]) != row:
                return f"{_name(row)} differs from the log"
    return None


def _stored(
    spark: SparkSession, warehouse: Warehouse, manifests: list[Manifest], name: str
) -> DataFrame | None:
    files = warehouse.paths(warehouse.current_files(manifests).get(name, []))
    paths = [str(path) for path in files if path.exists()]
    return spark.read.parquet(*paths) if paths else None


def _compare(name: str, stored: DataFrame, expected: DataFrame, rows: int) -> Step:
    """Return both sides counted together: a row that is not on both sides as often does not come out even."""
    from pyspark.sql import functions as F

    have, want = stored, expected.select(*stored.columns)
    if name == "events_rejected":  # damage that keeps a log from being read on has no place in it
        have, want = have.where("position >= 0"), want.where("position >= 0")
    both = have.withColumn("_side", F.lit(1)).unionByName(want.withColumn("_side", F.lit(-1)))
    summed = both.groupBy(*stored.columns).agg(F.sum("_side").alias("_side"))
    odd = summed.where("_side <> 0").orderBy(F.desc("_side")).limit(SHOWN).collect()
    if odd:
        told = "is in the table but not in the log" if odd[0]["_side"] > 0 else "is missing"
        return Step(name, "failed", f"{_name(odd[0].asDict())} {told}" + _more(len(odd)))
    return Step(name, "passed", f"{rows} rows, each the fold of the log")


def _more(count: int) -> str:
    return f", and {'at least ' if count == SHOWN else ''}{count - 1} more" if count > 1 else ""


def _name(row: dict[str, Any]) -> str:
    wanted = (
        "topic",
        "entry_id",
        "commit",
        "message",
        "block_hash",
        "content_id",
        "env",
        "service",
        "height",
    )
    return "row " + ", ".join(f"{key} {row[key]}" for key in wanted if row.get(key) is not None)


def _roots(manifests: list[Manifest], staged: list[Staged]) -> Step:
    """Compare the root of every recorded range with the log as it is now."""
    count = 0
    for manifest in manifests:
        start, end = manifest.start, manifest.end
        mine = [
            each for each in staged if start.at(each.log).position <= each.start < end.at(each.log).position
        ]
        logs, _ = join_ranges(mine, start)
        roots = {(log["engine"], log["topic"]): log["root"] for log in logs}
        for log in manifest.logs:
            if roots.get((log["engine"], log["topic"])) != log["root"]:
                return Step(
                    "roots",
                    "failed",
                    f"batch {manifest.number}: {log['engine']} log {log['topic']}, entries {log['start']} to "
                    f"{log['end'] - 1} have another root than was recorded",
                )
            count += 1
    return Step("roots", "passed", f"{count} ranges have the roots that were recorded")
