"""The repository that a warehouse was filled from: manifests record its path."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ropewalk.disk.repository_paths import find_repository
from ropewalk.errors import NotFound


def is_there(recorded: str) -> bool:
    """Return whether a git repository is at the recorded path itself, not around it."""
    with suppress(NotFound):
        return find_repository(Path(recorded)).git_dir == Path(recorded)
    return False


def recorded_source(recorded: str) -> Path:
    """Return the repository that a warehouse was filled from; raise `NotFound` if it is no longer there."""
    if is_there(recorded):
        return Path(recorded)
    raise NotFound(
        f"the warehouse was filled from {recorded}, and no git repository is there now",
        path=recorded,
        advice="Name the repository with --source.",
    )
