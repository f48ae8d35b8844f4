"""Noticing that whoever reads what we print has gone: a command that waits would learn it from its next line only."""

from __future__ import annotations

import os
import select
import stat
import sys
import threading


def output_pipe() -> int | None:
    """The descriptor we print into, if that is a pipe or a socket; nothing else has a reader who could go."""
    try:
        descriptor = sys.stdout.fileno()
        mode = os.fstat(descriptor).st_mode
        return descriptor if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) else None
    except (OSError, ValueError):  # no file at all, as in a program that calls us
        return None


def has_ended(descriptor: int) -> bool:
    """Whether nobody can read it any more; a socket whose other end only writes no more still has a reader."""
    found = select.poll()
    found.register(descriptor, 0)
    return bool(found.poll(0))


class Hangup(threading.Event):
    """Set once nobody reads what we print; waiting for it is waiting on the pipe."""

    def __init__(self) -> None:
        super().__init__()
        self._pipe = select.poll()
        self._reader = output_pipe()
        if self._reader is not None:
            self._pipe.register(self._reader, 0)  # so that nothing is told but its hang-up

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the hang-up, at most so many seconds; whether it has come."""
        if self._reader is None:
            return super().wait(timeout)
        if self._pipe.poll(None if timeout is None else timeout * 1_000):
            self.set()
        return self.is_set()
