"""Whole logs checked in parallel.

Every task checks its range and hands back what the range hangs between; the driver joins the ranges. So a missing, a
doubled or a changed entry is found and named, independent of where the log was cut.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropewalk.disk.repository_paths import find_repository
from ropewalk.errors import BrokenLink, HistoryRewritten, RopewalkError
from ropewalk.gitlog.core.log import get_object
from ropewalk.gitlog.core.objects import Oid, parse_commit
from ropewalk.gitlog.core.planning import IndexedEntry
from ropewalk.gitlog.repository.tracked_logs import IndexedLog
from ropewalk.gitlog.verify.anchor_check import (
    TrustedKeys,
    anchored_commits,
    check_anchors,
    check_signed_heads,
)
from ropewalk.gitlog.verify.event_check import check_event
from ropewalk.gitlog.verify.note_check import NoteCheck
from ropewalk.gossip.core.verify import verify_log as verify_gossip
from ropewalk.kernel.digest import ContentId
from ropewalk.kernel.entry import EMPTY, EntryId, Span, join
from ropewalk.kernel.keys import PublicKey
from ropewalk.kernel.report import Report, Status, Step
from ropewalk.ledger.block.block import GENESIS
from ropewalk.ledger.channel.maintenance import version_acts
from ropewalk.ledger.channel.segments.reader import Segments
from ropewalk.ledger.channel.settings import FOLDER
from ropewalk.ledger.evidence.settings import evidence_settings_step
from ropewalk.ledger.proof.verify import Fault
from ropewalk.ledger.versions.lifecycle import lifecycle_step
from ropewalk.ledger.versions.statements import VersionAct
from ropewalk.pipeline.jobs.across import (
    Suspect,
    find_suspects,
    first_of_each,
    is_behind,
    judge_suspects,
    note_ranges,
    opened_notes,
    repeating,
    repeating_here,
)
from ropewalk.pipeline.source.git_logs import GitLogs
from ropewalk.pipeline.source.gossip_logs import Gossips
from ropewalk.pipeline.source.ledger_logs import Ledgers, acts_from_json, join_spans, span_from_json
from ropewalk.pipeline.source.offsets import LogName, Offset, Point
from ropewalk.pipeline.source.query import Query, make_query
from ropewalk.pipeline.source.refusals import refusals_raised

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ACROSS = "across_blocks"
# Blocks of at most 8,192 envelopes each, whose marks come to the driver together with their verdicts.
BLOCKS_FETCHED_MAX = 256
SLOTS_READ = 2_000  # of an index, at a time


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
        """Return what `verify --json` prints."""
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
class LogsReport:
    """Every log and every step, and the verdict they lead to, as `ropewalk verify` computes it."""

    logs: tuple[LogVerdict, ...]
    steps: tuple[Step, ...]

    allow_partly: bool = False
    rows: int = 0  # of tables, each an entry of a log

    @property
    def entries(self) -> int:
        """Return how many entries were verified."""
        return self.rows + sum(log.entries for log in self.logs)

    @property
    def report(self) -> Report:
        """Return the report over all steps; a log that failed counts as a failed step."""
        failed = [
            Step(f"{log.log.engine}/{log.log.topic}", "failed", f"first bad entry {log.entry}: {log.detail}")
            for log in self.logs
            if log.detail is not None
        ]
        found = Report.of([*self.steps, *failed], entries=self.entries)
        return found.accept(partly=self.allow_partly)

    @property
    def ok(self) -> bool:
        """Return whether the verdict is `passed`, or was accepted."""
        return self.report.ok

    def _repr_html_(self) -> str:
        from ropewalk.pages import html_table

        logs = [each.to_json() for each in self.logs]
        table = html_table("logs", list(logs[0]), [list(log.values()) for log in logs]) if logs else ""
        return self.report._repr_html_() + table

    def to_json(self) -> dict[str, Any]:
        """Return the object that `pipeline verify --json` prints."""
        return {
            "ok": self.ok,
            "verdict": self.report.verdict,
            "steps": [step.to_json() for step in self.steps],
            "entries": self.entries,
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
    own_keys: Sequence[PublicKey] = (),
    recorded: Offset | None = None,
    start: Offset | None = None,
    end: Offset | None = None,
    rows_per_range: int | None = None,
) -> tuple[LogsReport, list[dict[str, Any]]]:
    """Check logs from end to end; also returns one verdict row a range. `recorded` are heads that must be in them.

    Anchors and signed heads must be signed by `keys`. Without any, `own_keys` count, and other keys are untrusted.
    With `start` and `end`, only what lies between them is looked at, and it must stand on what `start` names.
    """
    options = _options(source, engine, topics, "deep" if deep else "blocks")
    options |= {
        name: json.dumps(at.to_json()) for name, at in (("start", start), ("end", end)) if at is not None
    }
    if rows_per_range is not None:
        options["rows_per_partition"] = str(rows_per_range)
    query = make_query(options)
    whole = start is None and end is None
    checked = spark.read.format("ropewalk").options(**options).load()
    across: dict[str, Fault] = {}
    with refusals_raised():
        if not deep or not whole:
            rows = [row.asDict() for row in checked.drop("marks").collect()]
            looked = _unlooked(rows, deep)
        elif _blocks(query) <= BLOCKS_FETCHED_MAX:
            table = checked.toArrow()
            rows = table.drop_columns(["marks"]).to_pylist()
            across, looked = _across(spark, source, rows, lambda: repeating_here(table))
        else:
            # Marks are looked at after the verdicts, and nothing is checked twice.
            checked = checked.persist()
            try:
                rows = [row.asDict() for row in checked.drop("marks").collect()]
                across, looked = _across(spark, source, rows, lambda: repeating(checked))
            finally:
                checked.unpersist()
    report = report_checked(query, rows, across, start or Offset(), TrustedKeys(keys, own_keys))
    steps = [looked] if "ledger" in query.engines else []
    if recorded is not None:
        steps.append(hold_recorded(options["repository"], recorded))
    if whole:
        steps += settings_checked(query, report, rows)
    return replace(report, steps=(*report.steps, *steps)), rows


def count_rows(source: Path, engine: str | None, topics: str | None) -> int:
    """Return about how many entries `verify_logs` checks."""
    return sum(part.rows for part in make_query(_options(source, engine, topics, "deep")).ranges())


def _options(source: Path, engine: str | None, topics: str | None, check: str) -> dict[str, str]:
    given = (("engine", engine), ("topics", topics))
    named = {name: value for name, value in given if value is not None}
    return {"repository": str(find_repository(source).git_dir), "check": check, **named}


def report_checked(
    query: Query,
    rows: list[dict[str, Any]],
    across: Mapping[str, Fault],
    begin: Offset,
    trusted: TrustedKeys | None = None,
) -> LogsReport:
    """Join the verdicts of ranges to one of every log; `across` are faults that only show between blocks."""
    by_log: dict[LogName, list[dict[str, Any]]] = {name: [] for name in query.names()}
    for row in sorted(rows, key=lambda row: (row["engine"], row["topic"], row["start"], row["end"])):
        by_log.setdefault(LogName(row["engine"], row["topic"]), []).append(row)
    verdicts = [_joined(log, begin.at(log), found, across) for log, found in sorted(by_log.items())]
    steps = [_told(verdicts, engine_name) for engine_name in query.engines]
    return LogsReport(
        tuple(verdicts), (*steps, *_vouched(query.repository, verdicts, trusted or TrustedKeys()))
    )


def settings_checked(query: Query, report: LogsReport, rows: list[dict[str, Any]]) -> Iterator[Step]:
    """Yield checks of data derived from entries: tables of gossip, and settings that a channel records."""
    if "gossip" in query.engines:
        yield from _tables_checked(query)
    place = find_repository(query.repository)
    for verdict in report.logs:
        if verdict.log.engine == "ledger" and verdict.detail is None:
            topic = verdict.log.topic
            segments = Segments(place.home / FOLDER / topic)
            acts: dict[str, tuple[int, VersionAct]] = {}
            for row in rows:
                for height in acts_from_json(row["span"]) if row["topic"] == topic and row["span"] else ():
                    acts |= version_acts(height, segments.find(height).lines)
            for step in lifecycle_step(place.home, topic, acts), evidence_settings_step(place.home, topic):
                if step is not None:
                    yield replace(step, name=f"{topic}:{step.name}")


def _tables_checked(query: Query) -> Iterator[Step]:
    """Check what gossip logs keep besides messages, by the engine's own verifier; workers checked the signatures."""
    gossips = Gossips(find_repository(query.repository))
    for name in query.names():
        if name.engine == "gossip":
            with contextlib.suppress(RopewalkError):  # the topic cannot be opened, and its range reports that
                report = verify_gossip(gossips.log(name.topic), signatures=False)
                bad = [f"{step.name}: {step.detail}" for step in report.steps if step.status == "failed"]
                status: Status = "failed" if bad else "passed"
                yield Step(f"{name.topic}:tables", status, "; ".join(bad) or "they follow from the messages")


