"""A repository in a temporary folder, with a clock the test turns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ropewalk.disk.repository_paths import RepositoryPaths, make_repository
from ropewalk.gitlog.repository.opening import open_repository
from ropewalk.gitlog.repository.repository import GitRepository


class Clock:
    """Milliseconds that pass only when told."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def place(tmp_path: Path) -> RepositoryPaths:
    return make_repository(tmp_path / "log.git")[0]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log(place: RepositoryPaths, clock: Clock) -> Iterator[GitRepository]:
    with open_repository(place.git_dir, now_ms=clock, lock_wait_s=0.3) as repository:
        yield repository
