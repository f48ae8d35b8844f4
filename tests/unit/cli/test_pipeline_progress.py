"""What `pipeline ingest` and `pipeline verify` show while they run, on a terminal and in a pipe."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
from tests.pipeline.world import World
from tests.unit.cli.conftest import Ropewalk
from tests.waiting import LIMIT_S, ended

from ropewalk.cli.common.command import Session
from ropewalk.cli.pipeline.running import elapsed_line, progress_line
from ropewalk.pipeline.jobs.verify import count_rows
from ropewalk.pipeline.tables.staging import _reported

CONTEXT = click.Command("pipeline")


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World.make(tmp_path / "source.git")
    made.git("prod", 3)
    made.git("staging", 2)
    return made


def test_progress_counts_the_whole_run(ropewalk: Ropewalk, world: World):
    place = ("--warehouse", "tables", "--source", str(world.path), "--batch-rows", "3")
    answer = ropewalk("pipeline", "ingest", *place, "--progress")
    assert answer.code == 0 and "5 rows in 2 batches" in answer.text
    found = re.findall(r"ingest  (\d+) of about (\d+) rows", answer.err)
    assert list(dict.fromkeys(found)) == [("0", "5"), ("3", "5"), ("5", "5")]


def test_progress_is_quiet_in_a_pipe(ropewalk: Ropewalk, world: World, capsys: pytest.CaptureFixture[str]):
    answer = ropewalk("pipeline", "ingest", "--warehouse", "tables", "--source", str(world.path))
    assert answer.code == 0 and answer.err == "batch 1: 5 rows\n"
    with click.Context(CONTEXT, obj=Session()), elapsed_line("verify", lambda: 1 // 0):
        pass
    assert capsys.readouterr().err == ""


def test_progress_of_a_refused_batch_is_not_done(tmp_path: Path):
    reports: list[tuple[int, int]] = []
    with pytest.raises(ValueError), _reported(tmp_path, 5, lambda *each: reports.append(each)):
        raise ValueError
    assert reports == [(0, 5)]


def test_progress_rate_starts_with_the_rows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    now = iter([0.0, 60.0, 60.0, 62.0, 70.0, 100.0, 100.0, 101.0])  # Spark starts for a minute
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    with click.Context(CONTEXT, obj=Session()):
        show = progress_line("ingest", wanted=True)
    assert show is not None
    for report in ((0, 40), (10, 40), (40, 40), (0, 9), (3, 9)):
        show(*report)
    rates = [line.split("rows  ")[1].split("  ") for line in capsys.readouterr().err.splitlines()]
    assert [(each[0], each[1].strip()) for each in rates] == [
        ("0 rows/s", "starting"),
        ("5 rows/s", "6 s left"),
        ("4 rows/s", "done"),
        ("0 rows/s", "starting"),  # another batch of `--follow`
        ("3 rows/s", "2 s left"),
    ]


def test_verify_shows_its_time_on_a_terminal(monkeypatch: pytest.MonkeyPatch, world: World):
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        with (
            click.Context(CONTEXT, obj=Session()),
            elapsed_line("verify", lambda: count_rows(world.path, None, None)),
        ):
            pass
        said = os.read(ours, 4096)
    os.close(ours)
    assert b"verify  about 5 entries to check  0:00:0" in re.sub(rb"\x1b\[[0-9;]*m", b"", said)


def test_follow_prints_the_rate_of_a_batch(world: World, tmp_path: Path):
    command = [str(Path(sys.executable).with_name("ropewalk")), "pipeline", "ingest", "--follow"]
    place = ["--warehouse", str(tmp_path / "tables"), "--source", str(world.path)]
    started = subprocess.Popen(
        [*command, *place], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    with ended(started, LIMIT_S) as process:
        assert process.stdout is not None
        assert re.fullmatch(r"batch 1: 5 rows, [\d,]+ rows/s\n", process.stdout.readline())
        process.send_signal(signal.SIGINT)