def _blocks(query: Query) -> int:
    """Return how many blocks the channels have that are to be checked."""
    return sum(query.extent(name).end.position for name in query.names() if name.engine == "ledger")


def _unlooked(rows: list[dict[str, Any]], deep: bool) -> Step:
    """Return why blocks are not compared with each other."""
    if not any(row["engine"] == "ledger" for row in rows):
        return Step.optional(ACROSS, "there are no channels")
    return Step.optional(
        ACROSS, "only a part of the channels was checked" if deep else "envelopes were not opened"
    )


def _across(
    spark: SparkSession, source: Path, rows: list[dict[str, Any]], repeated: Callable[[], set[str]]
) -> tuple[dict[str, Fault], Step]:
    """Return the faults that only show between blocks, of channels in which nothing comes before them.

    `repeated` finds the channels in which a mark comes twice.
    """
    mine = [row for row in rows if row["engine"] == "ledger"]
    if not mine:
        return {}, _unlooked(rows, deep=True)
    odd = repeated() | {row["topic"] for row in mine if row["asked"]}
    ranges = [(row["topic"], row["start"], row["end"]) for row in mine if row["topic"] in odd]
    found: dict[str, Fault] = {}
    if ranges:
        notes = opened_notes(note_ranges(spark, find_repository(source).git_dir, ranges)).persist()
        try:
            found, unjudged = _judged(notes, source, mine)
        finally:
            notes.unpersist()
        if unjudged is not None:
            where = f"{unjudged.topic}: block {unjudged.height}, envelope {unjudged.index}"
            return found, Step(ACROSS, "not_checked", f"{where} could not be judged")
    if found:
        told = "; ".join(f"{topic}: {fault.detail}" for topic, fault in sorted(found.items()))
        return found, Step(ACROSS, "failed", told)
    envelopes = sum(row["entries"] for row in mine)
    return found, Step(ACROSS, "passed", f"{envelopes} envelopes: none repeats or lacks an earlier one")


