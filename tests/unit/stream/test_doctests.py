"""The examples in the docstrings are run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import ropewalk.stream

MODULES = [f"ropewalk.stream.{found.name}" for found in pkgutil.iter_modules(ropewalk.stream.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_hold(name: str):
    assert doctest.testmod(importlib.import_module(name)).failed == 0
