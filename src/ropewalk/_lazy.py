"""Import the public names of a package on first use (PEP 562), so that `import ropewalk` loads nothing else.

A package lists its names once, as imports below `if TYPE_CHECKING:`. Type checkers read them there, and so does
`lazy_exports`, which returns the package's `__getattr__` and `__dir__`; `__all__` follows from them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any


def lazy_exports(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for the package whose source is `file`."""

    @cache
    def names() -> dict[str, tuple[str, str]]:
        return _listed(Path(file).read_text(encoding="utf-8"))

    def get(name: str) -> Any:
        if name.startswith("__") and name not in ("__all__", "__version__"):
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if name == "__all__":
            return sorted(names())
        if name not in names():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, attribute = names()[name]
        value = getattr(import_module(module), attribute)
        setattr(sys.modules[package], name, value)
        return value

    def listing() -> list[str]:
        return sorted({*vars(sys.modules[package]), *names()})

    return get, listing


def _listed(source: str) -> dict[str, tuple[str, str]]:
    """Return each public name, `import x as x` or an assignment, with its module and its name there.

    >>> _listed("if TYPE_CHECKING:\\n    from ropewalk.repository import open_repository\\n    open = open_repository")
    {'open': ('ropewalk.repository', 'open_repository')}
    """
    import ast

    found: dict[str, tuple[str, str]] = {}
    imported: dict[str, tuple[str, str]] = {}
    blocks = (each for each in ast.parse(source).body if isinstance(each, ast.If))
    for line in (line for block in blocks for line in block.body):
        match line:
            case ast.ImportFrom(module=str(module), names=names):
                imported |= {each.name: (module, each.name) for each in names}
                found |= {each.name: (module, each.name) for each in names if each.asname == each.name}
            case ast.Assign(targets=[ast.Name(id=public)], value=ast.Name(id=private)):
                found[public] = imported[private]
            case _:
                raise AssertionError(ast.unparse(line))
    return found
