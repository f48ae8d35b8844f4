"""Escape untrusted text for a terminal, so that it neither controls nor floods it."""

from __future__ import annotations

import json


def printable(text: str, limit: int | None = None) -> str:
    """Return the text with escapes for what is no plain character; cut, where there is a limit, to so many.

    >>> print(printable("red\\x1b[31m"), printable("a long story", 7))
    red\\x1b[31m a long…
    """
    safe = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text[:limit])
    if limit is None or (len(text) <= limit and len(safe) <= limit):
        return safe
    return safe[: limit - 1] + "…"


def printable_json(text: str) -> str:
    """Return a line of JSON with JSON's own escapes for the same characters: it still means what it meant.

    >>> print(printable_json('{"a":"\x9b31m"}'))
    {"a":"\\u009b31m"}
    """
    return "".join(each if each.isprintable() else _json_escape(each) for each in text)


def _json_escape(char: str) -> str:
    escaped = json.dumps(char)[1:-1]
    return escaped if escaped != char else f"\\u{ord(char):04x}"  # json leaves DEL as it is
