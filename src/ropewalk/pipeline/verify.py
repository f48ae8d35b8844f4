"""Whole logs checked in parallel, and tables held against the logs they were made from.

Every task checks its range and hands back what the range hangs between; the driver joins the ranges. So a missing, a
doubled or a changed entry is found wherever the log was cut, and named.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropewalk.errors import BrokenLink, HistoryRewritten, RopewalkError
from ropewalk.gitlog.vouch import anchored_commits, check_anchors, check_signed_heads
from ropewalk.kernel.digest import ContentId
from ropewalk.kernel.entry import EMPTY, EntryId, Span, join
from ropewalk.kernel.keys import PublicKey
from ropewalk.kernel.report import Step
from ropewalk.ledger.block import GENESIS
from ropewalk.ledger.verify import Fault
from ropewalk.pipeline.across import (
    Suspect,
    find_suspects,
    is_behind,
    judge_suspect,
    keys_of,
    look_up,
    note_ranges,
    repeating,
)
from ropewalk.pipeline.delta import check_delta
from ropewalk.pipeline.gitlogs import GitLogs
from ropewalk.pipeline.ingest import content_root
from ropewalk.pipeline.ledgers import Ledgers, join_spans, span_from_json
from ropewalk.pipeline.offsets import LogName, Offset, Point
from ropewalk.pipeline.query import make_query
from ropewalk.pipeline.refusals import find_refusal, refusals_raised
from ropewalk.pipeline.warehouse import GROWING, REMADE, Manifest, Warehouse
from ropewalk.stores.place import find_place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["LogVerdict", "Report", "verify_logs", "verify_tables"]

ACROSS = "across_blocks"
SHOWN = 20  # rows that are named; the rest is counted


@dataclass(frozen=True, slots=True)
class LogVerdict:
    """What became of one log; `entry` is its first bad one."""

    log: LogName
    entries: int
    head: str
    ranges: int
    entry: str | None = None
    detail: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As `verify --json` prints it."""
        return {
            "engine": self.log.engine,
            "topic": self.log.topic,
            "ok": self.detail is None,
            "entries": self.entries,
            "head": self.head,
            "ranges": self.ranges,
            "first_bad": self.entry,
            "detail": self.detail,
        }


