"""Two workers share the tests, a file at a time; tests/pipeline stays together, because it has one Spark session.

What takes longest starts first, so that neither waits at the end.
"""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

HERE = Path(__file__).parent
ONE_SESSION = "tests/pipeline/"
LONGEST_FIRST = ("pipeline", "launched", "interop", "docs", "fault")


def pytest_configure() -> None:
    # Every JVM that a test starts, in whatever home, finds the classes that an earlier one has archived.
    os.environ.setdefault("ROPEWALK_CACHE", f"{tempfile.gettempdir()}/ropewalk-test-cache-{os.getuid()}")
    # A shell starts what it puts in the background with Ctrl-C ignored, and every process we start would inherit that:
    # those that are to be interrupted would go on for ever.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class Scheduler(LoadFileScheduling):  # type: ignore[misc]  # xdist publishes no types
    """Whole files to one worker, and all files of one session to the same."""

    def _split_scope(self, nodeid: str) -> str:
        return ONE_SESSION if nodeid.startswith(ONE_SESSION) else super()._split_scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduler:
    return Scheduler(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    folder = item.path.relative_to(HERE).parts[0] if item.path.is_relative_to(HERE) else ""
    return LONGEST_FIRST.index(folder) if folder in LONGEST_FIRST else len(LONGEST_FIRST)
