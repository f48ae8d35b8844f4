"""Patterns over refs and topics: `*` matches anything within one part, `**` any number of parts.

At the end, `**` needs at least one part: `refs/gatos/**` is everything below `refs/gatos`. Topics are compared with
their parts joined by dots, and a leading `gatos.` counts for nothing: `gatos.jobs.*`, `jobs.*` and `jobs/*` are one
pattern, and each matches the topic `jobs/pending`.

Matching takes time in proportion to the lengths multiplied, for any pattern; there is no backtracking
further than to the last star.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, TypeVar

from ropewalk.errors import InvalidName
from ropewalk.kernel.terminal_text import printable

Kind = Literal["ref", "topic"]
PATTERN_CHARS_MAX: Final = 256  # as long as the longest ref of a topic
PARTS_MAX: Final = 64

_NOT_IN_REFS: Final = re.compile(r"[\x00-\x20\x7f~^:?\[\\]|@\{|\.\.")
_TOPIC_PART: Final = re.compile(r"[A-Za-z0-9_*-]+")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern over refs or over topics."""

    kind: Kind
    text: str
    parts: tuple[str, ...]

    def matches(self, name: str) -> bool:
        """Return whether the name is one of those meant.

        >>> parse_pattern("ref", "refs/gatos/state/**").matches("refs/gatos/state/public/main")
        True
        >>> parse_pattern("topic", "gatos.jobs.*").matches("jobs/pending")
        True
        """
        return _matches(self.parts, _parts_of(self.kind, name), "**", _part_matches)

    def reaches(self, prefix: str) -> bool:
        """Return whether a ref below the prefix may be one of those meant.

        >>> parse_pattern("ref", "refs/*/state/**").reaches("refs/gatos/")
        True
        >>> parse_pattern("ref", "refs/heads/**").reaches("refs/gatos/")
        False
        """
        names = prefix.rstrip("/").split("/")
        for part, name in zip(self.parts, names, strict=False):
            if part == "**":
                return True
            if not _part_matches(part, name):
                return False
        return len(self.parts) > len(names)

    def covers(self, other: Pattern) -> bool:
        """Return whether this one matches every name that the other matches; False if that is not plain to see.

        >>> rule = parse_pattern("ref", "refs/gatos/private/**")
        >>> rule.covers(parse_pattern("ref", "refs/gatos/private/*/main"))
        True
        """
        return self.kind == other.kind and _matches(self.parts, other.parts, "**", _part_covers)


@lru_cache(maxsize=4096)
def parse_pattern(kind: Kind, text: str) -> Pattern:
    """Parse a pattern; raise `InvalidName` with what is wrong with it.

    >>> parse_pattern("topic", "gatos.jobs.>").parts
    ('jobs', '*', '**')
    >>> parse_pattern("ref", "heads/main")
    Traceback (most recent call last):
    ropewalk.errors.InvalidName: ref pattern "heads/main": it must begin with refs/
    """
    if not text or len(text) > PATTERN_CHARS_MAX:
        raise _invalid(kind, text, f"{len(text)} characters; 1 to {PATTERN_CHARS_MAX} are allowed")
    rest = kind == "topic" and (text == ">" or text.endswith((".>", "/>")))
    parts = _parts_of(kind, text[:-1] + "**" if rest else text)
    if kind == "ref" and parts[0] != "refs":
        raise _invalid(kind, text, "it must begin with refs/")
    if not all(parts):
        raise _invalid(kind, text, "a part is empty")
    if len(parts) > PARTS_MAX:
        raise _invalid(kind, text, f"{len(parts)} parts; at most {PARTS_MAX} are allowed")
    if any("**" in part and part != "**" for part in parts):
        raise _invalid(kind, text, "** must be a whole part")
    if kind == "ref" and _NOT_IN_REFS.search(text):
        raise _invalid(kind, text, "it holds what git allows in no ref")
    if kind == "topic" and not all(_TOPIC_PART.fullmatch(part) for part in parts):
        raise _invalid(kind, text, "parts are letters, digits, _ and -, or stars, joined by dots or slashes")
    if parts[-1] == "**":  # at the end it matches at least one part
        parts = (*parts[:-1], "*", "**")
    return Pattern(kind, text, parts)


def _parts_of(kind: Kind, name: str) -> tuple[str, ...]:
    if kind == "ref":
        return tuple(name.split("/"))
    return tuple(name.replace("/", ".").removeprefix("gatos.").split("."))


def _part_matches(pattern: str, part: str) -> bool:
    if "*" not in pattern:
        return pattern == part
    return pattern == "*" or _matches(pattern, part, "*", str.__eq__)


def _part_covers(pattern: str, part: str) -> bool:
    return part != "**" and _part_matches(pattern, part)


def _matches(pattern: Sequence[T], name: Sequence[T], star: T, same: Callable[[T, T], bool]) -> bool:
    """Match a glob over anything: a star takes any run. Only the last star met is ever tried again."""
    at = step = resume = 0
    last_star = -1
    while at < len(name):
        if step < len(pattern) and pattern[step] == star:
            last_star, resume = step, at
            step += 1
        elif step < len(pattern) and same(pattern[step], name[at]):
            step += 1
            at += 1
        elif last_star >= 0:  # let the last star take one more
            resume += 1
            step, at = last_star + 1, resume
        else:
            return False
    return all(each == star for each in pattern[step:])


def _invalid(kind: Kind, text: str, reason: str) -> InvalidName:
    shown = printable(text, 80)
    return InvalidName(
        f'{kind} pattern "{shown}": {reason}',
        name=shown,
        reason=reason,
        advice="Write refs/gatos/state/** or jobs.*, for example.",
    )
