"""Locks on files and folders that the kernel releases when their holder ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from ropewalk.disk.durable import Disk, file_errors, unavailable
from ropewalk.errors import Unavailable

POLL_S = 0.02


@contextlib.contextmanager
def hold_folder(folder: Path, wait_s: float, disk: Disk | None = None) -> Iterator[None]:
    """Make the folder where it is missing, and keep out everybody else who holds it before filling it.

    The lock is on the folder itself, so it leaves nothing in it. `Unavailable` if another process is in there for
    longer than we wait.
    """
    with file_errors(str(folder)):
        (disk or Disk()).make_directories(folder)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        busy = Unavailable(
            f"another process is writing into {folder}",
            advice="One at a time may; run it again when that one has ended.",
        )
        take_lock(descriptor, wait_s, str(folder), busy)
        yield
    finally:
        os.close(descriptor)


def take_lock(descriptor: int, wait_s: float, name: str, busy: Unavailable) -> None:
    """Lock an open file; raise `busy` if another process has it for longer than we wait."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise unavailable(error, name) from error
            if time.monotonic() >= deadline:
                raise busy from error
        time.sleep(POLL_S)


@contextlib.contextmanager
def hold_file(path: Path, mode: int = 0o666) -> Iterator[None]:
    """Hold the lock of a file, made where it is missing, however long another process has it. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
