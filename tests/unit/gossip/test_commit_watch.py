"""Waiting for commits, also those of other processes, with and without reports of the kernel."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.tools import needs_that
from tests.unit.gossip.conftest import memory_log

from ropewalk import gossip
from ropewalk.gossip.peer import commit_watch
from ropewalk.gossip.peer.commit_watch import CommitWatch
from ropewalk.gossip.peer.topics import open_log

TOPIC = "com.example"
LIMIT_S = 60.0
_APPEND = """
import sys
from pathlib import Path
from ropewalk import gossip
with gossip.open("com.example", Path(sys.argv[1]), signer=gossip.Ed25519Signer()) as log:
    log.append("from afar")
"""
NEEDS_REPORTS = needs_that(sys.platform == "linux", "only Linux reports writes")


def append_elsewhere(folder: Path) -> None:
    subprocess.run([sys.executable, "-c", _APPEND, folder], check=True)


@NEEDS_REPORTS
def test_a_commit_of_another_process_ends_the_wait(tmp_path, monkeypatch):
    """With pauses that never end, only a report does."""
    monkeypatch.setattr(commit_watch, "FIRST_S", 2 * LIMIT_S)
    monkeypatch.setattr(commit_watch, "WATCHED_S", 2 * LIMIT_S)
    with open_log(TOPIC, tmp_path / "log") as log, CommitWatch(log) as watch:
        worker = threading.Thread(target=watch.wait)
        worker.start()
        append_elsewhere(tmp_path / "log")
        worker.join(LIMIT_S)
        assert not worker.is_alive()


@NEEDS_REPORTS
def test_a_commit_of_another_process_ends_the_wait_of_a_loop(tmp_path, monkeypatch):
    monkeypatch.setattr(commit_watch, "FIRST_S", 2 * LIMIT_S)
    monkeypatch.setattr(commit_watch, "WATCHED_S", 2 * LIMIT_S)

    async def run() -> None:
        with open_log(TOPIC, tmp_path / "log") as log, CommitWatch(log) as watch:
            waiting = asyncio.create_task(watch.wait_async())
            await asyncio.sleep(0)
            await asyncio.to_thread(append_elsewhere, tmp_path / "log")
            await asyncio.wait_for(waiting, LIMIT_S)

    asyncio.run(run())


@pytest.mark.parametrize("reported", [pytest.param(True, marks=NEEDS_REPORTS), False])
def test_follow_yields_what_another_process_appends(tmp_path, monkeypatch, reported):
    if not reported:  # no instance left, or another system
        monkeypatch.setattr(commit_watch, "_report_writes", lambda path: None)
    with open_log(TOPIC, tmp_path / "log") as log:
        found: list[object] = []
        reader = threading.Thread(target=lambda: found.append(next(gossip.follow(log))[1].message.payload))
        reader.start()
        append_elsewhere(tmp_path / "log")
        reader.join(LIMIT_S)
        assert found == ["from afar"]


def test_pauses_double_up_to_the_poll_and_start_again_after_a_write(tmp_path):
    with open_log(TOPIC, tmp_path / "log") as log, CommitWatch(log) as watch:
        for _ in range(12):
            watch._note(False)
        assert watch._pause_s == watch._idle_s
        watch._note(True)
        assert watch._pause_s == commit_watch.FIRST_S


def test_a_log_in_memory_is_polled():
    with memory_log() as log, CommitWatch(log) as watch:
        assert watch._file is None and watch._idle_s == commit_watch.POLLED_S
        watch.wait()


@NEEDS_REPORTS
def test_a_missing_file_is_polled(tmp_path):
    assert commit_watch._report_writes(tmp_path / "none") is None
