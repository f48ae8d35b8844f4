"""Ordered transactional tables in one LMDB environment: one writer, many readers, across processes.

A commit returns after fsync. The map grows by itself; growing needs a moment without readers in this process,
which is why the first map is large: it reserves addresses, not disk.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import unpack
from typing import Any, TypeVar

import lmdb

from ropewalk.disk.durable import Disk, unavailable
from ropewalk.errors import Conflict, Damaged, NotFound, RopewalkError, TooLarge, Unavailable

T = TypeVar("T")

MAP_BYTES_FIRST = 16 << 30  # addresses, not disk; the file has the size of what is in it
MAP_BYTES_MAX = 16 << 40  # where growing stops: something else must be wrong
FIRST_BYTES = 1 << 20  # of an environment without tables
READERS_MAX = 1024  # slots in the lock file, shared by all processes
_COMMIT_AT = 144  # where a meta page has the number of its commit, on 64-bit machines
READER_WAIT_S = 10.0  # how long growing waits for this process's readers


_RESTORE = "Nothing was changed. Restore the folder from a copy, or sync the topic anew from a peer."


def _refusal(error: lmdb.Error, what: object) -> RopewalkError:
    """Translate an error of LMDB: damage is found by reading, everything else may be temporary."""
    said = f"{what}: {str(error).removeprefix(f'{what}: ')}"
    if isinstance(error, (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError)):
        return Damaged(said, reason="page", advice=_RESTORE)
    if isinstance(error, lmdb.ReadonlyError):
        return Unavailable(
            said, advice="Ask for write access, or copy the repository to where you may write."
        )
    return Unavailable(said)


class _View:
    __slots__ = ("_dbs", "_txn")

    def __init__(self, txn: Any, dbs: dict[str, Any]) -> None:
        self._txn = txn
        self._dbs = dbs

    def _db(self, table: str) -> Any:
        try:
            return self._dbs[table]
        except KeyError:
            raise NotFound(f"no table {table!r}", name=table) from None

    def get(self, table: str, key: bytes) -> bytes | None:
        try:
            found: bytes | None = self._txn.get(key, db=self._db(table))
        except lmdb.Error as error:
            raise _refusal(error, f"table {table} cannot be read") from error
        return found

    def scan(
        self, table: str, start: bytes = b"", stop: bytes | None = None, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        last: bytes | None = None
        try:
            for row in self._scan(table, start, stop, reverse):
                key = row[0]
                # A damaged branch page leads to the right rows by a wrong way: a later write takes a wrong place.
                if last is not None and (key >= last if reverse else key <= last):
                    raise Damaged(
                        f"table {table}: key {key.hex()} is out of order", reason="order", advice=_RESTORE
                    )
                last = key
                yield row
        except lmdb.Error as error:
            raise _refusal(error, f"table {table} cannot be read") from error

    def _scan(
        self, table: str, start: bytes, stop: bytes | None, reverse: bool
    ) -> Iterator[tuple[bytes, bytes]]:
        with self._txn.cursor(db=self._db(table)) as cursor:
            if not reverse:
                if not (cursor.set_range(start) if start else cursor.first()):
                    return
                for key, value in cursor.iternext():
                    if stop is not None and key >= stop:
                        return
                    yield key, value
                return
            # Stand on the last key below `stop`, then walk back to `start`.
            found = cursor.set_range(stop) if stop is not None else False
            if not (cursor.prev() if found else cursor.last()):
                return
            for key, value in cursor.iterprev():
                if key < start:
                    return
                yield key, value

    def version(self) -> int:
        return int(self._txn.id())

    def count(self, table: str) -> int:
        try:
            return int(self._txn.stat(self._db(table))["entries"])
        except lmdb.Error as error:
            raise _refusal(error, f"table {table} cannot be read") from error


class _Change(_View):
    __slots__ = ("failed",)

    def __init__(self, txn: Any, dbs: dict[str, Any]) -> None:
        super().__init__(txn, dbs)
        # A caller that catches a failed write must not make us commit half a transaction.
        self.failed: lmdb.Error | None = None

    def put(self, table: str, key: bytes, value: bytes) -> None:
        try:
            self._txn.put(key, value, db=self._db(table))
        except lmdb.Error as error:
            self.failed = error
            raise

    def delete(self, table: str, key: bytes) -> None:
        try:
            self._txn.delete(key, db=self._db(table))
        except lmdb.Error as error:
            self.failed = error
            raise


class _Shared:
    """One environment per path and process: LMDB must not be opened twice in one process."""

    def __init__(self, path: Path, tables: tuple[str, ...], map_bytes: int, create: bool) -> None:
        self.path = path
        self.users = 0
        self.idle = threading.Condition()
        self.readers = 0
        self.growing = False
        self.writer = threading.RLock()
        self.writing = False
        try:
            is_new = not (path / "data.mdb").exists()
            if is_new and not create:
                raise NotFound(f"{path} holds no tables", path=str(path))
            Disk().make_directories(path)
            if is_new:
                _make_file(path)
            self.env = _open(path, tables, map_bytes)
            try:
                self.env.reader_check()  # forget readers that died without a word
                if create and not self.env.stat()["entries"]:
                    Disk().fsync_directory(path)  # before there is anything in the file
                self.dbs = _open_tables(self.env, path, tables, create)
            except BaseException:
                self.env.close()
                raise
        except lmdb.Error as error:
            raise _refusal(error, path) from error
        except OSError as error:
            raise unavailable(error, f"{path} cannot be opened") from error

    @contextmanager
    def reading(self) -> Iterator[None]:
        with self.idle:
            while self.growing:
                self.idle.wait()
            self.readers += 1
        try:
            yield
        finally:
            with self.idle:
                self.readers -= 1
                self.idle.notify_all()

    def resize(self, map_bytes: int) -> None:
        """Set the map size (0: the present size of the file) while no thread of this process reads."""
        with self.idle:
            self.growing = True
            try:
                if not self.idle.wait_for(lambda: self.readers == 0, timeout=READER_WAIT_S):
                    raise Unavailable(
                        f"{self.path}: the map is full and a reader of this process keeps it from growing",
                        advice="Close iterators over the log, then write again; nothing was changed.",
                    )
                self.env.set_mapsize(map_bytes)
            finally:
                self.growing = False
                self.idle.notify_all()


def _make_file(path: Path) -> None:
    """Make an environment without tables, whole or not at all: LMDB refuses a file whose first pages are torn."""
    with tempfile.TemporaryDirectory(prefix=".new-", dir=path) as folder:
        env = _open(Path(folder), (), FIRST_BYTES)
        env.sync(True)
        env.close()
        with contextlib.suppress(FileExistsError):  # another process was faster
            os.link(Path(folder) / "data.mdb", path / "data.mdb")


def _open(path: Path, tables: tuple[str, ...], map_bytes: int) -> Any:
    size = map_bytes
    while True:
        try:
            return lmdb.open(
                str(path),
                map_size=size,
                max_dbs=len(tables),
                max_readers=READERS_MAX,
                mode=0o600,
                meminit=False,
            )
        except lmdb.Error as error:
            # A small address space (ulimit -v, some containers) cannot map the first size.
            if "Cannot allocate memory" not in str(error) or size < 1 << 22:
                raise
            size //= 8


# Reads every row without a lock; what is missing ends it by a signal.
_READ_ALL = """
import sys, lmdb
path, *tables = sys.argv[1:]
env = lmdb.open(path, readonly=True, lock=False, max_dbs=len(tables))
with env.begin() as txn:
    for name in tables:
        for row in txn.cursor(env.open_db(name.encode(), txn=txn, create=False)):
            pass
