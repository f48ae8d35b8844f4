"""`ropewalk.init` and `ropewalk.open`: a repository, ready to append to and to read from."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from ropewalk.disk.durable import Disk
from ropewalk.disk.repository_paths import find_repository, make_repository
from ropewalk.gitlog.repository.repository import GitRepository
from ropewalk.gitlog.store.object_store import GitStore


def init_repository(path: str | os.PathLike[str]) -> GitRepository:
    """Make a bare git repository at `path`, or add to the one that is there, and open it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, init_repository(folder) as log:
    ...     log.append("governance", {"type": "proposal.created", "payload": {"id": 7}}).topic
    'governance'
    """
    place, _ = make_repository(Path(path))
    return open_repository(place.git_dir)


def open_repository(
    path: str | os.PathLike[str] = ".",
    *,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    entropy: Callable[[int], bytes] = os.urandom,
    disk: Disk | None = None,
    lock_wait_s: float = 10.0,
) -> GitRepository:
    """Open the git repository at `path` or around it. Use it as a context, or call `close()` when done.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     init_repository(folder).close()
    ...     with open_repository(folder) as log:
    ...         receipt = log.append("governance", {"type": "proposal.created", "payload": {"id": 7}})
    ...         [event.payload for event in log.read("governance").events]
    [{'id': 7}]
    """
    store = GitStore(find_repository(Path(path)), disk=disk, lock_wait_s=lock_wait_s)
    return GitRepository(store, now_ms=now_ms, entropy=entropy)
