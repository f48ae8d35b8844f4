"""Pending: messages whose parents have not arrived. Bounded, durable, and visible.

Two tables: `pending` holds the bytes; `waiting` holds a row for every missing parent and the child that waits for it,
and under the child alone how many it waits for: a parent that comes must not cost a look into each of its children.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ropewalk.errors import TooLarge
from ropewalk.gossip.ids import KEY_BYTES, Key
from ropewalk.gossip.table import Transaction, View

__all__ = [
    "PENDING_BYTES_MAX",
    "PENDING_COUNT_MAX",
    "Limits",
    "add",
    "bytes_held",
    "count",
    "count_row",
    "drop",
    "holds",
    "missing",
    "ready",
]

PENDING_COUNT_MAX = 4096  # sync brings parents first, so only pushed messages ever wait
PENDING_BYTES_MAX = 64 << 20
_BYTES = b"pending_bytes"


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may wait."""

    count: int = PENDING_COUNT_MAX
    size: int = PENDING_BYTES_MAX


def add(change: Transaction, limits: Limits, key: Key, raw: bytes, missing: list[Key]) -> None:
    """Keep a message until its parents come; TooLarge when there is no room, and nothing is thrown out for it."""
    if change.get("pending", key) is not None:
        return
    size = bytes_held(change) + len(raw)
    if count(change) >= limits.count or size > limits.size:
        raise TooLarge(
            f"{count(change)} messages with {size - len(raw)} bytes are pending already",
            size=size,
            limit=limits.size,
            advice="Sync with a peer that has the missing parents.",
        )
    change.put("pending", key, raw)
    for parent in missing:
        change.put("waiting", parent + key, b"")
    change.put("waiting", *count_row(key, len(missing)))
    change.put("meta", _BYTES, size.to_bytes(8, "big"))


def count_row(key: Key, missing: int) -> tuple[bytes, bytes]:
    """The row that says for how many parents a message waits."""
    return key, missing.to_bytes(4, "big")


def missing(view: View) -> dict[Key, list[Key]]:
    """The messages that wait, each with the parents it waits for."""
    found: dict[Key, list[Key]] = {Key(key): [] for key, _ in view.scan("pending")}
    for row, _ in view.scan("waiting"):
        if len(row) > KEY_BYTES:
            found[Key(row[KEY_BYTES:])].append(Key(row[:KEY_BYTES]))
    return found


def holds(view: View, key: Key) -> bool:
    """Whether the message waits."""
    return view.get("pending", key) is not None


def count(view: View) -> int:
    """How many messages wait."""
    return view.count("pending")


def bytes_held(view: View) -> int:
    """How many bytes wait."""
    return int.from_bytes(view.get("meta", _BYTES) or b"", "big")


def ready(change: Transaction, parent: Key) -> Iterator[tuple[Key, bytes]]:
    """The messages for which `parent` was the last missing parent; they are not dropped yet."""
    rows = [row for row, _ in change.scan("waiting", parent + b"\0", _after(parent))]
    for row in rows:
        change.delete("waiting", row)
        child = Key(row[KEY_BYTES:])
        left = int.from_bytes(change.get("waiting", child) or b"", "big") - 1
        if left > 0:
            change.put("waiting", *count_row(child, left))
            continue
        change.delete("waiting", child)
        raw = change.get("pending", child)
        if raw is not None:
            yield child, raw


def drop(change: Transaction, key: Key, raw: bytes, parents: tuple[Key, ...]) -> None:
    """Forget a waiting message: it was stored, or refused."""
    change.delete("pending", key)
    change.delete("waiting", key)
    for parent in parents:
        change.delete("waiting", parent + key)
    change.put("meta", _BYTES, (bytes_held(change) - len(raw)).to_bytes(8, "big"))


def _after(prefix: bytes) -> bytes:
    """The first key beyond all keys that begin with `prefix`."""
    trimmed = prefix.rstrip(b"\xff")
    return trimmed[:-1] + bytes((trimmed[-1] + 1,)) if trimmed else prefix + b"\xff" * KEY_BYTES
