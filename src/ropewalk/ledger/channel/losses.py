"""What is known to be missing from a channel, and what a person has given up.

    <channel>/known.json      {"version":1,"blocks","block_hash","source","lost":[{"height","block_hash","envelopes"}]}
    <channel>/repairs.json    {"version":1,"repairs":[{"at","blocks","receipted","kept","lost","source"}]}

`known.json` holds the largest head published apart from the mark: a head that was signed, an archive
that was written, or an index that was deleted because the log had lost its last block. `repairs.json` lists
what `ledger repair` did. Receipted blocks that were given up close the channel: their heights are never sealed again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from ropewalk.disk.durable import Disk, read_optional
from ropewalk.errors import Damaged, Unavailable
from ropewalk.ledger.channel.receipted import read_mark, repair_advice

KNOWN: Final = "known.json"
REPAIRS: Final = "repairs.json"
LOST_MAX: Final = 10_000  # blocks that are listed one by one


@dataclass(frozen=True, slots=True)
class KnownHead:
    """A published head: number of blocks, hash of the last, and its source."""

    blocks: int
    block_hash: str
    source: str
    lost: Sequence[dict[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class Repair:
    """One repair: the number of blocks then, and of those known to be receipted."""

    at: str
    blocks: int
    receipted: int
    kept: str = ""
    lost: Sequence[dict[str, Any]] = ()
    source: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the repair as it is stored and printed."""
        return {**asdict(self), "lost": list(self.lost)}


def read_known(folder: Path) -> KnownHead | None:
    """Return the largest published head, if there is one. Raise `Damaged` if it cannot be read."""
    value = _read(folder / KNOWN, "the file of the largest published head")
    if value is None:
        return None
    try:
        return KnownHead(
            _count(value["blocks"]), str(value["block_hash"]), str(value["source"]), value["lost"]
        )
    except (ValueError, TypeError, KeyError) as error:
        raise _damaged(folder / KNOWN, "the file of the largest published head") from error


def note_known(folder: Path, known: KnownHead) -> None:
    """Record a head if it is larger than the stored one; durable before this returns."""
    there = read_known(folder)
    if there is None or there.blocks < known.blocks:
        value = {"version": 1, **asdict(known), "lost": list(known.lost)[:LOST_MAX]}
        Disk().replace(folder / KNOWN, json.dumps(value).encode() + b"\n")


def read_repairs(folder: Path) -> list[Repair]:
    """Return the repairs of a channel, oldest first. Raise `Damaged` if the list cannot be read."""
    value = _read(folder / REPAIRS, "the list of repairs")
    if value is None:
        return []
    try:
        found = [Repair(**each) for each in value["repairs"]]
        for each in found:
            _count(each.blocks), _count(each.receipted)
    except (ValueError, TypeError, KeyError) as error:
        raise _damaged(folder / REPAIRS, "the list of repairs") from error
    return found


def write_repairs(folder: Path, repairs: Sequence[Repair], disk: Disk) -> None:
    """Write the list; durable before this returns."""
    value = {"version": 1, "repairs": [each.to_json() for each in repairs]}
    disk.replace(folder / REPAIRS, json.dumps(value, ensure_ascii=False).encode() + b"\n")


def open_loss(repairs: Sequence[Repair]) -> Repair | None:
    """Return the repair that gave up receipted blocks which no later one has restored, if any."""
    found = [
        each
        for number, each in enumerate(repairs)
        if all(later.blocks < each.receipted for later in repairs[number:])
    ]
    return min(found, key=lambda each: each.blocks, default=None)


def minimum_blocks(folder: Path) -> int | None:
    """Return the minimum number of blocks: those receipted and not given up. None if unknown."""
    try:
        mark = read_mark(folder)
    except Damaged:
        mark = None
    known = read_known(folder)
    if mark is None and known is None:
        return None
    floor = max(mark.blocks if mark is not None else 0, known.blocks if known is not None else 0)
    loss = open_loss(read_repairs(folder))
    return floor if loss is None else min(floor, loss.blocks)


def blocks_text(first: int, end: int) -> str:
    """Return the blocks from a height up to another, exclusive, as text.

    >>> blocks_text(4, 5), blocks_text(4, 9)
    ('block 4', 'blocks 4 to 8')
    """
    return f"block {first}" if end == first + 1 else f"blocks {first} to {end - 1}"


def _read(path: Path, what: str) -> dict[str, Any] | None:
    try:
        if (raw := read_optional(path)) is None:
            return None
        value = json.loads(raw)
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror}", path=str(path)) from error
    except (ValueError, RecursionError) as error:
        raise _damaged(path, what) from error
    if not isinstance(value, dict) or value.get("version") != 1:
        raise _damaged(path, what)
    return value


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError
    return value


def _damaged(path: Path, what: str) -> Damaged:
    channel = path.parent.name
    return Damaged(
        f"channel {channel}: {what} is damaged ({path})", reason=path.name, advice=repair_advice(channel)
    )
