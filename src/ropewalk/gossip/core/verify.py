"""Verify a stored log from its bytes up; no table is trusted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import zip_longest
from typing import Any, Literal

from ropewalk.errors import BrokenLink, Damaged, RopewalkError
from ropewalk.gossip.core import ancestors, pending
from ropewalk.gossip.core.ids import Key, id_of
from ropewalk.gossip.core.log import GossipLog
from ropewalk.gossip.core.message import SignedMessage, verify
from ropewalk.gossip.core.table import View
from ropewalk.gossip.core.tree import root_of
from ropewalk.gossip.core.writing import counted
from ropewalk.kernel.prolly.memory import MemoryStore
from ropewalk.kernel.prolly.tree import ProllyTree
from ropewalk.kernel.report import Report, Step


class _Fault(Exception):
    """What a step found wrong."""


def verify_log(
    log: GossipLog, progress: Callable[[Iterator[Any]], Iterator[Any]] = iter, *, signatures: bool = True
) -> Report:
    """Check every message, and then everything that is derived from the messages, in one moment of the log.

    Without `signatures`, the caller checks them with `Arrivals`.
    """
    with log.view() as view:
        look = _Look(log, view, signatures=signatures)
        steps = [look.messages(progress)]
        for name, act in (
            ("parents", look.parents),
            ("heads", look.heads),
            ("tree", look.tree),
            ("arrivals", look.arrivals),
            ("pending", look.pending),
            ("ancestors", look.ancestors),
        ):
            steps += [_step(name, act)]
        names = ("ids", "signatures") if signatures else ("ids",)
        first = [Step(name, *_told(look.faults.get(name), f"{look.count} messages")) for name in names]
        return Report.of((*first, *steps[1:]), entries=look.count)


class Arrivals:
    """The messages of some arrivals, checked one by one; `deep` checks signatures, parents and their order."""

    def __init__(self, log: GossipLog, view: View, start: int, end: int, again: Mapping[int, int]) -> None:
        self._log, self._view, self._start, self._end, self._again = log, view, start, end, again
        self._later: set[bytes] = set()

    def each(self, *, deep: bool) -> Iterator[tuple[int, Key | None, SignedMessage | RopewalkError]]:
        """Yield every position with its message, or what is wrong with it; one that is gone has no key."""
        found = self._view.scan("arrivals", arrival_key(self._start), arrival_key(self._end))
        keys = {int.from_bytes(seq, "big") - 1: Key(key) for seq, key in found}
        self._later = set(keys.values()) if deep else set()
        for position in range(self._start, self._end):
            key = keys.get(position)
            self._later.discard(key or b"")
            try:
                yield position, key, self._checked(position, key, deep)
            except RopewalkError as error:
                yield position, key, error

    def _checked(self, position: int, key: Key | None, deep: bool) -> SignedMessage:
        if key is None:
            raise BrokenLink(f"arrival {position + 1} is missing")
        if deep and position in self._again:
            raise BrokenLink(f"arrived before, as number {self._again[position] + 1}", entry=id_of(key))
        order = self._log.profile.code.order(key)
        raw = self._view.get("messages", order)
        if raw is None:
            raise BrokenLink("the message is missing", entry=id_of(key))
        signed = self._log.read_stored(order, raw)
        if deep:
            verify(self._log.profile, signed)
            for parent in signed.parent_keys:
                if self._view.get("messages", self._log.profile.code.order(parent)) is None:
                    raise BrokenLink(f"parent {id_of(parent)} is missing", entry=signed.id)
                if parent in self._later:
                    raise BrokenLink(f"arrived before its parent {id_of(parent)}", entry=signed.id)
        return signed


def arrival_key(position: int) -> bytes:
    """Return the key under which the arrival at a position, counted from zero, is stored."""
    return (position + 1).to_bytes(8, "big")


def find_end(view: View) -> tuple[int, Key | None, str]:
    """Return how many messages have arrived, the last of them, and what is wrong with that number, if anything is."""
    last = next(iter(view.scan("arrivals", reverse=True)), None)
    end = 0 if last is None else int.from_bytes(last[0], "big")
    held = counted(view).arrived
    fault = "" if held == end else f"{end} messages arrived, {held} are counted"
    return end, None if last is None else Key(last[1]), fault


def _told(fault: str | None, good: str) -> tuple[Literal["passed", "failed"], str]:
    return ("passed", good) if fault is None else ("failed", fault)


def _step(name: str, act: Callable[[], str | None]) -> Step:
    try:
        detail = act()
    except _Fault as fault:
        return Step(name, "failed", str(fault))
    except (RopewalkError, ValueError, IndexError, KeyError) as error:
        return Step(name, "failed", f"cannot be read: {error}")
    return Step.optional(name, "no index yet") if detail is None else Step(name, "passed", detail)


class _Look:
    """One check. It keeps keys, parents and the tree's rows in memory, not the messages."""

    def __init__(self, log: GossipLog, view: View, *, signatures: bool) -> None:
        self.signatures = signatures
        self.log = log
        self.view = view
        self.code = log.profile.code
        self.count = 0
        self.faults: dict[str, str] = {}
        self.known: dict[Key, tuple[Key, ...]] = {}
        self.rows = MemoryStore()

    def messages(self, progress: Callable[[Iterator[Any]], Iterator[Any]]) -> Step:
        try:
            self._read(progress)
        except RopewalkError as fault:
            self.faults.setdefault("ids", f"cannot be read: {fault}")
        return Step("messages", "passed", "")

    def _read(self, progress: Callable[[Iterator[Any]], Iterator[Any]]) -> None:
        tree = ProllyTree(self.rows)
        batch: list[tuple[bytes, bytes]] = []
        for order, raw in progress(self._rows("messages")):
            self.count += 1
            try:
                signed = self.log.read_stored(order, raw)
            except RopewalkError as fault:
                self.faults.setdefault("ids", f"{order.hex()}: {fault}")
                continue
            try:
                if self.signatures:
                    verify(self.log.profile, signed)
            except RopewalkError as fault:
                self.faults.setdefault("signatures", f"{signed.id}: {fault}")
            self.known[signed.key] = signed.parent_keys
            batch.append((signed.key, raw))
            if len(batch) == 1024:
                tree.insert_many(batch)
                batch.clear()
        tree.insert_many(batch)

    def _rows(self, table: str) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows of a table that are also found by their keys, as every other reader looks them up."""
        for key, value in self.view.scan(table):
            if self.view.get(table, key) != value:
                raise Damaged(f"table {table}: key {key.hex()} is not found", reason="lookup")
            yield key, value

    def parents(self) -> str:
        for key, parents in self.known.items():
            for parent in parents:
                if parent not in self.known:
                    raise _Fault(f"parent {id_of(parent)} of {id_of(key)} is missing")
        return "every parent is here, and every clock follows from them"

    def heads(self) -> str:
        expected = set(self.known)
        for parents in self.known.values():
            expected.difference_update(parents)
        found = {Key(key) for key, _ in self._rows("heads")}
        for key in sorted(expected ^ found):
            raise _Fault(
                f"{id_of(key)} is {'a head but not listed' if key in expected else 'listed but no head'}"
            )
        return f"{len(found)} heads"

    def tree(self) -> str:
        if not self.known and self.view.count("tree") == 0:
            return "the empty tree"
        for ours, stored in zip_longest(self.rows.scan(), self._rows("tree")):
            if ours != stored:
                at = (stored or ours)[0]
                raise _Fault(f"row {at.hex()} differs from the tree of the messages")
        root = root_of(self.view)
        return f"level {root.level}, {root.hash.hex()}"

    def arrivals(self) -> str:
        seen: set[Key] = set()
        for seq, found in self._rows("arrivals"):
            key = Key(found)
            if int.from_bytes(seq, "big") != len(seen) + 1 or key in seen:
                raise _Fault(f"arrival {int.from_bytes(seq, 'big')} is doubled or out of place")
            if key not in self.known or not seen.issuperset(self.known[key]):
                raise _Fault(f"{id_of(key)} arrived before its parents")
            seen.add(key)
        if len(seen) != self.count:
            raise _Fault(f"{len(seen)} arrivals of {self.count} messages")
        if counted(self.view).arrived != len(seen):
            raise _Fault(f"{len(seen)} messages arrived, {counted(self.view).arrived} are counted")
        return f"{len(seen)} in order"

    def pending(self) -> str:
        size = 0
        rows: set[tuple[bytes, bytes]] = set()
        for key, raw in self._rows("pending"):
            signed = self.log.check(raw)
            missing = [parent for parent in signed.parent_keys if parent not in self.known]
            if signed.key != key or key in self.known or not missing:
                raise _Fault(f"{id_of(key)} waits for nothing")
            size += len(raw)
            rows.update((parent + key, b"") for parent in missing)
            rows.add(pending.count_row(signed.key, len(missing)))
        if rows != set(self._rows("waiting")):
            raise _Fault("the list of what is waited for does not fit the waiting messages")
        if size != pending.bytes_held(self.view):
            raise _Fault(
                f"pending size mismatch: stored {size} bytes, counter is {pending.bytes_held(self.view)}"
            )
        return f"{pending.count(self.view)} waiting"

    def ancestors(self) -> str | None:
        count = 0
        cache = ancestors.FrontierCache()
        for found, raw in self._rows("ancestors"):
            if ancestors.is_shared(found):
                if not ancestors.check_shared(found, raw):
                    raise _Fault(f"link list {found.hex()} is stored under another digest")
                continue
            key = Key(found)
            links = ancestors.make_links(
                self.view, self.log.profile, self.code.clock(key), self.known[key], cache
            )
            if not ancestors.check_row(self.view, links, raw):
                raise _Fault(f"the links of {id_of(key)} are wrong")
            count += 1
        if counted(self.view).indexed != count:
            raise _Fault(f"{count} messages are indexed, {counted(self.view).indexed} are counted")
        return f"{count} of {self.count} messages indexed" if count else None
