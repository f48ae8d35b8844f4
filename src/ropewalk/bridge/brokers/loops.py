"""Bridge a git log and a stream of a broker: events go out in order, messages come in in order, each once.

The stream decides what was published: it is asked for the last message of ours before anything is sent, and every
batch names the position it expects. The log decides what was taken in: every event that came from a stream records its
position there. Progress records only save time; losing one costs a look at the whole stream or log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ropewalk.bridge.brokers import forms
from ropewalk.bridge.brokers.port import POSITION, START, Broker, Incoming, Moved, Outgoing, order
from ropewalk.bridge.progress import Progress
from ropewalk.errors import Conflict, RopewalkError, Usage
from ropewalk.gitlog.core.envelope import Draft, Event, seal
from ropewalk.gitlog.core.layout import MESSAGES, SHIPLOG, Layout
from ropewalk.gitlog.core.reading import events
from ropewalk.gitlog.privacy.screening import screen_draft
from ropewalk.gitlog.repository.repository import GitRepository
from ropewalk.kernel.ulid import Ulid, is_ulid

BATCH = 256  # events or messages in one round
SAVE_EVERY = 16  # batches; a progress record that is behind costs a look at as many messages
ATTEMPTS_MAX = 8  # in a row, against other publishers of the same stream
FETCH_WAIT_S = 0.5
_journal = logging.getLogger("ropewalk.bridge")
LOWEST = Ulid("0" * 26)  # to check a document before it has its ULID


@dataclass(frozen=True, slots=True)
class BridgedLog:
    """One git log, named as `messages/TOPIC` or `shiplog/NS`."""

    repository: GitRepository
    layout: Layout
    topic: str

    @property
    def name(self) -> str:
        """The name of the log."""
        return f"{self.layout.name}/{self.topic}"

    def after(self, ulid: str | None) -> list[Event]:
        """Return the next events behind a ULID."""
        return list(self.repository.read(self.topic, ulid, BATCH, layout=self.layout).events)

    def find(self, ulid: str) -> Event | None:
        """Return the event of a ULID; None if the log does not hold it."""
        line = self.repository.lines.line(self.layout, self.topic)
        slot = line.find(Ulid(ulid))
        if slot is None:
            return None
        return next(events(self.repository.store, line, slot.height, slot.height + 1))


def find_log(repository: GitRepository, name: str) -> BridgedLog:
    """Return the log of a name. Raises `Usage` if the name is of no git log."""
    kind, slash, topic = name.partition("/")
    if not slash or kind not in ("messages", "shiplog"):
        raise Usage(f"log must be messages/TOPIC or shiplog/NS, got {name!r}")
    layout = MESSAGES if kind == "messages" else SHIPLOG
    layout.check(topic)
    return BridgedLog(repository, layout, topic)


class Publisher:
    """Events of a log, out to a stream."""

    def __init__(
        self, log: BridgedLog, broker: Broker, progress: Progress, *, origin: str, form: str = "envelope"
    ) -> None:
        self._log, self._broker, self._progress, self._origin = log, broker, progress, origin
        self._form = forms.check_form(form)
        self._ulid: str | None = None  # the last event that is in the stream, or came from it
        self._position: str | None = None  # where the stream ends; None: ask
        self._ahead: tuple[str, asyncio.Task[list[Event]]] | None = None
        self._unsaved = self._moved = 0  # batches and events since progress was recorded

    async def step(self) -> int | None:
        """Publish the next batch; return how many events that was. None: the stream holds everything."""
        for _ in range(ATTEMPTS_MAX):
            if self._position is None:
                await self._resume()
            assert self._position is not None
            found = await self._take_next()
            if not found:
                await self._save()
                return None
            messages = [self._message(event) for event in found if self._is_ours(event)]
            self._read_ahead(found[-1].ulid)
            try:
                if messages:
                    self._position = await self._broker.publish(messages, self._position)
            except Moved:
                self._position = None
                continue
            except BaseException:
                self._position = None  # a part of the batch may be there: the stream will tell
                raise
            self._ulid = found[-1].ulid
            self._moved += len(messages)
            self._unsaved += 1
            if self._unsaved >= SAVE_EVERY:
                await self._save()
            return len(messages)
        raise Conflict(
            f"stream {self._broker.stream} is written by others faster than this bridge can publish",
            advice="Give the bridge a stream or subject that no other program publishes to.",
        )

    def _read_ahead(self, ulid: str) -> None:
        """Read the next batch while this one is on its way."""
        self._ahead = ulid, asyncio.create_task(asyncio.to_thread(self._log.after, ulid))

    async def _take_next(self) -> list[Event]:
        ahead, self._ahead = self._ahead, None
        found: list[Event] = []
        if ahead is not None:
            found = await ahead[1]
        if ahead is None or ahead[0] != self._ulid or not found:
            found = await asyncio.to_thread(self._log.after, self._ulid)
        return found

    async def _save(self) -> None:
        if self._unsaved and self._ulid is not None and self._position is not None:
            facts: dict[str, Any] = {"ulid": self._ulid, "position": self._position}
            facts["mark"] = self._broker.mark
            await asyncio.to_thread(self._progress.write, moved=self._moved, **facts)
            self._unsaved = self._moved = 0
        else:
            self._progress.seen()

    def _is_ours(self, event: Event) -> bool:
        return forms.position_of(forms.broker_refs(event), self._broker.stream, self._broker.mark) is None

    def _message(self, event: Event) -> Outgoing:
        return forms.outgoing(event, self._log.name, self._origin, self._form)

    async def _resume(self) -> None:
        """Find the last event of this log in the stream; what lies behind it was not published."""
        at, ulid = _hint(self._progress, self._broker)
        self._ulid, end = self._ulid or ulid, await self._broker.last()
        if order(at) > order(end):
            at, self._ulid = (
                START,
                None,
            )  # the stream was made anew: it holds none of what was published before
        while order(at) < order(end):
            batch = await self._broker.fetch(at, BATCH, FETCH_WAIT_S)
            if not batch:
                break
            self._ulid = await asyncio.to_thread(self._newest_published, batch, self._ulid)
            at = batch[-1].position
            self._unsaved += 1
        self._position = end if order(end) >= order(at) else at
        await self._save()  # a bridge that is killed again soon must not look at all of this again

    def _newest_published(self, batch: Sequence[Incoming], ulid: str | None) -> str | None:
        """Return the newest event that the stream holds, of those up to `ulid` and those in a batch."""
        for message in reversed(batch):
            said = message.headers.get(forms.ULID, "")
            if said > (ulid or "") and self._published(message):
                ulid = said
        return ulid

    def _published(self, message: Incoming) -> bool:
        said = message.headers
        ours = said.get(forms.LOG) == self._log.name and is_ulid(said.get(forms.ULID))
        # Headers are anybody's to write: the log must hold the event under the content id that the message names.
        event = self._log.find(said[forms.ULID]) if ours else None
        if event is None or event.content_id != said.get(forms.CONTENT_ID):
            return False
        # A clone publishes the same event under the same commit, behind the same history.
        return forms.path_of(said)[-1:] == [self._origin] or said.get(forms.COMMIT) == event.commit


class Subscriber:
    """Messages of a stream, into a topic."""

    def __init__(self, log: BridgedLog, broker: Broker, progress: Progress, *, origin: str) -> None:
        if log.layout is not MESSAGES:
            raise Usage(f"messages come into a topic (messages/TOPIC), got {log.name}")
        self._log, self._broker, self._progress, self._origin = log, broker, progress, origin
        self._position: str | None = None
        self._number: int | None = None  # of the message at that position, if it is known
        self.lost = 0  # messages that the broker removed before they were read

    async def step(self, wait_s: float = FETCH_WAIT_S) -> int | None:
        """Append the next messages; return how many that was. None: nothing came within `wait_s`."""
        if self._position is None:
            self._position = await asyncio.to_thread(self._recorded, await self._broker.last())
        batch = await self._broker.fetch(self._position, BATCH, wait_s)
        if not batch:
            self._progress.seen()
            return None
        await self._find_lost(batch)
        taken = [message for message in batch if self._origin not in forms.path_of(message.headers)]
        if taken:
            await asyncio.to_thread(self._append, taken)
        self._position = batch[-1].position
        await asyncio.to_thread(self._remember, len(taken))
        return len(taken)

    async def _find_lost(self, batch: Sequence[Incoming]) -> None:
        """Count the messages that are missing before and in a batch, and record that before the batch is in the log.

        The number that was recorded is cleared, so that a bridge that is killed in between does not count them again.
        """
        lost = 0
        for each in batch:
            follows = None if self._number is None else self._number + 1
            self._number = each.number or follows
            lost += max(0, (self._number or 0) - follows) if follows else 0
        if lost:
            self.lost += lost
            said = "stream %s removed %d messages before they were read, below position %s"
            _journal.warning(said, self._broker.stream, lost, batch[-1].position)
            await asyncio.to_thread(self._progress.write, lost=lost, number=None)

    def _recorded(self, end: str) -> str:
        """Return the position of the last message that the log holds. `end` is where the stream ends.

        A position beyond the end names no message of this stream: any writer of the topic may have recorded it.
        """
        position, ulid = _hint(self._progress, self._broker)
        if order(position) > order(end):
            raise Conflict(
                f"stream {self._broker.stream} ends at {end}, but messages up to {position} were recorded",
                advice="An older state of the stream was restored. Bridge it into another topic.",
            )
        if self._log.topic not in self._log.repository.topics(MESSAGES):
            return START
        hinted, number = position, self._progress.read().get("number")
        for event in self._log.repository.events(self._log.topic, ulid, layout=MESSAGES):
            found = forms.position_of(forms.broker_refs(event), self._broker.stream, self._broker.mark)
            if found is not None and order(found) <= order(end):
                position = max(position, found, key=order)
        if position == hinted != START and type(number) is int:
            self._number = number
        return position

    def _append(self, batch: list[Incoming]) -> None:
        """Append a batch in order; an event that the log would refuse is replaced by a record of the refusal."""
        repository = self._log.repository
        drafts = [self._draft(message) for message in batch]
        # Privacy rules may refuse a draft, and must not leave a gap: then every event has a batch to itself.
        size = BATCH if repository.privacy.policy() is None else 1
        for start in range(0, len(drafts), size):
            for outcome in repository.append_all(
                self._log.topic, drafts[start : start + size], layout=MESSAGES
            ):
                if isinstance(outcome, RopewalkError):
                    raise outcome

    def _draft(self, message: Incoming) -> Draft:
        try:
            draft = Draft(forms.document(message, self._broker.stream, self._broker.mark))
            seal(MESSAGES, self._log.topic, draft.document, LOWEST)
            screen_draft(draft)
            return draft
        except (RopewalkError, ValueError, RecursionError) as error:
            return Draft(forms.refused(message, self._broker.stream, self._broker.mark, error))

    def _remember(self, moved: int) -> None:
        assert self._position is not None
        newest = self._log.repository.tail([self._log.topic], limit_per_topic=1, layout=MESSAGES)
        ulid = newest[0].ulid if newest else ""
        at: dict[str, Any] = {"position": self._position, "number": self._number, "mark": self._broker.mark}
        self._progress.write(moved=moved, ulid=ulid, **at)


def _hint(progress: Progress, broker: Broker) -> tuple[str, str | None]:
    """Return the position and the ULID that were recorded; nothing of a stream that was made anew since."""
    said = progress.read()
    position, ulid = said.get("position"), said.get("ulid")
    if said.get("mark") != broker.mark or not isinstance(position, str) or not POSITION.fullmatch(position):
        return START, None
    return position, ulid if is_ulid(ulid) else None
