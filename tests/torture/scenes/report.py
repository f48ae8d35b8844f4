"""What a scene found, for machines: criteria that hold or not, figures, and both beside those of an earlier run.

Criteria decide. Figures depend on the machine: they are recorded and held against the baseline as a ratio, and nothing
follows from that by itself.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["BASELINE", "Scene", "as_baseline", "compare", "machine", "percentiles", "read_baseline"]

BASELINE = Path(__file__).with_name("baseline.json")


@dataclass(slots=True)
class Scene:
    """One scene while it runs: `check` says what must hold, `measure` what was seen."""

    name: str
    clause: str
    what: str
    criteria: list[dict[str, Any]] = field(default_factory=list)
    measured: dict[str, float] = field(default_factory=dict)

    def check(self, criterion: str, holds: bool, **facts: Any) -> None:
        """Something that must hold; the facts are what a person wants to see if it does not."""
        self.criteria.append({"criterion": criterion, "holds": bool(holds), **facts})

    def measure(self, name: str, value: float) -> None:
        """A figure of this machine; its unit stands last in its name."""
        self.measured[name] = round(value, 4 if abs(value) < 10 else 1)

    def to_json(self) -> dict[str, Any]:
        """Its part of the report."""
        return {
            "ok": bool(self.criteria) and all(each["holds"] for each in self.criteria),
            "clause": self.clause,
            "what": self.what,
            "criteria": self.criteria,
            "measured": self.measured,
        }


def percentiles(scene: Scene, name: str, seconds: Sequence[float]) -> None:
    """p50, p95 and p99 of some latencies, in milliseconds."""
    cuts = statistics.quantiles(seconds, n=100, method="inclusive") if len(seconds) > 1 else [*seconds] * 99
    for rank in (50, 95, 99):
        scene.measure(f"{name}_p{rank}_ms", cuts[rank - 1] * 1000)


def compare(part: dict[str, Any], before: dict[str, Any] | None, *, same_seed: bool) -> None:
    """Hold a scene's part of the report against the baseline.

    A criterion that stood there and is missing now is a regression, and so is a seed that makes another workload.
    """
    if before is None:
        part["baseline"] = None
        return
    have = {each["criterion"] for each in part["criteria"]}
    gone = sorted(set(before["criteria"]) - have)
    same = part["workload"] == before["workload"] if same_seed else None
    part["baseline"] = {
        "criteria_gone": gone,
        "same_workload": same,
        "ratios": {
            name: round(value / before["measured"][name], 2)
            for name, value in part["measured"].items()
            if before["measured"].get(name)
        },
    }
    part["ok"] = part["ok"] and not gone and same is not False


def as_baseline(part: dict[str, Any]) -> dict[str, Any]:
    """What the next runs are held against."""
    return {
        "workload": part["workload"],
        "criteria": [each["criterion"] for each in part["criteria"]],
        "measured": part["measured"],
    }


def machine() -> dict[str, Any]:
    """What the figures depend on, as far as it can be told."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
    }


def read_baseline(size: str) -> dict[str, Any]:
    """The baseline of quick or full runs, by scene."""
    if not BASELINE.exists():
        return {}
    return dict(json.loads(BASELINE.read_text())["sizes"].get(size, {}).get("scenarios", {}))
