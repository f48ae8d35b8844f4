"""HTML pages: templates beside this module, filled with escaped text. A page is one file and fetches nothing.

A template has fragments, each below a line `<!-- fragment: NAME -->`, with `$name` for values. What logs and bundles
hold may be hostile, so every value is escaped here unless it is `Html`, which only `fill` makes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import cache
from html import escape
from importlib.resources import files
from string import Template

CELL_CHARS = 120  # of a table in a notebook


class Html(str):
    """Markup that is ready for a page."""

    __slots__ = ()


def fill(page: str, fragment: str, **values: object) -> Html:
    """Return a fragment of a page with its values: text and numbers are escaped, lists are joined.

    >>> fill("bundle", "item", text="<x>")
    '<li>&lt;x&gt;</li>'
    """
    return Html(_fragments(page)[fragment].substitute({name: _safe(value) for name, value in values.items()}))


def html_table(title: str, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a small table for `_repr_html_` in a notebook; cells are escaped and cut.

    >>> html_table("one", ["name"], [["<b>"]])
    '<table><caption>one</caption><tr><th>name</th></tr><tr><td>&lt;b&gt;</td></tr></table>'
    """
    lines = [("th", columns), *(("td", row) for row in rows)]
    body = (f"<tr>{''.join(f'<{tag}>{_cell(each)}</{tag}>' for each in row)}</tr>" for tag, row in lines)
    return f"<table><caption>{_cell(title)}</caption>{''.join(body)}</table>"


def _cell(value: object) -> str:
    if isinstance(value, dict | list):
        value = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    text = "" if value is None else value.hex() if isinstance(value, bytes) else str(value)
    return _safe(text if len(text) <= CELL_CHARS else text[: CELL_CHARS - 1] + "…")


def _safe(value: object) -> str:
    """Return a value without markup, and without characters that could reorder or hide their surroundings."""
    if isinstance(value, Html):
        return value
    if isinstance(value, Iterable) and not isinstance(value, str):
        return "".join(map(_safe, value))
    return escape("".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in str(value)))


@cache
def _fragments(page: str) -> dict[str, Template]:
    text = files("ropewalk").joinpath(f"pages/{page}.html").read_text(encoding="utf-8")
    parts = re.split(r"^<!-- fragment: (\w+) -->\n", text, flags=re.M)
    return {name: Template(body.strip("\n")) for name, body in zip(parts[1::2], parts[2::2], strict=True)}
