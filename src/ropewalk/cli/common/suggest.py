"""Names that look like the one that was typed: what a slip of the pen probably meant."""

from __future__ import annotations

from collections.abc import Iterable

from ropewalk.kernel.terminal_text import printable

SHOWN_MAX = 3
COMPARED_MAX = 2_000
LIKENESS = 0.65  # `run` for `rnu`, and not `workers` for `others`


def near(name: str, names: Iterable[str]) -> list[str]:
    """Those of the names that the typed one may stand for, the likeliest first.

    Case, and which mark joins the parts of a name, are the commonest slips: one that differs in nothing else is meant.

    >>> near("jobs.pending", ["jobs", "jobs/pending", "payroll"]), near("prdo", ["prod", "staging"])
    (['jobs/pending'], ['prod'])
    """
    from difflib import get_close_matches

    known = list(names)
    typed = _plain(name)
    same = [each for each in known if _plain(each) == typed]
    # Comparing takes its time: of very many names only those as long as the typed one are looked at, and not all.
    if len(known) > COMPARED_MAX:
        known = [each for each in known if len(each) == len(name)][:COMPARED_MAX]
    return same or get_close_matches(name, known, SHOWN_MAX, LIKENESS)


def meant(name: str, names: Iterable[str]) -> str | None:
    """A question to whoever typed the name; None if nothing is like it.

    >>> meant("apend", ["append", "read"])
    'Did you mean append?'
    >>> meant("wibble", ["append", "read"]) is None
    True
    """
    found = near(name, names)
    return f"Did you mean {' or '.join(found)}?" if found else None


def describe_new(word: str, name: str, others: Iterable[str]) -> str:
    """That something of a new name is there now, and which like it were before: it may be a slip of the pen."""
    like = near(name, sorted(others))
    besides = f"; {' and '.join(like)} {'was' if len(like) == 1 else 'were'} there before" if like else ""
    return printable(f"made the {word} {name}{besides}")


def _plain(name: str) -> str:
    return name.lower().replace("/", ".").replace("_", "-")
