"""One connected peer of a v0.13 log: push and sync streams in both directions over one connection.

`gossip.sync.live` decides what to push and when to pull, `gossip.sync.session` how to pull. This module carries their
questions, answers and events over the streams of one connection.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any
from urllib.parse import urlsplit

from ropewalk.errors import Invalid, RopewalkError, Unavailable
from ropewalk.gossip.core.ids import Key, key_of
from ropewalk.gossip.core.log import GossipLog
from ropewalk.gossip.core.message import SignedMessage
from ropewalk.gossip.peer.frames import (
    ANSWER_BYTES_MAX,
    SESSION_S,
    GossipFrames,
    Questions,
    answer_questions,
    pull_over,
    reason,
)
from ropewalk.gossip.peer.multistream import Dialer, ProtocolListener
from ropewalk.gossip.peer.muxer import Muxer, Stream
from ropewalk.gossip.sync import wire
from ropewalk.gossip.sync.discovery import AddressBook
from ropewalk.gossip.sync.live import ANTI_ENTROPY_S, LiveSession, Relay
from ropewalk.gossip.sync.session import PullResult
from ropewalk.net.frame_pipe import IDLE_S
from ropewalk.net.pipe import Pipe
from ropewalk.net.threads import in_thread

SESSIONS_IDLE_MAX = 20  # pulls in a row that the peer breaks off before anything came
QUESTIONS_IDLE_MAX = 1000  # of a peer that takes nothing, before they stop counting as progress
SESSIONS_MAX = 8  # of one peer that are answered at once: each holds a reader of the store; the others wait
EXCHANGE_S = 5.0  # between two exchanges of addresses on one connection, at least
RECHECK_S = 0.5  # how often we ask whether the peer has our heads by now
ANNOUNCE_S = 3.0  # how long a peer may take to react to our heads before we announce them again

_journal = logging.getLogger("ropewalk.gossip.peers")


def rfc3339(time_s: float) -> str:
    """Format a time in UTC.

    >>> rfc3339(0)
    '1970-01-01T00:00:00Z'
    """
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time_s))


class Peer:
    """One connected peer. Use it as a context; `error` is the reason why the connection ended.

    With `count_sent`, `give` returns how many messages the peer fetched; a live connection does not remember them.
    Nothing is taken from a peer that `reads_only`.
    """

    def __init__(
        self,
        log: GossipLog,
        pipe: Pipe,
        *,
        dialer: bool,
        idle_s: float = IDLE_S,
        session_s: float = SESSION_S,
        met: Callable[[], bool] = lambda: True,
        count_sent: bool = False,
        chance: Callable[[], float] = random.random,
        interval_s: float = ANTI_ENTROPY_S,
        reads_only: bool = False,
        relay: Relay | None = None,
        book: AddressBook | None = None,
    ) -> None:
        self.log = log
        self._book = book if book is not None and book.is_used else None
        self._exchanges = self._book is not None
        self._exchanged_s = -EXCHANGE_S
        self.reads_only = reads_only
        self.name = pipe.name
        host = urlsplit(pipe.name).hostname or pipe.name
        now_s = asyncio.get_running_loop().time()
        self.live = LiveSession(log, host, now_s=now_s, random=chance, interval_s=interval_s, relay=relay)
        self._since_s = time.time()
        self._asked_for: set[bytes] | None = set() if count_sent else None
        self._dialer = dialer
        self._idle_s = idle_s
        self._session_s = session_s
        self._muxer = Muxer(pipe, client=dialer, accept=self._take)
        self._met = met  # called once, when the peer has asked for a protocol of our topic; False ends it
        self._leaving = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._pulling = asyncio.Lock()
        self._wanted = asyncio.Event()  # there is something to pull
        self._speaking = asyncio.Event()  # there is something to push
        self._activity = 0  # counts what the peer has asked of us
        self._idle_questions = 0  # asked since it last took a message
        self._asking = 0  # sync streams the peer has open
        self._answering = asyncio.Semaphore(SESSIONS_MAX)
        self._changed = asyncio.Event()
        protocol = f"/canvas/v1/{log.topic}"
        self._push_protocol, self._sync_protocol = f"{protocol}/push", f"{protocol}/sync"
        self._peers_protocol = f"/ropewalk/v1/{log.topic}/peers"

    @property
    def error(self) -> RopewalkError | None:
        """Why the connection ended, if it has."""
        return self._muxer.error

    @property
    def received(self) -> int:
        """Messages that came from this peer and were stored."""
        return self.live.received

    def status(self) -> dict[str, Any]:
        """Return what `gossip peers` prints of a peer that connected to us."""
        return {
            "url": self.name,
            "state": "connected",
            "since": rfc3339(self._since_s),
            "received": self.live.received,
            "sent": self.live.sent,
            "direction": "in",
            "error": None,
        }

    async def __aenter__(self) -> Peer:
        await self._muxer.__aenter__()
        self._spawn(self._pull_when_wanted())
        return self

    async def __aexit__(self, *exc: Any) -> None:
        self._leaving = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._muxer.__aexit__(*exc)
        if self._book is not None:
            self._book.forget(self)

    def leave(self) -> None:
        """End the connection from this side."""
        self._muxer.end(Unavailable(f"the connection to {self.name} was closed here"))

    async def stay(self) -> None:
        """Run rounds of anti-entropy until the connection ends."""
        now = asyncio.get_running_loop().time
        while self.error is None:
            if self._dialer and self._exchanges:
                await self._exchange_addresses()
            try:
                async with asyncio.timeout_at(self.live.due_s):
                    await self._muxer.ended.wait()
            except TimeoutError:
                if self.live.is_due(now()):
                    if not self.reads_only:
                        self._wanted.set()
                    self._speaking.set()

    # What we want of the peer

    async def meet(self) -> None:
        """Raise unless the peer has our topic."""
        stream, _ = await self._dial(self._sync_protocol, ANSWER_BYTES_MAX)
        await stream.close()

    async def start_push(self) -> None:
        """Open the push stream, which only the dialer may, and announce our heads."""
        _, frames = await self._dial(self._push_protocol, wire.EVENT_BYTES_MAX)
        self._open_push(frames)
        self._spawn(self._listen(frames))

    async def _exchange_addresses(self) -> None:
        """Tell the peer addresses and learn its; one that does not know the exchange is not asked again."""
        assert self._book is not None
        try:
            stream, frames = await self._dial(self._peers_protocol, wire.ADDRESSES_BYTES_MAX)
            await frames.send(self._book.told_to(self))
            told = await frames.receive()
            await stream.close()
        except Unavailable:
            self._exchanges = False
        else:
            self._book.hear(self, told or b"")

    async def _answer_addresses(self, stream: Stream, rest: bytes) -> None:
        now_s = asyncio.get_running_loop().time()
        if self._book is None or now_s - self._exchanged_s < EXCHANGE_S:
            return stream.reset()
        self._exchanged_s = now_s
        frames = GossipFrames(stream, limit=wire.ADDRESSES_BYTES_MAX, idle_s=self._idle_s, rest=rest)
        self._book.hear(self, await frames.receive() or b"")
        await frames.send(self._book.told_to(self))
        return await stream.close()

    async def pull(self) -> PullResult:
        """Fetch all that the peer has and we lack, in as many sessions as it takes."""
        async with self._pulling:
            received = refused = requests = idle = 0
            while True:
                stream, frames = await self._dial(self._sync_protocol, ANSWER_BYTES_MAX)
                questions = Questions(frames, self.log.profile)
                questions.fetched = self.live.has_sent
                try:
                    pulled = await pull_over(self.log, questions)
                finally:
                    await stream.close()
                if frames.held:
                    stream.reset()  # the rest of that answer is not wanted
                received += pulled.received
                refused += pulled.refused
                requests += pulled.requests
                self.live.count_received(pulled.received)
                if pulled.complete:
                    self.log.tell(await in_thread(self.log.note_sync, self.name, received))
                    return PullResult(received, refused, requests, True)
                idle = 0 if pulled.received else idle + 1
                if idle >= SESSIONS_IDLE_MAX:
                    raise Unavailable(f"{self.name} has broken off {idle} pulls before a message came")
                await asyncio.sleep(max(questions.cooldown_s, 0.05 * idle))

    async def give(self) -> int:
        """Wait until the peer has all we have now; return how many messages it fetched from us.

        A log holds the parents of all it holds, so a peer that has our heads has everything.
        """
        now = asyncio.get_running_loop().time
        progress_at, announced_at, activity = now(), now(), -1
        # The heads of this moment: what others append meanwhile must not keep us here for ever.
        heads = [key_of(id) for id in await in_thread(self.log.heads)]
        while True:
            lacking = await self._lacks(heads)
            if lacking == []:
                return len(self._asked_for or ())
            if activity != self._activity:
                activity, progress_at = self._activity, now()
            elif now() - progress_at > self._idle_s:
                raise Unavailable(
                    f"{self.name} does not take {len(lacking or heads)} of our heads",
                    advice="It may refuse our messages; `--pull-only` only fetches.",
                )
            if not self._asking and now() - announced_at > ANNOUNCE_S:
                self.announce()
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

    # What we push to the peer

    def announce(self) -> None:
        """Send our heads."""
        self.live.announce()
        self._speaking.set()

    def push(self, messages: Iterable[SignedMessage]) -> None:
        """Send messages on, except those that the peer is known to have."""
        self.live.offer(messages)
        self._speaking.set()

    def _open_push(self, frames: GossipFrames) -> None:
        self.live.open_push()
        self._spawn(self._speak(frames))

    async def _speak(self, frames: GossipFrames) -> None:
        while True:
            self._speaking.clear()
            while (event := await self._next_event()) is not None:
                # A peer that reads nothing for the idle limit raises here, which ends the connection.
                await frames.send(wire.encode_event(event))
            await self._speaking.wait()

    async def _next_event(self) -> wire.PushEvent | None:
        # Announcing reads the log; a queued message does not.
        return self.live.next_event() if self.live.queued_bytes else await in_thread(self.live.next_event)

    # What the peer wants of us

    def _take(self, stream: Stream) -> None:
        if self._leaving:
            return stream.reset()
        self._spawn(self._serve(stream))
        return None

    async def _serve(self, stream: Stream) -> None:
        known = [self._sync_protocol]
        if not self._dialer:
            known += [self._push_protocol, *([self._peers_protocol] if self._book else [])]
        listener = ProtocolListener(known)
        try:
            async with asyncio.timeout(self._idle_s):
                while listener.chosen is None:
                    if not (data := await stream.receive()):
                        return stream.reset()
                    listener.receive(data)
                    await stream.send(listener.data_to_send())
        except (TimeoutError, Unavailable):
            return stream.reset()  # a stream given up before it began does not end the connection
        met, self._met = self._met, lambda: True
        if not met():
            return self.leave()
        if listener.chosen == self._sync_protocol:
            return await self._answer(stream, listener.rest)
        if listener.chosen == self._peers_protocol:
            return await self._answer_addresses(stream, listener.rest)
        frames = GossipFrames(stream, limit=wire.EVENT_BYTES_MAX, idle_s=self._idle_s, rest=listener.rest)
        if self.live.pushing:
            raise Invalid(f"{self.name} opened a second push stream", reason="push")
        self._open_push(frames)
        await self._listen(frames)
        return None

    async def _answer(self, stream: Stream, rest: bytes) -> None:
        self._asking += 1
        try:
            async with self._answering:
                frames = GossipFrames(stream, limit=wire.REQUEST_BYTES_MAX, idle_s=self._idle_s, rest=rest)
                await answer_questions(self.log, frames, self._served, session_s=self._session_s)
            await stream.close()
        except RopewalkError as error:
            # One session failed; the others and the connection go on.
            _journal.info("a sync session ended: %s", reason(error, self.name))
            stream.reset()
        finally:
            self._asking -= 1
            self._changed.set()

    def _served(self, keys: tuple[bytes, ...]) -> None:
        self.live.served(keys)
        if self._asked_for is not None:
            before = len(self._asked_for)
            self._asked_for.update(keys)
            self._idle_questions = 0 if len(self._asked_for) > before else self._idle_questions + 1
        if self._idle_questions < QUESTIONS_IDLE_MAX:
            self._activity += 1

    async def _listen(self, frames: GossipFrames) -> None:
        while batch := await frames.receive_some():
            if not self.reads_only and await in_thread(self.live.receive, batch):
                self._wanted.set()
        self._muxer.end(Unavailable(f"{self.name} has closed its push stream"))

    async def _pull_when_wanted(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            await self.pull()

    # Inside

    async def _dial(self, protocol: str, limit: int) -> tuple[Stream, GossipFrames]:
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
            stream.reset()
            raise Unavailable(f"{self.name} has been silent for {self._idle_s:g} s") from error
        except RopewalkError:
            stream.reset()
            raise
        return stream, GossipFrames(stream, limit=limit, idle_s=self._idle_s, rest=dialer.rest)

    def _spawn(self, act: Coroutine[Any, Any, None]) -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(self._guard(act))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guard(self, act: Coroutine[Any, Any, None]) -> None:
        """Run one duty; its failure ends the connection, with that as the reason."""
        try:
            await act
        except RopewalkError as error:
            self._muxer.end(error)
        except Exception as error:
            _journal.exception("%s: a defect of ropewalk", self.name)
            self._muxer.end(RopewalkError(f"{type(error).__name__}: {error}"))
