"""What commands of the pipeline show while they run, on a terminal and in a pipe."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from rich.progress import Task, TaskID
from tests.pipeline.world import World
from tests.unit.cli.conftest import Ropewalk
from tests.waiting import LIMIT_S, ended, until

from ropewalk.cli.common.command import Session
from ropewalk.cli.pipeline.running import progress_line, watched
from ropewalk.cli.pipeline.task_line import TaskColumn
from ropewalk.pipeline.jobs.verify import count_rows
from ropewalk.pipeline.tables.staging import _reported

CONTEXT = click.Command("pipeline")
STAGE = SimpleNamespace(numCompletedTasks=1, numTasks=2)
TRACKER = SimpleNamespace(
    getActiveJobsIds=lambda: [7, 3],
    getJobInfo=lambda _job: SimpleNamespace(stageIds=[0]),
    getStageInfo=lambda _stage: STAGE,
)
SPARK: Any = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: TRACKER))


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
    with click.Context(CONTEXT, obj=Session()), watched("verify", nullcontext(SPARK), lambda: 1 // 0):
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


def test_spark_jobs_show_rows_on_a_terminal(monkeypatch: pytest.MonkeyPatch, world: World):
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        patch.setattr(TaskColumn, "max_refresh", 0)
        with (
            click.Context(CONTEXT, obj=Session()),
            watched("verify", nullcontext(SPARK), lambda: count_rows(world.path, None, None)),
        ):
            until(lambda: b"2 of about 5 rows" in os.read(ours, 4096), LIMIT_S)
    os.close(ours)


def test_spark_jobs_without_status_show_time():
    """A Spark Connect server has no status tracker, and a session that ends may answer nothing."""
    column = TaskColumn(5)
    task = Task(TaskID(0), "verify", None, 0, lambda: 0.0)
    assert str(column.render(task)) == "starting Spark"
    column.spark = SPARK.sparkContext  # which has no context of its own
    assert str(column.render(task)) == "starting Spark"


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
