"""The logs of a repository, engine by engine: what is there, how far it reaches, how it is cut and read.

Each engine has its reader (`git_logs`, `ledger_logs`, `gossip_logs`); they share this protocol and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, cast

from ropewalk.disk.repository_paths import find_repository
from ropewalk.errors import Invalid, NotFound
from ropewalk.pipeline.source.offsets import ROWS_PER_RANGE, Extent, LogName, Point, Range, cut_evenly
from ropewalk.pipeline.source.rows import ENGINES, Columns, Engine

ROWS_PER_READ = 10_000  # rows in one Arrow batch
Mode: TypeAlias = Literal["strict", "quarantine", "off"]
_TIME = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|[+-]\d\d:\d\d)?)?")


@dataclass(frozen=True, slots=True)
class Bounds:
    """Which rows are wanted, beyond positions. Heights and times from (inclusive) and to (exclusive)."""

    height_from: int | None = None
    height_to: int | None = None
    time_from_us: int | None = None
    time_to_us: int | None = None

    def admits(self, height: int | None, time_us: int | None, verdict: str) -> bool:
        """Return whether a row lies inside. Failed rows always do: a filter must not hide damage."""
        if verdict == "failed":
            return True
        if height is not None and (
            (self.height_from is not None and height < self.height_from)
            or (self.height_to is not None and height >= self.height_to)
        ):
            return False
        return not (
            (self.time_from_us is not None or self.time_to_us is not None)
            and (
                time_us is None
                or (self.time_from_us is not None and time_us < self.time_from_us)
                or (self.time_to_us is not None and time_us >= self.time_to_us)
            )
        )

    @property
    def open(self) -> bool:
        """Whether everything is wanted."""
        return self == Bounds()


@dataclass(frozen=True, slots=True)
class Want:
    """How a range is to be read."""

    mode: Mode = "strict"
    columns: frozenset[str] = frozenset()
    bounds: Bounds = field(default_factory=Bounds)


@dataclass(frozen=True, slots=True)
class CheckedRange:
    """What checking a run of entries came to. `span` is what it hangs between, for joining; JSON, the engine's own."""

    log: LogName
    start: int
    end: int
    entries: int
    span: str
    fault_entry: str | None = None
    detail: str | None = None
    marks: Sequence[int] = ()  # what a ledger notes for looking across blocks
    asked: int = 0  # how many of them need an envelope of another block

    def to_row(self) -> dict[str, Any]:
        """Return the verdict as a row of the data source."""
        return {
            "engine": self.log.engine,
            "topic": self.log.topic,
            "start": self.start,
            "end": self.end,
            "entries": self.entries,
            "verdict": "passed" if self.detail is None else "failed",
            "entry_id": self.fault_entry,
            "detail": self.detail,
            "span": self.span,
            "marks": self.marks,
            "asked": self.asked,
        }


class Logs(Protocol):
    """One engine's logs in one repository."""

    def topics(self) -> list[str]:
        """Return the names of its logs."""

    def extent(self, topic: str, *, tolerant: bool = False) -> Extent:
        """Return how far a log reaches now; with `tolerant`, how far a damaged one can be read, instead of raising."""

    def id_at(self, topic: str, position: int) -> str:
        """Return the id of the entry at a position."""

    def find(self, topic: str, bound: str, end: Point) -> int | None:
        """Return the position of a cursor or a height; None if only the rows can tell."""

    def since(self, topic: str, time_us: int, end: Point) -> int:
        """Return a position before which no entry is as late as a time."""

    def read(self, part: Range, want: Want) -> Iterator[Columns]:
        """Yield the rows of a range, about `ROWS_PER_READ` at a time."""

    def check(self, part: Range, *, deep: bool) -> Iterator[CheckedRange]:
        """Check a range without handing out its rows; runs end where something is wrong."""


def open_logs(repository: Path, engines: Iterable[Engine] = ENGINES) -> dict[Engine, Logs]:
    """Open readers of the engines asked for."""
    from ropewalk.pipeline.source.git_logs import GitLogs
    from ropewalk.pipeline.source.gossip_logs import Gossips
    from ropewalk.pipeline.source.ledger_logs import Ledgers

    place = find_repository(repository)
    makers = {"gitlog": GitLogs, "gossip": Gossips, "ledger": Ledgers}
    return {engine: cast(Logs, makers[engine](place)) for engine in engines}


def pick_logs(opened: dict[Engine, Logs], topics: str | None) -> list[LogName]:
    """Return all logs, or those named, in every engine that has them."""
    present = [LogName(engine, topic) for engine, logs in opened.items() for topic in logs.topics()]
    if topics is None:
        return present
    wanted = [name.strip() for name in topics.split(",") if name.strip()]
    if not wanted:
        raise Invalid("no topic is named", advice="Leave `topics` out to read all logs.")
    picked = [log for log in present if log.topic in wanted]
    for name in wanted:
        if all(log.topic != name for log in picked):
            raise NotFound(
                f"there is no log {name!r} of {', '.join(opened)} in the repository",
                topic=name,
                advice="The logs are: " + (", ".join(log.topic for log in present[:20]) or "none"),
            )
    return picked


def parse_bound(text: str) -> int | None:
    """Return the microseconds of a time, None if the text is no time.

    >>> parse_bound("2024-11-01T12:00:00Z"), parse_bound("17")
    (1730462400000000, None)
    """
    if _TIME.fullmatch(text) is None:
        return None
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError as error:
        raise Invalid(
            f"{text!r} is no time: {error}", advice="Write times as 2024-11-01T12:00:00Z."
        ) from error
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return int(moment.timestamp()) * 1_000_000 + moment.microsecond


def between(
    logs: Logs, name: LogName, start: Point, end: Extent, rows_max: int = ROWS_PER_RANGE
) -> list[Range]:
    """Return the ranges that lead from one point to a log's end, each of about `rows_max` rows."""
    cuts = list(cut_evenly(start.position, end.end.position, end.rows_per_entry, rows_max))
    ranges = []
    below = start.head
    for number, (first, last) in enumerate(cuts):
        above = end.end.head if number + 1 == len(cuts) else logs.id_at(name.topic, last - 1)
        again = {here: there for here, there in end.again.items() if first <= here < last}
        rows = round((last - first) * end.rows_per_entry)
        ranges.append(Range(name, first, last, below, above, again=again, rows=rows))
        below = above
    if end.fault:
        at = end.end.position
        ranges.append(Range(name, at, at, below, "", end.fault, end.fault_entry))
    return ranges


def point_at(logs: Logs, topic: str, position: int) -> Point:
    """Return the point before which `position` entries lie."""
    return Point(position, logs.id_at(topic, position - 1)) if position else Point()
