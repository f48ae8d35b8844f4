"""How the tests are spread over two workers: a file stays together, and so does whatever shares a costly thing."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent
# One Spark session and one npm installation serve all tests of their folder. They take longest, so they start first.
SHARED = {"pipeline": "spark", "interop": "node"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: list(SHARED).index(_folder(item)) if _folder(item) in SHARED else len(SHARED))
    for item in items:
        item.add_marker(pytest.mark.xdist_group(SHARED.get(_folder(item), str(item.path))))


def _folder(item: pytest.Item) -> str:
    return item.path.relative_to(HERE).parts[0] if item.path.is_relative_to(HERE) else ""
