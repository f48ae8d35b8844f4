"""The share of an append that goes into the disposable index: its checks alone, and all of it.

CPU time of this process. What counts as a check: reading a page and comparing it with its checksum, making the
checksum of a page, and the checksums of entries. All of it: looking up names and storing rows, checks included.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from bench.bench_gitlog import Field, event
from bench.bench_ledger import ADA, CHANNEL, NODE, NOON, fill, new_home
from bench.harness import Result, fixed
from ropewalk.disk import index_pages
from ropewalk.disk.index_files import IndexExtent, IndexFiles
from ropewalk.gitlog.core.envelope import Draft
from ropewalk.gitlog.core.layout import SHIPLOG
from ropewalk.gitlog.store import index as git_index
from ropewalk.ledger.channel.channel import open_log
from ropewalk.ledger.channel.index import index as ledger_index
from ropewalk.ledger.envelope.envelope import build

__all__ = ["run"]

CHECKS = (
    (index_pages, "_read_page"),
    (index_pages, "_pack_page"),
    (IndexExtent, "to_bytes"),
    (ledger_index, "pack_entry"),
    (ledger_index, "unpack_entry"),
    (git_index, "_entries"),
    (git_index, "_records"),
)
ALL = (
    (IndexFiles, "find"),
    (IndexFiles, "entry"),
    (IndexFiles, "entries"),
    (IndexFiles, "write"),
    (ledger_index, "pack_entry"),
    (ledger_index, "unpack_entry"),
    (git_index, "_entries"),
    (git_index, "_records"),
)


@contextmanager
def counted(functions: Sequence[tuple[Any, str]]) -> Iterator[list[int]]:
    """Sum the CPU time of some functions, in nanoseconds."""
    spent, kept = [0], [getattr(owner, name) for owner, name in functions]

    def timed(act: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any) -> Any:
            started = time.thread_time_ns()
            try:
                return act(*arguments)
            finally:
                spent[0] += time.thread_time_ns() - started

        return wrapped

    for (owner, name), act in zip(functions, kept, strict=True):
        setattr(owner, name, timed(act))
    try:
        yield spent
    finally:
        for (owner, name), act in zip(functions, kept, strict=True):
            setattr(owner, name, act)


def _share(job: str, rounds: Callable[[], Iterator[Callable[[], int]]]) -> Iterator[Result]:
    """Compare the CPU time of appends with what of it is spent on the index; the targets say less than a tenth."""
    for what, functions in (("checks of its index", CHECKS), ("all work of its index", ALL)):
        total = inside = count = 0
        for act in rounds():
            with counted(functions) as spent:
                started = time.process_time_ns()
                count += act()
                total += time.process_time_ns() - started
            inside += spent[0]
        target = 10 if functions is CHECKS else None
        yield fixed(job, what, "the append", count / inside * 1e9, count / total * 1e9, target, "appends")


def _ledger(quick: bool, size: int) -> Iterator[Result]:
    raws = [
        build(
            ADA,
            domain="ea.core",
            event_class="Command",
            event_type="bench.asked",
            payload={"n": number, "text": "x" * 300},
            timestamp=NOON,
            correlation_id=f"c-{size}-{number}",
        ).raw
        for number in range(2 * (640 if quick else 3_200))
    ]
    with new_home() as home:
        fill(home, 5_000 if quick else 100_000, 1_000, {})
        left = iter([raws[: len(raws) // 2], raws[len(raws) // 2 :]])

        def rounds() -> Iterator[Callable[[], int]]:
            mine = next(left)

            def act() -> int:
                with open_log(home, CHANNEL, NODE) as ledger:  # closing writes the rows
                    for start in range(0, len(mine), size):
                        ledger.log.submit_many(mine[start : start + size])
                return len(mine)

            yield act

        yield from _share(f"append to a ledger, {size} at a time", rounds)


def _gitlog(quick: bool, size: int) -> Iterator[Result]:
    field, count = Field(), 128 if quick else 640
    with field.opened() as log:
        log.append_all("demo", [Draft(event(n)) for n in range(2_000)])
        ref = SHIPLOG.head_ref("demo")
        log.lines.flush(ref)

        def rounds() -> Iterator[Callable[[], int]]:
            def act() -> int:
                for start in range(0, count, size):
                    log.append_all("demo", [Draft(event(n)) for n in range(start, start + size)])
                log.lines.flush(ref)
                return count

            yield act

        yield from _share(f"append to a git log, {size} at a time", rounds)


def run(quick: bool) -> list[Result]:
    """All rows."""
    return [row for size in (1, 64) for make in (_ledger, _gitlog) for row in make(quick, size)]
