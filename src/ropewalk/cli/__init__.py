"""The command line: one module per noun. Only this package reads environment variables."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run `ropewalk` (also installed as `gatosd`) and end the process with its exit code."""
    import sys

    _settle_streams()

    from ropewalk.cli.main import run

    sys.exit(run(sys.argv[1:]))


def _settle_streams() -> None:
    """Open closed standard streams on the null device, and set UTF-8 with escapes on the output streams.

    If a standard stream stayed closed, the next file to be opened would take its number. File names need not be UTF-8:
    undecodable bytes are written as escapes.
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
