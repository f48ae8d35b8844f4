"""What a Spark job shows on a terminal while it runs: the stage, tasks or rows, their rate and the time left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from ropewalk.errors import RopewalkError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class TaskColumn(ProgressColumn):
    """Tasks of the oldest running Spark job; for the first job rows in their proportion, if their number is known."""

    max_refresh = 0.5  # seconds

    def __init__(self, rows: int = 0) -> None:
        super().__init__()
        self.spark: SparkSession | None = None
        self._rows = rows
        self._first: int | None = None
        self._job, self._since = -1, 0.0
        self._text = "starting Spark"

    def render(self, task: Task) -> Text:
        """Return the text of this moment; what was shown last if Spark does not say."""
        with suppress(Exception):  # Spark ends while it is asked, or is a Spark Connect server
            if self.spark is not None:
                self._text = self._ask(self.spark)
        return Text(self._text)

    def _ask(self, spark: SparkSession) -> str:
        tracker = spark.sparkContext.statusTracker()
        for job in sorted(tracker.getActiveJobsIds()):
            found = tracker.getJobInfo(job)
            stages = (
                [stage for each in found.stageIds if (stage := tracker.getStageInfo(each))] if found else []
            )
            done, total = (
                sum(getattr(each, name) for each in stages) for name in ("numCompletedTasks", "numTasks")
            )
            if total:
                self._first = job if self._first is None else self._first
                if job != self._job:
                    self._job, self._since = job, time.monotonic()
                rows = self._rows if job == self._first else 0
                return describe(done, total, rows, time.monotonic() - self._since)
        return ""


def describe(done: int, total: int, rows: int, seconds: float) -> str:
    """Return how far a Spark job is; `rows` is about how many its tasks read, 0 if that is not known.

    >>> describe(5, 20, 1_000_000, 10.0)
    '250,000 of about 1,000,000 rows  25,000 rows/s  30 s left'
    >>> describe(0, 20, 1_000_000, 10.0), describe(1, 20, 0, 2.0), describe(20, 20, 0, 9.0)
    ('0 of about 1,000,000 rows', '1 of 20 tasks  38 s left', '20 of 20 tasks')
    """
    read = rows * done // total
    text = f"{read:,} of about {rows:,} rows" if rows else f"{done} of {total} tasks"
    if not done or seconds <= 0:
        return text
    rate = f"  {read / seconds:,.0f} rows/s" if rows else ""
    return text + rate + (f"  {seconds * (total - done) / done:,.0f} s left" if done < total else "")


@contextmanager
def task_line(stage: str, rows: Callable[[], int] | None) -> Iterator[TaskColumn]:
    """Show a line on the terminal while the block runs; it follows the session that the block sets."""
    about = 0
    with suppress(RopewalkError):  # the block reports it
        about = 0 if rows is None else rows()
    column = TaskColumn(about)
    columns = TextColumn("{task.description}"), column, TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as line:
        line.add_task(f"{stage} ")
        yield column
