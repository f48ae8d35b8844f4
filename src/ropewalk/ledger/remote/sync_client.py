"""Client of a remote channel for programs without an event loop: the same, in a background thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Sequence
from types import TracebackType
from typing import Any, TypeVar

from ropewalk.errors import RopewalkError, Unavailable
from ropewalk.kernel.keys import PublicKey
from ropewalk.ledger.ingest.ticket import LedgerReceipt
from ropewalk.ledger.keys.history import KeyProof
from ropewalk.ledger.remote.client import Found, LedgerClient, RemoteSettings
from ropewalk.ledger.remote.negotiate import Agreement

T = TypeVar("T")


class RemoteChannel:
    """A connected channel. Close it, or use it in a `with`; any thread may call it."""

    def __init__(self, url: str, channel: str, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        try:
            self._client = self._call(_connected(url, channel, options))
        except BaseException:
            self._end()
            raise

    @property
    def agreement(self) -> Agreement:
        """What was agreed on."""
        return self._client.agreement

    @property
    def responder(self) -> PublicKey:
        """The key that answers for the channel."""
        return self._client.responder

    @property
    def key_proofs(self) -> tuple[KeyProof, ...]:
        """The key statements of the channel, as the server named them. Nothing about them is verified."""
        return self._client.key_proofs

    @property
    def missed(self) -> dict[str, RopewalkError]:
        """Transports that were tried before the one in use, and why they were not reached."""
        return self._client.missed

    @property
    def downgraded(self) -> tuple[str, ...]:
        """Those of them that the server says it serves."""
        return self._client.downgraded

    @property
    def recorded(self) -> dict[str, Any] | None:
        """The receipt of what was negotiated, where the server keeps it."""
        return self._client.recorded

    def submit(self, raw: bytes) -> LedgerReceipt:
        """Send one envelope, and return its receipt once it is durable there. What refuses it there is raised here."""
        return self._call(self._client.submit(raw))

    def submit_many(self, raws: Sequence[bytes]) -> list[LedgerReceipt | RopewalkError]:
        """Send envelopes in order; one outcome each, in order, refusals in their places."""
        return self._call(self._client.submit_many(raws))

    def head(self) -> dict[str, Any]:
        """Return where the channel ends: height, block hash, number of envelopes."""
        return self._call(self._client.head())

    def settings(self) -> RemoteSettings:
        """Return signer and policy of the channel; trust them only if the key is known."""
        return self._call(self._client.settings())

    def blocks(self, start: int = 0, end: int | None = None) -> Iterator[Found]:
        """Yield blocks from a height on, as their lines. Nothing about them is verified."""
        while found := self._call(self._client.read_blocks(start, end)):
            yield from found
            start = found[-1][0] + 1
            if end is not None and start > end:
                return

    def close(self) -> None:
        """Disconnect; closing twice is allowed."""
        if not self._loop.is_closed():
            try:
                self._call(self._client.__aexit__(None, None, None))
            finally:
                self._end()

    def __enter__(self) -> RemoteChannel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop.is_closed():
            work.close()
            raise Unavailable("the connection was closed here", advice="Connect again.")
        done = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return done.result()
        except BaseException:
            done.cancel()
            raise

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _connected(url: str, channel: str, options: dict[str, Any]) -> LedgerClient:
    kind: type[LedgerClient] = LedgerClient
    if url.startswith("mailbox:"):
        from ropewalk.ledger.mailbox.client import MailboxClient

        kind = MailboxClient
    return await kind(url, channel, **options).__aenter__()


def connect_channel(url: str, channel: str, **options: Any) -> RemoteChannel:
    """Connect to a channel at `tls://HOST:PORT`, `tcp://HOST:PORT` or `mailbox:FOLDER`; options: `LedgerClient`."""
    return RemoteChannel(url, channel, **options)
