"""Parse verifier keys of logs and witnesses (C2SP, NAME+ID+KEY): written out, or one per line in a file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ropewalk.cli.common.command import parse_input
from ropewalk.errors import InvalidKey, NotFound
from ropewalk.kernel.terminal_text import printable
from ropewalk.verification import NOTE_KEY_ADVICE, parse_note_keys

if TYPE_CHECKING:
    from ropewalk.kernel.note.key import Verifier

SHOWN_MAX = 80


def note_key(text: str) -> Verifier:
    """Parse a key written out on the command line."""
    from ropewalk.kernel.note.key import Verifier

    if text.count("+") < 2:
        raise InvalidKey(f'"{printable(text, SHOWN_MAX)}" is not a verifier key', advice=NOTE_KEY_ADVICE)
    try:
        return Verifier.from_text(text)
    except InvalidKey as error:
        raise InvalidKey(error.detail, advice=NOTE_KEY_ADVICE, **error.fields) from error


def note_keys(names: Iterable[str]) -> tuple[Verifier, ...]:
    """Return the keys of all names: those in a file, or the one key written out in place of a file name."""
    return tuple(key for name in names for key in _keys_of(name))


def _keys_of(name: str) -> tuple[Verifier, ...]:
    if name != "-" and "+" in name and not Path(name).exists():
        return (note_key(name),)
    try:
        return parse_input(name, parse_note_keys)
    except NotFound as error:
        advice = f"Name a file with keys, one per line, or write the key itself. {NOTE_KEY_ADVICE}"
        raise NotFound(error.detail, advice=advice, **error.fields) from error
