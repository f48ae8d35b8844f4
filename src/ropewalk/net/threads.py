"""Call synchronous stores from coroutines, in threads."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


async def in_thread(act: Callable[..., T], *arguments: Any) -> T:
    """Call a store in a thread. A cancelled call still waits, so that the store is not closed while it is read."""
    task = asyncio.ensure_future(asyncio.to_thread(act, *arguments))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # seen; being cancelled is what counts
        raise
