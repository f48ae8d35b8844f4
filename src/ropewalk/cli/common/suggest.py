"""Suggest known names that are similar to a mistyped one."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ropewalk.kernel.terminal_text import printable

SHOWN_MAX = 3
COMPARED_MAX = 2_000
SIMILARITY_MIN = 0.65  # `run` for `rnu`, and not `workers` for `others`
COMMAND_WORDS = (  # what other tools call the same command
    {"ls", "list", "log"},
    {"read", "log", "cat"},
    {"verify", "check", "audit", "validate"},
    {"append", "publish", "add", "write", "put"},
    {"sub", "tail", "subscribe", "follow", "watch"},
    {"revoke", "rm", "remove", "delete"},
    {"new", "init", "create", "make"},
    {"doctor", "status", "health", "info"},
    {"shiplog", "deploy", "deployments", "events", "log", "logs"},
)


def similar_names(name: str, names: Iterable[str]) -> list[str]:
    """Return the names similar to a typed one, the most similar first.

    Names that differ only in case or in the separator of their parts come alone.

    >>> similar_names("jobs.pending", ["jobs", "jobs/pending", "payroll"])
    ['jobs/pending']
    >>> similar_names("prdo", ["prod", "staging"])
    ['prod']
    """
    from difflib import get_close_matches

    known = list(names)
    typed = _plain(name)
    same = [each for each in known if _plain(each) == typed]
    # Comparing is slow: of very many names, compare only a bounded number of the same length.
    if len(known) > COMPARED_MAX:
        known = [each for each in known if len(each) == len(name)][:COMPARED_MAX]
    return same or get_close_matches(name, known, SHOWN_MAX, SIMILARITY_MIN)


def similar_commands(name: str, names: Iterable[str]) -> list[str]:
    """Return the commands that other tools call so; else those of similar names.

    >>> similar_commands("audit", ["auth", "verify"])
    ['verify']
    """
    known = list(names)
    same = [each for each in known if any({name, each} <= words for words in COMMAND_WORDS)]
    return same or similar_names(name, known)


def did_you_mean(
    name: str, names: Iterable[str], similar: Callable[[str, Iterable[str]], list[str]] = similar_names
) -> str | None:
    """Return a question that names similar names; None if there are none.

    >>> did_you_mean("apend", ["append", "read"])
    'Did you mean append?'
    >>> did_you_mean("wibble", ["append", "read"]) is None
    True
    """
    found = similar(name, names)
    return f"Did you mean {' or '.join(found)}?" if found else None


def describe_new(word: str, name: str, others: Iterable[str]) -> str:
    """Return a message that something was created, naming similar existing names: the new one may be a typo."""
    like = similar_names(name, sorted(others))
    existing = f"; {' and '.join(like)} {'was' if len(like) == 1 else 'were'} there before" if like else ""
    return printable(f"made the {word} {name}{existing}")


def _plain(name: str) -> str:
    return name.lower().replace("/", ".").replace("_", "-")
