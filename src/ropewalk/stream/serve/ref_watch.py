"""Find the refs of a repository that any process has moved since the last look."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from ropewalk.errors import RopewalkError
from ropewalk.gitlog.store.object_store import GitStore
from ropewalk.kernel.terminal_text import printable
from ropewalk.stream.core.frames import RefUpdate

Mark: TypeAlias = "tuple[int, int, int] | None"  # of a file or folder: inode, time, size; None proves nothing

MISSING: Mark = (0, 0, 0)
FRESH_NS = 1_000_000_000  # what is this young may change again within one tick of its clock
WHOLE_NS = 5_000_000_000  # how often every file is looked at: some programs write into a ref in place
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
        self._unread: set[str] = set()  # may have moved; a look that fails half-way must not forget them
        self._troubles: dict[str, str] = {}  # by file or folder: what was said of it last
        self.heads: dict[str, str] = {}
        self.look()

    def look(self) -> list[RefUpdate]:
        """Return what moved since the last look, by name; a ref that moved twice moved once, from first to last.

        An unreadable ref keeps its value, and is tried again at each look.
        """
        now_ns = time.time_ns()
        whole = abs(now_ns - self._whole_ns) > WHOLE_NS
        if whole:
            self._whole_ns = now_ns
        self._visit(now_ns, whole)
        packed = self._mark("packed-refs", now_ns)
        if packed is None or packed != self._packed:
            try:
                self._unread.update(self._store.head_names(self._prefix + "/"), self.heads)
                self._troubles.pop("packed-refs", None)
            except (RopewalkError, RecursionError) as error:
                self._say("packed-refs", str(error))
                packed = None
        self._packed = packed
        return [update for name in sorted(self._unread) if (update := self._read(name)) is not None]

    def _visit(self, now_ns: int, whole: bool) -> None:
        waiting = [self._prefix]  # no recursion: folders may be nested as deep as paths are long
        while waiting:
            folder = waiting.pop()
            known = self._folders.get(folder)
            mark = self._mark(folder, now_ns)
            if known is None or whole or mark is None or mark != known.mark:
                known = self._list(folder, mark, known or _Folder(), now_ns)
            waiting.extend(known.folders)

    def _list(self, folder: str, mark: Mark, known: _Folder, now_ns: int) -> _Folder:
        """Look at the files of a folder; those that are new, gone or other than before are to be read."""
        found = _Folder(mark)
        try:
            entries = list(os.scandir(f"{self._git_dir}/{folder}"))
            self._troubles.pop(folder, None)
        except (FileNotFoundError, NotADirectoryError):  # git removes empty folders
            entries = []
        except OSError as error:  # the other folders are looked at all the same
            self._say(folder, str(error.strerror))
            known.mark = None
            return self._folders.setdefault(folder, known)
        for entry in entries:
            name = f"{folder}/{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                found.folders.append(name)
            elif not entry.name.endswith(".lock"):
                found.files[name] = self._mark(name, now_ns)
        self._unread.update(
            name for name, seen in found.files.items() if seen is None or known.files.get(name) != seen
        )
        self._unread.update(known.files.keys() - found.files.keys())
        self._forget(set(known.folders) - set(found.folders))
        self._folders[folder] = found
        return found

    def _forget(self, folders: Iterable[str]) -> None:
        waiting = list(folders)
        while waiting:
            known = self._folders.pop(waiting.pop(), _Folder())
            self._unread.update(known.files)
            waiting.extend(known.folders)

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
        except RopewalkError as error:  # torn, or a symbolic ref, or we have too many files open
            self._say(name, error.detail)
            return None
        self._unread.discard(name)
        if new == old:
            self._troubles.pop(name, None)
            return None
        if new is None:
            del self.heads[name]
        else:
            self.heads[name] = new
        if not _is_text(name):
            self._say(name, "its name must be UTF-8; its moves are not published")
            return None
        self._troubles.pop(name, None)
        return RefUpdate(name, old, new)

    def _say(self, name: str, trouble: str) -> None:
        if self._troubles.get(name) != trouble:
            self._troubles[name] = trouble
            _journal.warning("%s: %s", printable(name), printable(trouble))


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # bytes of a file name that are no text
        return False
    return True
