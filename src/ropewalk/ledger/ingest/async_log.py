"""Serve one channel to many coroutines through a single writer thread.

The thread checks and writes submissions in order. Submissions that arrive while a batch is written join the next
batch, so batches grow with the load. Large batches cost less than more threads.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

from ropewalk.errors import RopewalkError, Unavailable, Usage
from ropewalk.ledger.ingest.log import ChannelWriter, check_wire
from ropewalk.ledger.ingest.ticket import LedgerReceipt

Outcomes = list[LedgerReceipt | RopewalkError]
Arrival = tuple[list[bytes], "asyncio.Future[Outcomes]"]


class ServedLog:
    """One channel for any number of coroutines of one event loop. Use it in an `async with`."""

    def __init__(self, log: ChannelWriter) -> None:
        self._log = log
        self._thread = ThreadPoolExecutor(1)
        self._arrivals: list[Arrival] = []
        self._idle = asyncio.Event()  # no submission is waiting
        self._idle.set()
        self._loop: asyncio.AbstractEventLoop | None = None  # the loop of the first submission

    async def submit(self, raw: bytes) -> LedgerReceipt:
        """Check one envelope, place it in a block, and return its receipt once the block is durable.

        If the caller cancels, the envelope may still be written.
        """
        (outcome,) = await self.submit_many((raw,))
        if isinstance(outcome, RopewalkError):
            raise outcome
        return outcome

    async def submit_many(self, raws: Sequence[bytes]) -> Outcomes:
        """Submit in order, sharing blocks and syncs with other callers; errors are returned in place of receipts."""
        loop = asyncio.get_running_loop()
        self._loop = self._loop or loop
        if loop is not self._loop:  # its results would be set from another thread, or never
            raise Usage(
                "this channel is served in another event loop", advice="Make a ServedLog for each loop."
            )
        outcomes: asyncio.Future[Outcomes] = loop.create_future()
        self._arrivals.append(([check_wire(raw) for raw in raws], outcomes))
        if self._idle.is_set():
            self._idle.clear()
            loop.call_soon(self._start_batch, loop)  # after every submission of this loop iteration
        return await outcomes

    def _start_batch(self, loop: asyncio.AbstractEventLoop) -> None:
        batch, self._arrivals = self._arrivals, []
        try:
            self._thread.submit(self._serve, batch, loop)
        except RuntimeError:  # submitted after the end
            refusal = Unavailable("this channel is no longer served", advice="Open the channel again.")
            self._answer(batch, refusal, loop)

    def _serve(self, batch: Sequence[Arrival], loop: asyncio.AbstractEventLoop) -> None:
        """Write a batch in the writer thread, even if its callers have left."""
        outcomes: Outcomes | BaseException
        try:
            outcomes = self._log.submit_many([raw for raws, _ in batch for raw in raws])
        except StopIteration as error:  # a future cannot hold StopIteration
            outcomes = RuntimeError(f"submitting raised {error!r}")
        except BaseException as error:
            outcomes = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits any more
            loop.call_soon_threadsafe(self._answer, batch, outcomes, loop)

    def _answer(
        self, batch: Sequence[Arrival], outcomes: Outcomes | BaseException, loop: asyncio.AbstractEventLoop
    ) -> None:
        """Deliver the outcomes of a batch, then start the next batch once these callers could submit again."""
        at = 0
        for raws, waiting in batch:
            if waiting.done():  # the caller was cancelled
                pass
            elif isinstance(outcomes, BaseException):
                waiting.set_exception(outcomes)
            else:
                waiting.set_result(outcomes[at : at + len(raws)])
            at += len(raws)
        loop.call_soon(self._next_batch, loop)

    def _next_batch(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._arrivals:
            self._start_batch(loop)
        else:
            self._idle.set()

    async def __aenter__(self) -> ServedLog:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._loop is asyncio.get_running_loop():
                while not self._idle.is_set():  # another submission may arrive before this task wakes
                    await self._idle.wait()
        finally:
            self._thread.shutdown()
