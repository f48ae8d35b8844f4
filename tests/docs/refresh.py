"""Write the output that commands print into the documentation pages: `python -m tests.docs.refresh docs/tour.md`.

Steps whose output differs from the page are rewritten, and with `--all` also those where the page shows only `…`. What
is random or depends on the machine (ids, hashes, paths, sizes, times) becomes `…`.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.docs import snippets
from tests.docs.snippets import ROOT, Page, Step, matches, run_page

SHOWN_MAX = 10  # lines of one command; the rest is a line with `…`
RANDOM = [
    (r"blake3:[0-9a-f]+…?", "blake3:…"),
    (r"did:key:z\w+…?", "did:key:z…"),
    (r"\b[0-7][0-9A-HJKMNP-TV-Z]{25}\b", "…"),
    (r"\b0[0-9a-v]{31}\b", "…"),
    (r"\b\d{4}-\d\d-\d\d[T ][\d:.]+Z?", "…"),
    (r"\b(?!ed25519)(?=[0-9a-f]*[0-9])[0-9a-f]{7,}\b…?", "…"),
    (r"[\w+/]{40,}=*", "…"),
    (r"\b[\d,]+ bytes", "… bytes"),
    (r"\b\d+\.\d+ (s|ms)\b", r"… \1"),
    (r"(127\.0\.0\.1|localhost):\d{4,5}", r"\1:…"),
]


def mask(printed: str, folder: Path) -> list[str]:
    """Return the lines of an output without what differs from run to run.

    >>> mask("ok  commit=8b1c1e4 content_id=blake3:2a6c…\\n", Path("/x"))
    ['ok  commit=… content_id=blake3:…']
    """
    text = printed.rstrip().replace(str(folder), "…")
    for pattern, shown in RANDOM:
        text = re.sub(pattern, shown, text)
    lines = [re.sub(r"…[…\s]*…", "…", line.rstrip()) for line in text.splitlines()]
    return lines if len(lines) <= SHOWN_MAX else [*lines[: SHOWN_MAX - 3], "…", *lines[-2:]]


@contextmanager
def recorded() -> Iterator[list[tuple[Step, str]]]:
    """Record every step of a page with what it printed."""
    found: list[tuple[Step, str]] = []
    judge = snippets._judge

    def note(name: str, step: Step, code: int | None, printed: str, seconds: float) -> Iterator[str]:
        found.append((step, printed))
        yield from judge(name, step, code, printed, seconds)

    snippets._judge = note
    try:
        yield found
    finally:
        snippets._judge = judge


def refresh(path: Path, *, everything: bool) -> int:
    """Rewrite one page; return how many steps changed. A step that shows its output already is left alone."""
    with tempfile.TemporaryDirectory() as folder, recorded() as found:
        run_page(Page(str(path), path.read_text(encoding="utf-8")), Path(folder))
        work = Path(folder) / "work"
    lines = path.read_text(encoding="utf-8").splitlines()
    changed = 0
    for step, printed in reversed(found):
        new = mask(printed, work)
        short = len(printed.splitlines()) <= SHOWN_MAX  # of a long output, the page shows what it is about
        vague = everything and short and any(line in ("…", "ok  …", "error  …") for line in step.expected)
        if (
            (matches(step.expected, printed) and not vague)
            or not matches(new, printed)
            or tuple(new) == step.expected
        ):
            continue
        start = step.line + step.command.count("\n")
        indent = re.match(r"\s*", lines[step.line - 1])
        shown = [f"{indent[0] if indent else ''}{line}" for line in new]
        lines[start : start + len(step.expected)] = shown
        changed += 1
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return changed


if __name__ == "__main__":
    for name in (each for each in sys.argv[1:] if each != "--all"):
        count = refresh(ROOT / name, everything="--all" in sys.argv)
        sys.stdout.write(f"{name}: {count} steps rewritten\n")
