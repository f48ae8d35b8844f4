"""Small patches that each break one clause of docs/status.md; the tests that the clause names must notice.

`python -m tests.mutants` applies every patch in a scratch copy, runs exactly those tests, and writes the result to
`build/mutants.json`. `tests/mutants/test_mutants.py` keeps the patches applicable.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from tests.test_status import PAGE, ROOT, Row, rows_of

__all__ = ["FOLDER", "Mutant", "load", "status_rows"]

FOLDER = Path(__file__).parent
KEYS = {"row", "name", "file", "old", "new"}
OPTIONAL = {"tests"}  # of others than the row names


@dataclass(frozen=True, slots=True)
class Mutant:
    """One patch: in `file`, `old` becomes `new`, which breaks the clause of `row`."""

    area: str
    row: str
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Return the name with the row and the list it comes from."""
        return f"{self.area}/{self.name} ({self.row})"

    def apply(self, text: str) -> str:
        """Return the patched text; raise ValueError unless `old` occurs exactly once."""
        found = text.count(self.old)
        if found != 1:
            raise ValueError(
                f"{self.title}: expected the old text once in {self.file}, found it {found} times"
            )
        return text.replace(self.old, self.new)


def load(folder: Path = FOLDER) -> list[Mutant]:
    """Return the mutants of every list in the folder."""
    mutants = []
    for path in sorted(folder.glob("*.toml")):
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]:
            if set(entry) - OPTIONAL != KEYS:
                raise ValueError(f"{path.name}: a mutant has the keys {sorted(KEYS)}, got {sorted(entry)}")
            mutants.append(Mutant(path.stem, **{**entry, "tests": tuple(entry.get("tests", ()))}))
    return mutants


def status_rows() -> dict[str, Row]:
    """Return the rows of docs/status.md by id."""
    return {row.id: row for row in rows_of(PAGE.read_text(encoding="utf-8"))}


def source(mutant: Mutant) -> str:
    """Return the text of the file that a mutant patches."""
    return (ROOT / mutant.file).read_text(encoding="utf-8")
