from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ropewalk.gitlog.core.layout import MESSAGES
from ropewalk.gitlog.repository.opening import init_repository
from ropewalk.gitlog.repository.repository import GitRepository


@pytest.fixture
def log(tmp_path: Path) -> Iterator[GitRepository]:
    with init_repository(tmp_path / "log.git") as opened:
        yield opened


def publish(log: GitRepository, topic: str, *payloads: dict[str, Any]) -> None:
    from ropewalk.gitlog.core.envelope import Draft

    drafts = [Draft({"type": "test.made", "payload": payload}) for payload in payloads]
    for outcome in log.append_all(topic, drafts, layout=MESSAGES):
        assert not isinstance(outcome, Exception), outcome
