"""The command line: one file per noun. Only here may the environment be read."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run `ropewalk` (also installed as `gatosd`) and end the process with its exit code."""
    import sys

    _settle_streams()

    from ropewalk.cli.main import run

    sys.exit(run(sys.argv[1:]))


def _settle_streams() -> None:
    """Three streams that are there, and two that take any text.

    A stream that was closed reads as empty and swallows what is written; left closed, the next file to be opened would
    take its number. Names of files need not be UTF-8: the stray bytes are written as escapes, which JSON has too.
    """
    import os
    import sys
    from io import TextIOWrapper

    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
