"""Heights of the key statements of a channel, in a separate file so that blocks need not be searched.

<channel>/keys.json    {"version":2,"heights":[50,…],"check":"…"}

`check` is the BLAKE3 of the heights as they are written: a list with a changed digit would lack a height, so it is
rejected. Version 1 had none; it is read, and rewritten when a height is added.

A height is stored, durably, before its block is written. So the list may name a block that was never written, or one
without a key statement; it never lacks one. The reader checks the block. Without the file there is no key
statement; if it was lost, `ledger reindex` makes it again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from ropewalk.disk.durable import Disk
from ropewalk.errors import Damaged, Unavailable
from ropewalk.kernel.digest import blake3

NAME = "keys.json"


def read_heights(folder: Path) -> list[int]:
    """Return the heights, lowest first.

    >>> read_heights(Path("/nonexistent"))
    []
    """
    path = folder / NAME
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror}", path=str(path)) from error
    except (ValueError, RecursionError) as error:
        raise _damaged(path) from error
    heights = value.get("heights") if isinstance(value, dict) else None
    if value not in ({"version": 1, "heights": heights}, _document(heights)):
        raise _damaged(path)
    if not isinstance(heights, list) or not all(type(each) is int and each >= 0 for each in heights):
        raise _damaged(path)
    return sorted(set(heights))


def note_height(folder: Path, height: int) -> None:
    """Add a height; durable before this returns."""
    heights = read_heights(folder)
    if height not in heights:
        write_heights(folder, [*heights, height])


def write_heights(folder: Path, heights: Iterable[int]) -> None:
    """Write the list; an empty one removes the file."""
    path, found = folder / NAME, sorted(set(heights))
    try:
        if found:
            raw = json.dumps(_document(found), separators=(",", ":")).encode()
            Disk().replace(path, raw, mode=0o600)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror}", path=str(path)) from error


def _document(heights: object) -> dict[str, object]:
    return {"version": 2, "heights": heights, "check": blake3(json.dumps(heights).encode()).hex()}


def _damaged(path: Path) -> Damaged:
    return Damaged(
        f"{path} is not a valid list of heights",
        reason="keys",
        advice="Make it again with `ropewalk ledger reindex`: all of it stands in the blocks.",
    )
