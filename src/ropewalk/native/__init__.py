"""Compiled loops for work that comes by the thousand. Everything here has a twin in Python that says what is right."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

__all__ = ["is_here", "switched_off"]

_off = 0


def is_here() -> bool:
    """Whether this installation has the loops."""
    from ropewalk.native.library import library  # ctypes takes longer to import than a small batch takes

    return not _off and library() is not None


@contextlib.contextmanager
def switched_off() -> Iterator[None]:
    """Let Python do all the work inside the block: to compare both, or to find out who is at fault."""
    global _off
    _off += 1
    try:
        yield
    finally:
        _off -= 1
