"""Write docs/reference/python.md from the public names: `python docs/generate_python.py [--check]`.

With `--check` nothing is written; a page that has drifted ends with 5.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from importlib import import_module
from pathlib import Path
from typing import Any

from generated import write_or_check

__all__ = ["PAGE", "main", "render"]

PAGE = Path(__file__).resolve().parent / "reference" / "python.md"
PACKAGES = ("ropewalk", "gitlog", "ledger", "gossip", "stream", "bridge", "pipeline")
INTRO = """\
# Python

Written by `docs/generate_python.py` from the public names; do not edit. Everything else is internal and may change.
Errors are classes of `ropewalk.errors`, listed in [errors](errors.md)."""


def render() -> str:
    """Return the whole page."""
    parts = [INTRO]
    for name in PACKAGES:
        module = import_module("ropewalk" if name == "ropewalk" else f"ropewalk.{name}")
        parts += [f"## {module.__name__}", _prose(inspect.getdoc(module) or "")]
        for each in sorted(module.__all__, key=str.casefold):
            value = getattr(module, each)
            if not each.startswith("_") and not inspect.ismodule(value):
                parts += list(_entry(f"{module.__name__}.{each}", value))
    return "\n\n".join(part for part in parts if part) + "\n"


def _entry(name: str, value: Any) -> list[str]:
    if not (inspect.isclass(value) or inspect.isfunction(value)):
        return []
    found = [f"### {name}{_signature(value) if inspect.isfunction(value) else ''}".replace("*", r"\*")]
    found.append(_prose(inspect.getdoc(value) or ""))
    if inspect.isclass(value):
        rows = [
            f"| `{each}{_signature(member)}` | {_first(member)} |"
            for each, member in sorted(vars(value).items())
            if not each.startswith("_") and inspect.isfunction(member)
        ]
        if rows:
            found.append("\n".join(["| method | |", "|---|---|", *rows]))
    return found


def _signature(function: Any) -> str:
    try:
        given = inspect.signature(function)
    except ValueError:
        return ""
    shown = [
        each.replace(annotation=inspect.Parameter.empty)
        for each in given.parameters.values()
        if each.name != "self"
    ]
    text = str(given.replace(parameters=shown, return_annotation=inspect.Signature.empty))
    return text.replace("|", r"\|") if " at 0x" not in text else "(…)"


def _first(value: Any) -> str:
    return " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split()).replace("|", r"\|")


def _prose(text: str) -> str:
    """Return a docstring with its examples as code blocks."""
    parts = []
    for paragraph in text.split("\n\n"):
        code = paragraph.lstrip().startswith(">>>") or paragraph.startswith("    ")
        parts.append(f"```pycon\n{textwrap.dedent(paragraph)}\n```" if code else paragraph)
    return "\n\n".join(parts)


def main(arguments: list[str]) -> int:
    """Write the page, or compare it."""
    return write_or_check({PAGE: render()}, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
