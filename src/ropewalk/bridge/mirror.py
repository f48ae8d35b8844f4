"""Mirroring: what other logs of a repository hold is copied into one of its git logs, in order, again and again.

Logs are named `ns:NS` (S0), `topic:T` (S1) and, as a source only, `channel:C` (the ledger). `gossip:T` as a target is
another kind of mirror (`gossip_mirror`): it fetches that topic from other repositories and peers.

How far a mirror has got is read from the target itself, so a killed mirror continues where it stopped; a mark speeds up
the search.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ropewalk.bridge.event_copy import EventCopy, MirrorResult, append_copies, copy_of
from ropewalk.bridge.progress import Progress
from ropewalk.errors import Conflict, RopewalkError, Unavailable, Usage
from ropewalk.gitlog.core.layout import MESSAGES, SHIPLOG, Layout
from ropewalk.gitlog.core.planning import IndexedEntry, Receipt
from ropewalk.gitlog.core.reading import CHUNK, events
from ropewalk.gitlog.repository.repository import FOLLOW_PAUSE_S, GitRepository
from ropewalk.gitlog.repository.tracked_logs import IndexedLog
from ropewalk.kernel.ulid import Ulid, time_ms

if TYPE_CHECKING:
    from ropewalk.bridge.gossip_mirror import GossipMirror

BATCH_EVENTS = 1_000  # copies that share a pack and a move of the head
BATCH_BYTES = 8 << 20
# Of sources that grow while they are merged, an event made a moment ago may overtake one that is still being written,
# which could never be put below it afterwards. Writing takes milliseconds; on a busy disk, seconds.
MERGE_AFTER_MS = 5_000
KINDS = {"ns": SHIPLOG, "topic": MESSAGES}
_journal = logging.getLogger("ropewalk.bridge")
MARK = {"height": int, "commit": str, "ulid": str, "copy": str}


class MirrorMark(NamedTuple):
    """Every event of the source below a height is in the target, at or below the copy of the last of them.

    A mark saves looking at all of both logs again. It is believed only as far as both still hold the commits it names:
    below a commit nothing changes.
    """

    height: int
    commit: str  # of the last event below that height, in the source
    ulid: str
    copy: str  # its commit in the target

    @classmethod
    def read(cls, progress: Progress) -> MirrorMark | None:
        """Return the recorded mark; None if there is none that can be read."""
        said = progress.read()
        whole = all(type(said.get(name)) is kind for name, kind in MARK.items())
        return cls(*(said[name] for name in MARK)) if whole else None

    def find(self, source: IndexedLog, target: IndexedLog) -> int | None:
        """Return the height of the copy in the target, if both logs still hold what the mark names; else None."""
        if not 0 < self.height <= source.count:
            return None
        (last,) = source.span(self.height - 1, self.height)
        found = target.find(last.ulid)
        same = found is not None and (last.commit, last.ulid, found.commit) == self[1:]
        return found.height if found is not None and same else None


@dataclass(frozen=True, slots=True)
class MirrorTarget:
    """The log that copies go into."""

    log: GitRepository
    layout: Layout
    topic: str

    def line(self) -> IndexedLog:
        """Return the present log; it need not exist yet."""
        return self.log.lines.line(self.layout, self.topic, must_exist=False)

    def progress(self, source: str) -> Progress:
        """Return the record of the mirror from a log, named as `shiplog/NS`, `messages/T` or `ledger/C`."""
        return Progress.of(self.log, "mirror", source, f"{self.layout.name}/{self.topic}")

    def newest(self) -> tuple[Ulid, str] | None:
        """Return the event at its head, and the commit."""
        line = self.line()
        return next(
            ((place.ulid, place.commit) for place in line.span(max(0, line.count - 1), line.count)), None
        )

    def append(self, copies: Sequence[EventCopy]) -> list[Receipt | RopewalkError]:
        """Put copies on top; what is a receipt is durable, and a refusal is the last outcome."""
        log, layout, topic = self.log, self.layout, self.topic
        tip_of = partial(log.lines.tip, layout, topic)
        with log.store.turn(layout.head_ref(topic)):
            made = append_copies(
                log.store, layout, topic, copies, tip_of=tip_of, find=self._find, limit=log.clock_limit()
            )
            if made.places:
                log.lines.grown(layout, topic, made.start, made.tip, made.places)
                log.note_pack()
        return made.outcomes

    def _find(self, _layout: Layout, _topic: str, wanted: Ulid) -> IndexedEntry | None:
        return self.line().find(wanted)


class RefusedCopy(NamedTuple):
    """An event that cannot be copied, in its place among those that can."""

    ulid: Ulid
    error: RopewalkError


class MirrorSource(Protocol):
    """A log that is copied from, and how far it was."""

    progress: Progress

    def is_current(self) -> bool:
        """Return whether the last event that was taken is still there, in its place."""

    def skip(self) -> int:
        """Begin anew, and pass over what the target holds already; how much that was, where it is known."""

    def copies(self, until_ms: int | None) -> Iterator[EventCopy | RefusedCopy]:
        """Yield what came since, in order; up to a time, where there is one, or up to the first that is refused."""

    def waiting(self) -> int:
        """Return how many events there are beyond what was copied."""

    def remember(self, is_current: Callable[[], bool], /) -> None:
        """Record that all taken events have arrived, so that the next run can begin here if no log was rewritten."""


class LogSource:
    """A git log to copy from."""

    def __init__(self, name: str, layout: Layout, topic: str, target: MirrorTarget) -> None:
        self._name, self._layout, self._topic, self._target = name, layout, topic, target
        self._height = 0
        self._last: str | None = None  # the commit below that height
        self._looked: tuple[int, str | None] = (0, None)  # how high it was when we last looked, and its head
        self.progress = target.progress(f"{layout.name}/{topic}")

    def is_current(self) -> bool:
        """Return whether all we looked at is still there: a history that was accepted may be another one."""
        line = self._line()
        return all(_holds(line, *each) for each in ((self._height, self._last), self._looked))

    def skip(self) -> int:
        """Compare the two indexes, all that no mark vouches for: nothing is passed over that the target lacks."""
        goal, line = self._target.line(), self._line()
        self._height, self._last, self._looked = 0, None, (line.count, line.head)
        mark = MirrorMark.read(self.progress)
        copied = mark.find(line, goal) if mark is not None else None
        if mark is not None and copied is not None:
            self._height, self._last = mark.height, mark.commit
        held = _places(goal, 0 if copied is None else copied + 1)
        for place in _places(line, self._height):
            found = next((each for each in held if each.ulid >= place.ulid), None)
            if found is None or (found.ulid, found.content_id) != (place.ulid, place.content_id):
                break  # new, or to be refused: copying it decides
            self._height, self._last = place.height + 1, place.commit
        return self._height

    def copies(self, until_ms: int | None) -> Iterator[EventCopy | RefusedCopy]:
        """Yield every event from where the last call ended."""
        log, line = self._target.log, self._line()
        while not self.is_current():  # it was exchanged since
            self.skip()
            line = self._line()
        self._looked = (line.count, line.head)
        for event in events(log.store, line, self._height, line.count):
            if until_ms is not None and time_ms(event.ulid) > until_ms:
                return
            try:
                made = copy_of(
                    log.store, event, self._name, self._layout, self._target.layout, self._target.topic
                )
            except RopewalkError as error:
                yield RefusedCopy(event.ulid, error)
                return
            self._height, self._last = event.height + 1, event.commit
            yield made

    def waiting(self) -> int:
        """Return how many events there are beyond what was copied."""
        return self._line().count - self._height

    def remember(self, is_current: Callable[[], bool]) -> None:
        """Keep the place up to which all was found in the target, or was brought there."""
        line, goal = self._line(), self._target.line()
        for last in line.span(self._height - 1, self._height) if 0 < self._height <= line.count else ():
            copied = goal.find(last.ulid)
            if last.commit != self._last or copied is None or copied.content_id != last.content_id:
                return
            mark = MirrorMark(self._height, last.commit, last.ulid, copied.commit)
            # Asked last: a log that was exchanged before shows now, and one that is from now on makes the mark void.
            known = MirrorMark.read(self.progress)
            if mark != known and is_current():
                moved = max(0, mark.height - (known.height if known else 0))
                with contextlib.suppress(OSError):
                    self.progress.write(moved=moved, **mark._asdict())
                return
        self.progress.seen()

    def _line(self) -> IndexedLog:
        return self._target.log.lines.line(self._layout, self._topic)


class Mirror:
    """Some sources, and the log they are copied into; `catch_up` brings what is new, as often as it is called."""

    pause_s = FOLLOW_PAUSE_S
    done = MirrorResult()  # in a round that failed: the next one counts its copies as skipped

    def __init__(self, log: GitRepository, sources: str | Sequence[str], to: str) -> None:
        sources = [sources] if isinstance(sources, str) else sources
        layout, topic = _parse(to)
        if layout is None:
            raise Usage(
                f"{to}: a channel accepts only what its rules allow; mirror into ns:NAME or topic:NAME"
            )
        self.target = MirrorTarget(log, layout, topic)
        for name in sources:
            if name == to or sources.count(name) > 1:
                raise Conflict(f"{name} cannot be mirrored into itself, nor twice", advice="Name other logs.")
        self._sources = [self._source(name) for name in sources]
        self._began = False
        # Events of the target as we found or put them, and their commits.
        self._stood: list[tuple[Ulid, str]] = []

    def head(self) -> tuple[str, str | None]:
        """Return the ref of the target and the commit at it."""
        ref = self.target.layout.head_ref(self.target.topic)
        return ref, self.target.log.store.head(ref)

    def catch_up(self, progress: Callable[[int], None] = lambda _count: None) -> MirrorResult:
        """Copy all that is new, in the order of its ULIDs. What was copied before a refusal stays.

        Of several sources, what is only seconds old waits for the next call: something older may still be on its way.
        """
        try:
            return self._catch_up(progress)
        except BaseException as error:
            self._began = False  # what was taken may not have arrived: ask the target
            if isinstance(error, RopewalkError):
                for source in self._sources:
                    source.progress.fail(error)
            raise

    def _catch_up(self, progress: Callable[[int], None]) -> MirrorResult:
        done = MirrorResult()
        if not self._began or not self._stands():
            newest = self.target.newest()
            self._stood = [] if newest is None else [newest]
            done = MirrorResult(skipped=sum(source.skip() for source in self._sources))
            self._began = True
        self._stood = self._stood[-1:]  # the others stand below it
        several = len(self._sources) > 1
        until_ms = self.target.log.now_ms() - MERGE_AFTER_MS if several else None
        for batch, refusal in _batches([source.copies(until_ms) for source in self._sources]):
            outcomes = self.target.append(batch)
            for copy, outcome in zip(batch, outcomes, strict=False):
                if isinstance(outcome, RopewalkError):
                    raise outcome
                if outcome.replayed:
                    done += MirrorResult(skipped=1)
                else:
                    done += MirrorResult(1, 0, int(copy.withheld), copy.attachments_left)
            self._stood += [(each.ulid, each.commit) for each in outcomes[-1:] if isinstance(each, Receipt)]
            progress(done.mirrored)
            if refusal is not None:
                raise refusal
        for source in self._sources:
            source.remember(self._stands)
        return done + MirrorResult(
            waiting=sum(source.waiting() for source in self._sources) if several else 0
        )

    def _stands(self) -> bool:
        """Return whether all is as the last round left it: a log that was rewritten may lack what was copied."""
        line = self.target.line()
        for ulid, commit in self._stood:
            found = line.find(ulid)
            if found is None or found.commit != commit:
                return False
        return all(source.is_current() for source in self._sources)

    def _source(self, name: str) -> MirrorSource:
        layout, topic = _parse(name)
        if layout is None:
            # The ledger is loaded where there is one.
            from ropewalk.bridge.channel_source import ChannelSource

            return ChannelSource(topic, self.target)
        return LogSource(name, layout, topic, self.target)


def open_mirror(
    log: GitRepository, sources: str | Sequence[str], to: str, **network: Any
) -> Mirror | GossipMirror:
    """Return the mirror into a log. `network` is for peers of a gossip topic: `tls` and `token`."""
    sources = [sources] if isinstance(sources, str) else sources
    if not sources:
        raise Usage("a mirror needs at least one source")
    kind, _, topic = to.partition(":")
    if kind != "gossip":
        return Mirror(log, sources, to)
    from ropewalk.bridge.gossip_mirror import GossipMirror

    return GossipMirror(log, sources, topic, **network)


def mirror(
    log: GitRepository,
    sources: str | Sequence[str],
    to: str,
    *,
    progress: Callable[[int], None] = lambda _count: None,
) -> MirrorResult:
    """Copy into one log what it lacks of others; doing it again copies only what is new.

    >>> import tempfile
    >>> from ropewalk.gitlog.repository.opening import init_repository
    >>> with tempfile.TemporaryDirectory() as folder, init_repository(folder) as log:
    ...     receipt = log.append("prod", {"type": "deploy.finished", "payload": {}})
    ...     [mirror(log, "ns:prod", "topic:deploys").mirrored for _ in range(2)]
    [1, 0]
    """
    return open_mirror(log, sources, to).catch_up(progress)


def keep_mirroring(
    copying: Mirror | GossipMirror, stop: threading.Event | None = None
) -> Iterator[MirrorResult]:
    """Mirror until `stop` is set: first all events, then new ones. Yield the result of each round.

    A peer that is away is tried again; the round still fetches from the others.
    """
    stop = stop or threading.Event()
    away = False
    while True:
        try:
            brought, away = copying.catch_up(), False
        except Unavailable as error:
            if not away:
                _journal.warning("%s; trying again", error.detail)
            brought, away = copying.done, True
        if brought.mirrored or brought.skipped:
            yield brought
        if stop.wait(0 if brought.mirrored and not away else copying.pause_s):
            return


def _parse(name: str) -> tuple[Layout | None, str]:
    """Return layout and topic of a name, None and the channel for one of the ledger; check the names themselves."""
    kind, colon, topic = name.partition(":")
    if not colon or kind not in (*KINDS, "channel"):
        advice = "Name the repository or the URL of a peer that has the topic, and --to gossip:NAME."
        raise Usage(
            f"{name!r} names no log; write ns:NAME, topic:NAME or channel:NAME",
            name=name,
            advice=advice if kind == "gossip" else None,
        )
    if kind == "channel":
        return None, topic
    KINDS[kind].check(topic)
    return KINDS[kind], topic


def _holds(line: IndexedLog, height: int, commit: str | None) -> bool:
    """Return whether the event below a height is the one of that commit; so are then all below it."""
    below = line.span(height - 1, height) if 0 < height <= line.count else ()
    return [place.commit for place in below] == ([] if commit is None else [commit])


def _places(line: IndexedLog, first: int) -> Iterator[IndexedEntry]:
    for start in range(first, line.count, CHUNK):
        yield from line.span(start, min(start + CHUNK, line.count))


def _batches(
    sources: Sequence[Iterator[EventCopy | RefusedCopy]],
) -> Iterator[tuple[list[EventCopy], RopewalkError | None]]:
    """Yield copies of all sources by their ULIDs, so many at a time; a refusal comes with what was before it."""
    merged = heapq.merge(*sources, key=lambda each: each.ulid)
    batch: list[EventCopy] = []
    size = 0
    while True:
        try:
            each = next(merged, None)
        except RopewalkError as error:
            yield batch, error
            return
        if each is None:
            break
        if isinstance(each, RefusedCopy):
            yield batch, each.error
            return
        batch.append(each)
        size += len(each.sealed.raw) + sum(map(len, each.draft.attachments.values()))
        if len(batch) >= BATCH_EVENTS or size >= BATCH_BYTES:
            yield batch, None
            batch, size = [], 0
    if batch:
        yield batch, None
