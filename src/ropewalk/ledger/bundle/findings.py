"""Findings of a bundle verification: for each step the first failure, and the number of failures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from ropewalk.kernel.report import Need, Status, Step

STEPS: Final = ("bundle_signature", "envelope_hashes", "merkle_paths", "block_signatures", "policy_hash")


@dataclass(slots=True)
class _Finding:
    count: int = 0
    detail: str = ""
    fields: dict[str, Any] = field(default_factory=dict)


class Findings:
    """Failures by step.

    >>> findings = Findings()
    >>> findings.add("merkle_paths", "block 1: another root", height=1)
    >>> findings.step("merkle_paths", lambda: ("passed", "")).status
    'failed'
    """

    def __init__(self) -> None:
        self._found = {name: _Finding() for name in (*STEPS, "envelope_rules")}

    def add(self, step: str, detail: str, **fields: Any) -> None:
        """Record a failure."""
        finding = self._found[step]
        if not finding.count:
            finding.detail, finding.fields = detail, {k: v for k, v in fields.items() if v is not None}
        finding.count += 1

    def detail(self, step: str) -> str:
        """Return the first failure of a step, empty if there is none."""
        return self._found[step].detail

    def step(self, name: str, otherwise: Callable[[], tuple[Status, str] | tuple[Status, str, Need]]) -> Step:
        """Return the step for the report; `otherwise` gives the result if nothing failed."""
        finding = self._found[name]
        if finding.count:
            more = f" (and {finding.count - 1} more)" if finding.count > 1 else ""
            return Step(name, "failed", finding.detail + more, finding.fields)
        status, detail, *need = otherwise()
        return Step(name, status, detail, need=need[0] if need else "required")
