"""The front door: `ropewalk demo` runs everything there is, and what it names is there and verifies."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.timeout(900)]


def run(*arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", "from ropewalk.cli import main; main()", *arguments, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_the_demo_makes_what_it_names_and_all_of_it_verifies(tmp_path: Path):
    made = run("demo", str(tmp_path / "demo"))
    assert {"repository", "warehouse", "bundle", "trust", "report"} <= made.keys()
    assert all(Path(path).exists() for path in made.values()), made
    assert run("verify", made["repository"])["ok"]
    report = run("bundle", "verify", made["bundle"], "--trust", made["trust"])
    assert report["ok"] and report["envelopes"] == 502
    rows = {
        each["name"]: each["rows"]
        for each in run("pipeline", "tables", "--warehouse", made["warehouse"])["tables"]
    }
    assert rows["events"] > 1000 and rows["events_rejected"] == 0
    assert "<html" in Path(made["report"]).read_text(encoding="utf-8")
