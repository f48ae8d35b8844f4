"""Print a verification report and end with its exit code. Every command that verifies something uses this module."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from ropewalk.cli.common.command import MARKS, emit, say
from ropewalk.cli.common.options import flag
from ropewalk.kernel.terminal_text import printable

if TYPE_CHECKING:
    from ropewalk.kernel.report import Report, Step

_WORDS: Final = {"passed": "ok", "failed": "FAILED", "untrusted": "UNTRUSTED", "partly": "PARTLY CHECKED"}
_OPTIONS: Final = {"untrusted": "--no-trust", "partly": "--allow-partly"}

allow_partly_option: Callable[[Any], Any] = flag(
    "--allow-partly", "Exit 0 also if something required could not be checked."
)
no_trust_option: Callable[[Any], Any] = flag(
    "--no-trust", "Exit 0 also if no trusted key was given for a signature."
)


def end_with_report(report: Report, text: Callable[[], str], advice: str = "") -> None:
    """Print a report as JSON or as text, then advice on stderr, and exit with its code."""
    emit(report.to_json(), text)
    if advice:
        say(advice)
    if report.exit_code:
        raise click.exceptions.Exit(report.exit_code)


def verdict_name(report: Report) -> str:
    """Return the verdict for people; one that an option accepted names the option."""
    word = _WORDS[report.verdict]
    return f"{word}, accepted by {_OPTIONS[report.verdict]}" if report.ok and word != "ok" else word


def format_report(report: Report, *, every_step: bool = True) -> str:
    """Return a report for people: one line a step, or a line for each log in which nothing failed; the verdict last."""
    lines = [
        f"{MARKS[status]} {printable(name):<28} {printable(detail)}"
        for name, status, detail in (
            ((step.name, step.status, step.detail) for step in report.steps)
            if every_step
            else _summed_up(report.steps)
        )
    ]
    return "\n".join([*lines, _last_line(report)])


def _summed_up(steps: tuple[Step, ...]) -> list[tuple[str, str, str]]:
    """Return steps named `<log>:<step>`, with one in place of all those of a log in which nothing failed."""
    logs: dict[str, list[Step]] = {}
    for step in steps:
        log, colon, _ = step.name.rpartition(":")
        logs.setdefault(log if colon else step.name, []).append(step)
    shown: list[tuple[str, str, str]] = []
    for log, of_log in logs.items():
        if len(of_log) == 1 or any(step.status == "failed" for step in of_log):
            shown += [(step.name, step.status, step.detail) for step in of_log]
            continue
        left = [step for step in of_log if step.status == "not_checked"]
        said = f"{of_log[0].detail}; {len(of_log) - len(left)} of {len(of_log)} steps passed"
        names = ", ".join(step.name.rpartition(":")[2] for step in left)
        status = "passed" if all(step.need == "optional" for step in left) else "not_checked"
        shown.append((log, status, f"{said}, not checked: {names}" if left else said))
    return shown


def _last_line(report: Report) -> str:
    """Return the last line, which may be all that is read: what was not checked is named in it."""
    left: Counter[str] = Counter(
        step.name.rpartition(":")[2] for step in report.steps if step.status == "not_checked"
    )
    names = ", ".join(f"{name} ({count} logs)" if count > 1 else name for name, count in left.items())
    rest = f"not checked: {names}" if left else "nothing unchecked"
    return f"{verdict_name(report)}  {report.entries} entries, {rest}"
