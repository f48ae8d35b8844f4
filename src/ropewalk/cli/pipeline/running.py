"""How a command of the pipeline runs: from where, into which tables, on which Spark, and what is written down of it."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, fields
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropewalk.cli.common.command import say, session
from ropewalk.cli.common.locations import NODE_KEY, here, key_folder
from ropewalk.cli.common.options import option, required
from ropewalk.disk.repository_paths import find_repository
from ropewalk.errors import RopewalkError, Usage
from ropewalk.pipeline.tables.recorded import recorded_source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ropewalk.kernel.keys import SigningKey
    from ropewalk.pipeline.tables.warehouse import Warehouse

LINE_WIDTH = 78  # of the line that shows progress
warehouse_option = required(
    "--warehouse", "DIR", "Where the tables are.", type=click.Path(file_okay=False, path_type=Path)
)
source_option = option(
    "--source",
    "REPO",
    "The repository; default: --repo, else the one the warehouse was filled from, else as other commands.",
    type=click.Path(path_type=Path),
)


def spark_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options `--master` and `--remote`."""
    remote = option("--remote", "URL", "A Spark Connect server, sc://host:port.")
    master = option("--master", "URL", "local[n], spark://host:port …", default="local[*]")
    return master(remote(command))


@dataclass(frozen=True)
class Job:
    """One run of a command: its tables, its repository, its key and its Spark."""

    name: str
    warehouse: Path
    source: Path | None
    master: str
    remote: str | None
    key_name: str = NODE_KEY

    @cached_property
    def store(self) -> Warehouse:
        from ropewalk.pipeline.tables.warehouse import Warehouse

        return Warehouse(self.warehouse)

    @cached_property
    def place(self) -> Path:
        """Where the repository is."""
        return source_of(self.store, self.source)

    @cached_property
    def keys(self) -> Path:
        """The folder of the key that signs."""
        return find_repository(self.place).keys if self.key_name == NODE_KEY else key_folder()

    def key(self) -> SigningKey:
        from ropewalk.disk.key_files import load_signing

        return load_signing(self.keys, self.key_name)

    @contextmanager
    def running(
        self, memory_mb: int = 1024, *, rows: Callable[[], int] | None = None, quiet: bool = False
    ) -> Iterator[tuple[SparkSession, dict[str, Any]]]:
        """Yield a session and the facts that are written down of the run.

        On a terminal a line shows how far Spark is, unless `quiet`; `rows` returns about how many rows it will read.
        """
        if self.name != "ingest" and not self.store.home.is_dir():
            say(f"{self.store.path} was no warehouse; it will hold only what {self.name} finds")
        started = spark_session(self.master, self.remote, memory_mb=memory_mb)
        if not quiet:
            started = watched(self.name, started, rows)
        with recorded(self.store, self.name) as facts, started as spark:
            yield spark, facts

    @contextmanager
    def running_on_demand(self) -> Iterator[tuple[SparkSession | Callable[[], SparkSession], dict[str, Any]]]:
        """Yield as `running`; without a cluster a function that starts the session, instead of the session."""
        if self.remote is not None or not re.fullmatch(r"local(\[.*\])?", self.master):
            with self.running(quiet=True) as (spark, facts):
                yield spark, facts
            return
        started = spark_session(self.master, None)
        with recorded(self.store, self.name) as facts, ExitStack() as stack:
            yield lambda: stack.enter_context(started), facts


