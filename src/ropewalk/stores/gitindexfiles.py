"""The LMDB environment of a git index: opened once a process, made anew where it is damaged, private where it must be.

Nothing in it is worth keeping at any price: whatever cannot be opened is thrown away and built again from the log.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, TypeAlias

import lmdb

from ropewalk.stores.privatefolder import make_private_folder

__all__ = ["EnvironmentName", "borrow", "give_back", "write_stamp"]

FORMAT = b"1"
MAP_BYTES = 64 << 30  # address space, not disk; about 100 bytes an event are used

EnvironmentName: TypeAlias = tuple[int, str]
"""Process and folder: LMDB allows one environment a process and folder; a child after `fork` needs its own."""

_open: dict[EnvironmentName, list[Any]] = {}  # the environment, and how many use it
_open_guard = threading.Lock()


def _after_fork() -> None:
    global _open_guard
    _open_guard = threading.Lock()  # a thread that did not come along may have held it


os.register_at_fork(after_in_child=_after_fork)


def borrow(name: EnvironmentName, folder: Path) -> Any:
    """The environment of a folder, shared by everybody in this process who borrows it."""
    with _open_guard:
        held = _open.get(name)
        if held is None or not folder.is_dir():
            held = _open[name] = [_open_or_rebuild(folder), 0]
        held[1] += 1
        return held[0]


def give_back(name: EnvironmentName) -> None:
    """Give up what was borrowed; the last one to do so closes it."""
    with _open_guard:
        held = _open.get(name)
        if held is None:
            return
        held[1] -= 1
        if held[1] <= 0:
            del _open[name]
            if name[0] == os.getpid():  # a forked child must not close what its parent opened
                held[0].close()


PROBE = """
import lmdb, os, sys
folder = sys.argv[1]
env = lmdb.open(folder, readonly=True, lock=False, map_size=int(sys.argv[2]))
if (env.info()["last_pgno"] + 1) * env.stat()["psize"] > os.path.getsize(os.path.join(folder, "data.mdb")):
    sys.exit(1)
with env.begin() as txn:
    sum(len(key) + len(value) for key, value in txn.cursor())
"""


def _sound(folder: Path) -> bool:
    """Whether the files can be mapped into this process.

    Damage to a memory-mapped file kills the process that reads it. So a file that is not as we left it is read
    through by another process first; the stamp beside it says how we left it.
    """
    data = folder / "data.mdb"
    if not data.exists() or _stamp_of(folder) == _read_stamp(folder):
        return True
    probe = subprocess.run(
        [sys.executable, "-c", PROBE, str(folder), str(MAP_BYTES)], capture_output=True, check=False
    )
    return probe.returncode == 0


def _stamp_of(folder: Path) -> str:
    stat = (folder / "data.mdb").stat()
    return f"{stat.st_ino} {stat.st_size} {stat.st_mtime_ns}"


def _read_stamp(folder: Path) -> str:
    with contextlib.suppress(OSError):
        return (folder / "stamp").read_text(encoding="ascii", errors="replace")
    return ""


def write_stamp(folder: Path) -> None:
    """Note how the files were left; see `_sound`."""
    beside = folder / f"stamp.{os.getpid()}.{threading.get_ident()}"
    try:
        beside.write_text(_stamp_of(folder), encoding="ascii")
        beside.replace(folder / "stamp")
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink()


def _open_or_rebuild(folder: Path) -> Any:
    try:
        if not _sound(folder):
            shutil.rmtree(folder, ignore_errors=True)
        env = _open_environment(folder)
        with env.begin(write=True) as txn:
            known = txn.get(b"format")
            if known is None:
                txn.put(b"format", FORMAT)
            elif known != FORMAT:
                raise lmdb.InvalidError("another format")
        write_stamp(folder)
        env.reader_check()  # slots of killed readers
        return env
    except (lmdb.InvalidError, lmdb.CorruptedError, lmdb.VersionMismatchError, lmdb.PageNotFoundError):
        shutil.rmtree(folder, ignore_errors=True)
        return _open_environment(folder)
    except (lmdb.Error, OSError):
        # A repository we may not write to is still readable: index it for this process only.
        return _open_environment(make_private_folder())


def _open_environment(folder: Path) -> Any:
    folder.mkdir(parents=True, exist_ok=True)
    # No meta sync: the last transaction may be lost in a power cut, never the consistency of the rest.
    return lmdb.open(str(folder), map_size=MAP_BYTES, metasync=False, max_readers=512, meminit=False)
