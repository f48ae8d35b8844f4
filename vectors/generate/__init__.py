"""The programs that write the generated vectors.

Each module here exposes `generate() -> dict[str, object]`: paths below `vectors/` and the JSON value each holds.
`python -m vectors.generate` writes them all; `--check` writes nothing and names the files that are stale.
"""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

__all__ = ["HOME", "generated", "modules", "text"]

HOME = Path(__file__).resolve().parent.parent

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def modules() -> list[str]:
    """The names of all generators, sorted."""
    return sorted(found.name for found in iter_modules(__path__) if not found.name.startswith("_"))


def generated(name: str) -> dict[str, str]:
    """What one generator gives: path below `vectors/` → the exact text of the file."""
    files: dict[str, object] = import_module(f"{__name__}.{name}").generate()
    return {path: text(value) for path, value in sorted(files.items())}


def text(value: object) -> str:
    """A JSON value as the files hold it: readable, one spelling, a newline at the end."""
    written = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    # A case about lone surrogates must still be a UTF-8 file.
    return _LONE_SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", written)
