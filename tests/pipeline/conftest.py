"""One Spark session for the whole run, started by our own launcher on two cores."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.world import World, usual


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    from ropewalk.cli.pipeline.running import cache_folder
    from ropewalk.pipeline.launch.launch import Setting, launch, stop

    # To leave an archive of its classes takes a JVM as long as ten tests: that is for those that start after it.
    cache = cache_folder()
    session = launch(Setting("local[2]", cache=cache if any(cache.glob("*.jsa")) else None), os.environ)
    yield session
    stop(session)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return usual(tmp_path / "log.git")
