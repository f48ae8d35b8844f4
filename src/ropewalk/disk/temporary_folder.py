"""Folders for this process only: removed when it ends, or by the next process if it was killed.

Each folder has a file that its owner holds locked. The kernel releases the lock when the owner ends, also when it is
killed or runs in another container; a process number would not do, because it may have been used again.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from itertools import islice
from pathlib import Path

PREFIX, OWNER = "ropewalk-", ".owner"
NAMES_MAX = 10_000  # of the temporary directory that are looked at
SWEPT_MAX = 8  # folders removed at a time; each use sweeps some more

_held: dict[Path, tuple[int, int]] = {}  # folder → the process that made it, and its lock


def make_private_folder(what: str = "index") -> Path:
    """Make a folder for this process, named after its purpose; remove folders of killed processes first."""
    with contextlib.suppress(OSError):
        _sweep(Path(tempfile.gettempdir()))
    while True:
        descriptor, name = tempfile.mkstemp(prefix=f"{PREFIX}{what}-", suffix=OWNER)
        # Another process that sweeps may have removed the file: then another is made.
        if _lock(descriptor, wait=True) and _is_at(descriptor, Path(name)):
            break
        os.close(descriptor)
    folder = Path(name.removesuffix(OWNER))
    folder.mkdir(mode=0o700)
    _held[folder] = (os.getpid(), descriptor)
    return folder


def drop_private_folder(folder: Path) -> None:
    """Remove a folder this process made. A child after `fork` leaves its parent's alone."""
    process, descriptor = _held.get(folder, (0, 0))
    if process != os.getpid():
        return
    del _held[folder]
    _remove(folder)
    os.close(descriptor)


@atexit.register
def _remove_all() -> None:
    for folder in list(_held):
        drop_private_folder(folder)


def _sweep(place: Path) -> None:
    """Remove folders without a living owner; only those of our account, and only so many."""
    swept = 0
    with os.scandir(place) as names:
        for entry in islice(names, NAMES_MAX):
            if not (entry.name.startswith(PREFIX) and entry.name.endswith(OWNER)):
                continue
            with contextlib.suppress(OSError):
                swept += _sweep_one(Path(entry.path))
            if swept >= SWEPT_MAX:
                return


def _sweep_one(owner: Path) -> bool:
    folder = owner.with_name(owner.name.removesuffix(OWNER))
    if folder in _held:
        return False
    descriptor = os.open(owner, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        made = os.fstat(descriptor)
        if made.st_uid != os.getuid() or not stat.S_ISREG(made.st_mode):
            return False
        if not _lock(descriptor, wait=False) or not _is_at(descriptor, owner):
            return False
        _remove(folder)
        return True
    finally:
        os.close(descriptor)


def _remove(folder: Path) -> None:
    """Remove the folder, then its file: while the file exists, another process can finish this."""
    shutil.rmtree(folder, ignore_errors=True)
    if not folder.exists():
        folder.with_name(folder.name + OWNER).unlink(missing_ok=True)


def _lock(descriptor: int, *, wait: bool) -> bool:
    """Tell whether the lock is ours. Where files cannot be locked, owners go without, and folders are not swept."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return wait
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False
