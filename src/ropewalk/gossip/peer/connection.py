"""A connection to one peer that is kept: it syncs, exchanges what is appended, and reconnects with backoff."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import time
from collections.abc import Callable, Iterable
from typing import Any, Literal

from ropewalk.errors import RopewalkError, Unavailable
from ropewalk.gossip.core.log import GossipLog
from ropewalk.gossip.core.message import SignedMessage
from ropewalk.gossip.peer.broadcast import Broadcaster
from ropewalk.gossip.peer.client import check_profile, sync_with
from ropewalk.gossip.peer.frames import reason
from ropewalk.gossip.peer.peer import Peer, rfc3339
from ropewalk.gossip.sync.discovery import AddressBook
from ropewalk.gossip.sync.live import ANTI_ENTROPY_S, Backoff
from ropewalk.net.frame_pipe import IDLE_S
from ropewalk.net.websocket import Permits, connect_websocket

POLL_S = 1.0  # between two syncs with a v0.6 peer, whose protocol has no push

State = Literal["connecting", "connected", "waiting", "closed"]
_journal = logging.getLogger("ropewalk.gossip.peers")


class PeerConnection:
    """A lasting connection of a log to the peer at `url`. Use it as a context; leaving it disconnects.

    Entering does not wait for the peer, which may be down; `synced` waits until its messages were fetched once.
    `state` is `connecting`, `connected`, `waiting` (for the next attempt) or `closed`; `error` is why the last attempt
    or connection ended. `chance` returns a number from 0 to 1 and spreads attempts and rounds of anti-entropy.
    With `permits`, no connection is made to an address that it refuses.
    """

    def __init__(
        self,
        log: GossipLog,
        url: str,
        *,
        idle_s: float = IDLE_S,
        interval_s: float = ANTI_ENTROPY_S,
        tls: ssl.SSLContext | None = None,
        token: str | None = None,
        chance: Callable[[], float] = random.random,
        backoff: Backoff | None = None,
        broadcaster: Broadcaster | None = None,
        book: AddressBook | None = None,
        permits: Permits | None = None,
    ) -> None:
        check_profile(log, url)
        self.log = log
        self.url = url
        self.state: State = "connecting"
        self.error: RopewalkError | None = None
        self._idle_s = idle_s
        self._interval_s = interval_s
        self._tls, self._token = tls, token
        self._book, self._permits = book, permits
        self._chance = chance
        self._backoff = backoff or Backoff(chance)
        self._own = Broadcaster(log) if broadcaster is None else None
        self._broadcaster = broadcaster or self._own
        self._since_s = time.time()
        self._peer: Peer | None = None
        self._received = self._sent = 0
        self._synced = asyncio.Event()
        self._grown = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> PeerConnection:
        if self._own is not None:
            await self._own.__aenter__()
        assert self._broadcaster is not None
        self._broadcaster.listed.add(self)
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *exc: Any) -> None:
        assert self._task is not None and self._broadcaster is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._enter("closed")
        self._broadcaster.listed.discard(self)
        if self._own is not None:
            await self._own.__aexit__(*exc)

    @property
    def received(self) -> int:
        """Messages that came from this peer and were stored, over all its connections."""
        return self._received + (self._peer.live.received if self._peer else 0)

    @property
    def sent(self) -> int:
        """Messages that this peer got from us, over all its connections."""
        return self._sent + (self._peer.live.sent if self._peer else 0)

    async def synced(self, timeout_s: float | None = None) -> None:
        """Wait until the log has fetched what the peer has; Unavailable after `timeout_s`, with the last error."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._synced.wait()
        except TimeoutError as timeout:
            why = f": {self.error.detail}" if self.error else ""
            raise Unavailable(f"{self.url} did not sync within {timeout_s:g} s{why}") from timeout

    def status(self) -> dict[str, Any]:
        """Return what `gossip peers` prints."""
        return {
            "url": self.url,
            "state": self.state,
            "since": rfc3339(self._since_s),
            "received": self.received,
            "sent": self.sent,
            "direction": "out",
            "error": None if self.error is None or self.state == "connected" else self.error.detail,
        }

    # A v0.6 peer is a push target too: what arrives is synced at once instead of with the next poll.

    def push(self, _messages: Iterable[SignedMessage]) -> None:
        """Wake the connection: the log has new messages."""
        self._grown.set()

    def announce(self) -> None:
        """Wake the connection: the heads of the log moved."""
        self._grown.set()

    def _enter(self, state: State) -> None:
        if state != self.state:
            self.state, self._since_s = state, time.time()

    async def _run(self) -> None:
        attempt = self._stay_v13 if self.log.profile.name == "v0.13" else self._stay_v06
        while True:
            self._enter("connecting")
            broken = False
            try:
                await attempt()
            except RopewalkError as error:
                if error.detail != getattr(self.error, "detail", None) or self.state == "connected":
                    _journal.info(reason(error, self.url))
                self.error, broken = error, not isinstance(error, Unavailable)
            self._enter("waiting")
            await asyncio.sleep(self._backoff.failed(broken=broken))

    async def _stay_v13(self) -> None:
        assert self._broadcaster is not None
        pipe = await connect_websocket(
            self.url, timeout_s=self._idle_s, tls=self._tls, token=self._token, permits=self._permits
        )
        async with Peer(
            self.log,
            pipe,
            dialer=True,
            idle_s=self._idle_s,
            chance=self._chance,
            interval_s=self._interval_s,
            relay=self._broadcaster.relay,
            book=self._book,
        ) as peer:
            self._peer = peer
            self._broadcaster.targets.add(peer)  # before we announce: what arrives in between is in the heads
            try:
                await peer.start_push()
                await peer.pull()
                self._connected()
                await peer.stay()
            finally:
                self._broadcaster.targets.discard(peer)
                self._peer = None
                self._received += peer.live.received
                self._sent += peer.live.sent
        if peer.error is not None:
            raise peer.error

    async def _stay_v06(self) -> None:
        assert self._broadcaster is not None
        self._broadcaster.targets.add(self)
        try:
            while True:
                self._grown.clear()
                report = await sync_with(self.log, self.url, idle_s=self._idle_s, quiet=self._synced.is_set())
                self._received += report.received
                self._sent += report.sent
                self._connected()
                try:
                    async with asyncio.timeout(POLL_S * (0.5 + self._chance())):
                        await self._grown.wait()
                except TimeoutError:
                    pass
        finally:
            self._broadcaster.targets.discard(self)

    def _connected(self) -> None:
        if self.state != "connected":
            _journal.info("%s: connected", self.url)
        self._enter("connected")
        self.error = None
        self._backoff.succeeded()
        self._synced.set()
