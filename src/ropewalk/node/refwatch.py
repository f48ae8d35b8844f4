"""Which refs of a repository have moved since the last look, whoever moved them."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

from ropewalk.errors import RopewalkError
from ropewalk.stores.git import GitStore
from ropewalk.stream.frames import RefUpdate

__all__ = ["RefWatch"]

Mark = tuple[int, int, int]  # of a file: inode, time, size

FRESH_NS = (
    1_000_000_000  # a file this young may change again within one tick of its clock: its mark proves nothing
)
_journal = logging.getLogger("ropewalk.stream")


class RefWatch:
    """The refs below a prefix. A look costs a `stat` for each, and a read for those that changed."""

    def __init__(self, store: GitStore, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self._marks: dict[str, Mark] = {}
        self._packed: Mark | None = None
        self._torn: set[str] = set()
        self.heads: dict[str, str] = {}
        self.look()

    def look(self) -> list[RefUpdate]:
        """What moved since the last look, by name. A ref that moved twice moved once, from the first to the last."""
        now_ns = time.time_ns()
        marks = dict(self._walk(self._prefix.rstrip("/")))
        packed = _mark(self._store.place.git_dir / "packed-refs")
        changed = {name for name, mark in marks.items() if self._marks.get(name) != mark}
        changed.update(name for name in self.heads if name not in marks)
        if packed != self._packed:
            changed.update(self._store.head_names(self._prefix))
        # Read before the marks are kept: whatever happens in between is seen by the next look.
        moved = [update for name in sorted(changed) if (update := self._read(name)) is not None]
        self._marks = {name: mark for name, mark in marks.items() if now_ns - mark[1] > FRESH_NS}
        self._packed = packed if packed is None or now_ns - packed[1] > FRESH_NS else None
        return moved

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

    def _walk(self, folder: str) -> Iterator[tuple[str, Mark]]:
        try:
            entries = list(os.scandir(self._store.place.git_dir / folder))
        except (FileNotFoundError, NotADirectoryError):  # git removes empty folders
            return
        for entry in entries:
            name = f"{folder}/{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                yield from self._walk(name)
            elif not entry.name.endswith(".lock"):
                mark = _mark(Path(entry.path))
                if mark is not None:
                    yield name, mark


def _mark(path: Path) -> Mark | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - five times a second for every ref
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
