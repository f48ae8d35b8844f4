"""What a verification says: steps by name, each passed, failed or not checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Report", "Status", "Step"]

Status = Literal["passed", "failed", "not_checked"]


@dataclass(frozen=True, slots=True)
class Step:
    """One named decision."""

    name: str
    status: Status
    detail: str

    def to_json(self) -> dict[str, str]:
        return {"name": self.name, "status": self.status, "detail": self.detail}


@dataclass(frozen=True, slots=True)
class Report:
    """What was checked, and how it ended. Not one word more is proven."""

    steps: tuple[Step, ...]
    entries: int

    @property
    def ok(self) -> bool:
        """Whether no step failed."""
        return all(step.status != "failed" for step in self.steps)

    def to_json(self) -> dict[str, Any]:
        return {"ok": self.ok, "steps": [step.to_json() for step in self.steps], "entries": self.entries}
