"""`docs/reference/limits.md` lists every limit of the code with its value: nothing is forgotten, nothing is stale.

A limit is a module-level name that ends with `_MAX` or `_LIMIT`. A limit that is missing fails this test, and the
failure prints the row to add.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

from tests.parsed import parsed, source_files

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
PAGE = ROOT / "docs" / "reference" / "limits.md"
NAME = re.compile(r"[A-Z0-9_]+_(?:MAX|LIMIT)")
ROW = re.compile(
    r"\| `(?P<name>[\w.]+:\w+)` \| (?P<value>[^|]+) \| (?P<reason>[^|]+) \| (?P<beyond>[^|]+) \|"
)
OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.LShift: operator.lshift,
    ast.Mult: operator.mul,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Pow: operator.pow,
    ast.FloorDiv: operator.floordiv,
}
UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def tree_of(module: str) -> ast.Module:
    path = SOURCE / Path(*module.split("."))
    file = path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"
    return parsed(file)


def assignments(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            yield node.target.id, node.value
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    yield target.id, node.value
                elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = zip(target.elts, node.value.elts, strict=True)
                    yield from ((each.id, value) for each, value in pairs if isinstance(each, ast.Name))


def evaluate(node: ast.expr, tree: ast.Module) -> float:
    """The number that an expression of literals, names and arithmetic gives; the module is not imported."""
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return node.value
    if isinstance(node, ast.BinOp):
        return OPERATORS[type(node.op)](evaluate(node.left, tree), evaluate(node.right, tree))
    wanted = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None
    if wanted is None:
        raise LookupError(ast.dump(node))
    if isinstance(node, ast.Name):
        for name, value in assignments(tree):
            if name == wanted:
                return evaluate(value, tree)
    for each in tree.body:
        if isinstance(each, ast.ImportFrom) and each.module is not None:
            for alias in each.names:
                if isinstance(node, ast.Name) and (alias.asname or alias.name) == wanted:
                    return find(each.module, alias.name)
                whole = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
                if whole and (alias.asname or alias.name) == node.value.id:  # type: ignore[attr-defined]
                    return find(f"{each.module}.{alias.name}", wanted)
    raise LookupError(wanted)


def find(module: str, name: str) -> float:
    """The value of a name in a module, through what the module imports."""
    tree = tree_of(module)
    return evaluate(ast.Name(name), tree)


def limits() -> dict[str, float]:
    """Every limit of the code, `module:NAME`, with its value."""
    found: dict[str, float] = {}
    for path in source_files():
        module = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        tree = parsed(path)
        for name, value in assignments(tree):
            if NAME.fullmatch(name) and "SHOWN" not in name:  # those cut texts for people
                try:
                    found[f"{module}:{name}"] = evaluate(value, tree)
                except LookupError:  # more than arithmetic
                    found[f"{module}:{name}"] = getattr(import_module(module), name)
    return found


def spelled(name: str, value: float) -> str:
    """A value as the page writes it.

    >>> spelled("m:A_BYTES_MAX", 4 << 20), spelled("m:ROWS_MAX", 65536)
    ('4 MiB', '65,536')
    """
    if "BYTES" in name.rpartition(":")[2] or name.endswith("_MEMBER_MAX"):
        for size, unit in UNITS:
            if value >= size and value % size == 0:
                return f"{int(value) // size} {unit}"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def rows() -> dict[str, tuple[str, str, str]]:
    """The rows of the page."""
    found = [
        match for line in PAGE.read_text(encoding="utf-8").splitlines() if (match := ROW.fullmatch(line))
    ]
    assert len({match["name"] for match in found}) == len(found), "a limit is listed twice"
    return {match["name"]: (match["value"], match["reason"], match["beyond"]) for match in found}


def test_limits_page_lists_every_limit():
    missing = limits().keys() - rows().keys()
    lines = [f"| `{name}` | {spelled(name, limits()[name])} | reason | what happens |" for name in missing]
    assert not missing, "add to docs/reference/limits.md:\n" + "\n".join(sorted(lines))


def test_limits_page_has_the_values_of_the_code():
    known = limits()
    stale = sorted(rows().keys() - known.keys())
    assert not stale, f"no such limit: {stale}"
    wrong = [
        f"{name}: the page says {value}, the code {spelled(name, known[name])}"
        for name, (value, _, _) in rows().items()
        if value != spelled(name, known[name])
    ]
    assert not wrong, "\n".join(wrong)


def test_limits_page_gives_reason_and_outcome():
    assert all(reason.strip(" –") and beyond.strip(" –") for _, reason, beyond in rows().values())
