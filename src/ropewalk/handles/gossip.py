"""A gossip topic for programs: signed messages that any peer may append offline."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from ropewalk.gossip.core.events import Event, Stored
from ropewalk.gossip.core.ids import MessageId
from ropewalk.gossip.core.log import Cursor, GossipLog
from ropewalk.gossip.core.message import SignedMessage
from ropewalk.gossip.core.verify import verify_log
from ropewalk.gossip.core.writing import Inserted
from ropewalk.gossip.peer.client import SyncReport, sync_with
from ropewalk.gossip.peer.connection import PeerConnection
from ropewalk.gossip.peer.follow import follow_events
from ropewalk.gossip.peer.server import GossipServer
from ropewalk.handles.handle import Handle
from ropewalk.kernel.keys import SigningKey
from ropewalk.kernel.report import Report
from ropewalk.net.frame_pipe import IDLE_S


class GossipTopic(Handle):
    """One topic on this peer. `log` is the engine's log, for bounds, ancestors and pending messages.

    >>> import ropewalk, tempfile
    >>> with tempfile.TemporaryDirectory() as folder, ropewalk.init(folder) as repo:
    ...     chat = repo.gossip("chat.example", signer=repo.key())
    ...     stored = chat.append({"text": "hello"})
    ...     [signed.message.payload for signed in chat], chat.verify().verdict
    ([{'text': 'hello'}], 'passed')
    """

    kind = "gossip topic"
    columns = ("id", "clock", "payload")

    def __init__(self, log: GossipLog) -> None:
        super().__init__(log.topic)
        self.log = log

    @property
    def _open_log(self) -> GossipLog:
        self.check_open()
        return self.log

    def append(self, payload: Any, *, signer: SigningKey | None = None) -> Stored:
        """Sign a message on top of all heads and store it."""
        return self._open_log.append(payload, signer=signer)

    def append_all(self, payloads: Iterable[Any], *, signer: SigningKey | None = None) -> list[Stored]:
        """Append several payloads, each on top of the one before, in one transaction: all or none."""
        return self._open_log.append_many(payloads, signer=signer)

    def insert(self, raw: bytes) -> Inserted:
        """Store a message that another peer signed; it stays pending while parents are missing."""
        return self._open_log.insert(raw)

    def read(self, after: Cursor | None = None, limit: int = 100) -> list[tuple[Cursor, SignedMessage]]:
        """Return messages in the order they reached this peer, each with the cursor to continue after it.

        A late message has a low clock but arrives last, so a reader with this cursor never misses one.
        """
        return list(islice(self._open_log.arrivals(after), max(0, limit)))

    def follow_events(self) -> Iterator[Event]:
        """Yield `Stored`, `Committed` and `Synced` from now on, from this or any other process; never ends."""
        return follow_events(self._open_log)

    def tail(self, limit: int = 10) -> list[SignedMessage]:
        """Return the messages with the highest clocks, lowest first."""
        return list(islice(self._open_log.iterate(reverse=True), max(0, limit)))[::-1]

    def __iter__(self) -> Iterator[SignedMessage]:
        return self._open_log.iterate()

    def __len__(self) -> int:
        return len(self._open_log)

    def heads(self) -> list[MessageId]:
        """Return the messages without children, lowest clock first."""
        return self._open_log.heads()

    def newest(self) -> Iterable[Sequence[object]]:
        """Return the newest messages for a notebook."""
        return [(each.id, each.message.clock, each.message.payload) for each in self.tail()]

    def verify(self) -> Report:
        """Verify every message, its signature and all tables derived from the messages."""
        return verify_log(self._open_log)

    async def sync(self, url: str, *, pull_only: bool = False, idle_s: float = IDLE_S) -> SyncReport:
        """Exchange messages with the peer at `url` (`ws://` or `tcp://`); with `pull_only`, only fetch."""
        return await sync_with(self._open_log, url, pull_only=pull_only, idle_s=idle_s)

    def serve(self, *, host: str = "127.0.0.1", port: int = 0, upstreams: Iterable[str] = ()) -> GossipServer:
        """Return a server for peers that also stays connected to `upstreams`; use it in `async with`."""
        return GossipServer(self._open_log, host=host, port=port, upstreams=upstreams)

    def connect(self, url: str, *, idle_s: float = IDLE_S) -> PeerConnection:
        """Return a lasting connection to the peer at `url`; use it in `async with`."""
        return PeerConnection(self._open_log, url, idle_s=idle_s)

    def close(self) -> None:
        """Close the topic's tables."""
        if not self.closed:
            super().close()
            self.log.close()
