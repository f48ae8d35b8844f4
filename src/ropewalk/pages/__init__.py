"""HTML pages: templates beside this module, filled with escaped text. A page is one file and fetches nothing.

A template has fragments, each below a line `<!-- fragment: NAME -->`, with `$name` for values. What logs and bundles
hold may be hostile, so every value is escaped here unless it is `Html`, which only `fill` makes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from html import escape
from importlib.resources import files
from string import Template


class Html(str):
    """Markup that is ready for a page."""

    __slots__ = ()


def fill(page: str, fragment: str, **values: object) -> Html:
    """Return a fragment of a page with its values: text and numbers are escaped, lists are joined.

    >>> fill("bundle", "item", text="<x>")
    '<li>&lt;x&gt;</li>'
    """
    return Html(_fragments(page)[fragment].substitute({name: _safe(value) for name, value in values.items()}))


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
