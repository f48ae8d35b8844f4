"""`ropewalk.init` and `ropewalk.open`: a repository with all its engines."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ropewalk.disk.repository_paths import find_repository, make_repository
from ropewalk.gitlog.repository.repository import GitRepository
from ropewalk.gitlog.store.object_store import GitStore

if TYPE_CHECKING:
    from ropewalk.bridge.event_copy import MirrorResult
    from ropewalk.disk.durable import Disk


class Repository(GitRepository):
    """A repository: its git logs, and what several engines do together."""

    def mirror(self, sources: str | Sequence[str], to: str) -> MirrorResult:
        """Copy into one log what it lacks of other logs: `repo.mirror("ns:prod", "topic:deploys")`.

        Logs are named as on the command line: `ns:NS`, `topic:T`, and as a source also `channel:C`.
        """
        from ropewalk.bridge.mirror import mirror

        return mirror(self, sources, to)


def init(path: str | os.PathLike[str]) -> Repository:
    """Make a bare git repository at `path`, or prepare the one that is there, and open it."""
    place, _ = make_repository(Path(path))
    return open_repository(place.git_dir)


def open_repository(
    path: str | os.PathLike[str] = ".",
    *,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    entropy: Callable[[int], bytes] = os.urandom,
    disk: Disk | None = None,
    lock_wait_s: float = 10.0,
) -> Repository:
    """Open the git repository at `path` or around it. Use it as a context manager, or call `close()`."""
    store = GitStore(find_repository(Path(path)), disk=disk, lock_wait_s=lock_wait_s)
    return Repository(store, now_ms=now_ms, entropy=entropy)
