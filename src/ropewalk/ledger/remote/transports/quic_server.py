"""Channels over QUIC: the first stream of a connection negotiates, each other one carries one correlation id."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, Final

from ropewalk.errors import Invalid, NegotiateAgain
from ropewalk.ledger.remote.conversation import cancelled
from ropewalk.ledger.remote.messages import PROTOCOL, RemoteMessage, correlation_of
from ropewalk.ledger.remote.server_session import LedgerSession
from ropewalk.net.admission import ConnectionLimits
from ropewalk.net.quic.link import EXCESSIVE_LOAD, NO_ERROR, REQUEST_REJECTED, STREAMS_MAX, QuicLink, QuicPipe
from ropewalk.net.quic.listener import QuicListener
from ropewalk.net.tls import TlsFiles

if TYPE_CHECKING:
    from ropewalk.ledger.remote.server import LedgerServer

FIRST_STREAM: Final = 0  # of a client, RFC 9000 §2.1
_UNSET: Final = object()


class StreamSession(LedgerSession):
    """A stream of a connection whose session is open: envelopes of one correlation id, or of none."""

    _correlation: Any = _UNSET

    async def run(self) -> None:
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await self._attend(stopping)
        finally:
            await cancelled(stopping)

    def join(self, first: LedgerSession) -> None:
        """Continue the session that the first stream has opened."""
        self.adopt(first)
        self._begin_messages()

    def _begin(self, message: RemoteMessage) -> AsyncGenerator[RemoteMessage, None]:
        if message.op == "append":
            found = set(map(correlation_of, message.parts))
            if self._correlation is not _UNSET:
                found.add(self._correlation)
            if len(found) > 1:
                raise Invalid("message: envelopes of two correlation ids on one stream")
            self._correlation = found.pop() if found else self._correlation
        return super()._begin(message)


class QuicSessions:
    """The connections of a server, each with the session that its first stream has opened."""

    def __init__(self, host: LedgerServer, files: TlsFiles, limits: ConnectionLimits, idle_s: float) -> None:
        self._host, self._idle_s = host, idle_s
        self._first: dict[QuicLink, _FirstSession] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._refusing = False
        self._listener = QuicListener(self._opened, files, limits, host.refused)
        self.port = 0

    async def open(self, address: tuple[str, int], files: TlsFiles) -> QuicSessions:
        """Listen."""
        self.port = (await self._listener.open(*address, files, PROTOCOL)).port
        return self

    def renew(self, files: TlsFiles, _tls: ssl.SSLContext) -> None:
        """Use the certificates that are in the files now, for new connections."""
        self._listener.renew(files)

    def refuse(self) -> None:
        """Take no more connections and streams."""
        self._refusing = True
        self._listener.refuse()

    async def close(self) -> None:
        """End all connections."""
        await cancelled(*self._tasks)
        await self._listener.close()

    def _opened(self, link: QuicLink, pipe: QuicPipe) -> None:
        """Begin a stream that a client has opened, or break it off with the code that says why."""
        first = self._first.get(link)
        if self._refusing or (pipe.stream_id != FIRST_STREAM and (first is None or not first.is_open)):
            return pipe.reset(REQUEST_REJECTED)
        if link.streams > STREAMS_MAX:
            return pipe.reset(EXCESSIVE_LOAD)
        options: dict[str, Any] = {
            "transport": "quic", "idle_s": self._idle_s, "certificate": link.certificate,
        }  # fmt: skip
        session: LedgerSession
        if first is None:
            session = self._first[link] = _FirstSession(
                self._host, pipe, settle=lambda: self._listener.settle(link), **options
            )
        else:
            session = StreamSession(self._host, pipe, **options)
            session.join(first)
        task = asyncio.get_running_loop().create_task(self._attend(session, link, pipe))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return None

    async def _attend(self, session: LedgerSession, link: QuicLink, pipe: QuicPipe) -> None:
        self._host.sessions.add(session)
        try:
            await session.run()
        finally:
            self._host.leave(session)
            await pipe.close()
            if session.outdated:
                link.close_with(NO_ERROR, NegotiateAgain("the session of this connection has ended"))
            if self._first.get(link) is session:
                del self._first[link]  # streams that are open go on; new ones need a new session


class _FirstSession(LedgerSession):
    """The stream that negotiates; it also answers what is not about envelopes."""

    def __init__(self, *arguments: Any, settle: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._settle = settle
        self.is_open = False

    def _begin_messages(self) -> None:
        super()._begin_messages()
        self.is_open = True
        self._settle()