@dataclass(frozen=True, slots=True)
class Report:
    """Every log and every step. Not one word more is proven."""

    logs: tuple[LogVerdict, ...]
    steps: tuple[Step, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return all(log.detail is None for log in self.logs) and all(s.status != "failed" for s in self.steps)

    def to_json(self) -> dict[str, Any]:
        """As `verify --json` prints it."""
        return {
            "ok": self.ok,
            "steps": [step.to_json() for step in self.steps],
            "entries": sum(log.entries for log in self.logs),
            "logs": [log.to_json() for log in self.logs],
        }


def verify_logs(
    spark: SparkSession,
    source: Path,
    *,
    engine: str | None = None,
    topics: str | None = None,
    deep: bool = True,
    keys: Sequence[PublicKey] = (),
    recorded: Offset | None = None,
    start: Offset | None = None,
    end: Offset | None = None,
    rows_per_range: int | None = None,
) -> tuple[Report, list[dict[str, Any]]]:
    """Check logs from end to end; also returns one verdict row a range. `recorded` are heads that must be in them.

    With `start` and `end`, only what lies between them is looked at, and it must stand on what `start` names.
    """
    options = {"repository": str(find_place(source).git_dir), "check": "deep" if deep else "blocks"}
    options |= {n: v for n, v in (("engine", engine), ("topics", topics)) if v is not None}
    options |= {
        name: json.dumps(at.to_json()) for name, at in (("start", start), ("end", end)) if at is not None
    }
    if rows_per_range is not None:
        options["rows_per_partition"] = str(rows_per_range)
    query = make_query(options)
    whole = start is None and end is None
    checked = spark.read.format("ropewalk").options(**options).load()
    if deep and whole:
        checked = checked.persist()  # marks are looked at after the verdicts, and nothing is checked twice
    try:
        with refusals_raised():
            rows = [row.asDict() for row in checked.drop("marks").collect()]
            across: dict[str, Fault] = {}
            looked = _unlooked(rows, deep, whole)
            if looked is None:
                across, looked = _across(spark, checked.where("engine = 'ledger'"), source, rows)
    finally:
        if deep and whole:
            checked.unpersist()
    by_log: dict[LogName, list[dict[str, Any]]] = {name: [] for name in query.names()}
    for row in sorted(rows, key=lambda row: (row["engine"], row["topic"], row["start"], row["end"])):
        by_log.setdefault(LogName(row["engine"], row["topic"]), []).append(row)
    begin = start or Offset()
    verdicts = [_joined(log, begin.at(log), found, across) for log, found in sorted(by_log.items())]
    steps = [_told(verdicts, engine_name) for engine_name in query.engines]
    steps += [looked] if "ledger" in query.engines else []
    steps += _vouched(source, verdicts, keys)
    if recorded is not None:
        steps.append(_recorded(options, recorded))
    return Report(tuple(verdicts), tuple(steps)), rows


def _unlooked(rows: list[dict[str, Any]], deep: bool, whole: bool) -> Step | None:
    """Why nobody looks across blocks; None if somebody does."""
    if not any(row["engine"] == "ledger" for row in rows):
        return Step(ACROSS, "not_checked", "there are no channels")
    if not deep:
        return Step(ACROSS, "not_checked", "envelopes were not opened")
    return None if whole else Step(ACROSS, "not_checked", "only a part of the channels was looked at")


def _across(
    spark: SparkSession, checked: DataFrame, source: Path, rows: list[dict[str, Any]]
) -> tuple[dict[str, Fault], Step]:
    """The faults that only show between blocks, of channels in which nothing comes before them."""
    mine = [row for row in rows if row["engine"] == "ledger"]
    odd = repeating(checked) | {row["topic"] for row in mine if row["asked"]}
    ranges = [(row["topic"], row["start"], row["end"]) for row in mine if row["topic"] in odd]
    found: dict[str, Fault] = {}
    if ranges:
        noted = note_ranges(spark, find_place(source).git_dir, ranges).persist()
        try:
            found, unjudged = _judged(noted, source, mine)
        finally:
            noted.unpersist()
        if unjudged is not None:
            where = f"{unjudged.topic}: block {unjudged.height}, envelope {unjudged.index}"
            return found, Step(ACROSS, "not_checked", f"{where} could not be judged")
    if found:
        told = "; ".join(f"{topic}: {fault.detail}" for topic, fault in sorted(found.items()))
        return found, Step(ACROSS, "failed", told)
    envelopes = sum(row["entries"] for row in mine)
    return found, Step(ACROSS, "passed", f"{envelopes} envelopes: none repeats or lacks an earlier one")


def _judged(
    noted: DataFrame, source: Path, rows: list[dict[str, Any]]
) -> tuple[dict[str, Fault], Suspect | None]:
    """What the rules say of the first suspect of every channel, where no fault stands before it."""
    ledgers = Ledgers(find_place(source))
    suspects = []
    for suspect in find_suspects(noted):
        spans = [span_from_json(row["span"]) for row in _in_order(rows, suspect.topic) if row["span"]]
        alone = join_spans(spans).fault
        if alone is None or not is_behind(suspect, alone):
            suspects.append(suspect)
    keys = [key for each in suspects for key in keys_of(ledgers.channel(each.topic), each)]
    known = look_up(noted, keys)
    found: dict[str, Fault] = {}
    for each in suspects:
        fault = judge_suspect(ledgers.channel(each.topic), each, known.get(each.topic, {}))
        if fault is None:
            return found, each
        found[each.topic] = fault
    return found, None


def _in_order(rows: list[dict[str, Any]], topic: str) -> list[dict[str, Any]]:
    return sorted((row for row in rows if row["topic"] == topic), key=lambda row: (row["start"], row["end"]))


def _joined(log: LogName, begin: Point, rows: list[dict[str, Any]], across: dict[str, Fault]) -> LogVerdict:
    joiners: dict[str, Callable[[Point, list[dict[str, Any]]], tuple[str, str | None, str | None]]] = {
        "gitlog": _join_commits,
        "ledger": _join_blocks,
        "gossip": _join_messages,
    }
    head, entry, detail = joiners[log.engine](begin, rows)
    if log.engine == "ledger" and log.topic in across:
        fault = across[log.topic]
        entry, detail = f"block {fault.height}, envelope {fault.index}", fault.detail
    return LogVerdict(log, sum(row["entries"] for row in rows), head, len(rows), entry, detail)


def _first_fault(rows: list[dict[str, Any]]) -> tuple[str | None, str | None]:
    for row in rows:
        if row["verdict"] == "failed":
            return row["entry_id"], row["detail"]
    return None, None


def _join_commits(begin: Point, rows: list[dict[str, Any]]) -> tuple[str, str | None, str | None]:
    entry, detail = _first_fault(rows)
    spans = []
    for row in rows:
        if row["span"]:
            told = json.loads(row["span"])
            below = (EntryId(bytes.fromhex(told["below"])),) if told["below"] else ()
            above = EntryId(bytes.fromhex(told["above"]))
            spans.append(Span(below, (above,), row["entries"], above))
    try:
        whole = reduce(join, spans, EMPTY)
        if whole.below and whole.below[0].hex() != begin.head and detail is None:
            raise BrokenLink("the log does not reach its beginning", entry=whole.below[0].hex())
    except BrokenLink as error:
        return "", entry or str(error.fields.get("entry")), detail or error.detail
    return (whole.above[0].hex() if whole.above else ""), entry, detail


def _join_blocks(begin: Point, rows: list[dict[str, Any]]) -> tuple[str, str | None, str | None]:
    whole = join_spans([span_from_json(row["span"]) for row in rows if row["span"]])
    entry, detail = _first_fault(rows)
    below = bytes.fromhex(begin.head) if begin.head else GENESIS
    if whole.blocks and whole.fault is None and (whole.first, whole.below) != (begin.position, below):
        fault = Fault(whole.first, "links", "the channel does not begin with its first block")
        whole = replace(whole, fault=fault)
    if whole.fault is not None:
        index = "" if whole.fault.index is None else f", envelope {whole.fault.index}"
        return whole.above.hex(), f"block {whole.fault.height}{index}", whole.fault.detail
    return whole.above.hex(), entry, detail


def _join_messages(_begin: Point, rows: list[dict[str, Any]]) -> tuple[str, str | None, str | None]:
    head = json.loads(rows[-1]["span"])["above"] if rows else ""
    return (head, *_first_fault(rows))


def _told(verdicts: Iterable[LogVerdict], engine: str) -> Step:
    mine = [verdict for verdict in verdicts if verdict.log.engine == engine]
    bad = [verdict for verdict in mine if verdict.detail is not None]
    if not mine:
        return Step(engine, "not_checked", "there are no logs")
    if bad:
        told = "; ".join(f"{each.log.topic}: {each.entry}: {each.detail}" for each in bad[:5])
        return Step(engine, "failed", told)
    return Step(engine, "passed", f"{len(mine)} logs, {sum(each.entries for each in mine)} entries")


def _vouched(source: Path, verdicts: Iterable[LogVerdict], keys: Sequence[PublicKey]) -> list[Step]:
    """Anchors and signed heads of git logs that verified."""
    found: list[Step] = []
    logs: GitLogs | None = None
    for verdict in verdicts:
        if verdict.log.engine != "gitlog" or verdict.detail is not None:
            continue
        logs = logs or GitLogs(find_place(source))
        layout, topic = logs.locate(verdict.log.topic)
        ref = layout.head_ref(topic)

        def names(logs: GitLogs = logs, ref: str = ref, count: int = verdict.entries) -> Any:
            for start in range(0, count, 2_000):
                for slot in logs.index.span(ref, start, min(start + 2_000, count)):
                    yield ContentId(slot.content_id)

        anchored = anchored_commits(logs.store, layout, topic)
        met = {
            slot.commit
            for start in (range(0, verdict.entries, 2_000) if anchored else ())
            for slot in logs.index.span(ref, start, min(start + 2_000, verdict.entries))
        }
        steps = (
            check_anchors(logs.store, layout, topic, met & anchored, keys),
            check_signed_heads(logs.store, layout, topic, names, keys),
        )
        found += [
            Step(f"{topic}:{step.name}", step.status, step.detail)
            for step in steps
            if step.status != "not_checked" or "none" not in step.detail
        ]
    return found


def _recorded(options: dict[str, str], recorded: Offset) -> Step:
    try:
        make_query({"repository": options["repository"], "verify": "quarantine"}).require(recorded)
    except HistoryRewritten as error:
        return Step("recorded_heads", "failed", error.detail)
    return Step("recorded_heads", "passed", f"{len(recorded.points)} logs contain what was recorded of them")


def verify_tables(spark: SparkSession, warehouse: Warehouse) -> Report:
    """Prove that tables are exactly the fold of the logs up to their recorded heads."""
    steps: list[Step] = []
    try:
        manifests = warehouse.require().manifests()
    except (BrokenLink, RopewalkError) as error:
        if error.exit_code != 5:
            raise
        return Report((), (Step("manifests", "failed", error.detail),))
    steps.append(Step("manifests", "passed", f"{len(manifests)} batches, each on the one before"))
    steps.append(_files(warehouse, manifests))
    if warehouse.delta_mark.exists():
        odd = check_delta(warehouse, manifests)
        steps.append(
            Step("delta", "failed" if odd else "passed", odd or "the Delta logs name the same files")
        )
    at = Offset()
    for manifest in manifests:
        at = at.merged(manifest.end)
    if not manifests:
        return Report((), tuple(steps))
    source = manifests[-1].source
    steps.append(_recorded({"repository": source}, at))
    if steps[-1].status == "passed":
        with refusals_raised():
            steps += _folds(spark, warehouse, manifests, source, at)
    return Report((), tuple(steps))


def _files(warehouse: Warehouse, manifests: list[Manifest]) -> Step:
    named = {f.name: f for files in warehouse.current_files(manifests).values() for f in files}
    present = {
        f.name: f
        for table in (*GROWING, *REMADE)
        for f in (warehouse.files_in(warehouse.path / table) if (warehouse.path / table).exists() else ())
    }
    for name in sorted(named.keys() - present.keys()):
        return Step("files", "failed", f"{name} is missing")
    for name in sorted(present.keys() - named.keys()):
        return Step("files", "failed", f"{name} is in no manifest")
    for name, file in sorted(named.items()):
        if present[name].blake3 != file.blake3:
            return Step("files", "failed", f"{name} holds other bytes than were written")
    return Step("files", "passed", f"{len(named)} files have their digests")


def _folds(
    spark: SparkSession, warehouse: Warehouse, manifests: list[Manifest], source: str, at: Offset
) -> list[Step]:
    from ropewalk.pipeline import tables

    quarantined = any(each.mode == "quarantine" for each in manifests)
    reader: Any = spark.read.format("ropewalk").option("repository", source)
    reader = reader.option("verify", "quarantine" if quarantined else manifests[-1].mode)
    reader = reader.option("columns", tables.INGESTED)
    if not quarantined:
        reader = reader.option("end", json.dumps(at.to_json()))
    points = " ".join(
        f"when engine = '{log.engine}' and topic = '{log.topic}' then {point.position}"
        for log, point in at.points.items()
    )
    fold: DataFrame = reader.load().where(f"position < (case {points} else 0 end)").persist()
    try:
        kept = fold.where("verdict <> 'failed'")
        steps = [_roots(manifests, fold)]
        for name, expected in (
            ("events", kept),
            ("events_rejected", fold.where("verdict = 'failed'")),
            ("blocks", tables.blocks(fold)),
            ("commits", tables.commits(fold)),
            ("gossip_dag", tables.gossip_dag(fold)),
            ("deployments", tables.deployments(kept)),
            ("deployment_measures", tables.deployment_measures(tables.deployments(kept))),
        ):
            steps += _held(spark, warehouse, manifests, name, expected)
    finally:
        fold.unpersist()
    steps.append(Step("consumer_lag", "not_checked", "it says how things stood, which no log keeps"))
    return steps


def _held(
    spark: SparkSession, warehouse: Warehouse, manifests: list[Manifest], name: str, expected: DataFrame
) -> list[Step]:
    """One table against its fold. A table Spark cannot even read was changed by somebody: the row is looked for."""
    try:
        stored = _stored(spark, warehouse, manifests, name)
        return [] if stored is None else [_compare(name, stored, expected)]
    except Exception as error:
        if find_refusal(str(error)) is not None:
            raise  # the log itself does not verify
        reason = next((line.strip() for line in str(error).splitlines()[1:] if line.strip()), str(error))
        odd = _odd_row(warehouse, manifests, name, expected) if name in GROWING[:2] else None
        return [Step(name, "failed", odd or f"the table cannot be read: {reason[:200]}")]


def _odd_row(warehouse: Warehouse, manifests: list[Manifest], name: str, expected: DataFrame) -> str | None:
    """The first row whose plain columns are not those of the log, read without Spark."""
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
        path = warehouse.path / file.name
        if not path.exists():
            continue
        try:
            found = pq.read_table(path, columns=columns, partitioning=None).to_pylist()
        except Exception as error:
            return f"{file.name} cannot be read: {error}"
        for row in found:
            if wanted.get(tuple(row.values())[:4]) != row:
                return f"{_name(row)} is not what the log says"
    return None


def _stored(
    spark: SparkSession, warehouse: Warehouse, manifests: list[Manifest], name: str
) -> DataFrame | None:
    files = [file.name for file in warehouse.current_files(manifests).get(name, [])]
    paths = [str(warehouse.path / file) for file in files if (warehouse.path / file).exists()]
    return spark.read.parquet(*paths) if paths else None


def _compare(name: str, stored: DataFrame, expected: DataFrame) -> Step:
    """Both sides counted together: a row that is not on both sides as often does not come out even."""
    from pyspark.sql import functions as F

    from ropewalk.pipeline.tables import comparable

    have, want = comparable(stored), comparable(expected.select(*stored.columns))
    if name == "events_rejected":  # damage that keeps a log from being read on has no place in it
        have, want = have.where("position >= 0"), want.where("position >= 0")
    both = have.withColumn("_side", F.lit(1)).unionByName(want.withColumn("_side", F.lit(-1)))
    summed = both.groupBy(*stored.columns).agg(F.sum("_side").alias("_side"))
    odd = summed.where("_side <> 0").orderBy(F.desc("_side")).limit(SHOWN).collect()
    if odd:
        told = "is in the table but not in the log" if odd[0]["_side"] > 0 else "is missing"
        return Step(name, "failed", f"{_name(odd[0].asDict())} {told}" + _more(len(odd)))
    return Step(name, "passed", "every row is the fold of the log")


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


def _roots(manifests: list[Manifest], fold: DataFrame) -> Step:
    """The root of every recorded range, from the log as it is now."""
    columns = ("engine", "topic", "position", "leaf_index", "content_id")
    table = fold.select(*columns).where("position >= 0").toArrow()
    rows: dict[LogName, list[tuple[int, int, str | None]]] = {}
    for engine, topic, position, leaf, content in zip(
        *(table.column(name).to_pylist() for name in columns), strict=True
    ):
        rows.setdefault(LogName(engine, topic), []).append((position, -1 if leaf is None else leaf, content))
    for found in rows.values():
        found.sort(key=lambda row: row[:2])
    count = 0
    for manifest in manifests:
        for log in manifest.logs:
            name = LogName(log["engine"], log["topic"])
            inside = [content for at, _, content in rows.get(name, ()) if log["start"] <= at < log["end"]]
            if content_root(inside) != log["root"]:
                return Step(
                    "roots",
                    "failed",
                    f"batch {manifest.number}: {name.engine} log {name.topic}, entries {log['start']} to "
                    f"{log['end'] - 1} have another root than was recorded",
                )
            count += 1
    return Step("roots", "passed", f"{count} ranges have the roots that were recorded")
