"""Tests of the public surface: what modules list exists, is documented and, in the kernel, shown by example."""

from __future__ import annotations

import ast
import inspect
from importlib import import_module
from pkgutil import walk_packages

import ropewalk
from tests.parsed import parsed, source_files

FOUND = sorted(walk_packages(ropewalk.__path__, "ropewalk."), key=lambda found: found.name)
MODULES = [found.name for found in FOUND]
KERNEL = [found.name for found in FOUND if found.name.startswith("ropewalk.kernel.") and not found.ispkg]
PACKAGES = ["ropewalk", *(found.name for found in FOUND if found.ispkg)]


def test_all_lists_existing_names_once():
    for name in MODULES:
        module = import_module(name)
        listed = getattr(module, "__all__", [])
        assert len(listed) == len(set(listed)), name
        missing = [each for each in listed if not hasattr(module, each)]
        assert not missing, f"{name}: {missing}"


def test_every_module_has_a_docstring():
    bare = [name for name in MODULES if not (import_module(name).__doc__ or "").strip()]
    assert not bare, bare


def test_kernel_functions_show_an_example():
    for name in KERNEL:
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
    for path in source_files():
        for node in parsed(path).body:
            if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("_"):
                continue
            if ast.get_docstring(node) is None:
                bare.append(f"{path.name}:{node.lineno} {node.name}")
    assert not bare, bare


def test_lazy_names_are_listed_by_dir():
    for name in PACKAGES:
        module = import_module(name)
        assert set(getattr(module, "__all__", ())) <= set(dir(module)), name
