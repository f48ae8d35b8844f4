"""Threads, tasks and processes of tests: whatever they do, nobody waits for them longer than a limit.

A test that runs out of time is told so in the main thread alone. What it began elsewhere must not hold it up then: not
the threads of a pool, for which `with` and the end of the interpreter would wait, nor a process that nobody ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, AnyStr, TypeVar

__all__ = ["LIMIT_S", "Crew", "aside", "ended", "soon", "together", "until"]

LIMIT_S = 120.0  # far above what anything here takes, and below the limit of a test
T = TypeVar("T")


def until(holds: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
    """Let other threads and processes go on until it holds."""
    end = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


async def soon(holds: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
    """Let the other tasks of this loop go on until it holds."""
    end = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < end, "it did not happen"
        await asyncio.sleep(0.01)


class Crew:
    """Some threads that do what they are given, in turn. After the block they are done, or the test has failed."""

    def __init__(self, count: int) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def submit(self, act: Callable[..., T], *given: Any) -> Future[T]:
        """Have it done by whoever is free."""
        done: Future[T] = Future()

        def call() -> None:
            if not done.set_running_or_notify_cancel():
                return
            try:
                done.set_result(act(*given))
            except BaseException as error:
                done.set_exception(error)

        self._calls.put(call)
        return done

    def map(self, act: Callable[[Any], T], items: Iterable[Any]) -> list[T]:
        """What comes of each, in order."""
        return [each.result(LIMIT_S) for each in [self.submit(act, item) for item in items]]

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        for _thread in self._threads:
            self._calls.put(None)
        if kind is None:  # else something has failed already, and they may never come
            for thread in self._threads:
                thread.join(LIMIT_S)
            assert not any(thread.is_alive() for thread in self._threads), "somebody waits for ever"

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


def together(*acts: Callable[[], object]) -> None:
    """Each in a thread of its own, all at once; what goes wrong in one is raised."""
    with Crew(len(acts)) as crew:
        for done in [crew.submit(act) for act in acts]:
            done.result(LIMIT_S)


async def aside(act: Callable[..., T], *given: Any) -> T:
    """What `asyncio.to_thread` does, but a loop that ends does not wait for a thread that hangs."""
    crew = Crew(1)
    done = crew.submit(act, *given)
    crew.__exit__(True)
    return await asyncio.wait_for(asyncio.wrap_future(done), LIMIT_S)


@contextlib.contextmanager
def ended(process: subprocess.Popen[AnyStr], limit_s: float = LIMIT_S) -> Iterator[subprocess.Popen[AnyStr]]:
    """A process that outlives neither the block nor the limit: who reads from it or waits for it comes to an end."""
    timer = threading.Timer(limit_s, process.kill)
    timer.daemon = True
    timer.start()
    with process:
        try:
            yield process
        finally:
            timer.cancel()
            process.kill()
