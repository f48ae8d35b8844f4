"""A gossip log that others can connect to: WebSockets for v0.13, the plain v0.6 frames over TCP."""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType

from ropewalk.errors import RopewalkError
from ropewalk.gossip.core.events import Committed, Event, Synced
from ropewalk.gossip.core.log import Cursor, Log
from ropewalk.gossip.core.message import SignedMessage
from ropewalk.gossip.peer.frames import SESSION_S, FramePipe, Questions, answer_questions, pull_over, reason
from ropewalk.gossip.peer.peer import Peer
from ropewalk.gossip.sync import wire
from ropewalk.net.admission import ConnectionLimits
from ropewalk.net.frame_pipe import IDLE_S
from ropewalk.net.log_rate_limit import LogRateLimit
from ropewalk.net.pipe import Listener, ServedPipe
from ropewalk.net.tcp import serve_tcp
from ropewalk.net.threads import in_thread
from ropewalk.net.websocket import serve_websocket

PEERS_MAX = 64  # connected at once; more are turned away
PULLS_MAX = 8  # from v0.6 peers at once, whose answers are large; the others wait
WATCH_S = 0.2  # how often we look for what other processes have appended
PUSHED_MAX = 64  # messages pushed one by one; a larger batch is announced, and pulled
PUSHED_BYTES_MAX = 8 << 20

_journal = logging.getLogger("ropewalk.gossip.peers")
_journal.addHandler(logging.NullHandler())


class GossipServer:
    """Takes peers, and pushes to them whatever reaches the log from anywhere. Use it as a context."""

    def __init__(
        self,
        log: Log,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        idle_s: float = IDLE_S,
        session_s: float = SESSION_S,
        peers_max: int = PEERS_MAX,
        limits: ConnectionLimits | None = None,
    ) -> None:
        self.log = log
        self.host = host
        self.port = port
        self.peers: set[Peer] = set()
        self._idle_s = idle_s
        self._session_s = session_s
        self._limits = limits or ConnectionLimits(peers_max)
        self._refused = LogRateLimit(_journal.warning)
        self._listening: Listener | None = None
        self._grown = asyncio.Event()
        self._pulling = asyncio.Semaphore(PULLS_MAX)
        self._watcher: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Where peers connect to."""
        scheme = "ws" if self.log.profile.name == "v0.13" else "tcp"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}"

    async def __aenter__(self) -> GossipServer:
        loop = asyncio.get_running_loop()
        cursor = await in_thread(self.log.last_arrival)
        if self.log.profile.name == "v0.13":
            self._listening = await serve_websocket(
                self._accept_v13, self.host, self.port, limits=self._limits, refused=self._turn_away
            )
        else:
            self._listening = await serve_tcp(
                self._accept_v06, self.host, self.port, limits=self._limits, refused=self._turn_away
            )
        self.port = self._listening.port

        def grown(_: Event) -> None:
            loop.call_soon_threadsafe(self._grown.set)  # listeners are called in whatever thread wrote

        self._forget = self.log.on(grown, Committed)
        self._watcher = asyncio.create_task(self._watch(cursor))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._forget()
        assert self._listening is not None
        assert self._watcher is not None
        self._watcher.cancel()
        await asyncio.gather(self._watcher, return_exceptions=True)
        for peer in list(self.peers):
            peer.leave()
        await self._listening.close()
        self._refused.close()

    def _turn_away(self, who: str, why: str) -> None:
        self._refused(f"{who}: turned away: {why}")

    def _join(self, pipe: ServedPipe) -> bool:
        """Count a peer that has shown that it speaks our protocol; False if there is no room for it."""
        slot = pipe.slot
        if slot is not None and not slot.join():
            self._turn_away(pipe.name, slot.refusal)
            return False
        if slot is not None:
            slot.settle()
        return True

    async def _accept_v13(self, pipe: ServedPipe) -> None:
        def met() -> bool:
            if not self._join(pipe):
                return False
            self.peers.add(peer)
            _journal.info("%s: connected, %d peers now", pipe.name, len(self.peers))
            return True

        peer = Peer(self.log, pipe, dialer=False, idle_s=self._idle_s, session_s=self._session_s, met=met)
        try:
            async with peer:
                await peer.ended()
        finally:
            say = _journal.info if peer in self.peers else self._refused
            self.peers.discard(peer)
            if peer.error is not None:
                say(reason(peer.error, pipe.name))

    async def _accept_v06(self, pipe: ServedPipe) -> None:
        """One session: the peer asks and we answer, or it begins with an empty frame and it is our turn to ask."""
        try:
            frames = FramePipe(pipe, limit=wire.REQUEST_BYTES_MAX, idle_s=self._idle_s)
            first = await frames.receive()
            if first is None or not self._join(pipe):
                return
            if first == b"":
                async with self._pulling:
                    asking = FramePipe(pipe, limit=wire.RESPONSE_BYTES_MAX, idle_s=self._idle_s)
                    pulled = await pull_over(self.log, Questions(asking, self.log.profile))
                self.log.tell(Synced(pipe.name, pulled.received, await in_thread(self.log.root)))
            else:
                await answer_questions(self.log, frames, lambda _: None, first=first)
        except RopewalkError as error:
            _journal.info(reason(error, pipe.name))

    async def _watch(self, cursor: Cursor | None) -> None:
        """Push what arrives, whoever wrote it: this process says so, others are seen by looking."""
        while True:
            try:
                async with asyncio.timeout(WATCH_S):
                    await self._grown.wait()
            except TimeoutError:
                pass
            self._grown.clear()
            try:
                cursor = await self._pass_on(cursor)
            except RopewalkError as error:
                _journal.warning(reason(error, self.log.topic))

    async def _pass_on(self, cursor: Cursor | None) -> Cursor | None:
        last = await in_thread(self.log.last_arrival)
        if last == cursor:
            return cursor
        if self.peers:
            fresh = await in_thread(self._fresh, cursor)
            for peer in list(self.peers):
                if fresh is not None:
                    peer.push(fresh)
                else:
                    await peer.announce()
        return last

    def _fresh(self, cursor: Cursor | None) -> list[SignedMessage] | None:
        """What arrived after a cursor, or None if it is too much to push."""
        fresh: list[SignedMessage] = []
        size = 0
        for _, signed in self.log.arrivals(cursor):
            fresh.append(signed)
            size += len(signed.raw)
            if len(fresh) > PUSHED_MAX or size > PUSHED_BYTES_MAX:
                return None
        return fresh
