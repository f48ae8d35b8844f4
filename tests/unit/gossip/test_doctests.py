"""The examples in the engine's docstrings are run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import ropewalk.gossip

MODULES = [f"ropewalk.gossip.{found.name}" for found in pkgutil.iter_modules(ropewalk.gossip.__path__)]
OTHERS = [
    "ropewalk.stores.lmdb",
    "ropewalk.stores.memory",
    "ropewalk.node.gossip",
    "ropewalk.cli.gossip_graph",
]


@pytest.mark.parametrize("name", [*MODULES, *OTHERS])
def test_examples_in_docstrings_hold(name: str):
    assert doctest.testmod(importlib.import_module(name)).failed == 0
