"""Tests of the public surface: what modules list exists, is documented and, in the kernel, shown by example."""

from __future__ import annotations

import ast
import inspect
import re
from importlib import import_module
from pathlib import Path
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
        bare = [
            each
            for each, value in vars(module).items()
            if inspect.isfunction(value)
            and value.__module__ == name
            and not each.startswith("_")
            and ">>>" not in (value.__doc__ or "")
        ]
        assert not bare, f"{name}: no executed example in {', '.join(bare)}"


def test_public_functions_and_classes_are_documented():
    bare = []
    for path in source_files():
        for node in parsed(path).body:
            if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("_"):
                continue
            if ast.get_docstring(node) is None and "overload" not in map(ast.unparse, node.decorator_list):
                bare.append(f"{path.name}:{node.lineno} {node.name}")
    assert not bare, bare


def test_lazy_names_are_listed_by_dir():
    for name in PACKAGES:
        module = import_module(name)
        assert set(getattr(module, "__all__", ())) <= set(dir(module)), name


# The front door

ROOT = Path(__file__).parent.parent
FRONT = (
    "ropewalk",
    *(
        f"ropewalk.{name}"
        for name in ("bridge", "errors", "gitlog", "gossip", "ledger", "pipeline", "stream")
    ),
)
PUBLIC_MAX = 136  # names, 34 of them errors; an object listed by two packages counts once


def public() -> dict[int, tuple[str, object]]:
    """Return every public object of the front packages with one of its names."""
    listed = (
        (f"{name}.{each}", getattr(import_module(name), each))
        for name in FRONT
        for each in import_module(name).__all__
    )
    return {id(value): (name, value) for name, value in listed}


def snippets() -> list[tuple[str, str]]:
    """Return the Python text of guides and examples; prompts of doctests are removed."""
    found = [
        (path.name, path.read_text(encoding="utf-8")) for path in sorted((ROOT / "examples").rglob("*.py"))
    ]
    for path in [ROOT / "README.md", ROOT / "docs/tour.md", *sorted((ROOT / "docs/guide").glob("*.md"))]:
        blocks = re.findall(r"^```python\n(.*?)^```", path.read_text(encoding="utf-8"), re.M | re.S)
        found += [(path.name, re.sub(r"^(>>>|\.\.\.) ?", "", block, flags=re.M)) for block in blocks]
    return found


def test_public_names_are_few_and_documented():
    names = public()
    assert len(names) <= PUBLIC_MAX, f"{len(names)} public names"
    bare = [name for name, value in names.values() if callable(value) and not (value.__doc__ or "").strip()]
    assert not bare, bare


def test_public_classes_are_documented_by_method():
    bare = [
        f"{name}.{each}"
        for name, value in public().values()
        if inspect.isclass(value)
        for each, member in vars(value).items()
        if inspect.isfunction(member) and not each.startswith("_") and not inspect.getdoc(member)
    ]
    assert not bare, bare


def test_guides_and_examples_import_only_front_packages():
    pages = snippets()
    assert len(pages) > 15
    imports = re.compile(r"^\s*(?:from (ropewalk[\w.]*) import ([\w, ]+)|import (ropewalk[\w.]*))", re.M)
    inner = []
    for page, text in pages:
        for source, names, module in imports.findall(text):
            if (source or module) not in FRONT:
                inner.append(f"{page}: {source or module}")
            listed = set(names.replace(" ", "").split(",")) if names else set()
            known = {each.rpartition(".")[2] for each in FRONT} | set(import_module(source or module).__all__)
            inner += [f"{page}: {source}.{name}" for name in sorted(listed - known)]
    assert not inner, inner
