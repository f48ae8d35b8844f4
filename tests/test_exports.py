"""The public surface is a list, and the list is guarded."""

from __future__ import annotations

import ast
import inspect
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import pytest

import ropewalk

MODULES = sorted(found.name for found in walk_packages(ropewalk.__path__, "ropewalk."))
KERNEL = [name for name in MODULES if name.startswith("ropewalk.kernel.")]


@pytest.mark.parametrize("name", MODULES)
def test_all_lists_names_that_exist_once(name):
    module = import_module(name)
    listed = getattr(module, "__all__", [])
    assert len(listed) == len(set(listed))
    missing = [each for each in listed if not hasattr(module, each)]
    assert not missing


@pytest.mark.parametrize("name", MODULES)
def test_every_module_says_what_it_is(name):
    module = import_module(name)
    assert module.__doc__ and module.__doc__.strip(), f"{name} has no docstring"


@pytest.mark.parametrize("name", KERNEL)
def test_every_public_kernel_function_shows_an_example(name):
    module = import_module(name)
    assert module.__all__, f"{name} lists nothing"
    bare = [
        each
        for each in module.__all__
        if inspect.isfunction(value := getattr(module, each)) and ">>>" not in (value.__doc__ or "")
    ]
    assert not bare, f"{name}: no executed example in {', '.join(bare)}"


def test_public_functions_and_classes_are_documented():
    bare = []
    for path in sorted(Path(ropewalk.__path__[0]).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in tree.body:
            if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("_"):
                continue
            if ast.get_docstring(node) is None:
                bare.append(f"{path.name}:{node.lineno} {node.name}")
    assert not bare, bare


@pytest.mark.parametrize(
    "name",
    [
        "ropewalk",
        "ropewalk.gossip",
        "ropewalk.ledger",
        "ropewalk.node",
        "ropewalk.pipeline",
        "ropewalk.stream",
    ],
)
def test_what_is_loaded_on_first_use_can_be_found_by_looking(name):
    module = import_module(name)
    assert set(module.__all__) <= set(dir(module))
