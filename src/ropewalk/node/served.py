"""A ledger channel served to coroutines: a server with a thousand callers needs two threads, not a thousand.

Callers of one turn of the event loop are judged together. Two halves are under way at once: while one is on its way to
the disk, the other is judged.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

from ropewalk.errors import RopewalkError
from ropewalk.ledger.log import Log
from ropewalk.ledger.ticket import Receipt

__all__ = ["ServedLog"]

HANDS = 2  # halves under way at once
SPLIT_FROM = 16  # fewer than this are not worth two blocks


class ServedLog:
    """One channel for any number of coroutines of one event loop. Use it in an `async with`."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._pool = ThreadPoolExecutor(HANDS)
        self._arrivals: list[tuple[bytes, asyncio.Future[Receipt]]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._under_way = 0

    async def submit(self, raw: bytes) -> Receipt:
        """Judge one envelope, place it in a block, and return its receipt once the block is durable."""
        receipt: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        self._arrivals.append((raw, receipt))
        if len(self._tasks) < HANDS:
            self._begin()
        return await receipt

    def _begin(self) -> None:
        task = asyncio.create_task(self._work())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(0)  # whoever is ready to submit in this turn comes along
        while self._arrivals:
            batch, self._arrivals = self._arrivals, []
            if not self._under_way and len(batch) >= SPLIT_FROM:
                half = len(batch) // 2
                batch, self._arrivals = batch[:half], batch[half:]
                if len(self._tasks) < HANDS:
                    self._begin()
            self._under_way += 1
            try:
                outcomes = await loop.run_in_executor(
                    self._pool, self._log.submit_many, [raw for raw, _ in batch]
                )
            except BaseException as error:
                for _, receipt in batch:
                    if not receipt.done():
                        receipt.set_exception(error)
                raise
            finally:
                self._under_way -= 1
            for (_, receipt), outcome in zip(batch, outcomes, strict=True):
                if receipt.done():  # the caller has gone; the envelope stands all the same
                    continue
                if isinstance(outcome, RopewalkError):
                    receipt.set_exception(outcome)
                else:
                    receipt.set_result(outcome)

    async def __aenter__(self) -> ServedLog:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        self._pool.shutdown()