def as_job(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command a `Job` instead of the options that every job has."""

    def wrap(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(*arguments: Any, **options: Any) -> None:
            common = {each.name: options.pop(each.name) for each in fields(Job) if each.name in options}
            command(*arguments, job=Job(name, **common), **options)

        return run

    return wrap


def check_names(place: Path, engine: str | None, topics: str | None) -> None:
    """Raise for an engine or a log that does not exist, before Spark is started."""
    from ropewalk.pipeline.launch.launch import require_spark
    from ropewalk.pipeline.source.query import make_query

    require_spark()
    given = {"engine": engine, "topics": topics}
    if named := {name: value for name, value in given.items() if value is not None}:
        make_query({"repository": str(place), **named}).names()


def spark_session(
    master: str, remote: str | None, *, memory_mb: int = 1024
) -> AbstractContextManager[SparkSession]:
    """Check the settings, and return a Spark session for one command that starts when it is entered.

    Only this function reads the environment.
    """
    memory_mb = _memory_mb(os.environ.get("ROPEWALK_SPARK_MEMORY_MB"), memory_mb)
    return _launched(master, remote, memory_mb, bool(os.environ.get("ROPEWALK_DEBUG")))


@contextmanager
def _launched(master: str, remote: str | None, memory_mb: int, debug: bool) -> Iterator[SparkSession]:
    from ropewalk.pipeline.launch.launch import Setting, require_spark, stop
    from ropewalk.pipeline.launch.shipping import launch_equipped

    require_spark()
    setting = Setting(
        master,
        remote,
        cache_folder(),
        memory_mb=memory_mb,
        quick=master.startswith("local"),
        log_level="warn" if debug or session().debug else "off",
    )
    spark = launch_equipped(setting, os.environ, told=say)
    try:
        yield spark
    finally:
        stop(spark)


def progress_line(stage: str, wanted: bool | None) -> Callable[[int, int], None] | None:
    """Return a function that shows progress on one line of stderr, None unless it is a terminal or asked for.

    The rate is that since the last report of no rows.
    """
    if not (sys.stderr.isatty() if wanted is None else wanted) or session().json:
        return None
    started = time.monotonic()
    end = "\r" if sys.stderr.isatty() else "\n"

    def show(rows: int, total: int) -> None:
        nonlocal started
        if not rows:
            started = time.monotonic()
        rate = rows / max(0.001, time.monotonic() - started)
        left = (
            f"{(total - rows) / rate:,.0f} s left"
            if rate and rows < total
            else "done"
            if rows
            else "starting"
        )
        line = f"{stage}  {rows:,} of about {total:,} rows  {rate:,.0f} rows/s  {left}"
        click.echo(f"{line:<{LINE_WIDTH}}", err=True, nl=False)
        click.echo(end if rows < total else "\n", err=True, nl=False)

    return show


def clear_progress() -> None:
    """Clear the line that shows progress on a terminal, before something else is written there."""
    if sys.stderr.isatty():
        click.echo(f"{'':<{LINE_WIDTH}}\r", err=True, nl=False)


@contextmanager
def watched(
    stage: str, started: AbstractContextManager[SparkSession], rows: Callable[[], int] | None
) -> Iterator[SparkSession]:
    """Yield the session; on a terminal show what it does, of about so many rows where the caller can say."""
    if not sys.stderr.isatty() or session().json:
        with started as spark:
            yield spark
        return
    from ropewalk.cli.pipeline.task_line import task_line

    with task_line(stage, rows) as line, started as spark:
        line.spark = spark
        try:
            yield spark
        finally:
            line.spark = None


def asks_for_passphrases(*folders: Path) -> bool:
    """Return whether a key of these folders may need a passphrase, which no moving line must overwrite."""
    from ropewalk.disk import key_files

    try:
        return any(each.protection != "none" for folder in folders for each in key_files.ls(folder))
    except RopewalkError:
        return True


def _memory_mb(named: str | None, otherwise: int) -> int:
    if not named:
        return otherwise
    if not named.isascii() or not named.isdigit() or int(named) < 1:
        raise Usage(f"ROPEWALK_SPARK_MEMORY_MB is {named!r}", advice="Give a number of megabytes, as 2048.")
    return int(named)


def cache_folder() -> Path:
    """Return where things live that may be thrown away: `$ROPEWALK_CACHE`, else in the user's cache directory."""
    named = os.environ.get("ROPEWALK_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ropewalk"


def source_of(store: Warehouse, source: Path | None) -> Path:
    """Return the repository a job reads: the one that was named, else the one the warehouse was filled from.

    Only a warehouse without batches takes the repository around the current directory.
    """
    named = source or session().repo
    if named is not None:
        return named
    manifests = store.manifests()
    return recorded_source(manifests[-1].source) if manifests else here().git_dir


@contextmanager
def recorded(warehouse: Warehouse, job: str) -> Iterator[dict[str, Any]]:
    """Write down that a job ran, and how it ended; the block adds facts."""
    started = now_ms()
    facts: dict[str, Any] = {}
    try:
        yield facts
    except BaseException as error:
        told = {"ok": False, "error": str(error)[:500], "ended_ms": now_ms()}
        if warehouse.home.is_dir():
            warehouse.record_run(job, started, {**facts, **told})
        raise
    warehouse.record_run(job, started, {"ok": True, **facts, "ended_ms": now_ms()})


def now_ms() -> int:
    """Return the time."""
    return time.time_ns() // 1_000_000
