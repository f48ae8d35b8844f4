"""Report a verification: named steps, each passed, failed or not checked, and one verdict computed from them.

The verdict is computed here and nowhere else:

    failed      a step failed
    untrusted   no step failed, but a signature was not judged because no trusted key was given
    partly      something required was not checked, or nothing was checked at all
    passed      every step passed, or was optional and not requested

A report is ok only if the verdict is `passed`, or if the caller accepted `untrusted` or `partly` by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ropewalk.errors import Unverified

Status = Literal["passed", "failed", "not_checked"]
Verdict = Literal["passed", "failed", "untrusted", "partly"]
Need = Literal["required", "trust", "optional"]
"""What an unchecked step means: it was required, it needs a trusted key, or the caller did not request it."""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that was looked at. `fields` hold the facts of a failure, such as the height.

    `need` counts only where the step was not checked. It is `required` unless the code that skips the step sets
    otherwise, so a forgotten case is never reported as passed.
    """

    name: str
    status: Status
    detail: str = ""
    fields: dict[str, Any] = field(default_factory=dict)
    need: Need = "required"

    @classmethod
    def optional(cls, name: str, detail: str) -> Step:
        """Return a step that the caller did not request, or that has nothing to look at.

        >>> Report.of([Step("hashes", "passed"), Step.optional("packs", "needs --deep")]).verdict
        'passed'
        """
        return cls(name, "not_checked", detail, need="optional")

    @classmethod
    def untrusted(cls, name: str, detail: str) -> Step:
        """Return a step that needs a trusted key, where none was given.

        >>> Report.of([Step.untrusted("signer", "no trust file")]).verdict
        'untrusted'
        """
        return cls(name, "not_checked", detail, need="trust")

    def to_json(self) -> dict[str, Any]:
        """Return the step as the command line prints it; an unchecked step also has what it needs."""
        need = {"need": self.need} if self.status == "not_checked" else {}
        return {"name": self.name, "status": self.status, "detail": self.detail, **need, **self.fields}


@dataclass(frozen=True, slots=True)
class Report:
    """Steps in their order, and the verdict they lead to.

    >>> Report((Step("hashes", "passed"), Step("policy", "not_checked", "no policy given"))).verdict
    'partly'
    """

    steps: tuple[Step, ...]
    counts: dict[str, int] = field(default_factory=dict)
    accepted: frozenset[Verdict] = frozenset()

    @property
    def verdict(self) -> Verdict:
        """Return the verdict: the worst that a step leads to. No steps at all are `partly`."""
        if self.first_failure is not None:
            return "failed"
        needs = {step.need for step in self.steps if step.status == "not_checked"}
        if "trust" in needs:
            return "untrusted"
        if "required" in needs or not self.steps:
            return "partly"
        return "passed"

    @property
    def ok(self) -> bool:
        """Return whether the verdict is `passed`, or one that the caller accepted by name."""
        return self.verdict == "passed" or self.verdict in self.accepted

    @property
    def exit_code(self) -> int:
        """Return the exit code of a command that prints this report.

        >>> Report.of([Step("a", "passed")]).exit_code, Report.of([Step("a", "failed")]).exit_code
        (0, 5)
        """
        return 0 if self.ok else Unverified.exit_code

    @property
    def entries(self) -> int:
        """How many entries were looked at."""
        return self.counts.get("entries", 0)

    @property
    def first_failure(self) -> Step | None:
        return next((step for step in self.steps if step.status == "failed"), None)

    def accept(self, *, untrusted: bool = False, partly: bool = False) -> Report:
        """Return the report with some verdicts accepted. `untrusted` also accepts no less than it names.

        A report that is untrusted and also lacks something required is ok only where both are accepted. A failure is
        never accepted.

        >>> report = Report.of([Step.untrusted("signer", "no trust file")])
        >>> report.accept(untrusted=True).ok, report.accept(partly=True).ok, report.accept(untrusted=True).verdict
        (True, False, 'untrusted')
        """
        short = any(step.status == "not_checked" and step.need == "required" for step in self.steps)
        accepted: set[Verdict] = set()
        if untrusted and (partly or not short):
            accepted.add("untrusted")
        if partly:
            accepted.add("partly")
        return replace(self, accepted=frozenset(accepted))

    def to_json(self) -> dict[str, Any]:
        """Return the report as `verify --json` prints it."""
        steps = [step.to_json() for step in self.steps]
        return {"ok": self.ok, "verdict": self.verdict, "steps": steps, **self.counts}

    def _repr_html_(self) -> str:
        from ropewalk.pages import html_table

        title = ", ".join([self.verdict, *(f"{count:,} {name}" for name, count in self.counts.items())])
        steps = ((step.name, step.status, step.detail) for step in self.steps)
        return html_table(title, ("step", "status", "detail"), steps)

    @classmethod
    def of(cls, steps: Iterable[Step], **counts: int) -> Report:
        """Return a report of the steps and some counts.

        >>> Report.of([Step("a", "passed")], blocks=2).to_json()["blocks"]
        2
        """
        return cls(tuple(steps), counts)
