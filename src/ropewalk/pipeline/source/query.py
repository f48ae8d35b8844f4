"""What a read asks for: options as texts, made into logs, bounds and ranges once, at the edge."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast, get_args

from ropewalk.errors import HistoryRewritten, Invalid, InvalidName, NotFound
from ropewalk.pipeline.source.logs import (
    Bounds,
    Logs,
    Mode,
    Want,
    between,
    open_logs,
    parse_bound,
    pick_logs,
    point_at,
)
from ropewalk.pipeline.source.offsets import ROWS_PER_RANGE, Extent, LogName, Offset, Point, Range
from ropewalk.pipeline.source.rows import ENGINES, Engine
from ropewalk.pipeline.source.schemas import choose_columns

ROWS_PER_RANGE_MIN = 5_000  # below this, starting a task costs more than a second hand brings

OPTIONS = (
    "repository",
    "engine",
    "topics",
    "channels",
    "start",
    "end",
    "verify",
    "columns",
    "rows_per_partition",
    "max_rows_per_batch",
    "check",
    "path",
)


@dataclass(slots=True)
class Query:
    """One read, understood. It holds no open files until it is asked, so that it can travel to a worker."""

    repository: Path
    engines: tuple[Engine, ...]
    topics: str | None
    start: str | None
    end: str | None
    mode: Mode
    columns: tuple[str, ...]
    rows_per_range: int | None = None  # None: a range for each hand, unless they would be small or huge
    rows_per_batch: int | None = None
    check: str = ""  # "", "deep" or "blocks": hand out verdicts instead of rows
    _opened: dict[Engine, Logs] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, object]:
        return {name: getattr(self, name) if name != "_opened" else {} for name in self.__slots__}

    def __setstate__(self, state: dict[str, object]) -> None:
        for name, value in state.items():
            setattr(self, name, value)

    @property
    def want(self) -> Want:
        """How ranges are to be read."""
        return Want(self.mode, frozenset(self.columns), self._bounds())

    def logs(self, engine: Engine) -> Logs:
        """Return the reader of an engine, opened once."""
        if engine not in self._opened:
            self._opened.update(open_logs(self.repository, (engine,)))
        return self._opened[engine]

    def names(self) -> list[LogName]:
        """Return the logs that are meant."""
        for engine in self.engines:
            self.logs(engine)
        return pick_logs({engine: self._opened[engine] for engine in self.engines}, self.topics)

    def extent(self, name: LogName) -> Extent:
        """Return how far a log reaches now."""
        return self.logs(name.engine).extent(
            name.topic, tolerant=self.mode == "quarantine" or bool(self.check)
        )

    def ranges(self) -> list[Range]:
        """Return the ranges of a batch read."""
        return self._cut([(name, *self._between(name, self.extent(name))) for name in self.names()])

    def first(self) -> Offset:
        """Return where a stream begins."""
        if self.start is not None and self.start.startswith("{"):
            import json

            return Offset.from_json(json.loads(self.start))
        if self.start is None:
            return Offset()
        return Offset({name: self._between(name, self.extent(name))[0] for name in self.names()})

    def latest(self, start: Offset, rows: int | None = None) -> Offset:
        """Return how far a stream may read from a point on, at most about `rows` rows further."""
        points: dict[LogName, Point] = dict(start.points)
        left = rows
        for name in self.names():
            extent = self.extent(name)
            begin = start.at(name).position
            end = replace(extent.end, fault=extent.fault_entry if extent.fault else "")
            if left is not None:
                entries = int(max(0, left) // extent.rows_per_entry)
                if left > 0:
                    entries = max(1, entries)
                if begin + entries < end.position:
                    end = point_at(self.logs(name.engine), name.topic, begin + entries)
                left -= int((end.position - begin) * extent.rows_per_entry)
            points[name] = end
        return Offset(points)

    def ranges_between(self, start: Offset, end: Offset) -> list[Range]:
        """Return the ranges from one offset to another; damage at the end of a log is reported once."""
        wanted = []
        for name, point in sorted(end.points.items()):
            begin = start.at(name)
            news = point.fault if point.fault != begin.fault else ""
            if point.position > begin.position or news:
                wanted.append((name, begin, _ending(self.extent(name), replace(point, fault=news))))
        return self._cut(wanted)

    def require(self, recorded: Offset) -> None:
        """Refuse logs that no longer hold what was recorded of them."""
        for name, point in recorded.points.items():
            if not point.position or name.engine not in self.engines:
                continue
            got = ""
            with contextlib.suppress(NotFound):
                if point.position <= self.extent(name).end.position:
                    got = self.logs(name.engine).id_at(name.topic, point.position - 1)
            if got != point.head:
                raise HistoryRewritten(
                    f"{name.engine} log {name.topic}: entry {point.position - 1} was {point.head}, "
                    f"now it is {got or 'missing'}",
                    topic=name.topic,
                    engine=name.engine,
                    expected=point.head,
                    got=got or None,
                )

    def _cut(self, wanted: list[tuple[LogName, Point, Extent]]) -> list[Range]:
        rows = sum((end.end.position - start.position) * end.rows_per_entry for _, start, end in wanted)
        share = -(-int(rows) // (os.cpu_count() or 1))
        size = self.rows_per_range or min(ROWS_PER_RANGE, max(ROWS_PER_RANGE_MIN, share))
        return [
            part
            for name, start, end in wanted
            for part in between(self.logs(name.engine), name, start, end, size)
        ]

    def _between(self, name: LogName, extent: Extent) -> tuple[Point, Extent]:
        logs = self.logs(name.engine)
        start, end = Point(), extent
        if self.start is not None and not self.start.startswith("{"):
            position = self._position(name, self.start, extent.end, is_end=False)
            if position is not None:
                start = point_at(logs, name.topic, min(position, extent.end.position))
        if self.start is not None and self.start.startswith("{"):
            start = self.first().at(name)
        if self.end is not None and self.end.startswith("{"):
            import json

            end = _ending(extent, Offset.from_json(json.loads(self.end)).at(name))
        elif self.end is not None:
            position = self._position(name, self.end, extent.end, is_end=True)
            if position is not None and position < extent.end.position:
                end = replace(extent, end=point_at(logs, name.topic, position), fault="")
        return start, end

    def _position(self, name: LogName, bound: str, end: Point, *, is_end: bool) -> int | None:
        logs = self.logs(name.engine)
        time_us = parse_bound(bound)
        if time_us is None:
            return logs.find(name.topic, bound, end)
        position = logs.since(name.topic, time_us, end)
        return None if is_end else position

    def _bounds(self) -> Bounds:
        """Return what the options say about heights and times; cursors are positions already."""
        found: dict[str, int] = {}
        for bound, side in ((self.start, "from"), (self.end, "to")):
            if bound is not None and not bound.startswith("{"):
                time_us = parse_bound(bound)
                if time_us is not None:
                    found[f"time_{side}_us"] = time_us
                elif bound.isdigit():
                    found[f"height_{side}"] = int(bound)
        return Bounds(**found)


def _ending(extent: Extent, point: Point) -> Extent:
    """Return the log up to a point; what stops it from being read further is part of it only if the point says so."""
    fault = extent.fault if point.fault and point.fault == extent.fault_entry else ""
    return replace(extent, end=point, fault=fault)


def make_query(options: Mapping[str, str]) -> Query:
    """Return a query from options as Spark hands them over; names in any case.

    >>> make_query({"repository": ".", "engine": "gossip"}).columns[:2]
    ('engine', 'topic')
    """
    given = {name.lower(): value for name, value in options.items()}
    for name in given:
        if name not in OPTIONS:
            raise InvalidName(
                f"there is no option {name!r}", name=name, advice=f"Options: {', '.join(OPTIONS)}."
            )
    repository = given.get("repository") or given.get("path")
    if not repository:
        raise Invalid("no repository is named", advice='Add .option("repository", PATH).')
    engines = _engines(given.get("engine"))
    mode = given.get("verify", "strict")
    if mode not in get_args(Mode):
        raise Invalid(f"verify={mode!r} is not known", advice="Use strict, quarantine or off.")
    return Query(
        Path(repository),
        engines,
        given.get("topics", given.get("channels")),
        given.get("start"),
        given.get("end"),
        cast(Mode, mode),
        choose_columns(engines, given.get("columns")),
        _row_count(given, "rows_per_partition"),
        _row_count(given, "max_rows_per_batch"),
        check=given.get("check", ""),
    )


def _row_count(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name)
    if text is not None and (not text.isdecimal() or int(text) < 1):
        raise Invalid(
            f"{name} must be a whole number of at least 1, got {text!r}",
            advice="Leave it out for the default.",
        )
    return None if text is None else int(text)


def _engines(text: str | None) -> tuple[Engine, ...]:
    if text is None or text == "all":
        return ENGINES
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in ENGINES:
            raise InvalidName(f"there is no engine {name!r}", name=name, advice=f"Use {', '.join(ENGINES)}.")
    return cast("tuple[Engine, ...]", names)
