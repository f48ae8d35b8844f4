"""The writer lease of one channel in a server: the channel is open for writing only while it is used.

A channel has one writer at a time. A server that kept it open would block every local command that appends; so it is
opened for the first batch, and closed after a second without one. If another process waits for the lock, it is also
closed under constant load, long enough for that process to get it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ropewalk.errors import NotFound, RopewalkError, Unavailable
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.channel.channel import OpenLog, current_policy, open_channel
from ropewalk.ledger.channel.segments.writer import has_waiters
from ropewalk.ledger.channel.settings import ChannelSettings, read_settings
from ropewalk.ledger.ingest.async_log import ServedLog
from ropewalk.ledger.ingest.ports import Head
from ropewalk.ledger.ingest.ticket import LedgerReceipt
from ropewalk.ledger.keys.history import KeyProof
from ropewalk.ledger.keys.rotate import open_sealing
from ropewalk.ledger.proof.proof import Proof
from ropewalk.ledger.rules.policy import Policy
from ropewalk.net.threads import in_thread

LINGER_S = 1.0
TURN_S = 1.0  # how long a door stays open while others wait, and how long it stays closed for them to come in
HEIGHT_MAX = 1 << 53  # of blocks to come
WRITER_WAIT_S = 30.0  # a command that appends on the spot may be at it for so long
POLL_S = 0.01
READ_BYTES = 1 << 20  # of blocks that are read at a time

_journal = logging.getLogger("ropewalk.ledger.remote")
_journal.addHandler(logging.NullHandler())

Found = tuple[int, list[bytes]]


class WriterLease:
    """One channel for many sessions of one event loop."""

    def __init__(
        self,
        home: Path,
        channel: str,
        keys: Callable[[str], Sequence[SigningKey]],
        *,
        linger_s: float = LINGER_S,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.channel = channel
        self._home, self._keys, self._linger_s, self._now_ns = home, keys, linger_s, now_ns
        self._opening = asyncio.Lock()
        self._opened: OpenLog | None = None
        self._served: ServedLog | None = None
        self._writers = 0
        self._broken = False  # it refused what it should have taken: open it again
        self._ended = False
        self._turn_s = 0.0  # when others may have their turn
        self._closing: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def settings(self) -> ChannelSettings:
        """Return the settings of the channel, as they are now."""
        return read_settings(self._home, self.channel)

    def policy(self) -> Policy | None:
        """Return the policy in force for the next block."""
        return current_policy(self._home, self.channel)

    def keys(self, now_ns: int) -> tuple[SigningKey, tuple[KeyProof, ...]]:
        """Return the key that answers for the channel, which is one that seals it now, and how it came to be that."""
        found = self._keys(self.channel)
        with open_channel(self._home, self.channel) as reading:
            proofs, key_history = reading.key_proofs(), reading.key_history()
        validities = ((key, key_history.validity(key.public)) for key in found)
        counting = (
            key
            for key, validity in validities
            if validity is not None and validity.is_valid(HEIGHT_MAX, now_ns)
        )
        return next(counting, found[0]), proofs

    async def submit_many(self, raws: Sequence[bytes]) -> list[LedgerReceipt | RopewalkError]:
        """Judge and seal envelopes; one outcome each, in order."""
        self._writers += 1
        try:
            served = await self._acquire()
            outcomes = await served.submit_many(raws)
            self._broken |= any(isinstance(outcome, Unavailable) for outcome in outcomes)
            return outcomes
        except RopewalkError as error:
            return [error] * len(raws)
        finally:
            self._writers -= 1
            if not self._writers:
                self._close_later()

    async def head(self) -> Head:
        """Return where the channel ends."""
        if self._opened is not None:
            return self._opened.log.head
        return await in_thread(self._read_head)

    async def read(self, start: int, end: int | None = None) -> list[Found]:
        """Return some blocks from a height on, at least one if there is any."""
        if self._opened is not None:  # blocks that are not yet durable must not be copied
            last = self._opened.log.head.height - 1
            end = last if end is None else min(end, last)
        return await in_thread(self._read, start, end)

    async def prove(self, envelope_id: bytes) -> Proof:
        """Return the proof of one envelope; NotFound if it is not in the channel."""
        return await in_thread(self._prove, envelope_id)

    async def close(self) -> None:
        """Close it once all callers have their answers."""
        if self._closing is not None:
            self._closing.cancel()
        self._ended = True
        async with self._opening:
            await self._release()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _acquire(self) -> ServedLog:
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None
        async with self._opening:
            if self._ended:
                raise Unavailable(f"channel {self.channel} is not served any more")
            if self._broken:
                await self._release()
            await self._yield_to_waiters()
            if self._served is None:
                self._opened = await in_thread(self._open)
                self._turn_s = asyncio.get_running_loop().time() + TURN_S
                self._served = ServedLog(self._opened.log)
            return self._served

    async def _yield_to_waiters(self) -> None:
        """Release the write lock if another process is waiting and our time slice is over; callers get their answers
        first.
        """
        now = asyncio.get_running_loop().time
        if self._opened is None or now() < self._turn_s or not has_waiters(self._opened.channel.folder):
            return
        folder = self._opened.channel.folder
        await self._release()
        end = now() + TURN_S
        while now() < end and has_waiters(folder):
            await asyncio.sleep(POLL_S)

    def _open(self) -> OpenLog:
        opened = open_sealing(
            self._home,
            self.channel,
            lambda: self._keys(self.channel),
            wait_s=WRITER_WAIT_S,
            now_ns=self._now_ns,
        )
        if opened.torn is not None:
            _journal.warning("channel %s: cut %d bytes a crash had left", self.channel, opened.torn.size)
        return opened

    def _close_later(self) -> None:
        loop = asyncio.get_running_loop()

        def close() -> None:
            task = loop.create_task(self._close_if_idle())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        if self._closing is not None:
            self._closing.cancel()
        self._closing = loop.call_later(self._linger_s, close)

    async def _close_if_idle(self) -> None:
        async with self._opening:
            if not self._writers:
                await self._release()

    async def _release(self) -> None:
        served, self._served = self._served, None
        opened, self._opened = self._opened, None
        self._broken = False
        if served is None or opened is None:
            return
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(in_thread, opened.close)
            await stack.enter_async_context(served)

    def _read_head(self) -> Head:
        with open_channel(self._home, self.channel) as reading:
            return reading.head()

    def _prove(self, envelope_id: bytes) -> Proof:
        with open_channel(self._home, self.channel) as reading:
            return reading.prove(envelope_id)

    def _read(self, start: int, end: int | None) -> list[Found]:
        found: list[Found] = []
        size = 0
        with open_channel(self._home, self.channel) as reading, contextlib.suppress(NotFound):
            for height, lines in reading.lines(start, end):
                found.append((height, lines))
                size += sum(map(len, lines))
                if size >= READ_BYTES:
                    break
        return found
