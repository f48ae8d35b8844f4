"""A folder that one process at a time may fill. The lock is on the folder itself, so it leaves nothing in it."""

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

    `Unavailable` if another process is in there for longer than we wait.
    """
    with file_errors(str(folder)):
        (disk or Disk()).make_directories(folder)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _wait(descriptor, folder, time.monotonic() + wait_s)
        yield
    finally:
        os.close(descriptor)


def _wait(descriptor: int, folder: Path, deadline: float) -> None:
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise unavailable(error, str(folder)) from error
            if time.monotonic() >= deadline:
                raise Unavailable(
                    f"another process is writing into {folder}",
                    advice="One at a time may; run it again when that one has ended.",
                ) from error
        time.sleep(POLL_S)
