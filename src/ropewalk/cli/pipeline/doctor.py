"""`ropewalk pipeline doctor`: whether Spark, Java, DuckDB and a warehouse can be used here, without starting a JVM."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
from collections.abc import Iterator
from pathlib import Path

import click

from ropewalk.cli.common.command import MARKS, command, emit
from ropewalk.cli.common.options import option
from ropewalk.cli.pipeline.running import cache_folder
from ropewalk.errors import RopewalkError, Unavailable
from ropewalk.kernel.report import Report, Step
from ropewalk.kernel.terminal_text import printable

PACKAGES = ("pyspark", "pyarrow", "pandas", "duckdb")  # their bounds are those of the extra `spark`
STREAMS_FROM = (4, 2)  # of PySpark
MEMORY_MIN_MB = 2048


@command("doctor", "ropewalk pipeline doctor", "ropewalk pipeline doctor --warehouse ./tables")
@option("--warehouse", "DIR", "Also check this warehouse.", type=click.Path(path_type=Path))
def doctor(warehouse: Path | None) -> None:
    """Check Java, memory, package versions and, if named, a warehouse. Exit 7 if the pipeline cannot run."""
    report = Report.of(_steps(warehouse))
    lines = (f"{MARKS[s.status]} {s.name:<12} {printable(s.detail)}" for s in report.steps)
    emit(report.to_json(), lines)
    if not report.ok:
        raise click.exceptions.Exit(Unavailable.exit_code)


def _steps(warehouse: Path | None) -> Iterator[Step]:
    from ropewalk.pipeline.launch.java import INSTALL_LINE, find_java

    for name in PACKAGES:
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield Step(name, "failed", f"not installed; run: {INSTALL_LINE}")
            continue
        found, (least, below) = _numbers(version), _bounds(name)
        if found < _numbers(least):
            yield Step(name, "failed", f"{version}; must be {least} or later")
        elif below and found >= _numbers(below):
            yield Step(name, "failed", f"{version}; must be below {below}")
        elif name == "pyspark" and found < STREAMS_FROM:
            yield Step(name, "passed", f"{version}; streams of logs need 4.2")
        else:
            yield Step(name, "passed", version)
    try:
        java = find_java(os.environ)
        yield Step("java", "passed", f"{java.version}, {java.path} (from {java.found_by})")
    except RopewalkError as error:
        yield Step("java", "failed", f"{error.detail}. {error.advice_now}")
    memory_mb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    enough = memory_mb >= MEMORY_MIN_MB
    yield Step(
        "memory", "passed" if enough else "failed", f"{memory_mb} MB, must be {MEMORY_MIN_MB} MB or more"
    )
    yield Step("cores", "passed", f"{os.cpu_count()}")
    cache = cache_folder()
    parent = next(each for each in (cache, *cache.parents) if each.exists())
    writable = os.access(parent, os.W_OK)
    yield Step(
        "cache", "passed" if writable else "failed", str(cache) if writable else f"{cache} must be writable"
    )
    if warehouse is not None:
        yield _warehouse_step(warehouse)


def _bounds(name: str) -> tuple[str, str]:
    """Return the first version of a package that the extra `spark` takes, and the first it no longer takes, or ""."""
    lines: list[str] = []
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # a checkout that is on the path
        lines = importlib.metadata.requires("ropewalk") or []
    for line in lines:
        if re.match(rf"{name}\b.*; extra == .spark.$", line):
            found = dict(re.findall(r"(>=|<)([\d.]+)", line))
            return found.get(">=", ""), found.get("<", "")
    return "", ""


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers a version begins with.

    >>> _numbers("4.2.0rc1"), _numbers("20")
    ((4, 2, 0), (20,))
    """
    leading = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, leading[0].split("."))) if leading else ()


def _warehouse_step(path: Path) -> Step:
    from ropewalk.pipeline.tables.warehouse import Warehouse

    try:
        store = Warehouse(path).require()
        manifests = store.manifests()
        missing = [
            each
            for files in store.current_files(manifests).values()
            for each in store.paths(files)
            if not each.exists()
        ]
    except RopewalkError as error:
        return Step("warehouse", "failed", f"{error.detail}. {error.advice_now}")
    if missing:
        return Step("warehouse", "failed", f"{missing[0]} is missing")
    return Step(
        "warehouse", "passed", f"{len(manifests)} batches; `pipeline verify --tables` checks the rows"
    )
