"""A ledger channel served to coroutines: a server with a thousand callers needs two threads, not a thousand.

One thread judges what has arrived, in order; the other writes what was judged. Whoever submits while a batch is under
way comes along with the next one: large batches cost less than hands that are never idle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Final

from ropewalk.errors import RopewalkError
from ropewalk.ledger.log import Log
from ropewalk.ledger.ticket import Receipt

__all__ = ["ServedLog"]

BATCHES: Final = 2  # under way at most: one is judged, one is written

Arrival = tuple[bytes, "asyncio.Future[Receipt]"]


class ServedLog:
    """One channel for any number of coroutines of one event loop. Use it in an `async with`."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._judge, self._writer = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        self._arrivals: list[Arrival] = []
        self._under_way: set[asyncio.Task[None]] = set()
        self._called = False

    async def submit(self, raw: bytes) -> Receipt:
        """Judge one envelope, place it in a block, and return its receipt once the block is durable."""
        receipt: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        self._arrivals.append((raw, receipt))
        self._call()
        return await receipt

    def _call(self) -> None:
        """Let the next batch go after all who are ready to submit in this turn."""
        if self._arrivals and not self._called and len(self._under_way) < BATCHES:
            self._called = True
            asyncio.get_running_loop().call_soon(self._let_in)

    def _let_in(self) -> None:
        self._called = False
        batch, self._arrivals = self._arrivals, []
        task = asyncio.get_running_loop().create_task(self._see_through(batch))
        self._under_way.add(task)
        task.add_done_callback(partial(self._end, batch))
        self._call()

    async def _see_through(self, batch: Sequence[Arrival]) -> None:
        """Give everybody in the batch an answer."""
        outcomes = await self._submit([raw for raw, _ in batch])
        for (_, receipt), outcome in zip(batch, outcomes, strict=True):
            if receipt.done():  # the caller has gone; the envelope stands all the same
                continue
            if isinstance(outcome, Receipt):
                receipt.set_result(outcome)
            else:
                receipt.set_exception(outcome)

    def _end(self, batch: Sequence[Arrival], task: asyncio.Task[None]) -> None:
        """However a batch ended, nobody waits for it any more; the next one may go."""
        for _, receipt in batch:
            receipt.cancel()  # nothing happens to who has an answer
        self._under_way.discard(task)
        self._call()

    async def _submit(self, raws: list[bytes]) -> Sequence[Receipt | Exception]:
        try:
            return await asyncio.wrap_future(await asyncio.wrap_future(self._judge.submit(self._place, raws)))
        except Exception as error:
            return [error] * len(raws)

    def _place(self, raws: list[bytes]) -> Future[list[Receipt | RopewalkError]]:
        """In the judge's thread. Hands on to the writer's itself: what was placed is written, whoever still waits.

        If nobody does the writer may be told not to begin; then what comes next is written with it, or the end is.
        """
        return self._writer.submit(self._log.write_placed, self._log.place_many(raws))

    async def __aenter__(self) -> ServedLog:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._under_way or self._arrivals:
            await asyncio.gather(asyncio.sleep(0), *self._under_way, return_exceptions=True)
        self._judge.shutdown()
        self._writer.submit(self._log.write_placed, [])  # what a cancelled batch had placed
        self._writer.shutdown()
