"""Tables that may grow beyond memory for as long as a piece of work takes: the newest rows in a dictionary, the rest
in a temporary file that is removed afterwards, also after an error.
"""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path
from typing import Any

import lmdb

from ropewalk.disk.closing import Closing
from ropewalk.errors import Unavailable

FRESH_MAX = 65_536  # rows of one table held in memory
MAP_BYTES = 1 << 40  # address space, not disk
TABLES_MAX = 8
_NUMBER = struct.Struct(">Q")


class Spill(Closing):
    """Makes tables; use it in a `with`. Nothing is written before a table has more rows than memory should hold.

    >>> with Spill() as spill:
    ...     table = spill.table("ids")
    ...     _ = table.setdefault(b"key", 7), table.setdefault(b"key", 8)
    ...     table.get(b"key"), table.get(b"other")
    (7, None)
    """

    def __init__(self, fresh_max: int = FRESH_MAX) -> None:
        self.fresh_max = fresh_max
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._env: Any = None

    def table(self, name: str) -> SpillTable:
        return SpillTable(self, name.encode("ascii"))

    def environment(self) -> Any:
        """Return where rows go, made when the first ones do."""
        if self._env is None:
            try:
                self._folder = tempfile.TemporaryDirectory(prefix="ropewalk-")
                # It is not read after a crash, so nothing is ever synced.
                self._env = lmdb.open(
                    str(Path(self._folder.name)),
                    map_size=MAP_BYTES,
                    max_dbs=TABLES_MAX,
                    sync=False,
                    metasync=False,
                    writemap=True,
                    lock=False,
                )
            except (OSError, lmdb.Error) as error:
                raise Unavailable(
                    f"temporary file: {error}", advice="Set TMPDIR to a disk with room."
                ) from error
        return self._env

    def close(self) -> None:
        """Throw everything away."""
        if self._env is not None:
            self._env.close()
            self._env = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


class SpillTable:
    """Short keys and numbers; the first number of a key counts."""

    def __init__(self, spill: Spill, name: bytes) -> None:
        self._spill, self._name = spill, name
        self._fresh: dict[bytes, int] = {}
        self._table: Any = None
        self._reader: Any = None

    def get(self, key: bytes) -> int | None:
        """Return the number under a key."""
        if self._reader is not None:
            raw = self._reader.get(key, db=self._table)
            if raw is not None:
                return int(_NUMBER.unpack(raw)[0])
        return self._fresh.get(key)

    def setdefault(self, key: bytes, number: int) -> None:
        """Keep a number, unless the key has one."""
        self._fresh.setdefault(key, number)
        if len(self._fresh) >= self._spill.fresh_max:
            self._write()

    def _write(self) -> None:
        env = self._spill.environment()
        if self._reader is not None:
            self._reader.abort()
        try:
            if self._table is None:
                self._table = env.open_db(self._name)
            with env.begin(write=True) as txn:
                for key in sorted(self._fresh):  # neighbours share a page that is touched once
                    txn.put(key, _NUMBER.pack(self._fresh[key]), db=self._table, overwrite=False)
        except lmdb.Error as error:
            raise Unavailable(f"temporary file: {error}", advice="Set TMPDIR to a disk with room.") from error
        self._fresh.clear()
        self._reader = env.begin()
