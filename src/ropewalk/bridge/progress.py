"""How far a mirror was once found to hold its source: a place to go on comparing from.

The two logs alone decide what is copied. A mark saves looking at all of both again, and is believed only as far as both
still hold the commits it names: below a commit nothing changes. Losing the file costs that time once.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from ropewalk.disk.durable import Disk
from ropewalk.gitlog.repository.tracked_logs import IndexedLog

FIELDS = {"height": int, "commit": str, "ulid": str, "copy": str}


class MirrorMark(NamedTuple):
    """Every event of the source below a height is in the target, at or below the copy of the last of them."""

    height: int
    commit: str  # of the last event below that height, in the source
    ulid: str
    copy: str  # its commit in the target

    def find(self, source: IndexedLog, target: IndexedLog) -> int | None:
        """Return the height of the copy in the target, if both logs still hold what the mark names; else None."""
        if not 0 < self.height <= source.count:
            return None
        (last,) = source.span(self.height - 1, self.height)
        found = target.find(last.ulid)
        same = found is not None and (last.commit, last.ulid, found.commit) == self[1:]
        return found.height if found is not None and same else None


class MirrorMarks:
    """The marks of one repository, one small file for each source and target."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        self._folder, self._disk = folder, disk

    def get(self, source: str, target: str) -> MirrorMark | None:
        """Return the mark of a source (its ref) in a target; None if there is none, or nothing that can be read."""
        with contextlib.suppress(OSError, ValueError):
            said = json.loads(self._path(source, target).read_bytes())
            fields: list[Any] = [said.get(name) for name in FIELDS] if isinstance(said, dict) else []
            if [type(each) for each in fields] == list(FIELDS.values()):
                return MirrorMark(*fields)
        return None

    def set(self, source: str, target: str, mark: MirrorMark) -> None:
        """Remember a mark. Where nothing can be written it is not remembered, which is no error."""
        raw = json.dumps({"source": source, "target": target, **mark._asdict()}).encode()
        with contextlib.suppress(OSError):
            self._disk.make_directories(self._folder)
            self._disk.replace(self._path(source, target), raw + b"\n")

    def _path(self, source: str, target: str) -> Path:
        return (
            self._folder
            / f"{hashlib.blake2b(f'{source} {target}'.encode(), digest_size=16).hexdigest()}.json"
        )
