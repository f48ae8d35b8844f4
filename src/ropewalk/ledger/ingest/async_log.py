"""A ledger channel served to coroutines: a server with a thousand callers needs one thread, not a thousand.

The thread judges and writes what has arrived, in order. Whoever submits while a batch is under way comes along with
the next one: batches grow with the load, and large ones cost less than hands that are never idle.
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
        self._idle = asyncio.Event()  # nobody waits for an answer
        self._idle.set()
        self._loop: asyncio.AbstractEventLoop | None = None  # that of the first who submits

    async def submit(self, raw: bytes) -> LedgerReceipt:
        """Judge one envelope, place it in a block, and return its receipt once the block is durable.

        Whoever stops waiting learns nothing; the envelope may stand all the same.
        """
        (outcome,) = await self.submit_many((raw,))
        if isinstance(outcome, RopewalkError):
            raise outcome
        return outcome

    async def submit_many(self, raws: Sequence[bytes]) -> Outcomes:
        """Submit in order, sharing blocks and syncs with all who come; refusals stand in their places."""
        loop = asyncio.get_running_loop()
        self._loop = self._loop or loop
        if loop is not self._loop:  # its answers would come from another thread, or never
            raise Usage(
                "this channel is served to another event loop", advice="Make a ServedLog for each loop."
            )
        outcomes: asyncio.Future[Outcomes] = loop.create_future()
        self._arrivals.append(([check_wire(raw) for raw in raws], outcomes))
        if self._idle.is_set():
            self._idle.clear()
            loop.call_soon(self._start_batch, loop)  # after all who are ready to submit in this turn
        return await outcomes

    def _start_batch(self, loop: asyncio.AbstractEventLoop) -> None:
        batch, self._arrivals = self._arrivals, []
        try:
            self._thread.submit(self._serve, batch, loop)
        except RuntimeError:  # they came after the end
            refusal = Unavailable("this channel is not served any more", advice="Open the channel again.")
            self._answer(batch, refusal, loop)

    def _serve(self, batch: Sequence[Arrival], loop: asyncio.AbstractEventLoop) -> None:
        """In the thread: what was taken in is written, whoever still waits."""
        outcomes: Outcomes | BaseException
        try:
            outcomes = self._log.submit_many([raw for raws, _ in batch for raw in raws])
        except StopIteration as error:  # no future takes it
            outcomes = RuntimeError(f"submitting raised {error!r}")
        except BaseException as error:
            outcomes = error
        with contextlib.suppress(RuntimeError):  # the loop was torn down: nobody waits any more
            loop.call_soon_threadsafe(self._answer, batch, outcomes, loop)

    def _answer(
        self, batch: Sequence[Arrival], outcomes: Outcomes | BaseException, loop: asyncio.AbstractEventLoop
    ) -> None:
        """Give everybody in the batch an answer, and let the next one go after all who submit again at once."""
        at = 0
        for raws, waiting in batch:
            if waiting.done():  # the caller has gone
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
                while not self._idle.is_set():  # somebody may come again before this one is woken
                    await self._idle.wait()
        finally:
            self._thread.shutdown()
