"""A gossip log that others can connect to: WebSockets for v0.13, the plain v0.6 frames over TCP."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import time
from collections.abc import Iterable, Sequence
from typing import Any

from ropewalk.errors import RopewalkError, Usage
from ropewalk.gossip.core.log import GossipLog
from ropewalk.gossip.peer.broadcast import Broadcaster
from ropewalk.gossip.peer.connection import PeerConnection
from ropewalk.gossip.peer.frames import (
    SESSION_S,
    GossipFrames,
    Questions,
    answer_questions,
    pull_over,
    reason,
)
from ropewalk.gossip.peer.peer import Peer, rfc3339
from ropewalk.gossip.sync import wire
from ropewalk.gossip.sync.discovery import AddressBook
from ropewalk.net.admission import ConnectionLimits
from ropewalk.net.frame_pipe import IDLE_S
from ropewalk.net.log_rate_limit import LogRateLimit
from ropewalk.net.pipe import Listener, ServedPipe
from ropewalk.net.tcp import serve_tcp
from ropewalk.net.threads import in_thread
from ropewalk.net.websocket import Admit, WebSocketPipe, serve_websocket

RECHECK_S = 1.0
PEERS_MAX = 64  # connected at once; more are turned away
UPSTREAMS_MAX = 64  # peers that one server connects to
FOUND_MAX = 8  # learned addresses that one server connects to
AWAY_S = 600.0  # without a connection, after which a learned address is forgotten
PULLS_MAX = 8  # from v0.6 peers at once, whose answers are large; the others wait

_journal = logging.getLogger("ropewalk.gossip.peers")


class GossipServer:
    """Accepts peers, stays connected to `upstreams`, and exchanges what arrives on any side. Use it as a context."""

    def __init__(
        self,
        log: GossipLog,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        upstreams: Iterable[str] = (),
        idle_s: float = IDLE_S,
        session_s: float = SESSION_S,
        peers_max: int = PEERS_MAX,
        limits: ConnectionLimits | None = None,
        tls: ssl.SSLContext | None = None,
        client_tls: ssl.SSLContext | None = None,
        origins: Sequence[str] = (),
        admit: Admit | None = None,
        may_append: Admit | None = None,
        token: str | None = None,
        announce: Iterable[str] = (),
        discover: Iterable[str] = (),
    ) -> None:
        """Take `admit`, which says why a peer may not connect, and `may_append`, why it may only read.

        `token` is shown to the upstreams. `announce` lists addresses to tell to peers, and `discover` the patterns of
        those learned from peers that the server may connect to, without the token.
        """
        for name, given in (("upstreams", upstreams), ("announce", announce), ("discover", discover)):
            if isinstance(given, str):
                raise Usage(
                    f"{name} must be a list of strings, got a string", advice=f"Write [{given!r:.80}]."
                )
        self.log = log
        self._admit, self._may_append = admit, may_append
        if admit is not None and log.profile.name == "v0.6":
            raise Usage("identities need a v0.13 topic; v0.6 peers show none")
        self._origins = tuple(origins)
        self.host = host
        self.port = port
        self.peers: set[Peer] = set()
        self._idle_s = idle_s
        self._session_s = session_s
        self._limits = limits or ConnectionLimits(peers_max)
        self._tls = tls
        if tls is not None and log.profile.name == "v0.6":
            raise Usage("TLS needs a v0.13 topic; v0.6 is served over plain TCP")
        self._refused = LogRateLimit(_journal.warning)
        self._broadcaster = Broadcaster(log)
        self._broadcaster.learned = self._learned_rows
        self._book = AddressBook(announce, discover)
        if self._book.is_used and log.profile.name == "v0.6":
            raise Usage("discovery needs a v0.13 topic; v0.6 peers exchange no addresses")
        self._found: dict[str, tuple[PeerConnection, float]] = {}  # with when it was connected last
        self._client_tls = client_tls
        self._started_s = time.time()
        self.connections = [
            PeerConnection(
                log,
                url,
                idle_s=idle_s,
                tls=client_tls,
                token=token,
                broadcaster=self._broadcaster,
                book=self._book,
            )
            for url in dict.fromkeys(upstreams)
        ]
        if len(self.connections) > UPSTREAMS_MAX:
            raise Usage(f"a server connects to at most {UPSTREAMS_MAX} peers, got {len(self.connections)}")
        self._stack = contextlib.AsyncExitStack()
        self._pulling = asyncio.Semaphore(PULLS_MAX)

    @property
    def url(self) -> str:
        """Where peers connect to."""
        scheme = ("wss" if self._tls else "ws") if self.log.profile.name == "v0.13" else "tcp"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}"

    async def __aenter__(self) -> GossipServer:
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(self._refused.close)
            await stack.enter_async_context(self._broadcaster)
            listening = await self._listen()
            self.port = listening.port
            stack.push_async_callback(self._stop, listening)
            for connection in self.connections:
                await stack.enter_async_context(connection)
            if self._book.is_used:
                discovering = asyncio.create_task(self._discover())
                stack.push_async_callback(self._end_discovery, discovering)
            self._stack = stack.pop_all()
        return self

    async def _listen(self) -> Listener:
        if self.log.profile.name == "v0.13":
            return await serve_websocket(
                self._accept_v13,
                self.host,
                self.port,
                limits=self._limits,
                refused=self._turn_away,
                tls=self._tls,
                origins=self._origins,
                admit=self._admit,
            )
        return await serve_tcp(
            self._accept_v06, self.host, self.port, limits=self._limits, refused=self._turn_away
        )

    async def _stop(self, listening: Listener) -> None:
        for peer in list(self.peers):
            peer.leave()
        await listening.close()

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _discover(self) -> None:
        """Connect to learned addresses that a pattern allows, and give up those that stay away."""
        while True:
            now_s = time.monotonic()
            for url, (connection, connected_s) in list(self._found.items()):
                if connection.state == "connected":
                    self._found[url] = connection, now_s
                elif now_s - connected_s > AWAY_S:
                    await self._found.pop(url)[0].__aexit__()
                    self._book.drop(url)
            known = {*self._found, *(each.url for each in self.connections)}
            for url in self._book.wanted(known):
                if len(self._found) < FOUND_MAX:
                    self._found[url] = await self._connection_to(url).__aenter__(), now_s
            await asyncio.sleep(RECHECK_S)

    def _connection_to(self, url: str) -> PeerConnection:
        return PeerConnection(
            self.log,
            url,
            idle_s=self._idle_s,
            tls=self._client_tls,
            broadcaster=self._broadcaster,
            book=self._book,
            permits=self._book.permits,
        )

    async def _end_discovery(self, discovering: asyncio.Task[None]) -> None:
        discovering.cancel()
        await asyncio.gather(discovering, return_exceptions=True)
        for connection, _ in self._found.values():
            await connection.__aexit__()

    def _learned_rows(self) -> list[dict[str, Any]]:
        known = {*self._found, *(each.url for each in self.connections)}
        row = {
            "state": "learned",
            "since": rfc3339(self._started_s),
            "received": 0,
            "sent": 0,
            "direction": None,
        }
        return [
            {"url": url, **row, "error": None if allowed else "no --discover pattern allows it"}
            for url, allowed in self._book.learned().items()
            if url not in known
        ]

    def _turn_away(self, who: str, why: str) -> None:
        self._refused(f"{who}: turned away: {why}")

    def _join(self, pipe: ServedPipe) -> bool:
        """Count a peer that has shown that it speaks our protocol; return False if there is no room for it."""
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
            self._broadcaster.targets.add(peer)
            self._broadcaster.listed.add(peer)
            _journal.info("%s: connected, %d peers now", pipe.name, len(self.peers))
            return True

        peer = Peer(
            self.log,
            pipe,
            dialer=False,
            idle_s=self._idle_s,
            session_s=self._session_s,
            met=met,
            reads_only=self._reads_only(pipe),
            relay=self._broadcaster.relay,
            book=self._book,
        )
        checking = asyncio.create_task(self._recheck(peer, pipe))
        try:
            async with peer:
                await peer.stay()
        finally:
            checking.cancel()
            say = _journal.info if peer in self.peers else self._refused
            self.peers.discard(peer)
            self._broadcaster.targets.discard(peer)
            self._broadcaster.listed.discard(peer)
            if peer.error is not None:
                say(reason(peer.error, pipe.name))

    async def _recheck(self, peer: Peer, pipe: ServedPipe) -> None:
        """Send away once a second the peers whose rights have changed; they may connect again."""
        while self._admit is not None and isinstance(pipe, WebSocketPipe):
            await asyncio.sleep(RECHECK_S)
            why = self._admit(*pipe.credentials)
            if why is None and self._reads_only(pipe) != peer.reads_only:
                why = "its right to append has changed"
            if why is not None:
                self._turn_away(pipe.name, why)
                peer.leave()
                return

    def _reads_only(self, pipe: ServedPipe) -> bool:
        if self._may_append is None or not isinstance(pipe, WebSocketPipe):
            return False
        return self._may_append(*pipe.credentials) is not None

    async def _accept_v06(self, pipe: ServedPipe) -> None:
        """Run one session: the peer asks and we answer, or it begins with an empty frame and we ask."""
        try:
            frames = GossipFrames(pipe, limit=wire.REQUEST_BYTES_MAX, idle_s=self._idle_s)
            first = await frames.receive()
            if first is None or not self._join(pipe):
                return
            if first == b"":
                async with self._pulling:
                    asking = GossipFrames(pipe, limit=wire.RESPONSE_BYTES_MAX, idle_s=self._idle_s)
                    pulled = await pull_over(self.log, Questions(asking, self.log.profile))
                if pulled.received:
                    self.log.tell(await in_thread(self.log.note_sync, pipe.name, pulled.received))
            else:
                await answer_questions(self.log, frames, lambda _: None, first=first)
        except RopewalkError as error:
            _journal.info(reason(error, pipe.name))
