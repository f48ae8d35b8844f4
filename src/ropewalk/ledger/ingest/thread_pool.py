"""A thread pool for work that releases the interpreter lock, such as checking signatures."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from ropewalk.disk.closing import Closing

T = TypeVar("T")
U = TypeVar("U")

COUNT = min(4, os.cpu_count() or 1)
PIECE = 4  # items a thread takes at a time: bounds how long a stalled thread delays the result


class ThreadPool(Closing):
    """Run a function over a list in a few threads, including the caller's. Use it in a `with`, or close it.

    >>> with ThreadPool(2) as pool:
    ...     pool(lambda items: [item * 2 for item in items], range(10))
    [0, 2, 4, 6, 8, 10, 12, 14, 16, 18]
    """

    def __init__(self, count: int = COUNT) -> None:
        self._count, self._process = count, os.getpid()
        self._others = ThreadPoolExecutor(count - 1) if count > 1 else None

    def __call__(self, act: Callable[[Sequence[T]], list[U]], items: Sequence[T]) -> list[U]:
        """Return the results of `act` over all items, in order."""
        alone = os.getpid() != self._process  # a forked child does not inherit threads
        if self._others is None or len(items) < 2 * PIECE or alone:
            return act(items)
        made: dict[int, list[U]] = {}
        firsts = iter(range(0, len(items), PIECE))

        def work() -> None:
            for first in firsts:
                made[first] = act(items[first : first + PIECE])

        others: list[Future[None]] = []
        # the pool is closed or the interpreter ends: this thread does all the work
        with contextlib.suppress(RuntimeError):
            while len(others) < self._count - 1:
                others.append(self._others.submit(work))
        work()
        for other in others:
            if not other.cancel():  # do not wait for a task that has not begun
                other.result()
        return [each for first in sorted(made) for each in made[first]]

    def close(self) -> None:
        if self._others is not None:
            self._others.shutdown()
