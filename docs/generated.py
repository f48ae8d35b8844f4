"""What ends every script that writes pages: write them, or with `--check` compare them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["write_or_check"]


def write_or_check(files: Mapping[Path, str], arguments: list[str]) -> int:
    """Write the files and return 0; with `--check` write nothing, and return 5 where one differs."""
    if arguments != ["--check"]:
        for path, text in files.items():
            path.write_text(text, encoding="utf-8")
        return 0
    drifted = [path for path, text in files.items() if path.read_text(encoding="utf-8") != text]
    for path in drifted:
        print(f"{path.name} has drifted: run make docs", file=sys.stderr)
    return 5 if drifted else 0
