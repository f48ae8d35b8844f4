"""Signers of a head for display: names chosen by peers, and the time a witness signed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

from ropewalk.kernel.terminal_text import printable
from ropewalk.ledger.json_form import members_of

SHOWN_MAX: Final = 200  # maximum characters of peer-supplied text
_YEAR_10000_S: Final = 253_402_300_800


@dataclass(frozen=True, slots=True)
class HeadSigner:
    """A signature line of a head: its signer, as far as known, and the time of a witness."""

    name: str
    key_id: str
    kind: Literal["channel", "witness", "unknown"]
    time_s: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form in reports."""
        return members_of(self)

    def explain(self) -> str:
        """Return a readable description.

        >>> HeadSigner("w.example", "00000000", "witness", 1700000000).explain()
        'seen by w.example on 2023-11-14 22:13:20 UTC'
        """
        name = printable(self.name, SHOWN_MAX)
        if self.time_s is None:
            return f"signed by {name}"
        if self.time_s >= _YEAR_10000_S:
            return f"seen by {name} in second {self.time_s}"
        return (
            f"seen by {name} on {datetime.fromtimestamp(self.time_s, UTC).strftime('%Y-%m-%d %H:%M:%S')} UTC"
        )


def list_names(names: Iterable[str]) -> str:
    """Return the first few names, and how many more there are.

    >>> list_names(["a", "b", "c", "d"])
    '"a", "b", "c" and 1 more'
    """
    first, *rest = [f'"{printable(name, SHOWN_MAX)}"' for name in names]
    more = f" and {len(rest) - 2} more" if len(rest) > 2 else ""
    return ", ".join([first, *rest[:2]]) + more
