"""The HTTP reference is what the routes say, and the examples of the server are well-formed."""

from __future__ import annotations

import configparser
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from ropewalk.cli.explain import error_rows
from ropewalk.server.metrics import Metrics
from tests.tools import skip_or_fail
from tests.waiting import LIMIT_S

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "http.md"
EXAMPLES = ROOT / "examples"


def assert_current(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare a page with what its script would write; to start Python for each takes longer."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    written = runpy.run_path(str(ROOT / "docs" / script))
    assert written["main"](["--check"]) == 0, f"run python docs/{script}"


def test_http_reference_is_up_to_date(monkeypatch):
    assert_current("generate_http.py", monkeypatch)
    assert "`POST /api/v1/shiplog/{ns}/events`" in PAGE.read_text(encoding="utf-8")


def test_errors_page_is_up_to_date():
    done = subprocess.run([sys.executable, ROOT / "docs" / "generate_errors.py", "--check"], timeout=LIMIT_S)
    assert done.returncode == 0, "run python docs/generate_errors.py"


def test_metrics_page_is_up_to_date(monkeypatch):
    assert_current("generate_metrics.py", monkeypatch)
    rules = (EXAMPLES / "prometheus").glob("*.yml")
    asked = {
        name for path in rules for name in re.findall(r"\b(ropewalk_\w+)", path.read_text(encoding="utf-8"))
    }
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    assert asked and not {name for name in asked if f"`{name}`" not in page}


def test_python_reference_is_up_to_date(monkeypatch):
    assert_current("generate_python.py", monkeypatch)


@pytest.mark.slow
def test_site_builds_without_warnings(tmp_path):
    """A page that is in no menu, or a link that leads nowhere, is a warning."""
    site, environment = tmp_path / "site", {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", site]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    pages = [path.read_text(encoding="utf-8") for path in site.rglob("*.html")]
    loaded = [
        each
        for page in pages
        for each in re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(https?:[^"]+)', page)
    ]
    assert not loaded, "the site loads from another host"
    assert "ropewalk.open" in (site / "search" / "search_index.json").read_text(encoding="utf-8")


def test_explain_and_the_errors_page_agree():
    """Each row of `explain` has its entry on the page, at the anchor that `explain` names."""
    text = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    entries = dict(
        re.findall(r"^## ([^\n]+)\n\n(HTTP status .+?)(?=\n## |\Z)", text, re.MULTILINE | re.DOTALL)
    )
    anchors = {
        re.sub(r"[^a-z-]", "", title.lower().replace(" ", "-")): body for title, body in entries.items()
    }
    for row in error_rows():
        entry = anchors[row["see"].rpartition("#")[2]]
        assert f"HTTP status {row['status']}," in entry and row["advice"] in entry, row


def test_compose_and_dockerfile_agree():
    compose = yaml.safe_load((EXAMPLES / "serve" / "compose.yaml").read_text())
    docker = (EXAMPLES / "serve" / "Dockerfile").read_text()
    (port,) = compose["services"]["ropewalk"]["ports"]
    assert f"EXPOSE {port.rpartition(':')[2]}" in docker
    assert "--auth" in docker and re.search(r"^USER (?!root)", docker, re.MULTILINE)


def test_systemd_unit_waits_for_readiness():
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string((EXAMPLES / "serve" / "ropewalk.service").read_text())
    assert unit["Service"]["Type"] == "notify" and unit["Service"]["KillSignal"] == "SIGTERM"


def test_rules_pass_promtool_and_name_metrics_that_exist():
    path = EXAMPLES / "prometheus" / "ropewalk-serve.rules.yml"
    names = {metric.name for metric in Metrics().registry.collect()}
    assert set(re.findall(r"ropewalk_[a-z_]+", path.read_text())) <= names
    promtool = shutil.which("promtool")
    if promtool is None:
        skip_or_fail("promtool is not on PATH (Debian package prometheus)")
    done = subprocess.run([promtool, "check", "rules", path], capture_output=True, timeout=LIMIT_S)
    assert done.returncode == 0, done


def test_dashboard_shows_metrics_that_exist():
    names = {
        sample.name.removesuffix("_created")
        for metric in Metrics().registry.collect()
        for sample in metric.samples
    } | {metric.name for metric in Metrics().registry.collect()}
    board = json.loads((EXAMPLES / "grafana" / "ropewalk.json").read_text())
    shown = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    for name in re.findall(r"ropewalk_[a-z_]+", " ".join(shown)):
        assert re.sub(r"_(total|bucket)$", "", name) in names, name
