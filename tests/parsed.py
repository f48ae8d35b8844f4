"""The syntax trees of `src/`, parsed once for all tests that read them."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

__all__ = ["SOURCE", "parsed", "source_files"]

SOURCE = Path(__file__).resolve().parents[1] / "src"


@cache
def source_files() -> tuple[Path, ...]:
    """Return every module below `src/`, in order."""
    return tuple(sorted(SOURCE.rglob("*.py")))


@cache
def parsed(path: Path) -> ast.Module:
    """Return the tree of a module; callers must not change it."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
