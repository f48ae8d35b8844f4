"""Waiting for what another thread, task or process does: never longer than a limit, so that no test hangs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

LIMIT_S = 60.0  # far above what anything here takes


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
