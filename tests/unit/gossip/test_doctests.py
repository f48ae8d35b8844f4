"""The examples in the engine's docstrings are run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import ropewalk.gossip

MODULES = [f"ropewalk.gossip.{found.name}" for found in pkgutil.iter_modules(ropewalk.gossip.__path__)]
OTHERS = [
    "ropewalk.disk.lmdb_tables",
    "ropewalk.disk.memory_tables",
    "ropewalk.gossip.peer.topics",
    "ropewalk.cli.gossip.graph",
]


@pytest.mark.parametrize("name", [*MODULES, *OTHERS])
def test_examples_in_docstrings_hold(name: str):
    assert doctest.testmod(importlib.import_module(name)).failed == 0
