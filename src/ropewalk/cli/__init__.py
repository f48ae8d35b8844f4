"""The command line: one file per noun. Only here may the environment be read."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run `ropewalk` (also installed as `gatosd`) and end the process with its exit code."""
    import sys

    from ropewalk.cli.main import run

    sys.exit(run(sys.argv[1:]))
