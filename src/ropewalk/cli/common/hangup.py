"""Detect that the reader of stdout has closed its pipe, also while nothing is printed."""

from __future__ import annotations

import os
import select
import stat
import sys
import threading


def output_pipe() -> int | None:
    """Return the descriptor of stdout if it is a pipe or a socket, else None."""
    try:
        descriptor = sys.stdout.fileno()
        mode = os.fstat(descriptor).st_mode
        return descriptor if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) else None
    except (OSError, ValueError):  # stdout is not a file, as in a program that calls us
        return None


def has_ended(descriptor: int) -> bool:
    """Return whether the reader has closed it. A socket half-closed by its peer still has a reader."""
    found = select.poll()
    found.register(descriptor, 0)
    return bool(found.poll(0))


class Hangup(threading.Event):
    """An event that is set when the reader of stdout has closed its pipe."""

    def __init__(self) -> None:
        super().__init__()
        self._pipe = select.poll()
        self._reader = output_pipe()
        if self._reader is not None:
            self._pipe.register(self._reader, 0)  # no event mask: poll reports hang-ups only

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the hang-up, at most `timeout` seconds; return whether it has happened."""
        if self._reader is None:
            return super().wait(timeout)
        if self._pipe.poll(None if timeout is None else timeout * 1_000):
            self.set()
        return self.is_set()
