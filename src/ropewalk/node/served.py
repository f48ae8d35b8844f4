"""A ledger channel served to coroutines: a server with a thousand callers needs one thread, not a thousand.

Whoever submits while a batch is under way comes along with the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

from ropewalk.ledger.log import Log
from ropewalk.ledger.ticket import Receipt

__all__ = ["ServedLog"]


class ServedLog:
    """One channel for any number of coroutines of one event loop. Use it in an `async with`."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._pool = ThreadPoolExecutor(1)
        self._arrivals: list[tuple[bytes, asyncio.Future[Receipt]]] = []
        self._task: asyncio.Task[None] | None = None

    async def submit(self, raw: bytes) -> Receipt:
        """Judge one envelope, place it in a block, and return its receipt once the block is durable."""
        receipt: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        self._arrivals.append((raw, receipt))
        if self._task is None:
            self._task = asyncio.create_task(self._work())
        return await receipt

    async def _work(self) -> None:
        """Submit what has arrived, batch after batch, until nothing is left."""
        try:
            while self._arrivals:
                await asyncio.sleep(0)  # whoever is ready to submit in this turn comes along
                batch, self._arrivals = self._arrivals, []
                try:
                    outcomes = await self._submit_many([raw for raw, _ in batch])
                except BaseException:
                    for _, receipt in batch:
                        receipt.cancel()
                    raise
                for (_, receipt), outcome in zip(batch, outcomes, strict=True):
                    if receipt.done():  # the caller has gone; the envelope stands all the same
                        continue
                    if isinstance(outcome, Receipt):
                        receipt.set_result(outcome)
                    else:
                        receipt.set_exception(outcome)
                await asyncio.sleep(0)  # who has a receipt may have more to say
        finally:
            # In the same turn as the last look at the arrivals, so that nobody is overlooked.
            self._task = None

    async def _submit_many(self, raws: list[bytes]) -> Sequence[Receipt | Exception]:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, self._log.submit_many, raws)
        except Exception as error:
            return [error] * len(raws)

    async def __aenter__(self) -> ServedLog:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        self._pool.shutdown()
