"""The peers of running processes, kept in files of the log's folder so that `gossip peers` can list them."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

from ropewalk.disk.durable import Disk, unavailable

FOLDER = "peers"
# Of one process; the file is written by us, but lies on a disk that others may write to.
LIST_BYTES_MAX = 1 << 20
_TRIES = 20  # reads of a file that is being written


class PeerList:
    """One process's file. It holds a lock while the process runs; a file without a lock was left by a dead process."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = None if folder is None else folder / FOLDER
        self._file: int | None = None
        self._path: Path | None = None
        self._written = b""

    def __enter__(self) -> PeerList:
        if self._folder is None:
            return self
        try:
            Disk().make_directories(self._folder)
            self._path = self._folder / f"{os.getpid()}-{id(self):x}.json"
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise unavailable(error, f"{self._folder} cannot be written") from error
        return self

    def write(self, rows: list[dict[str, Any]]) -> None:
        """Publish the peers. Readers take the first line, so that a shorter list needs no truncation."""
        raw = json.dumps(sorted(rows, key=lambda row: str(row["url"]))).encode() + b"\n"
        if self._file is not None and raw != self._written and len(raw) <= LIST_BYTES_MAX:
            os.pwrite(self._file, raw, 0)
            self._written = raw

    def __exit__(self, *_: object) -> None:
        if self._file is not None and self._path is not None:
            self._path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = None


def read_peers(folder: Path) -> list[dict[str, Any]]:
    """Return the peers of all running processes; delete the files of dead ones."""
    rows: list[dict[str, Any]] = []
    for path in sorted((folder / FOLDER).glob("*.json")):
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue  # its process has just ended
        try:
            if _is_locked(file):
                rows += _read(file)
            else:
                path.unlink(missing_ok=True)
        finally:
            os.close(file)
    return rows


def _is_locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    return False


def _read(file: int) -> list[dict[str, Any]]:
    for _ in range(_TRIES):
        line = os.pread(file, LIST_BYTES_MAX, 0).partition(b"\n")[0]
        try:
            found = json.loads(line)
        except ValueError:
            continue  # it was being written
        return [row for row in found if isinstance(row, dict)]
    return []
