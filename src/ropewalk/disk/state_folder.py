"""A folder of small files that one process at a time may change, each change whole and durable before it is used."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from ropewalk.disk.durable import Disk, file_errors, unavailable
from ropewalk.errors import Damaged, NotFound, TooLarge, Unavailable

FILE_BYTES_MAX = 1 << 20
LOCK_POLL_S = 0.02
LOCK = "lock"


class StateFolder:
    """Read and replace small files by name, as bytes. The caller interprets them."""

    def __init__(self, folder: Path, disk: Disk | None = None) -> None:
        self.folder = folder
        self._disk = disk or Disk()

    def make(self) -> None:
        """Make the folder, where it is missing; only its owner may look inside."""
        with self._telling():
            if not self.folder.is_dir():
                self._disk.make_directories(self.folder.parent)
                self.folder.mkdir(mode=0o700)
                self._disk.fsync_directory(self.folder.parent)

    @contextlib.contextmanager
    def locked(self, wait_s: float) -> Iterator[None]:
        """Keep every other process out; `Unavailable` if one is in there for longer than we wait."""
        with self._telling():
            descriptor = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._wait(descriptor, wait_s)
            yield
        finally:
            os.close(descriptor)

    def read(self, name: str) -> bytes:
        """Return the bytes of a file; `NotFound` if there is none."""
        path = self.folder / name
        try:
            with path.open("rb") as stream:
                raw = stream.read(FILE_BYTES_MAX + 1)
        except FileNotFoundError as error:
            raise NotFound(f"no file {path}", name=str(path)) from error
        except OSError as error:
            raise unavailable(error, str(self.folder)) from error
        if len(raw) > FILE_BYTES_MAX:
            raise Damaged(f"{path} is larger than anything written there", reason="state")
        return raw

    def replace(self, name: str, raw: bytes) -> None:
        """Put the bytes in place of what a file held. On disk when this returns; on failure the old ones are."""
        if len(raw) > FILE_BYTES_MAX:  # it could never be read again
            raise TooLarge(f"{self.folder / name}: {len(raw)} bytes", size=len(raw), limit=FILE_BYTES_MAX)
        with self._telling():
            self._disk.replace(self.folder / name, raw, mode=0o600)

    def names(self, prefix: str) -> list[str]:
        """Return the files whose names begin so, sorted; not the lock, nor what a killed process left of a file."""
        with self._telling():
            found = [path.name for path in self.folder.glob(f"{prefix}*")]
        return sorted(name for name in found if name != LOCK and not name.startswith("."))

    def _wait(self, descriptor: int, wait_s: float) -> None:
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise unavailable(error, str(self.folder)) from error
                if time.monotonic() >= deadline:
                    raise Unavailable(
                        f"{self.folder} is in use by another process",
                        advice="One process at a time works there; try again when it has ended.",
                    ) from error
            time.sleep(LOCK_POLL_S)

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        with file_errors(str(self.folder)):
            yield
