"""How far a reader has got in several logs, and the ranges between two such points. Pure.

A *position* counts entries: commits of a git topic, blocks of a channel, messages in the order they arrived here. The
id of the last entry before a position goes with it, so that a log rewritten underneath a reader is noticed. Positions
come from the log alone: a reader that starts again finds the same numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from ropewalk.errors import Invalid
from ropewalk.pipeline.source.rows import ENGINES, Engine

ROWS_PER_RANGE = 50_000  # a Spark task costs about 70 ms before it reads its first row


@dataclass(frozen=True, slots=True, order=True)
class LogName:
    """Which log: an engine and the name of one of its logs."""

    engine: Engine
    topic: str


@dataclass(frozen=True, slots=True)
class Point:
    """A place in a log: how many entries lie before it, and the id of the last of them (empty at the beginning).

    `fault` names damage that keeps the log from being read further, once a stream has reported it.
    """

    position: int = 0
    head: str = ""
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Extent:
    """The extent of a log: its end, about how many rows an entry has, and what keeps it from being read further."""

    end: Point
    rows_per_entry: float = 1.0
    fault: str = ""
    fault_entry: str = ""
    again: Mapping[int, int] = field(default_factory=dict)  # positions of what came before, at another


@dataclass(frozen=True, slots=True)
class Range:
    """Entries from one position up to, not with, another, with the ids they must hang between."""

    log: LogName
    start: int
    end: int
    below: str
    above: str
    fault: str = ""
    fault_entry: str = ""
    again: Mapping[int, int] = field(default_factory=dict)
    rows: int = 0  # about how many


@dataclass(frozen=True, slots=True)
class Offset:
    """A point in each of several logs.

    >>> at = Offset({LogName("gitlog", "prod"): Point(7, "ab")})
    >>> Offset.from_json(at.to_json()) == at
    True
    >>> at.at(LogName("gitlog", "test"))
    Point(position=0, head='', fault='')
    """

    points: Mapping[LogName, Point] = field(default_factory=dict)

    def at(self, log: LogName) -> Point:
        """Return the point in a log; its beginning where nothing is known of it."""
        return self.points.get(log, Point())

    def to_json(self) -> dict[str, Any]:
        """Return what Spark's offset log and our manifests keep."""
        found: dict[str, Any] = {}
        for log in sorted(self.points):
            point = self.points[log]
            told = {"fault": point.fault} if point.fault else {}
            found.setdefault(log.engine, {})[log.topic] = {
                "position": point.position,
                "head": point.head,
                **told,
            }
        return {"version": 1, "logs": found}

    @classmethod
    def from_json(cls, value: Any) -> Offset:
        """Read what `to_json` wrote."""
        if (
            not isinstance(value, dict)
            or value.get("version") != 1
            or not isinstance(value.get("logs"), dict)
        ):
            raise Invalid(f"no offset of ours: {json.dumps(value)[:80]}")
        points: dict[LogName, Point] = {}
        for engine, topics in value["logs"].items():
            if engine not in ENGINES:
                raise Invalid(f"an offset of the unknown engine {engine!r}")
            if not isinstance(topics, dict):
                raise Invalid(f"no offset of ours: {json.dumps(topics)[:80]}")
            for topic, at in topics.items():
                points[LogName(engine, topic)] = _parse_point(at)
        return cls(points)

    def up_to(self, goal: Offset) -> Offset:
        """Return this offset with no point behind that of another."""
        return Offset({log: min(point, goal.at(log), key=_position) for log, point in self.points.items()})


def _position(point: Point) -> int:
    return point.position


def _parse_point(value: Any) -> Point:
    given = value if isinstance(value, dict) else {}
    position, head, fault = given.get("position"), given.get("head"), given.get("fault", "")
    if type(position) is not int or position < 0 or not isinstance(head, str) or not isinstance(fault, str):
        raise Invalid(
            f"a point of an offset must have a position and a head, got {json.dumps(value)[:80]}",
            advice="The checkpoint of the stream is damaged: start the stream with a new one.",
        )
    return Point(position, head, fault)


def cut_evenly(start: int, end: int, rows_per_entry: float, rows_max: int) -> Iterator[tuple[int, int]]:
    """Yield the positions between two, in runs of about as many rows as one task should read, none much smaller.

    >>> list(cut_evenly(0, 10, 1.0, 4))
    [(0, 5), (5, 10)]
    >>> list(cut_evenly(3, 3, 1.0, 4))
    []
    """
    size = end - start
    if size <= 0:
        return
    parts = max(1, min(size, int(size * rows_per_entry // max(1, rows_max))))
    marks = [start + size * part // parts for part in range(parts + 1)]
    yield from pairwise(marks)


def group_ranges(ranges: Iterable[Range], rows_max: int) -> list[list[Range]]:
    """Return ranges in groups of about as many rows as one task should read: small logs share a task.

    >>> log = LogName("gitlog", "a")
    >>> parts = [Range(log, n, n + 1, "", "", rows=rows) for n, rows in enumerate((3, 3, 9, 1))]
    >>> [[part.start for part in group] for group in group_ranges(parts, 8)]
    [[0, 1], [2], [3]]
    """
    groups: list[list[Range]] = []
    rows = 0
    for part in ranges:
        if not groups or rows + part.rows > rows_max:
            groups.append([])
            rows = 0
        groups[-1].append(part)
        rows += part.rows
    return groups
