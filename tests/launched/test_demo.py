"""The front door: `ropewalk demo` runs everything there is, and what it names is there, verifies and can be asked."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs.snippets import ROOT, Page, matches, steps

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


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run("demo", str(tmp_path_factory.mktemp("tour") / "demo"))


def test_the_demo_makes_what_it_names_and_all_of_it_verifies(made: dict[str, Any]):
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


def test_demo_tables_as_the_page_asks_them(made: dict[str, Any]):
    """The last commands of docs/start/data-engineer.md on what the demo made: DuckDB, Spark, and the notebook."""
    import nbformat
    from nbclient import NotebookClient

    page = (ROOT / "docs/start/data-engineer.md").read_text(encoding="utf-8").partition("## With the demo")[2]
    here = page.replace("/tmp/ropewalk-demo-…", str(Path(made["repository"]).parent))
    asked, notebook = Page("demo", here).blocks()
    ingest, query = steps(asked)
    for step, more in ((ingest, ""), (query, ""), (query, " --engine spark")):
        done = subprocess.run(
            ["bash", "-c", step.command + more + " 2>&1"],
            env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0 and matches(step.expected, done.stdout), done.stdout
    _, export, lab = (shlex.split(line)[1:] for line in notebook.lines)
    book: Any = nbformat.read(ROOT / lab[-1], as_version=4)
    given = dict(each.split("=", 1) for each in export[1:])
    NotebookClient(book, timeout=300, kernel_name="python3").execute(env={**os.environ, **given})
    said = json.dumps([cell.outputs for cell in book.cells if cell.cell_type == "code"])
    assert "events__latency_measured" in said and "no tables of event types" not in said
