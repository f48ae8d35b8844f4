"""What is known to be missing from a channel, and what a person has given up.

    <channel>/known.json      {"version":1,"blocks","block_hash","source","lost":[{"height","block_hash","envelopes"}]}
    <channel>/repairs.json    {"version":1,"repairs":[{"at","blocks","receipted","kept","lost","source"}]}

`known.json` holds the largest head that something besides the mark has vouched for: a head that was signed, an archive
that was written, or an index that was thrown away because the log no longer held its last block. `repairs.json` lists
what `ledger repair` did. Receipted blocks that were given up close the channel: their heights are never sealed again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from ropewalk.disk.durable import Disk
from ropewalk.errors import Damaged, Unavailable
from ropewalk.ledger.channel.receipted import read_mark, repair_advice

KNOWN: Final = "known.json"
REPAIRS: Final = "repairs.json"
LOST_MAX: Final = 10_000  # blocks that are listed one by one


@dataclass(frozen=True, slots=True)
class KnownHead:
    """A head that something has vouched for: how many blocks, the hash of the last, and who says so."""

    blocks: int
    block_hash: str
    source: str
    lost: Sequence[dict[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class Repair:
    """One repair: how many blocks the log had then, and how many had been receipted as far as is known."""

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
    """Return the largest head that was vouched for, if there is one. Raise `Damaged` if it cannot be read."""
    value = _read(folder / KNOWN, "the file of the largest published head")
    if value is None:
        return None
    try:
        return KnownHead(
            _count(value["blocks"]), str(value["block_hash"]), str(value["source"]), value["lost"]
        )
    except (ValueError, TypeError, KeyError) as error:
        raise _damaged(folder / KNOWN, "the file of the largest published head") from error


def note_known(folder: Path, known: KnownHead, disk: Disk | None = None) -> None:
    """Write a head down if it is larger than the one that is there; durable before this returns."""
    there = read_known(folder)
    if there is None or there.blocks < known.blocks:
        value = {"version": 1, **asdict(known), "lost": list(known.lost)[:LOST_MAX]}
        (disk or Disk()).replace(folder / KNOWN, json.dumps(value).encode() + b"\n")


def read_repairs(folder: Path) -> list[Repair]:
    """Return the repairs of a channel, the first first. Raise `Damaged` for a list that cannot be read."""
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
    """Return the repair that gave up receipted blocks which no later one has brought back, if there is one."""
    found = [
        each
        for number, each in enumerate(repairs)
        if all(later.blocks < each.receipted for later in repairs[number:])
    ]
    return min(found, key=lambda each: each.blocks, default=None)


def minimum_blocks(folder: Path) -> int | None:
    """Return how many blocks a whole log has at least: those receipted and not given up. None if it is not known."""
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
    """Return the blocks from a height up to, not with, another one, in words.

    >>> blocks_text(4, 5), blocks_text(4, 9)
    ('block 4', 'blocks 4 to 8')
    """
    return f"block {first}" if end == first + 1 else f"blocks {first} to {end - 1}"


def _read(path: Path, what: str) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror}", path=str(path)) from error
    except ValueError as error:
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
