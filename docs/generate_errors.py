"""Write docs/reference/errors.md from `ropewalk.errors`: `python docs/generate_errors.py [--check]`.

With `--check` nothing is written; a page that has drifted ends with 5.
"""

from __future__ import annotations

import sys
from pathlib import Path

from generated import write_or_check

from ropewalk.cli.explain import error_rows
from ropewalk.errors import SPELLINGS

__all__ = ["PAGE", "main", "render"]

PAGE = Path(__file__).resolve().parent / "reference" / "errors.md"
INTRO = """\
# Errors

Written by `docs/generate_errors.py` from `ropewalk.errors`; do not edit. `ropewalk explain CODE` prints one entry.

Match on `code`: it never changes. The command line prints it and ends with the exit code; with `--json`, and over HTTP,
an error is `application/problem+json` (RFC 9457) with `code`, `status`, `detail` and `advice`. Python raises the class
of `ropewalk.errors`. `detail` says what was expected and what was found."""
EXITS = """\
## Exit codes

| exit code | meaning |
|---:|---|
| 0 | ok |
| 1 | internal error |
| 2 | usage |
| 3 | not found |
| 4 | conflict: the head moved, or out of order |
| 5 | verification failed |
| 6 | denied by policy |
| 7 | unavailable |
| 8 | invalid input |
| 130 | interrupted |"""


def render() -> str:
    """Return the whole page."""
    parts = [INTRO, EXITS]
    for row in error_rows():
        parts += [
            f"## {row['code']}" + (f" ({row['class']})" if row["class"] != row["code"] else ""),
            f"HTTP status {row['status']}, "
            + (f"exit code {row['exit_code']}." if row["exit_code"] is not None else "no exit code."),
            f"**Cause.** {' '.join(str(row['meaning']).partition(chr(10) * 2)[0].split())}",
            f"**Fix.** {row['advice']}",
        ]
    rows = [
        f"| `{code}` | `{each.messages}` | `{each.stream}` | `{each.compat}` | {', '.join(each.aliases) or '–'} |"
        for code, each in SPELLINGS.items()
    ]
    parts.append(
        "## Spellings\n\nThe message plane (S1), the stream (S2) and shiplog-compat spell some codes differently."
    )
    parts.append("\n".join(["| code | messages | stream | compat | also |", "|---|---|---|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def main(arguments: list[str]) -> int:
    """Write the page, or compare it."""
    return write_or_check({PAGE: render()}, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
