"""Strangers' texts on a terminal: what somebody else wrote must not steer it, nor fill it."""

from __future__ import annotations

__all__ = ["printable"]


def printable(text: str, limit: int | None = None) -> str:
    """The text with escapes for what is no plain character; cut, where there is a limit, to so many.

    >>> print(printable("red\\x1b[31m"), printable("a long story", 7))
    red\\x1b[31m a long…
    """
    safe = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text[:limit])
    if limit is None or (len(text) <= limit and len(safe) <= limit):
        return safe
    return safe[: limit - 1] + "…"
