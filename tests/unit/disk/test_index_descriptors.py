"""Descriptors of an index: a reader that is dropped without close() keeps none."""

from __future__ import annotations

import gc
from pathlib import Path

from ropewalk.disk.repository_paths import find_repository
from ropewalk.gitlog.repository.opening import init_repository
from ropewalk.pipeline.source.git_logs import GitLogs


def descriptors() -> int:
    return sum(1 for _ in Path("/dev/fd").iterdir())


def test_dropped_readers_keep_no_descriptors(tmp_path: Path):
    with init_repository(tmp_path) as log:
        log.append("demo", {"type": "demo.made", "payload": {}})
    place = find_repository(tmp_path)
    assert GitLogs(place).extent("demo").end.position == 1
    gc.collect()
    before = descriptors()
    for _ in range(20):
        GitLogs(place).extent("demo")
    assert descriptors() <= before + 1
