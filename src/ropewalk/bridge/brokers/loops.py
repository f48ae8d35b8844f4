"""Bridge a git log and a stream of a broker: events go out in order, messages come in in order, each once.

The stream decides what was published: it is asked for the last message of ours before anything is sent, and every
batch names the position it expects. The log decides what was taken in: every event that came from a stream records its
position there. Progress files only save time; losing one costs a look at the whole stream or log.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ropewalk.bridge.brokers import forms
from ropewalk.bridge.brokers.port import START, Broker, Incoming, Moved, Outgoing, order
from ropewalk.disk.durable import Disk
from ropewalk.disk.folder_lock import hold_folder
from ropewalk.errors import Conflict, RopewalkError, Usage
from ropewalk.gitlog.core.envelope import Draft, Event, seal
from ropewalk.gitlog.core.layout import MESSAGES, SHIPLOG, Layout
from ropewalk.gitlog.core.reading import events
from ropewalk.gitlog.privacy.screening import screen_draft
from ropewalk.gitlog.repository.repository import GitRepository
from ropewalk.kernel.ulid import Ulid

BATCH = 256  # events or messages in one round
SAVE_EVERY = 16  # batches; a progress file that is behind costs a look at as many messages
ATTEMPTS_MAX = 8  # in a row, against other publishers of the same stream
FETCH_WAIT_S = 0.5
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


class ProgressFile:
    """How far a bridge was, as a hint; one file for each log, stream and direction, and one process at a time."""

    def __init__(self, log: BridgedLog, stream: str, direction: str) -> None:
        store = log.repository.store
        key = f"{log.name} {stream} {direction}".encode()
        self.folder: Path = store.place.home / "bridges" / hashlib.blake2b(key, digest_size=16).hexdigest()
        self._disk: Disk = store.disk
        self._said = {"log": log.name, "stream": stream, "direction": direction}

    def held(self) -> contextlib.AbstractContextManager[None]:
        """Keep other processes out of this direction."""
        return hold_folder(self.folder, 0.0, self._disk)

    def read(self) -> Mapping[str, str]:
        """Return what was written; nothing if the file is missing or cannot be read."""
        with contextlib.suppress(OSError, ValueError):
            said = json.loads((self.folder / "progress.json").read_bytes())
            if isinstance(said, dict) and all(isinstance(value, str) for value in said.values()):
                return said
        return {}

    def write(self, **values: str) -> None:
        """Remember some values durably."""
        raw = json.dumps({**self._said, **values}, sort_keys=True).encode()
        self._disk.replace(self.folder / "progress.json", raw + b"\n")


class Publisher:
    """Events of a log, out to a stream."""

    def __init__(self, log: BridgedLog, broker: Broker, *, origin: str, form: str = "envelope") -> None:
        self._log, self._broker, self._origin = log, broker, origin
        self._form = forms.check_form(form)
        self.progress = ProgressFile(log, broker.stream, "out")
        self._ulid: str | None = None  # the last event that is in the stream, or came from it
        self._position: str | None = None  # where the stream ends; None: ask
        self._ahead: tuple[str, asyncio.Task[list[Event]]] | None = None
        self._unsaved = 0  # batches since the progress file was written

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
            self._unsaved = 0
            await asyncio.to_thread(self.progress.write, ulid=self._ulid, position=self._position)

    def _is_ours(self, event: Event) -> bool:
        return forms.position_of(event.envelope, self._broker.stream) is None

    def _message(self, event: Event) -> Outgoing:
        return forms.outgoing(event, self._log.name, self._origin, self._form)

    async def _resume(self) -> None:
        """Find the last event of this log in the stream; what lies behind it was not published."""
        hint = self.progress.read()
        self._ulid = self._ulid or hint.get("ulid")
        end, at = await self._broker.last(), hint.get("position", START)
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
        ours = (
            said.get(forms.ORIGIN) == self._origin
            and said.get(forms.LOG) == self._log.name
            and re.fullmatch(r"[0-9A-HJKMNP-TV-Z]{26}", said.get(forms.ULID, "")) is not None
        )
        # Headers are anybody's to write: the log must hold the event under the content id that the message names.
        event = self._log.find(said[forms.ULID]) if ours else None
        return event is not None and event.content_id == said.get(forms.CONTENT_ID)


class Subscriber:
    """Messages of a stream, into a topic."""

    def __init__(self, log: BridgedLog, broker: Broker, *, origin: str) -> None:
        if log.layout is not MESSAGES:
            raise Usage(f"messages come into a topic (messages/TOPIC), got {log.name}")
        self._log, self._broker, self._origin = log, broker, origin
        self.progress = ProgressFile(log, broker.stream, "in")
        self._position: str | None = None

    async def step(self, wait_s: float = FETCH_WAIT_S) -> int | None:
        """Append the next messages; return how many that was. None: nothing came within `wait_s`."""
        if self._position is None:
            self._position = await asyncio.to_thread(self._recorded, await self._broker.last())
        batch = await self._broker.fetch(self._position, BATCH, wait_s)
        if not batch:
            return None
        taken = [message for message in batch if message.headers.get(forms.ORIGIN) != self._origin]
        if taken:
            await asyncio.to_thread(self._append, taken)
        self._position = batch[-1].position
        await asyncio.to_thread(self._remember)
        return len(taken)

    def _recorded(self, end: str) -> str:
        """Return the position of the last message that the log holds. `end` is where the stream ends.

        A position beyond the end names no message of this stream: any writer of the topic may have recorded it.
        """
        hint = self.progress.read()
        position, ulid = hint.get("position", START), hint.get("ulid") or None
        if order(position) > order(end):
            raise Conflict(
                f"stream {self._broker.stream} ends at {end}, but messages up to {position} were recorded",
                advice="The stream was made anew. Bridge it under another stream name, or into another topic.",
            )
        if self._log.topic not in self._log.repository.topics(MESSAGES):
            return START
        for event in self._log.repository.events(self._log.topic, ulid, layout=MESSAGES):
            found = forms.position_of(event.envelope, self._broker.stream)
            if found is not None and order(found) <= order(end):
                position = max(position, found, key=order)
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
            draft = Draft(forms.document(message, self._broker.stream))
            seal(MESSAGES, self._log.topic, draft.document, LOWEST)
            screen_draft(draft)
            return draft
        except (RopewalkError, ValueError, RecursionError) as error:
            return Draft(forms.refused(message, self._broker.stream, error))

    def _remember(self) -> None:
        assert self._position is not None
        newest = self._log.repository.tail([self._log.topic], limit_per_topic=1, layout=MESSAGES)
        self.progress.write(position=self._position, ulid=newest[0].ulid if newest else "")
