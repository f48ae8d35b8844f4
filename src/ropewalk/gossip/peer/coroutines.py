"""Coroutine functions as callbacks of an engine, which has no event loop: each call is run to its end at once."""

from __future__ import annotations

import asyncio
import functools
import inspect
from asyncio import events
from collections.abc import Awaitable, Callable
from typing import Any


def settled(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with its coroutines run to their end; other results are left as they are.

    >>> async def double(number): return 2 * number
    >>> settled(double)(21)
    42
    """

    @functools.wraps(call)
    def run(*given: Any) -> Any:
        result = call(*given)
        return run_to_end(result) if inspect.isawaitable(result) else result

    return run


def run_to_end(awaitable: Awaitable[Any]) -> Any:
    """Run it in a new event loop in this thread, so that callbacks read what their transaction wrote.

    A loop that already runs in this thread is blocked meanwhile, as by any call that is not awaited.
    """

    async def run() -> Any:
        return await awaitable

    outer = events._get_running_loop()
    events._set_running_loop(None)
    try:
        with asyncio.Runner() as runner:
            return runner.run(run())
    finally:
        events._set_running_loop(outer)
