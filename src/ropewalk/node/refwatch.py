"""Which refs of a repository have moved since the last look, whoever moved them."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass, field
from typing import TypeAlias

from ropewalk.errors import RopewalkError
from ropewalk.stores.git import GitStore
from ropewalk.stream.frames import RefUpdate

__all__ = ["RefWatch"]

Mark: TypeAlias = "tuple[int, int, int] | None"  # of a file or folder: inode, time, size; None proves nothing

MISSING: Mark = (0, 0, 0)
FRESH_NS = 1_000_000_000  # what is this young may change again within one tick of its clock
WHOLE_NS = (
    5_000_000_000  # how often every file is looked at, for those who write into a ref instead of moving it
)
_journal = logging.getLogger("ropewalk.stream")


@dataclass(slots=True)
class _Folder:
    mark: Mark = None
    folders: list[str] = field(default_factory=list)
    files: dict[str, Mark] = field(default_factory=dict)


class RefWatch:
    """The refs below a prefix.

    Git moves a ref by renaming a file over it, which touches the folder. So a look costs a `stat` for each folder, and
    files are looked at in those that changed.
    """

    def __init__(self, store: GitStore, prefix: str) -> None:
        self._store = store
        self._prefix = prefix.rstrip("/")
        self._git_dir = os.fspath(store.place.git_dir)
        self._folders: dict[str, _Folder] = {}
        self._packed: Mark = None
        self._whole_ns = 0
        self._torn: set[str] = set()
        self.heads: dict[str, str] = {}
        self.look()

    def look(self) -> list[RefUpdate]:
        """What moved since the last look, by name. A ref that moved twice moved once, from the first to the last."""
        now_ns = time.time_ns()
        whole = abs(now_ns - self._whole_ns) > WHOLE_NS
        if whole:
            self._whole_ns = now_ns
        changed: set[str] = set()
        self._visit(self._prefix, now_ns, whole, changed)
        packed = self._mark("packed-refs", now_ns)
        if packed is None or packed != self._packed:
            changed.update(self._store.head_names(self._prefix + "/"))
            changed.update(self.heads)
        self._packed = packed
        return [update for name in sorted(changed) if (update := self._read(name)) is not None]

    def _visit(self, folder: str, now_ns: int, whole: bool, changed: set[str]) -> None:
        known = self._folders.get(folder)
        mark = self._mark(folder, now_ns)
        if known is None or whole or mark is None or mark != known.mark:
            known = self._list(folder, mark, known or _Folder(), now_ns, changed)
        for below in known.folders:
            self._visit(below, now_ns, whole, changed)

    def _list(self, folder: str, mark: Mark, known: _Folder, now_ns: int, changed: set[str]) -> _Folder:
        """Look at the files of a folder; `changed` gets those that are new, gone or other than before."""
        found = _Folder(mark)
        try:
            entries = list(os.scandir(f"{self._git_dir}/{folder}"))
        except (FileNotFoundError, NotADirectoryError):  # git removes empty folders
            entries = []
        for entry in entries:
            name = f"{folder}/{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                found.folders.append(name)
            elif not entry.name.endswith(".lock"):
                found.files[name] = self._mark(name, now_ns)
        changed.update(
            name for name, seen in found.files.items() if seen is None or known.files.get(name) != seen
        )
        changed.update(known.files.keys() - found.files.keys())
        for gone in set(known.folders) - set(found.folders):
            self._forget(gone, changed)
        self._folders[folder] = found
        return found

    def _forget(self, folder: str, changed: set[str]) -> None:
        known = self._folders.pop(folder, _Folder())
        changed.update(known.files)
        for below in known.folders:
            self._forget(below, changed)

    def _mark(self, name: str, now_ns: int) -> Mark:
        try:
            found = os.stat(f"{self._git_dir}/{name}")  # noqa: PTH116 - for every folder, five times a second
        except OSError:
            return MISSING
        if now_ns - found.st_mtime_ns < FRESH_NS:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _read(self, name: str) -> RefUpdate | None:
        old = self.heads.get(name)
        try:
            new = self._store.head(name)
        except RopewalkError as error:  # torn, or a symbolic ref: it stands where it stood
            if name not in self._torn:
                _journal.warning("%s: %s", name, error.detail)
            self._torn.add(name)
            return None
        self._torn.discard(name)
        if new == old:
            return None
        if new is None:
            del self.heads[name]
        else:
            self.heads[name] = new
        return RefUpdate(name, old, new)
