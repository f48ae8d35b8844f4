"""What a parser under test is, and how bytes are offered to it."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ropewalk.errors import RopewalkError

__all__ = ["Parser", "as_text", "offer", "work_folder"]


@dataclass(frozen=True, slots=True)
class Parser:
    """One parser: its name, what it does with bytes, and samples, most of which it accepts.

    `take` returns when it accepts and raises an error of `ropewalk.errors` when it refuses; what it accepts must come
    out again as the bytes, or as the value, that went in.
    """

    name: str
    take: Callable[[bytes], object]
    samples: tuple[bytes, ...]


def offer(parser: Parser, raw: bytes) -> bool:
    """Whether the parser took the bytes; anything but taking and refusing is raised."""
    try:
        parser.take(raw)
    except RopewalkError:
        return False
    return True


def as_text(raw: bytes) -> str:
    """Any bytes as a text, for parsers of texts."""
    return raw.decode("utf-8", "surrogateescape")


@cache
def work_folder() -> Path:
    """Where parsers of files find them; in memory where that is possible, unless TMPDIR names a place."""
    place = Path("/dev/shm")
    anywhere = "TMPDIR" in os.environ or not place.is_dir()
    folder = Path(tempfile.mkdtemp(prefix="ropewalk-fuzz-", dir=None if anywhere else place))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
