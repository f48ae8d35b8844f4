"""Wait for commits to a log, also those of other processes: the kernel reports writes to the store's file.

A report wakes; only the log's version shows what was committed. LMDB moves the version after the write that is
reported, so a waiter looks again after short pauses that double. They end at a slow poll, which is also all there is
where the kernel reports nothing: another system, a store in memory, no inotify instance left.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import sys
from pathlib import Path

from ropewalk.gossip.core.log import GossipLog

FIRST_S = 0.0005  # from a report to the second look
WATCHED_S = 0.1  # between looks at a store whose writes are reported
POLLED_S = 0.01  # between looks at any other; one takes microseconds
_IN_MODIFY = 2
_REPORTS_BYTES = 4096


class CommitWatch:
    """Waits until a log may have changed, in a thread or, with `wait_async` and `wake`, in an event loop."""

    def __init__(self, log: GossipLog) -> None:
        folder: Path | None = getattr(log.table, "path", None)
        self._file = None if folder is None else _report_writes(folder / "data.mdb")
        self._idle_s = POLLED_S if self._file is None else WATCHED_S
        self._pause_s = FIRST_S
        self._woken = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def __enter__(self) -> CommitWatch:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            if self._loop is not None:
                self._loop.remove_reader(self._file)
            os.close(self._file)
            self._file = None

    def wait(self) -> None:
        """Return when something was written, or after a pause."""
        poll = select.poll()
        if self._file is not None:
            poll.register(self._file, select.POLLIN)
        self._note(bool(poll.poll(1000 * self._pause_s)))

    async def wait_async(self) -> None:
        """Return when something was written, or `wake` was called, or after a pause."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            if self._file is not None:
                self._loop.add_reader(self._file, self.wake)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._pause_s):
                await self._woken.wait()
        self._note(self._woken.is_set())
        self._woken.clear()

    def wake(self) -> None:
        """End the wait; call it in the event loop."""
        self._drain()
        self._woken.set()

    def _note(self, woken: bool) -> None:
        self._drain()
        self._pause_s = FIRST_S if woken else min(2 * self._pause_s, self._idle_s)

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._file is not None:
                os.read(self._file, _REPORTS_BYTES)


def _report_writes(path: Path) -> int | None:
    """Return a file that becomes readable when `path` is written to, or None where there is no such thing."""
    if sys.platform != "linux":
        return None
    import ctypes  # takes longer to import than most commands run

    libc = ctypes.CDLL(None)
    file = int(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    if file >= 0 and libc.inotify_add_watch(file, os.fsencode(path), _IN_MODIFY) < 0:
        os.close(file)
        return None
    return file if file >= 0 else None