def _judged(
    notes: DataFrame, source: Path, rows: list[dict[str, Any]]
) -> tuple[dict[str, Fault], Suspect | None]:
    """Judge the first suspect of every channel, unless a fault precedes it."""
    suspects = []
    for suspect in first_of_each(find_suspects(notes)):
        spans = [span_from_json(row["span"]) for row in _in_order(rows, suspect.topic) if row["span"]]
        alone = join_spans(spans).fault
        if alone is None or not is_behind(suspect, alone):
            suspects.append(suspect)
    judged = judge_suspects(Ledgers(find_repository(source)), notes, suspects)
    found = {each.topic: fault for each, fault in judged.items() if fault is not None}
    return found, next((each for each, fault in judged.items() if fault is None), None)


def _in_order(rows: list[dict[str, Any]], topic: str) -> list[dict[str, Any]]:
    return sorted((row for row in rows if row["topic"] == topic), key=lambda row: (row["start"], row["end"]))


def _joined(
    log: LogName, begin: Point, rows: list[dict[str, Any]], across: Mapping[str, Fault]
) -> LogVerdict:
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
    spans = [row["span"] for row in rows if row["span"]]
    head = json.loads(spans[-1])["above"] if spans else ""
    return (head, *_first_fault(rows))


def _told(verdicts: Iterable[LogVerdict], engine: str) -> Step:
    mine = [verdict for verdict in verdicts if verdict.log.engine == engine]
    bad = [verdict for verdict in mine if verdict.detail is not None]
    if not mine:
        return Step.optional(engine, "there are no logs")
    if bad:
        told = "; ".join(f"{each.log.topic}: {each.entry}: {each.detail}" for each in bad[:5])
        return Step(engine, "failed", told)
    return Step(engine, "passed", f"{len(mine)} logs, {sum(each.entries for each in mine)} entries")


def _vouched(source: Path, verdicts: Iterable[LogVerdict], trusted: TrustedKeys) -> list[Step]:
    """Check anchors, signed heads and notes of git logs that verified."""
    found: list[Step] = []
    logs: GitLogs | None = None
    for verdict in verdicts:
        if verdict.log.engine != "gitlog" or verdict.detail is not None:
            continue
        logs = logs or GitLogs(find_repository(source))
        line = logs.line(verdict.log.topic)
        layout, topic = line.layout, line.topic

        def names(line: IndexedLog = line, count: int = verdict.entries) -> Iterator[ContentId]:
            return (ContentId(slot.content_id) for slot in _slots(line, count))

        anchored = anchored_commits(logs.store, layout, topic)
        met = {slot.commit for slot in _slots(line, verdict.entries if anchored else 0)}
        steps = (
            check_anchors(logs.store, layout, topic, met & anchored, trusted),
            check_signed_heads(logs.store, layout, topic, names, trusted),
        )
        told = [step for step in steps if step.status != "not_checked" or "none" not in step.detail]
        if layout.has_trailer and (noted := _notes_checked(logs, line)) is not None:
            told.append(noted)
        found += [replace(step, name=f"{topic}:{step.name}") for step in told]
    return found


def _slots(line: IndexedLog, count: int) -> Iterator[IndexedEntry]:
    """Yield the first entries of a log, in order."""
    for start in range(0, count, SLOTS_READ):
        yield from line.span(start, min(start + SLOTS_READ, count))


def _notes_checked(logs: GitLogs, line: IndexedLog) -> Step | None:
    """Return the notes on events of a log, by the engine's own check; events without one are not read again."""
    notes = NoteCheck.of(logs.store)
    for slot in _slots(line, line.count if notes.hung or notes.unreadable else 0):
        oid = Oid(slot.commit)
        if notes.unreadable or oid in notes.hung:
            commit = parse_commit(get_object(logs.store, oid, "commit"))
            event = check_event(logs.store, line.layout, line.topic, oid, commit)
            notes.take(oid, event.document or {})
    return notes.step()


def hold_recorded(repository: str, recorded: Offset) -> Step:
    """Return whether logs still hold what was recorded of them."""
    try:
        make_query({"repository": repository, "verify": "quarantine"}).require(recorded)
    except HistoryRewritten as error:
        return Step("recorded_heads", "failed", error.detail)
    return Step("recorded_heads", "passed", f"{len(recorded.points)} logs contain what was recorded of them")
