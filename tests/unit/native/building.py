"""The build hook, which stands outside the package."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

__all__ = ["hook"]


def hook() -> ModuleType:
    """The module `hatch_build`."""
    found = importlib.util.spec_from_file_location(
        "hatch_build", Path(__file__).parents[3] / "hatch_build.py"
    )
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module
