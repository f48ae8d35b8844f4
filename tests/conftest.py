"""Two workers share the tests, a file at a time. What takes longest starts first, so that neither waits at the end."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

HERE = Path(__file__).parent
LONGEST_FIRST = ("launched", "interop", "docs", "fault")


def pytest_configure() -> None:
    # A shell starts what it puts in the background with Ctrl-C ignored, and every process we start would inherit that:
    # those that are to be interrupted would go on for ever.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    folder = item.path.relative_to(HERE).parts[0] if item.path.is_relative_to(HERE) else ""
    return LONGEST_FIRST.index(folder) if folder in LONGEST_FIRST else len(LONGEST_FIRST)
