"""Mailboxes: a channel that local processes append to through memory shared with its host.

A mailbox is a folder with a socket, the doorbell, and one ring per session, made when both sides have agreed on its
size. The sender puts envelopes into slots and notifies the host; the host takes them out, checks and seals them, and
answers over the socket. It acknowledges a slot when the answer is known: after a crash of either side, unanswered
entries are still there, and the host processes them first. An envelope that is already stored is not sealed twice, so
neither side needs to know the progress of the other.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import ssl
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from ropewalk.disk.folder_lock import hold_folder
from ropewalk.errors import Denied, Invalid, RopewalkError, Unavailable, Usage
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.envelope.envelope import parse_cbor
from ropewalk.ledger.ingest.ticket import LedgerReceipt
from ropewalk.ledger.mailbox.agreement import DAMAGED, TRANSPORT, BurstLimiter, MailboxLimits, sign_root
from ropewalk.ledger.mailbox.ring import RingReader, ring_bytes
from ropewalk.ledger.mailbox.shared_memory import MappedRing, make_ring, map_ring, serve_bell
from ropewalk.ledger.remote.messages import RemoteMessage
from ropewalk.ledger.remote.negotiate import Agreement, Capabilities, choose
from ropewalk.ledger.remote.server import LedgerServer, Listening
from ropewalk.ledger.remote.server_session import LedgerSession
from ropewalk.ledger.remote.writer_lease import WriterLease
from ropewalk.net.admission import ConnectionLimits
from ropewalk.net.tcp import TcpPipe

BELL = "bell"
RING_NAME = re.compile(r"([a-z][a-z0-9._-]{0,127})~[0-9a-f]{32}\.ring")
SESSIONS_MAX = 8  # at once: each has its own memory

_journal = logging.getLogger("ropewalk.ledger.remote")

Outcomes = list[LedgerReceipt | RopewalkError]


class MailboxServer(LedgerServer):
    """Takes envelopes for one channel out of a mailbox. Use it in an `async with`; see LedgerServer for the options."""

    def __init__(
        self,
        home: Path,
        keys: Callable[[str], Sequence[SigningKey]],
        folder: Path,
        channel: str,
        *,
        limits: MailboxLimits | None = None,
        sessions_max: int = SESSIONS_MAX,
        **options: Any,
    ) -> None:
        if options.get("record") == channel:
            raise Usage(
                f"channel {channel} takes no envelopes where sessions are recorded in it",
                advice="Record them in a separate channel.",
            )
        # A Unix socket does not identify its clients; any client has the rights of this account.
        connections = ConnectionLimits(sessions_max, address_max=sessions_max)
        super().__init__(home, keys, channels=[channel], limits=connections, **options)
        self.folder = folder.absolute()
        self._limits = limits or MailboxLimits()
        ring_bytes(self._limits.slots, self._limits.slot_bytes)  # Usage, now rather than later
        self._lock = ExitStack()

    @staticmethod
    def transport_over(tls: ssl.SSLContext | None) -> str:  # noqa: ARG004
        return TRANSPORT

    @property
    def _listeners(self) -> dict[str, Callable[[], Awaitable[Listening]]]:
        return {TRANSPORT: self._listen}

    @property
    def url(self) -> str:
        return f"mailbox:{self.folder}"

    @property
    def address(self) -> dict[str, Any]:
        return {"folder": str(self.folder)}

    def capabilities(self, lease: WriterLease, transport: str) -> Capabilities:
        return replace(super().capabilities(lease, transport), mailbox=self._limits)

    async def __aenter__(self) -> MailboxServer:
        with ExitStack() as stack:
            _make_private(self.folder)
            stack.enter_context(hold_folder(self.folder, 0.0))
            await self._recover_rings()
            await super().__aenter__()
            self._lock = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            await super().__aexit__(kind, error, trace)
            (self.folder / BELL).unlink(missing_ok=True)

    async def _listen(self) -> Listening:
        return await serve_bell(
            self._accept, self.folder / BELL, limits=self._connections, refused=self.refused
        )

    def _session(self, pipe: TcpPipe) -> LedgerSession:
        return MailboxSession(self, pipe, folder=self.folder, idle_s=self._idle_s)

    async def _recover_rings(self) -> None:
        """Finish the sessions that were open when a host before us was killed."""
        for path in sorted(self.folder.iterdir()):
            found = RING_NAME.fullmatch(path.name)
            if path.name.endswith(".ring.new"):
                path.unlink()
            elif found is not None and found[1] in self.channels:
                await self._recover_ring(path, self.lease(found[1]))
            elif found is not None:
                _journal.warning("%s: left alone, its channel is not served here", path)

    async def _recover_ring(self, path: Path, lease: WriterLease) -> None:
        able = self.capabilities(lease, TRANSPORT)
        try:
            mapped = map_ring(path)
        except Invalid as error:
            _journal.warning("%s: left alone: %s", path, error.detail)
            return
        ring = mapped.ring
        if not ring.head <= ring.tail <= ring.head + ring.slots:
            _journal.warning("%s: left alone: %d put in, %d acknowledged", path, ring.tail, ring.head)
            mapped.close()
            return
        key, _ = lease.keys(self.now_ns())
        await _Intake(mapped, lease, choose(able, able), key).end()


class MailboxSession(LedgerSession):
    """One sender. Requests come as ever, but for envelopes: these are in the ring when the bell rings."""

    def __init__(self, served: MailboxServer, pipe: TcpPipe, *, folder: Path, idle_s: float) -> None:
        super().__init__(served, pipe, transport=TRANSPORT, idle_s=idle_s, slot=pipe.slot)
        self._folder = folder
        self._intake: _Intake | None = None
        self._work: set[asyncio.Future[Outcomes]] = set()

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            for work in self._work:
                work.cancel()
            await asyncio.gather(*self._work, return_exceptions=True)
            if self._intake is not None:
                await self._intake.end()

    def _prepare(self, lease: WriterLease, agreement: Agreement, key: SigningKey) -> dict[str, Any]:
        limits = agreement.mailbox
        if limits is None or "append" not in agreement.features:
            return {}
        name = os.urandom(16)
        path = self._folder / f"{lease.channel}~{name.hex()}.ring"
        mapped = make_ring(path, limits.slots, limits.slot_bytes, name)
        self._intake = _Intake(mapped, lease, agreement, key)
        return {"ring": path.name}

    def _begin(self, message: RemoteMessage) -> AsyncGenerator[RemoteMessage, None]:
        if message.op != "append" or self._intake is None:
            return super()._begin(message)
        count = message.natural("slots")
        if message.parts or not self._intake.may_take(count):
            raise Invalid("message: `append` must have the number of filled slots and nothing else")
        work = asyncio.ensure_future(self._intake.take(count))
        self._work.add(work)
        work.add_done_callback(self._work.discard)
        return self._outcomes(message, work)

    async def _outcomes(
        self, message: RemoteMessage, work: asyncio.Future[Outcomes]
    ) -> AsyncGenerator[RemoteMessage, None]:
        count = len(await work)
        assert self._intake is not None
        said = self._intake.acknowledge(count)
        async for each in super()._outcomes(message, work):
            yield replace(each, facts=each.facts | said)


class _Intake:
    """The host's side of one ring: entries are taken, checked and sealed, then acknowledged."""

    def __init__(self, mapped: MappedRing, lease: WriterLease, agreement: Agreement, key: SigningKey) -> None:
        self._mapped, self._lease, self._agreement, self._key = mapped, lease, agreement, key
        self._reader = RingReader(mapped.ring)
        self._promised = self._reader.head
        self._pace = BurstLimiter(agreement.mailbox.burst_per_s if agreement.mailbox is not None else None)
        self._turn = asyncio.Lock()
        self._digests: deque[bytes] = deque()  # taken and not acknowledged

    def may_take(self, count: int) -> bool:
        """Return whether so many more can have been put in; if so, they are going to be taken."""
        if not 0 < count <= self._reader.head + self._mapped.ring.slots - self._promised:
            return False
        self._promised += count
        return True

    async def take(self, count: int) -> Outcomes:
        """Take the next ones, at the pace that was agreed on; one outcome each, in order."""
        async with self._turn:
            await asyncio.sleep(self._pace.wait_s(count, asyncio.get_running_loop().time()))
            found = self._reader.take(count)
            self._digests.extend(DAMAGED if isinstance(each, RopewalkError) else each[0] for each in found)
        outcomes: list[LedgerReceipt | RopewalkError | None] = []
        raws: list[bytes] = []
        for each in found:
            if isinstance(each, RopewalkError):
                outcomes.append(each)
                continue
            try:
                envelope = parse_cbor(each[1])
                self._agreement.check(envelope)
                raws.append(envelope.raw)
                outcomes.append(None)
            except RopewalkError as error:
                outcomes.append(error)
        rest = iter(await self._lease.submit_many(raws) if raws else [])
        return [next(rest) if outcome is None else outcome for outcome in outcomes]

    def acknowledge(self, count: int) -> dict[str, Any]:
        """Return the oldest have their outcomes: sign what they were, and let their slots be filled again."""
        first = self._reader.head
        digests = [self._digests.popleft() for _ in range(count)]
        signed = sign_root(self._key, self._mapped.ring.id, first, digests)
        self._reader.acknowledge(count, signed.to_bytes())
        damaged = [number for number, digest in enumerate(digests) if digest == DAMAGED]
        return {"mailbox": signed.to_json()} | ({"damaged": damaged} if damaged else {})

    async def end(self) -> None:
        """Take the remaining unanswered entries after the sender has left, then remove the ring."""
        ring = self._mapped.ring
        self._reader.rewind()
        self._digests.clear()
        self._pace = BurstLimiter(None)
        head = self._reader.head
        # A slot with a changed number must not hide those behind it; the tail has their count.
        count = min(max(ring.published(), ring.tail), head + ring.slots) - head
        outcomes = await self.take(count) if count else []
        if any(isinstance(outcome, Unavailable) for outcome in outcomes):
            _journal.warning("%s: kept, %s cannot be written now", self._mapped.path, self._lease.channel)
            self._mapped.close()
            return
        for outcome in outcomes:
            if isinstance(outcome, RopewalkError):
                _journal.warning("%s: refused: %s", self._mapped.path, outcome.detail)
        if outcomes:
            self.acknowledge(count)
            _journal.info("%s: %d taken whose sender has gone", self._mapped.path, count)
        self._mapped.remove()


def _make_private(folder: Path) -> None:
    """Make the folder for us alone; refuse one that others can write into."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError as error:
        raise Unavailable(f"{folder}: {os.strerror(error.errno or 0)}") from error
    if found.st_uid != os.geteuid() or found.st_mode & 0o002:
        raise Denied(
            f"{folder} must belong to this user and not be writable by others",
            advice="Name a folder that is not there yet, or one of your own.",
        )
