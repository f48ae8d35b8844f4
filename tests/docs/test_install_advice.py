"""What texts tell users to install can be installed: from a checkout, with extras that there are."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXTS = sorted(
    path
    for path in (
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("src/**/*.py"),
        *ROOT.glob("examples/**/*"),
    )
    if path.is_file() and path.name != "CHANGELOG.md"
)


def advice_in(text: str) -> list[str]:
    """What is wrong with the install lines of a text."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wrong = re.findall(r"pip3? install [^\n`]*\bropewalk\[[a-z]+\]", text)
    wrong += re.findall(r"pip3? install [\"']?ropewalk\b", text)
    wrong += [
        name
        for name in re.findall(r"pip3? install [\"']?\.\[([a-z,]+)\]", text)
        if not set(name.split(",")) <= set(extras)
    ]
    return wrong


def test_install_lines_are_true():
    assert {
        str(path): found for path in TEXTS if (found := advice_in(path.read_text(encoding="utf-8")))
    } == {}
    told = [path.name for path in TEXTS if 'pip install ".[' in path.read_text(encoding="utf-8")]
    assert {"README.md", "spark.md", "java.py", "delta.py"} <= set(told)


@pytest.mark.parametrize(
    "text", ['pip install "ropewalk[spark]"', "pip install ropewalk", 'pip install ".[sparks]"']
)
def test_install_lines_that_are_false_are_found(text: str):
    assert advice_in(text)


def test_readme_hides_no_output():
    readme = (ROOT / "README.md").read_text()
    assert [line for line in readme.splitlines() if line.strip() == "…"] == []
    assert "`gatosd` is the name of" in readme
