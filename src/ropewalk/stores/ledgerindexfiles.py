"""Where the index of a channel lies, and how it is opened: shared within a process, never across a fork, never trusted.

Who may not write beside a channel, and a child of a process that has the index open, works on a private copy, which is
thrown away at the end. Reading the stored index where it lies would need a place in its lock file: without one, a
writer may put new pages where the reader still looks.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import lmdb

from ropewalk.errors import Unavailable
from ropewalk.stores.privatefolder import drop_private_folder, make_private_folder

__all__ = ["Environment", "borrow_index", "open_index"]

MAP_BYTES: Final = 8 << 30  # address space, not disk; doubled when it is full
TABLES_MAX: Final = 8
PAGE_BYTES: Final = mmap.PAGESIZE  # LMDB's pages are as large as the system's
COPY_TRIES: Final = 5
_DATA: Final = "data.mdb"
_FORBIDDEN: Final = (errno.EACCES, errno.EPERM, errno.EROFS)
_NOT_AN_INDEX: Final = (lmdb.InvalidError, lmdb.CorruptedError, lmdb.VersionMismatchError)


@dataclass(slots=True)
class Environment:
    """An open LMDB environment of this process, and how many use it."""

    folder: Path
    env: Any
    private: bool = False
    users: int = 1
    process: int = field(default_factory=os.getpid)

    @property
    def inherited(self) -> bool:
        """Whether a parent of this process opened it: then nobody here may touch it."""
        return self.process != os.getpid()

    def close(self) -> None:
        """Let go of it; the last one closes it."""
        if self.inherited:
            return
        with _mutex:
            self.users -= 1
            if self.users:
                return
            place = Path(self.env.path())
            self.env.close()
            if not self.private:
                del _open[self.folder]
        if self.private:
            drop_private_folder(place)


# LMDB allows one environment per file and process: handles of one process share it.
_open: dict[Path, Environment] = {}
_of_a_parent: set[Path] = set()
_mutex = threading.Lock()  # over both


def _after_fork() -> None:
    """A child may neither use nor close nor open again what its parent has open: it works on copies."""
    global _mutex
    _mutex = threading.Lock()  # a thread that did not come along may have held it
    _of_a_parent.update(_open)
    _open.clear()


os.register_at_fork(after_in_child=_after_fork)


def open_index(folder: Path) -> Environment:
    """The index in its folder, made where there is none; where that cannot be, a copy of it."""
    folder = folder.absolute()
    with _mutex:
        if folder in _open:
            _open[folder].users += 1
            return _open[folder]
        if folder not in _of_a_parent:
            with contextlib.suppress(_Forbidden):
                _open[folder] = Environment(folder, _open_here(folder))
                return _open[folder]
    return Environment(folder, _open_private(folder), private=True)


@contextlib.contextmanager
def borrow_index(folder: Path) -> Iterator[Any]:
    """The environment of an index for looking only: nothing is made, and one that cannot be read is left as it is."""
    folder = folder.absolute()
    if folder in _open:
        yield _open[folder].env
        return
    with contextlib.ExitStack() as stack:
        if folder not in _of_a_parent and os.access(folder / _DATA, os.W_OK):
            env = _open_sound(folder, readonly=True)
        else:
            private = make_private_folder()
            stack.callback(drop_private_folder, private)
            _copy_moment(folder / _DATA, private / _DATA)
            env = _open_sound(private, readonly=True)
        stack.callback(env.close)
        yield env


class _Forbidden(Exception):
    """The index may not be written where it lies."""


def _open_here(folder: Path) -> Any:
    """The environment, or a new one in place of what is none: an index is never worth an error."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            return _open_sound(folder)
        except _NOT_AN_INDEX:
            shutil.rmtree(folder)
            folder.mkdir(parents=True)
            return _open_sound(folder)
    except lmdb.ReadonlyError as error:
        raise _Forbidden from error
    except OSError as error:
        if error.errno in _FORBIDDEN:
            raise _Forbidden from error
        raise Unavailable(f"index {folder}: {error.strerror}", path=str(folder)) from error
    except lmdb.Error as error:
        if os.strerror(errno.EROFS) in str(error):
            raise _Forbidden from error
        raise Unavailable(f"index {folder}: {error}", path=str(folder)) from error


def _open_private(folder: Path) -> Any:
    """A copy of the index, or an empty one where it cannot be had; the log fills it up."""
    private = make_private_folder()
    try:
        with contextlib.suppress(OSError, lmdb.Error):
            _copy_moment(folder / _DATA, private / _DATA)
        return _open_here(private)
    except BaseException:
        drop_private_folder(private)
        raise


def _open_sound(folder: Path, *, readonly: bool = False) -> Any:
    data = folder / _DATA
    if data.exists() and 0 < data.stat().st_size < 2 * PAGE_BYTES:
        raise lmdb.InvalidError("too short")
    env = lmdb.open(str(folder), map_size=MAP_BYTES, max_dbs=TABLES_MAX, mode=0o600, readonly=readonly)
    if data.stat().st_size < (env.info()["last_pgno"] + 1) * env.stat()["psize"]:
        env.close()  # pages are missing: touching them would end the process
        raise lmdb.InvalidError("cut short")
    return env


def _copy_moment(source: Path, target: Path) -> None:
    """Copy an index while others may write to it.

    The pages of the last commit stay as they are until another commit says so in the first two pages: if those did not
    change while the file was copied, the copy holds that commit whole.
    """
    for _ in range(COPY_TRIES):
        with source.open("rb") as stream:
            before = stream.read(2 * PAGE_BYTES)
            with target.open("wb") as copy:
                copy.write(before)
                shutil.copyfileobj(stream, copy, 1 << 20)
            stream.seek(0)
            if stream.read(2 * PAGE_BYTES) == before:
                return
    target.unlink(missing_ok=True)
    raise lmdb.InvalidError("it changes all the time")
