"""Two workers share the tests, a file at a time; tests/pipeline stays together, because it has one Spark session.

What takes longest starts first, so that neither waits at the end.
"""

from __future__ import annotations

import gc
import os
import re
import shutil
import signal
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

HERE = Path(__file__).parent
MEMORY, MEMORY_BYTES_MIN = "/dev/shm", 4 << 30
# Each of these runs in one worker: tests/pipeline has one Spark session, tests/test_*.py parse the sources once.
TOGETHER = ("tests/pipeline/", r"tests/test_\w+\.py::")
# The first of them to start a JVM leaves the others an archive of its classes, and soon: its commands are short.
SLOW_FOLDERS = ("launched/",)  # each of these commands starts a JVM
LONGEST_FIRST = (
    *(
        "pipeline/",
        "launched/test_commands.py",
        "launched/",
        "interop/",
        "docs/",
        "fault/",
        "browser/",
        "sim/",
    ),
    *("property/", "unit/stream/", "unit/server/", "unit/cli/", "unit/gossip/", "unit/ledger/", "test_"),
)


# How long an example takes says something of the machine, and nothing of us.
settings.register_profile("whatever machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", parent=settings.get_profile("whatever machine"), max_examples=500)
settings.load_profile("whatever machine")


@pytest.fixture(params=[7, pytest.param(1, marks=pytest.mark.slow)], ids=["every seventh", "every"])
def flip_step(request: pytest.FixtureRequest) -> int:
    """Return the distance of bytes to flip: every seventh in the fast lane, every one in the slow lane."""
    return int(request.param)


def pytest_configure() -> None:
    gc.disable()  # until all tests are collected: they stay, and looking through them again takes a third of the time
    if _in_memory(MEMORY):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)
    # Every JVM that a test starts, in whatever home, finds the classes that an earlier one has archived.
    os.environ.setdefault("ROPEWALK_CACHE", f"{tempfile.gettempdir()}/ropewalk-test-cache-{os.getuid()}")
    # Neither this process (asserts rewritten) nor the hundreds that tests start compile everything again each time.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    # A shell starts what it puts in the background with Ctrl-C ignored, and every process we start would inherit that:
    # those that are to be interrupted would go on for ever.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def _in_memory(folder: str) -> bool:
    """Can `tmp_path` lie there? A sync then costs nothing; power cuts are simulated, so no test needs a real disk."""
    if not os.access(folder, os.W_OK) or os.statvfs(folder).f_flag & os.ST_NOEXEC:
        return False
    return shutil.disk_usage(folder).free > MEMORY_BYTES_MIN


class Scheduler(LoadFileScheduling):  # type: ignore[misc]  # xdist publishes no types
    """Whole files to one worker, and all files of one session to the same."""

    def _split_scope(self, nodeid: str) -> str:
        together = next((scope for scope in TOGETHER if re.match(scope, nodeid)), None)
        scope: str = super()._split_scope(nodeid) if together is None else together
        return scope


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduler:
    return Scheduler(config, log)


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _name(item.path).startswith(SLOW_FOLDERS):
            item.add_marker("slow")
    items.sort(key=_turn)


@cache
def _name(path: Path) -> str:
    return path.relative_to(HERE).as_posix() if path.is_relative_to(HERE) else ""


def _turn(item: pytest.Item) -> int:
    name = _name(item.path)
    return next(
        (turn for turn, part in enumerate(LONGEST_FIRST) if name.startswith(part)), len(LONGEST_FIRST)
    )
