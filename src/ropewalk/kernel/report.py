"""One way to report a verification, whatever was verified: steps by name, each passed, failed or not checked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["Report", "Status", "Step"]

Status = Literal["passed", "failed", "not_checked"]


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that was looked at. `fields` hold the facts of a failure, such as the height."""

    name: str
    status: Status
    detail: str = ""
    fields: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As the command line prints it."""
        return {"name": self.name, "status": self.status, "detail": self.detail, **self.fields}


@dataclass(frozen=True, slots=True)
class Report:
    """Steps in their order. It holds if nothing failed; what was not checked stays visible.

    >>> Report((Step("hashes", "passed"), Step("policy", "not_checked", "no policy given"))).ok
    True
    """

    steps: tuple[Step, ...]
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return all(step.status != "failed" for step in self.steps)

    @property
    def entries(self) -> int:
        """How many entries were looked at."""
        return self.counts.get("entries", 0)

    @property
    def first_failure(self) -> Step | None:
        """The step that failed first."""
        return next((step for step in self.steps if step.status == "failed"), None)

    def to_json(self) -> dict[str, Any]:
        """As `verify --json` prints it."""
        return {"ok": self.ok, "steps": [step.to_json() for step in self.steps], **self.counts}

    @classmethod
    def of(cls, steps: Iterable[Step], **counts: int) -> Report:
        """A report of the steps and some counts.

        >>> Report.of([Step("a", "passed")], blocks=2).to_json()["blocks"]
        2
        """
        return cls(tuple(steps), counts)
