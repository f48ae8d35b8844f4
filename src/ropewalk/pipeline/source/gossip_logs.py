"""Gossip logs as rows: positions count arrivals, because a late message sorts low by clock but arrives last."""

from __future__ import annotations

import json
from collections.abc import Iterator

from ropewalk.disk.repository_paths import RepositoryPaths
from ropewalk.errors import BrokenLink, Damaged, DigestMismatch, Invalid, NotFound, RopewalkError
from ropewalk.gossip.core.ids import Key, id_of, key_of
from ropewalk.gossip.core.log import GossipLog
from ropewalk.gossip.core.message import SignedMessage
from ropewalk.gossip.core.table import View
from ropewalk.gossip.core.verify import Arrivals, arrival_key, find_end
from ropewalk.gossip.peer.topics import open_topic, topics
from ropewalk.pipeline.jobs.sorted_runs import Runs
from ropewalk.pipeline.source.logs import CheckedRange, Want
from ropewalk.pipeline.source.offsets import Extent, Point, Range
from ropewalk.pipeline.source.rows import Columns, Row, broken_row, columns_of, gossip_row

CHUNK = 2_000
RUN = 5_000


class Gossips:
    """The gossip logs of a repository."""

    def __init__(self, place: RepositoryPaths) -> None:
        self.home = place.home
        self._logs: dict[str, GossipLog] = {}
        self._arrived: dict[str, _Arrived] = {}

    def topics(self) -> list[str]:
        """Return the names of its logs."""
        return topics(self.home)

    def log(self, topic: str) -> GossipLog:
        """Return a topic that exists, opened once for this process."""
        if topic not in self._logs:
            self._logs[topic] = open_topic(self.home, topic, create=False)
        return self._logs[topic]

    def extent(self, topic: str, *, tolerant: bool = False) -> Extent:
        """Return how many messages have arrived, the last of them, and which of them arrived before."""
        try:
            with self.log(topic).view() as view:
                extent = self._arrived.setdefault(topic, _Arrived()).go_on(view)
            if extent.fault and not tolerant:
                raise Damaged(f"topic {topic}: {extent.fault}", topic=topic)
            return extent
        except RopewalkError as error:
            if not tolerant or isinstance(error, NotFound):
                raise
            return Extent(Point(), fault=error.detail, fault_entry=topic)

    def id_at(self, topic: str, position: int) -> str:
        """Return the message that arrived at a position."""
        with self.log(topic).view() as view:
            key = view.get("arrivals", arrival_key(position))
        return "" if key is None else id_of(key)

    def find(self, topic: str, bound: str, end: Point) -> int | None:
        """Return a cursor (`arrival:17`) or a message id; a height is a clock, which rows are asked for one by one."""
        if bound.isdigit() and len(bound) < 19:
            return None
        kind, _, number = bound.partition(":")
        if kind == "arrival" and number.isdigit() and len(number) < 19:
            return min(int(number), end.position)
        wanted = key_of(bound)
        with self.log(topic).view() as view:
            for seq, key in view.scan("arrivals"):
                if key == wanted:
                    return int.from_bytes(seq, "big")
        raise NotFound(f"{bound} is not a message of {topic}", topic=topic)

    def since(self, topic: str, time_us: int, end: Point) -> int:  # noqa: ARG002 - the protocol's
        """Refuse: gossip messages have no time."""
        raise Invalid(
            f"gossip messages of {topic} have no time", topic=topic, advice="Use a height or a cursor."
        )

    def read(self, part: Range, want: Want) -> Iterator[Columns]:
        """Yield the messages of a range of arrivals."""
        if part.fault:
            if want.mode == "strict":
                raise Damaged(f"topic {part.log.topic}: {part.fault}", topic=part.log.topic)
            yield columns_of(
                [broken_row("gossip", part.log.topic, -1, part.fault, entry_id=part.fault_entry)]
            )
            return
        log, deep = self.log(part.log.topic), want.mode != "off"
        with log.view() as view:
            rows: list[Row] = []
            self._check_below(view, part, want)
            for position, key, found in Arrivals(log, view, part.start, part.end, part.again).each(deep=deep):
                if isinstance(found, SignedMessage):
                    row = gossip_row(found, position, "passed" if deep else "not_checked")
                elif want.mode == "strict":
                    raise _named(found, part.log.topic, key) from found
                else:
                    row = broken_row(
                        "gossip", part.log.topic, position, found.detail, entry_id=id_of(key) if key else None
                    )
                if want.bounds.admits(row.height, row.time_us, row.verdict):
                    rows.append(row)
                if len(rows) >= CHUNK:
                    yield columns_of(rows)
                    rows = []
            if rows:
                yield columns_of(rows)

    def check(self, part: Range, *, deep: bool) -> Iterator[CheckedRange]:
        """Check messages in runs: ids, signatures, and that every parent is here."""
        if part.fault:
            yield CheckedRange(part.log, part.start, part.start, 0, "", part.fault_entry, part.fault)
            return
        log = self.log(part.log.topic)
        start, last = part.start, part.below
        with log.view() as view:
            for position, key, found in Arrivals(log, view, part.start, part.end, part.again).each(deep=deep):
                fault = None if isinstance(found, SignedMessage) else found.detail
                last = id_of(key) if key else f"arrival {position + 1}"
                if fault is not None or position + 1 - start >= RUN or position + 1 == part.end:
                    yield CheckedRange(
                        part.log,
                        start,
                        position + 1,
                        position + 1 - start,
                        json.dumps({"above": last}),
                        last if fault is not None else None,
                        fault,
                    )
                    start = position + 1

    @staticmethod
    def _check_below(view: View, part: Range, want: Want) -> None:
        if want.mode == "off" or not part.start:
            return
        key = view.get("arrivals", arrival_key(part.start - 1))
        if key is None or id_of(key) != part.below:
            raise BrokenLink(
                f"topic {part.log.topic}: arrival {part.start} is not {part.below}", topic=part.log.topic
            )


class _Arrived:
    """What has arrived in a log, as far as it was looked at: whether a message came twice.

    A message that is stored arrives once. So one that comes twice replaced another message or was added.
    """

    def __init__(self) -> None:
        self._runs = Runs()
        self._upto = 0
        self._again: dict[int, int] = {}

    def go_on(self, view: View) -> Extent:
        import numpy as np

        end, last, fault = find_end(view)
        if last is None:
            return Extent(Point(), fault=fault, fault_entry="arrivals" if fault else "")
        if end > self._upto:
            marks = (hash(key) for _, key in view.scan("arrivals", arrival_key(self._upto)))
            if self._runs.add(np.fromiter(marks, np.int64)):
                self._again = _came_again(view)
            self._upto = end
        where = "arrivals" if fault else ""
        return Extent(Point(end, id_of(last)), fault=fault, fault_entry=where, again=self._again)


def _came_again(view: View) -> dict[int, int]:
    """Return the positions of messages that had arrived before, each with the first."""
    first: dict[bytes, int] = {}
    again: dict[int, int] = {}
    for seq, key in view.scan("arrivals"):
        position = int.from_bytes(seq, "big") - 1
        if first.setdefault(key, position) != position:
            again[position] = first[key]
    return again


def _named(error: RopewalkError, topic: str, key: Key | None) -> RopewalkError:
    kind = type(error) if error.exit_code == 5 else DigestMismatch
    if key is None:
        return kind(f"topic {topic}: {error.detail}", topic=topic)
    return kind(f"topic {topic}, message {id_of(key)}: {error.detail}", topic=topic, entry=id_of(key))
