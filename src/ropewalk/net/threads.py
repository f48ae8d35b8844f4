"""Stores are synchronous; whoever serves coroutines calls them in threads."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


async def in_thread(act: Callable[..., T], *arguments: Any) -> T:
    """Call a store in a thread. Cancelled, it still waits: nobody may close what a thread is reading."""
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
