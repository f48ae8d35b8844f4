"""A folder of small files that one process at a time may change, each change whole and durable before it is used."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from ropewalk.disk.durable import Disk, file_errors, unavailable
from ropewalk.disk.folder_lock import take_lock
from ropewalk.errors import Damaged, NotFound, TooLarge, Unavailable

FILE_BYTES_MAX = 1 << 20
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
                self._disk.make_directories(self.folder, mode=0o700)

    @contextlib.contextmanager
    def locked(self, wait_s: float) -> Iterator[None]:
        """Keep every other process out; `Unavailable` if one is in there for longer than we wait."""
        with self._telling():
            descriptor = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            busy = Unavailable(
                f"{self.folder} is in use by another process",
                advice="One process at a time works there; try again when it has ended.",
            )
            take_lock(descriptor, wait_s, str(self.folder), busy)
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

    def _telling(self) -> contextlib.AbstractContextManager[None]:
        return file_errors(str(self.folder))
