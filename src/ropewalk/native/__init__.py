"""Compiled loops for large batches. Every loop has a Python version that defines the right result."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

__all__ = ["is_here", "switched_off"]

_off = 0


def is_here() -> bool:
    """Tell whether this installation has the loops."""
    from ropewalk.native.library import library  # ctypes takes longer to import than a small batch takes

    return not _off and library() is not None


@contextlib.contextmanager
def switched_off() -> Iterator[None]:
    """Use Python only inside the block: to compare both, or to find a fault."""
    global _off
    _off += 1
    try:
        yield
    finally:
        _off -= 1
