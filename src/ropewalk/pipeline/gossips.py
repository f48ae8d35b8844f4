"""Gossip logs as rows: positions count arrivals, because a late message sorts low by clock but arrives last."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import quote, unquote

from ropewalk.errors import BrokenLink, Damaged, DigestMismatch, Invalid, NotFound, RopewalkError
from ropewalk.gossip.ids import Key, id_of, key_of
from ropewalk.gossip.log import TABLES, Log
from ropewalk.gossip.message import SignedMessage, verify
from ropewalk.gossip.table import View
from ropewalk.pipeline.logs import CheckedRange, Want
from ropewalk.pipeline.offsets import Extent, Point, Range
from ropewalk.pipeline.rows import Row, broken_row, gossip_row
from ropewalk.pipeline.runs import Runs
from ropewalk.stores.lmdb import LmdbTables
from ropewalk.stores.place import Place

__all__ = ["Gossips"]

CHUNK = 2_000
RUN = 5_000


class Gossips:
    """The gossip logs of a repository."""

    def __init__(self, place: Place) -> None:
        self.home = place.home / "gossip"
        self._logs: dict[str, Log] = {}
        self._arrived: dict[str, _Arrived] = {}

    def topics(self) -> list[str]:
        """The names of its logs."""
        if not self.home.is_dir():
            return []
        return sorted(unquote(each.name) for each in self.home.iterdir() if each.is_dir())

    def log(self, topic: str) -> Log:
        """A topic that exists, opened once for this process."""
        if topic not in self._logs:
            name = quote(topic, safe="")
            folder = self.home / (name.replace(".", "%2E") if name.startswith(".") else name)
            if not folder.is_dir():
                raise NotFound(f"no gossip topic {topic!r} here", topic=topic)
            self._logs[topic] = Log(LmdbTables(folder, TABLES), topic)
        return self._logs[topic]

    def extent(self, topic: str, *, tolerant: bool = False) -> Extent:
        """How many messages have arrived, the last of them, and which of them arrived before."""
        try:
            with self.log(topic).view() as view:
                return self._arrived.setdefault(topic, _Arrived()).go_on(view)
        except RopewalkError as error:
            if not tolerant or isinstance(error, NotFound):
                raise
            return Extent(Point(), fault=error.detail, fault_entry=topic)

    def id_at(self, topic: str, position: int) -> str:
        """The message that arrived at a position."""
        with self.log(topic).view() as view:
            key = view.get("arrivals", _seq(position))
        return "" if key is None else id_of(key)

    def find(self, topic: str, bound: str, end: Point) -> int | None:
        """A cursor (`arrival:17`) or a message id; a height is a clock, which rows are asked for one by one."""
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
        """Gossip messages have no time."""
        raise Invalid(
            f"gossip messages of {topic} have no time", topic=topic, advice="Use a height or a cursor."
        )

    def read(self, part: Range, want: Want) -> Iterator[list[Row]]:
        """The messages of a range of arrivals."""
        if part.fault:
            if want.mode == "strict":
                raise Damaged(f"topic {part.log.topic}: {part.fault}", topic=part.log.topic)
            yield [broken_row("gossip", part.log.topic, -1, part.fault, entry_id=part.fault_entry)]
            return
        log = self.log(part.log.topic)
        with log.view() as view:
            rows: list[Row] = []
            self._check_below(view, part, want)
            for position, key, raw in self._arrivals(log, view, part):
                try:
                    signed = self._checked(log, view, position, key, raw, deep=want.mode != "off")
                    _check_first(position, key, part if want.mode != "off" else None)
                    row = gossip_row(signed, position, "passed" if want.mode != "off" else "not_checked")
                except RopewalkError as error:
                    if want.mode == "strict":
                        raise _named(error, part.log.topic, key) from error
                    row = broken_row(
                        "gossip", part.log.topic, position, error.detail, entry_id=id_of(key) if key else None
                    )
                if want.bounds.admits(row):
                    rows.append(row)
                if len(rows) >= CHUNK:
                    yield rows
                    rows = []
            if rows:
                yield rows

    def check(self, part: Range, *, deep: bool) -> Iterator[CheckedRange]:
        """Messages in runs: ids, signatures, and that every parent is here."""
        if part.fault:
            yield CheckedRange(part.log, part.start, part.start, 0, "", part.fault_entry, part.fault)
            return
        log = self.log(part.log.topic)
        start, last = part.start, part.below
        with log.view() as view:
            for position, key, raw in self._arrivals(log, view, part):
                fault = None
                try:
                    self._checked(log, view, position, key, raw, deep=deep)
                    _check_first(position, key, part)
                except RopewalkError as error:
                    fault = error.detail
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

    def _arrivals(self, log: Log, view: View, part: Range) -> Iterator[tuple[int, Key | None, bytes | None]]:
        """What arrived in a range; an arrival that is not there any more has no key."""
        expected = part.start
        for seq, key in view.scan("arrivals", _seq(part.start), _seq(part.end)):
            position = int.from_bytes(seq, "big") - 1
            yield from ((missing, None, None) for missing in range(expected, position))
            expected = position + 1
            yield position, Key(key), view.get("messages", log.profile.code.order(key))
        yield from ((missing, None, None) for missing in range(expected, part.end))

    @staticmethod
    def _check_below(view: View, part: Range, want: Want) -> None:
        if want.mode == "off" or not part.start:
            return
        key = view.get("arrivals", _seq(part.start - 1))
        if key is None or id_of(key) != part.below:
            raise BrokenLink(
                f"topic {part.log.topic}: arrival {part.start} is not {part.below}", topic=part.log.topic
            )

    @staticmethod
    def _checked(
        log: Log, view: View, position: int, key: Key | None, raw: bytes | None, *, deep: bool
    ) -> SignedMessage:
        if key is None:
            raise BrokenLink(f"arrival {position + 1} is missing")
        if raw is None:
            raise BrokenLink("the message is missing", entry=id_of(key))
        signed = log.decode(raw)
        if signed.key != key:
            raise DigestMismatch(f"the bytes are those of {signed.id}", expected=id_of(key), got=signed.id)
        if deep:
            verify(log.profile, signed)
            for parent in signed.parent_keys:
                if view.get("messages", log.profile.code.order(parent)) is None:
                    raise BrokenLink(f"stands on {id_of(parent)}, which is not here", entry=signed.id)
        return signed


def _seq(position: int) -> bytes:
    return (position + 1).to_bytes(8, "big")


class _Arrived:
    """What has arrived in a log, as far as it was looked at: whether a message came twice.

    A message that is stored arrives once. So one that comes twice was put in the place of another, or beside them all.
    """

    def __init__(self) -> None:
        self._runs = Runs()
        self._upto = 0
        self._again: dict[int, int] = {}

    def go_on(self, view: View) -> Extent:
        import numpy as np

        last = next(iter(view.scan("arrivals", reverse=True)), None)
        if last is None:
            return Extent(Point())
        end = int.from_bytes(last[0], "big")
        if end > self._upto:
            marks = (hash(key) for _, key in view.scan("arrivals", _seq(self._upto)))
            if self._runs.add(np.fromiter(marks, np.int64)):
                self._again = _came_again(view)
            self._upto = end
        return Extent(Point(end, id_of(last[1])), again=self._again)


def _came_again(view: View) -> dict[int, int]:
    """The positions of messages that had arrived before, each with the first."""
    first: dict[bytes, int] = {}
    again: dict[int, int] = {}
    for seq, key in view.scan("arrivals"):
        position = int.from_bytes(seq, "big") - 1
        if first.setdefault(key, position) != position:
            again[position] = first[key]
    return again


def _check_first(position: int, key: Key | None, part: Range | None) -> None:
    if key is not None and part is not None and position in part.again:
        raise BrokenLink(f"arrived before, as number {part.again[position] + 1}", entry=id_of(key))


def _named(error: RopewalkError, topic: str, key: Key | None) -> RopewalkError:
    kind = type(error) if error.exit_code == 5 else DigestMismatch
    if key is None:
        return kind(f"topic {topic}: {error.detail}", topic=topic)
    return kind(f"topic {topic}, message {id_of(key)}: {error.detail}", topic=topic, entry=id_of(key))
