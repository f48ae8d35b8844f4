"""Where the files of a warehouse may lie: below its own folder, under plain names, reached through no link.

Manifests are data from a disk that others may write to. A name in one of them decides what is read, replaced and
deleted, so every path of a table is made here.
"""

from __future__ import annotations

import re
import stat
from pathlib import Path
from typing import Final

from ropewalk.errors import Damaged

OPEN_FILE: Final = "open.parquet"  # rows of a table that later batches may change
_REPLACED: Final = re.compile(r"(.*/)?(batch-[0-9]+|open)\.parquet", re.ASCII)
TABLE_NAME: Final = re.compile(r"[a-z][a-z0-9_]*", re.ASCII)
# No separator, no leading dot, and nothing that Spark would expand: `*`, `?`, `[`, `{`.
_PLAIN: Final = r"[A-Za-z0-9_][A-Za-z0-9._=-]*\.parquet"
_DAY_AND_LOG: Final = r"(date=[A-Z0-9_-]+/log=[A-Za-z0-9_.~%-]+/)?"
_ADVICE: Final = (
    "Do not use this warehouse: move it away and run `ropewalk pipeline ingest` into a new folder."
)


def safe_path(root: Path, *parts: str) -> Path:
    """Return the path of something inside a folder; raise `Damaged` if a part leads out of it, is a link or a pipe.

    >>> safe_path(Path("/tables"), "events", "batch=1").as_posix()
    '/tables/events/batch=1'
    """
    path = root
    for part in parts:
        if part in ("", ".", "..") or "/" in part or "\\" in part or "\0" in part:
            raise _refusal(f"{part!r} must be one plain name inside {root}", "name")
        path = path / part
        try:
            mode = path.lstat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # to open a pipe would wait for ever
            kind = "a symbolic link" if stat.S_ISLNK(mode) else "neither a file nor a folder"
            raise _refusal(f"{path} is {kind}; the files of a warehouse must lie inside it", "link")
    return path


def check_file_name(table: str, number: int, name: object) -> str:
    """Return the name of a file that a batch wrote for a table; raise `Damaged` if that batch cannot have written it.

    >>> check_file_name("events", 3, "events/batch=3/part-0.parquet")
    'events/batch=3/part-0.parquet'
    >>> check_file_name("events", 3, "events/batch=3/date=2026-11-18/log=jobs%2Fpending/part-0.parquet")
    'events/batch=3/date=2026-11-18/log=jobs%2Fpending/part-0.parquet'
    """
    if isinstance(name, str) and TABLE_NAME.fullmatch(table):
        rule = rf"{table}/(batch={number}/{_DAY_AND_LOG}{_PLAIN}|batch-{number}\.parquet)"
        if re.fullmatch(rule, name, re.ASCII):
            return name
    raise _refusal(
        f"batch {number} names {name!r} as a file of table {table!r}, which must lie in its folder", "name"
    )


def is_replaced(name: str) -> bool:
    """Return whether a file of a table is replaced by the next one of its kind, and does not stay beside it.

    >>> is_replaced("deployments/batch=3/open.parquet"), is_replaced("deployments/batch=3/part-0.parquet")
    (True, False)
    """
    return _REPLACED.fullmatch(name) is not None


def _refusal(detail: str, reason: str) -> Damaged:
    return Damaged(detail, reason=reason, advice=_ADVICE)
