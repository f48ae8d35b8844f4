"""A peer of a v0.13 log: one connection with push and sync streams in both directions.

Each side says its heads on the push stream. Whoever hears of a head it does not know opens a sync stream and pulls. New
messages are pushed as they are; a message that comes before its parents waits, and the pull that follows brings them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from types import TracebackType

from ropewalk.errors import DigestMismatch, Invalid, RopewalkError, Unavailable
from ropewalk.gossip.core.events import Synced
from ropewalk.gossip.core.ids import Key, id_of, key_of
from ropewalk.gossip.core.log import Log
from ropewalk.gossip.core.message import SignedMessage
from ropewalk.gossip.peer.frames import (
    ANSWER_BYTES_MAX,
    SESSION_S,
    FramePipe,
    Questions,
    answer_questions,
    pull_over,
    reason,
)
from ropewalk.gossip.peer.multistream import Dialer, Listener
from ropewalk.gossip.peer.muxer import Muxer, Stream
from ropewalk.gossip.sync import wire
from ropewalk.gossip.sync.session import Pulled
from ropewalk.net.frame_pipe import IDLE_S
from ropewalk.net.pipe import Pipe
from ropewalk.net.threads import in_thread

SESSIONS_IDLE_MAX = 20  # pulls in a row that the peer breaks off before anything came
QUESTIONS_IDLE_MAX = 1000  # of a peer that takes nothing, before they stop counting as progress
OUTBOX_MAX = 256  # pushes that wait for a slow peer; beyond, it gets our heads and pulls
OUTBOX_BYTES_MAX = 8 << 20
SESSIONS_MAX = 8  # of one peer that are answered at once: each holds a reader of the store; the others wait
SEEN_MAX = 4096  # messages we know the peer has, so that they are not pushed back
RECHECK_S = 0.5  # how often we ask whether the peer has our heads by now
ANNOUNCE_S = 3.0  # how long a peer may take to react to our heads before we say them again

_journal = logging.getLogger("ropewalk.gossip.peers")


class Peer:
    """One connected peer. Use it as a context; `error` says why the connection ended."""

    def __init__(
        self,
        log: Log,
        pipe: Pipe,
        *,
        dialer: bool,
        idle_s: float = IDLE_S,
        session_s: float = SESSION_S,
        keep_alive_s: float = 30.0,
        met: Callable[[], bool] = lambda: True,
    ) -> None:
        self.log = log
        self.name = pipe.name
        self.received = 0
        self.sent: set[bytes] = set()  # messages the peer has asked us for
        self._dialer = dialer
        self._idle_s = idle_s
        self._session_s = session_s
        self._muxer = Muxer(pipe, client=dialer, accept=self._take, keep_alive_s=keep_alive_s)
        self._met = met  # called once, when the peer has asked for a protocol of our topic; False ends it
        self._leaving = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._pulling = asyncio.Lock()
        self._wanted = asyncio.Event()  # there is something to pull
        self._outbox: list[wire.PushEvent] = []
        self._behind = False  # pushes were dropped: say our heads instead
        self._speaking = asyncio.Event()
        self._push_open = False
        self._seen: OrderedDict[bytes, None] = OrderedDict()
        self._activity = 0  # counts what the peer has asked of us
        self._idle_questions = 0  # asked since it last took a message
        self._asking = 0  # sync streams the peer has open
        self._answering = asyncio.Semaphore(SESSIONS_MAX)
        self._changed = asyncio.Event()
        protocol = f"/canvas/v1/{log.topic}"
        self._push_protocol, self._sync_protocol = f"{protocol}/push", f"{protocol}/sync"

    @property
    def error(self) -> RopewalkError | None:
        """Why the connection ended, if it has."""
        return self._muxer.error

    async def __aenter__(self) -> Peer:
        await self._muxer.__aenter__()
        self._spawn(self._pull_when_wanted())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leaving = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._muxer.__aexit__(kind, error, trace)

    def leave(self) -> None:
        """End the connection from this side."""
        self._muxer.end(Unavailable(f"the connection to {self.name} was closed here"))

    async def ended(self) -> None:
        """Wait for the end of the connection."""
        await self._muxer.ended.wait()

    # What we want of the peer

    async def meet(self) -> None:
        """Raise unless the peer has our topic."""
        stream, _ = await self._dial(self._sync_protocol, ANSWER_BYTES_MAX)
        await stream.close()

    async def start_push(self) -> None:
        """Open the push stream, which only the dialer may, and say our heads."""
        _, frames = await self._dial(self._push_protocol, wire.EVENT_BYTES_MAX)
        self._push_open = True
        self._spawn(self._hear(frames))
        self._spawn(self._speak(frames))
        await self.announce()

    async def pull(self) -> Pulled:
        """Fetch all that the peer has and we lack, in as many sessions as it takes."""
        async with self._pulling:
            received = refused = requests = idle = 0
            while True:
                stream, frames = await self._dial(self._sync_protocol, ANSWER_BYTES_MAX)
                questions = Questions(frames, self.log.profile)
                try:
                    pulled = await pull_over(self.log, questions)
                finally:
                    await stream.close()
                if frames.held:
                    stream.reset()  # nobody will read the rest of that answer
                received += pulled.received
                refused += pulled.refused
                requests += pulled.requests
                self.received += pulled.received
                if pulled.complete:
                    root = await in_thread(self.log.root)
                    self.log.tell(Synced(self.name, received, root))
                    return Pulled(received, refused, requests, True)
                idle = 0 if pulled.received else idle + 1
                if idle >= SESSIONS_IDLE_MAX:
                    raise Unavailable(f"{self.name} has broken off {idle} pulls before a message came")
                await asyncio.sleep(max(questions.cooldown_s, 0.05 * idle))

    async def give(self) -> int:
        """Wait until the peer has all we have now; how many messages it fetched from us.

        A log holds the parents of all it holds, so a peer that has our heads has everything.
        """
        now = asyncio.get_running_loop().time
        progress_at, announced_at, activity = now(), now(), -1
        # The heads of this moment: what others append meanwhile must not keep us here for ever.
        heads = [key_of(id) for id in await in_thread(self.log.heads)]
        while True:
            lacking = await self._lacks(heads)
            if lacking == []:
                return len(self.sent)
            if activity != self._activity:
                activity, progress_at = self._activity, now()
            elif now() - progress_at > self._idle_s:
                raise Unavailable(
                    f"{self.name} does not take {len(lacking or heads)} of our heads",
                    advice="It may refuse our messages; `--pull-only` only fetches.",
                )
            if not self._asking and now() - announced_at > ANNOUNCE_S:
                await self.announce()
                announced_at = now()
            self._changed.clear()
            try:
                async with asyncio.timeout(RECHECK_S):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def _lacks(self, heads: list[Key]) -> list[Key] | None:
        stream, frames = await self._dial(self._sync_protocol, ANSWER_BYTES_MAX)
        try:
            return await Questions(frames, self.log.profile).lacks(heads)
        finally:
            await stream.close()

    # What we tell the peer

    async def announce(self) -> None:
        """Say our heads."""
        heads = await in_thread(self.log.heads)
        self._say([wire.Update(tuple(key_of(id) for id in heads[: wire.HEADS_MAX]))])

    def push(self, messages: Iterable[SignedMessage]) -> None:
        """Send messages on, except those the peer is known to have."""
        self._say(wire.Insert(each.key, each.raw) for each in messages if each.key not in self._seen)

    def _say(self, events: Iterable[wire.PushEvent]) -> None:
        if not self._push_open:
            return  # the peer wants no push; it will pull
        self._outbox.extend(events)
        size = sum(len(event.value) for event in self._outbox if isinstance(event, wire.Insert))
        if len(self._outbox) > OUTBOX_MAX or size > OUTBOX_BYTES_MAX:
            self._outbox.clear()
            self._behind = True
        self._speaking.set()

    async def _speak(self, frames: FramePipe) -> None:
        while True:
            if self._outbox:
                event = self._outbox.pop(0)
                if isinstance(event, wire.Insert):
                    self._saw(event.key)
                await frames.send(wire.encode_event(event))
            elif self._behind:
                self._behind = False
                await self.announce()
            else:
                self._speaking.clear()
                await self._speaking.wait()

    # What the peer wants of us

    def _take(self, stream: Stream) -> None:
        if self._leaving:
            return stream.reset()  # nobody waits any more for what it would begin
        self._spawn(self._serve(stream))
        return None

    async def _serve(self, stream: Stream) -> None:
        listener = Listener(
            [self._sync_protocol] if self._dialer else [self._push_protocol, self._sync_protocol]
        )
        try:
            async with asyncio.timeout(self._idle_s):
                while listener.chosen is None:
                    if not (data := await stream.receive()):
                        return stream.reset()
                    listener.receive(data)
                    await stream.send(listener.data_to_send())
        except (TimeoutError, Unavailable):
            return stream.reset()  # a stream given up before it began is no reason to part
        met, self._met = self._met, lambda: True
        if not met():
            return self.leave()
        if listener.chosen == self._sync_protocol:
            await self._answer(stream, listener.rest)
            return None
        frames = FramePipe(stream, limit=wire.EVENT_BYTES_MAX, idle_s=self._idle_s, rest=listener.rest)
        if self._push_open:
            raise Invalid(f"{self.name} opened a second push stream", reason="push")
        self._push_open = True
        self._spawn(self._speak(frames))
        await self.announce()
        await self._hear(frames)
        return None

    async def _answer(self, stream: Stream, rest: bytes) -> None:
        self._asking += 1
        try:
            async with self._answering:
                frames = FramePipe(stream, limit=wire.REQUEST_BYTES_MAX, idle_s=self._idle_s, rest=rest)
                await answer_questions(self.log, frames, self._served, session_s=self._session_s)
            await stream.close()
        except RopewalkError as error:
            # One session went wrong; the others and the connection go on.
            _journal.info("a sync session ended: %s", reason(error, self.name))
            stream.reset()
        finally:
            self._asking -= 1
            self._changed.set()

    def _served(self, keys: tuple[bytes, ...]) -> None:
        if self._dialer:  # a server's peers stay for long, and nobody asks what they took
            before = len(self.sent)
            self.sent.update(keys)
            self._idle_questions = 0 if len(self.sent) > before else self._idle_questions + 1
        if self._idle_questions < QUESTIONS_IDLE_MAX:
            self._activity += 1
        for key in keys:
            self._saw(key)

    async def _hear(self, frames: FramePipe) -> None:
        while batch := await frames.receive_some():
            events = [wire.decode_event(raw) for raw in batch]
            inserts = [event for event in events if isinstance(event, wire.Insert)]
            for event in inserts:
                self._saw(event.key)
            heads = [head for event in events if isinstance(event, wire.Update) for head in event.heads]
            if await in_thread(self._insert, inserts) or await in_thread(self._lack_one, heads):
                self._wanted.set()
        self._muxer.end(Unavailable(f"{self.name} has closed its push stream"))

    def _insert(self, inserts: list[wire.Insert]) -> bool:
        """Store what was pushed; whether something waits for its parents. The good before a bad one is kept."""
        checked: list[SignedMessage] = []
        error: RopewalkError | None = None
        for event in inserts:
            if self.log.has(id_of(event.key)):
                continue
            try:
                signed = self.log.check(event.value)
                if signed.key != event.key:
                    raise DigestMismatch(
                        f"{self.name} pushed message {signed.id} under the name {id_of(event.key)}",
                        expected=event.key.hex(),
                        got=signed.key.hex(),
                        where="push",
                    )
            except RopewalkError as found:
                error = found
                break
            checked.append(signed)
        outcomes = self.log.insert_checked(checked) if checked else []
        self.received += sum(outcome.status == "stored" for outcome in outcomes)
        if error is not None:
            raise error
        return any(outcome.missing for outcome in outcomes)

    def _lack_one(self, heads: list[bytes]) -> bool:
        return any(not self.log.has(id_of(head)) for head in heads)

    async def _pull_when_wanted(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            await self.pull()

    # Inside

    async def _dial(self, protocol: str, limit: int) -> tuple[Stream, FramePipe]:
        stream = self._muxer.open()
        dialer = Dialer(protocol)
        try:
            async with asyncio.timeout(self._idle_s):
                await stream.send(dialer.data_to_send())
                while dialer.chosen is None:
                    if not (data := await stream.receive()):
                        raise Unavailable(f"{self.name} ended a stream before it began")
                    dialer.receive(data)
        except TimeoutError as error:
            raise Unavailable(f"{self.name} has been silent for {self._idle_s:g} s") from error
        return stream, FramePipe(stream, limit=limit, idle_s=self._idle_s, rest=dialer.rest)

    def _saw(self, key: bytes) -> None:
        self._seen[key] = None
        self._seen.move_to_end(key)
        if len(self._seen) > SEEN_MAX:
            self._seen.popitem(last=False)

    def _spawn(self, act: object) -> None:
        assert asyncio.iscoroutine(act)
        task: asyncio.Task[None] = asyncio.ensure_future(self._guard(act))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guard(self, act: object) -> None:
        """Run one duty; what goes wrong in it ends the connection, with that as the reason."""
        try:
            await act  # type: ignore[misc]
        except RopewalkError as error:
            self._muxer.end(error)
        except Exception as error:
            _journal.exception("%s: a defect of ropewalk", self.name)
            self._muxer.end(RopewalkError(f"{type(error).__name__}: {error}"))