"""


def _fill_up(env: Any, path: Path, tables: tuple[str, ...]) -> None:
    """Make the file as long as its last page asks, under the writer's lock.

    LMDB leaves out pages that a transaction took and gave back at once, so a sound file may be short, though ours
    hardly ever are. So is half a copy, and to read what it lacks would end this process: another one tries first.
    """
    data = path / "data.mdb"
    needed, size = (env.info()["last_pgno"] + 1) * env.stat()["psize"], data.stat().st_size
    if size >= needed:
        return
    if subprocess.run([sys.executable, "-c", _READ_ALL, path, *tables], capture_output=True).returncode:
        raise Damaged(f"{data} has {size} of its {needed} bytes", reason="cut off", advice=_RESTORE)
    os.truncate(data, needed)


def _check_meta_pages(env: Any, path: Path) -> None:
    """Refuse a file whose two meta pages are not those of successive commits, under the writer's lock.

    LMDB takes the page with the higher number: damage to that number would silently bring back an older state.
    """
    data, size = path / "data.mdb", env.stat()["psize"]
    with data.open("rb") as file:
        even, odd = (unpack("=Q", os.pread(file.fileno(), 8, page * size + _COMMIT_AT))[0] for page in (0, 1))
    is_new = even == odd == 0
    if not is_new and (even % 2 != 0 or abs(even - odd) != 1):
        raise Damaged(f"{data} has meta pages of commits {even} and {odd}", reason="meta", advice=_RESTORE)


def _open_tables(env: Any, path: Path, tables: tuple[str, ...], create: bool) -> dict[str, Any]:
    """Return the tables, all made at once if there is none yet and they may be made."""
    while True:
        try:
            with env.begin(write=True) as txn:
                _check_meta_pages(env, path)
                _fill_up(env, path, tables)
                new = create and not env.stat()["entries"]
                return {name: env.open_db(name.encode("ascii"), txn=txn, create=new) for name in tables}
        except lmdb.NotFoundError as error:
            raise Damaged(f"{path} lacks a table: {error}", reason="tables", advice=_RESTORE) from error
        except lmdb.MapResizedError:
            env.set_mapsize(0)  # another process has grown it since we opened it
        except lmdb.MapFullError:
            env.set_mapsize(env.info()["map_size"] * 2)


_environments: dict[str, _Shared] = {}
_registry = threading.Lock()


def _forget_inherited() -> None:
    """Give up the environments of the parent, which a forked child must not use; it opens its own."""
    global _registry
    _registry = threading.Lock()  # another thread of the parent may have held it
    for shared in _environments.values():
        shared.env.close()
    _environments.clear()


os.register_at_fork(after_in_child=_forget_inherited)


class LmdbTables:
    """Tables in a folder; open handles of one process share the environment.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     tables = LmdbTables(Path(folder), ("fruit",))
    ...     tables.transact(lambda change: change.put("fruit", b"fig", b"sweet"))
    ...     with tables.read() as view:
    ...         print(view.get("fruit", b"fig"))
    ...     tables.close()
    b'sweet'
    """

    def __init__(
        self, path: Path, tables: tuple[str, ...], *, map_bytes: int = MAP_BYTES_FIRST, create: bool = True
    ) -> None:
        """Open the tables of a folder; without `create`, only those that are there: nothing is written."""
        self._name = str(path.resolve())
        self._process = os.getpid()
        with _registry:
            shared = _environments.get(self._name)
            if shared is None:
                shared = _environments[self._name] = _Shared(path, tables, map_bytes, create)
            shared.users += 1
        self._shared: _Shared | None = shared
        self.path = path

    def _env(self) -> _Shared:
        if self._shared is None:
            raise Unavailable(f"{self._name}: the store is closed")
        if self._process != os.getpid():
            raise Unavailable(
                f"{self._name}: the store was opened by the process that this one was forked from",
                advice="Open the log again in this process.",
            )
        return self._shared

    @contextmanager
    def read(self) -> Iterator[_View]:
        shared = self._env()
        txn = None
        while txn is None:
            resized = False
            with shared.reading():
                try:
                    txn = shared.env.begin()
                except lmdb.MapResizedError:
                    resized = True
                except lmdb.Error as error:
                    raise _refusal(error, shared.path) from error
                if txn is not None:
                    try:
                        yield _View(txn, shared.dbs)
                    finally:
                        txn.abort()
            if resized:
                shared.resize(0)

    def transact(self, body: Callable[[_Change], T]) -> T:
        shared = self._env()
        with shared.writer:
            if shared.writing:
                raise Conflict("a transaction is already open in this thread")
            shared.writing = True
            try:
                while True:
                    try:
                        with shared.env.begin(write=True) as txn:
                            change = _Change(txn, shared.dbs)
                            result = body(change)
                            if change.failed is not None:
                                raise change.failed
                        return result
                    except lmdb.MapFullError:
                        self._grow(shared)
                    except lmdb.MapResizedError:
                        shared.resize(0)
                    except lmdb.Error as error:
                        # LMDB puts the old meta page back without a sync; the next commit writes over what the new one
                        # names, so the old one must be durable before.
                        with contextlib.suppress(lmdb.Error):
                            shared.env.sync(True)
                        raise _refusal(error, shared.path) from error
            finally:
                shared.writing = False

    def version(self) -> int:
        """Return the number of the last commit of any process that a reader sees now.

        `env.info()` would name a commit before its fsync ends and readers see it: a follower would take it as read.
        """
        with self.read() as view:
            return view.version()

    @staticmethod
    def _grow(shared: _Shared) -> None:
        size = shared.env.info()["map_size"] * 2
        if size > MAP_BYTES_MAX:
            raise TooLarge(
                f"{shared.path}: the map may not exceed {MAP_BYTES_MAX} bytes", size=size, limit=MAP_BYTES_MAX
            )
        shared.resize(size)

    def close(self) -> None:
        shared, self._shared = self._shared, None
        if shared is None or self._process != os.getpid():
            return
        with _registry:
            shared.users -= 1
            if shared.users == 0:
                _environments.pop(self._name, None)
                shared.env.close()
