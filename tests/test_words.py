"""Plain English: how many odd words per 1,000 the docstrings, strings and documents of the project hold.

The words are those of a private dialect, which similar projects use less than once per 1,000 words. `python -m
tests.test_words` prints the counts and the files with most of them.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.parsed import parsed, source_files

ROOT = Path(__file__).parent.parent
ODD = re.compile(
    r"\b(whoever|whomever|whatever|nobody|somebody|strangers?|stands|stood|told|tells|says|hears|heard|beside"
    r"|elsewhere|of (?:its|their|one's|his) own|lets? go|let in|gives? way|wherever|whichever)\b",
    re.IGNORECASE,
)
WORD = re.compile(r"[A-Za-z][A-Za-z'’-]*")
# Odd words per 1,000; strings are error messages, help texts and other text with a space in it.
LIMITS = {"docstrings": 3.0, "strings": 3.0, "docs": 3.0}


def texts_of(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield every docstring and every string with a space of a module, with its kind."""
    docs: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                docs.add(id(first.value))
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) in docs:
                yield "docstrings", node.value
            elif " " in node.value:
                yield "strings", node.value


def texts() -> Iterator[tuple[str, str, str]]:
    """Yield kind, file and text of everything that is counted."""
    for path in source_files():
        for kind, text in texts_of(parsed(path)):
            yield kind, str(path.relative_to(ROOT)), text
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        if "decisions" not in path.parts:  # records of the past stay as they were written
            yield "docs", str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def count() -> tuple[dict[str, float], Counter[str]]:
    """Return odd words per 1,000 by kind, and the number of odd words by file."""
    words: Counter[str] = Counter()
    odd: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for kind, file, text in texts():
        found = len(ODD.findall(text))
        words[kind] += len(WORD.findall(text))
        odd[kind] += found
        files[file] += found
    return {kind: 1000 * odd[kind] / words[kind] for kind in words}, files


def test_odd_words_are_rare():
    rates, files = count()
    high = {kind: round(rate, 1) for kind, rate in rates.items() if rate > LIMITS[kind]}
    assert set(rates) == set(LIMITS)
    assert not high, (
        f"odd words per 1,000: {high}; most in {files.most_common(8)}. Name the actor, use the field's word."
    )


def test_odd_words_are_found():
    found = dict(texts_of(ast.parse('"""Whoever waits."""\nx = "nobody is told"\ny = "nobody"\n')))
    assert found == {"docstrings": "Whoever waits.", "strings": "nobody is told"}
    assert ODD.findall(found["docstrings"] + found["strings"]) == ["Whoever", "nobody", "told"]


def test_plain_words_are_not_odd():
    assert not ODD.findall("The server returns an error; the caller may retry. Understands foretold besides.")


if __name__ == "__main__":
    for kind, rate in count()[0].items():
        sys.stdout.write(f"{kind:10} {rate:5.1f} per 1,000\n")
    for file, number in count()[1].most_common(15):
        sys.stdout.write(f"{number:5} {file}\n")
