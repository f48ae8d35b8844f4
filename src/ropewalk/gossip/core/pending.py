"""Pending: messages whose parents have not arrived. Bounded, durable, and visible.

Two tables: `pending` holds the bytes; `waiting` holds a row for every missing parent and the child that waits for it,
and under the child alone how many it waits for: a parent that comes must not cost a look into each of its children.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ropewalk.errors import TooLarge
from ropewalk.gossip.core.ids import KEY_BYTES, Key
from ropewalk.gossip.core.table import Transaction, View
from ropewalk.kernel.digest import sha256

PENDING_COUNT_MAX = 4096  # sync brings parents first, so only pushed messages ever wait
PENDING_BYTES_MAX = 64 << 20
PENDING_AUTHOR_MAX = 1024  # of one author, who cannot fill the table alone
PENDING_PEER_MAX = 2048  # pushed from one address, whose authors cost nothing to make
PENDING_AGE_S_MAX = 7 * 86_400  # after a week no peer has brought the parents
_BYTES = b"pending_bytes"
_AUTHOR = b"pending_author:"  # and the digest of an author: how many of its messages wait
_PEER = b"pending_peer:"  # and the digest of a peer: how many of the messages it pushed wait
_FROM = b"pending_from:"  # and a key: the digest of the peer that pushed it
_SINCE = b"pending_since:"  # and a key: since when it waits (8 bytes), and the digest of its author


@dataclass(frozen=True, slots=True)
class PendingLimits:
    """How much may wait."""

    count: int = PENDING_COUNT_MAX
    size: int = PENDING_BYTES_MAX
    per_author: int = PENDING_AUTHOR_MAX
    per_peer: int = PENDING_PEER_MAX
    age_s: int = PENDING_AGE_S_MAX


def add(
    change: Transaction,
    limits: PendingLimits,
    key: Key,
    raw: bytes,
    missing: list[Key],
    *,
    author: str,
    peer: str | None = None,
    now_s: int | None = None,
) -> None:
    """Keep a message until its parents come; TooLarge when there is no room.

    Nothing is dropped for it but what has waited too long. Without `now_s` nothing ever has.
    """
    if change.get("pending", key) is not None:
        return
    digest = sha256(author.encode())
    _check_quota(change, _AUTHOR + digest, author, limits.per_author)
    pushed_by = None if peer is None else sha256(peer.encode())
    if pushed_by is not None:
        _check_quota(change, _PEER + pushed_by, f"peer {peer}", limits.per_peer)
    if _is_full(change, limits, len(raw)) and now_s is not None:
        expire(change, now_s - limits.age_s)
    size = bytes_held(change) + len(raw)
    if _is_full(change, limits, len(raw)):
        raise TooLarge(
            f"{count(change)} messages with {size - len(raw)} bytes are pending already",
            size=size,
            limit=limits.size,
            advice="Sync with a peer that has the missing parents, or drop some: `ropewalk gossip pending drop`.",
        )
    change.put("pending", key, raw)
    _count(change, _AUTHOR + digest, 1)
    if pushed_by is not None:
        _count(change, _PEER + pushed_by, 1)
        change.put("meta", _FROM + key, pushed_by)
    change.put("meta", _SINCE + key, (now_s or 0).to_bytes(8, "big") + digest)
    for parent in missing:
        change.put("waiting", parent + key, b"")
    change.put("waiting", *count_row(key, len(missing)))
    change.put("meta", _BYTES, size.to_bytes(8, "big"))


def count_row(key: Key, missing: int) -> tuple[bytes, bytes]:
    """Return the row with the number of parents a message waits for."""
    return key, missing.to_bytes(4, "big")


def missing(view: View) -> dict[Key, list[Key]]:
    """Return the messages that wait, each with the parents it waits for."""
    found: dict[Key, list[Key]] = {Key(key): [] for key, _ in view.scan("pending")}
    for row, _ in view.scan("waiting"):
        if len(row) > KEY_BYTES:
            found[Key(row[KEY_BYTES:])].append(Key(row[:KEY_BYTES]))
    return found


def holds(view: View, key: Key) -> bool:
    """Return whether the message waits."""
    return view.get("pending", key) is not None


def count(view: View) -> int:
    """Return how many messages wait."""
    return view.count("pending")


def bytes_held(view: View) -> int:
    """Return how many bytes wait."""
    return int.from_bytes(view.get("meta", _BYTES) or b"", "big")


def ready(change: Transaction, parent: Key) -> Iterator[tuple[Key, bytes]]:
    """Yield the messages for which `parent` was the last missing parent; they are not dropped yet."""
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
    digest = (change.get("meta", _SINCE + key) or b"")[8:]
    change.delete("meta", _SINCE + key)
    _count(change, _AUTHOR + digest, -1)
    pushed_by = change.get("meta", _FROM + key)
    if pushed_by is not None:
        change.delete("meta", _FROM + key)
        _count(change, _PEER + pushed_by, -1)


def expire(change: Transaction, before_s: int) -> int:
    """Forget the messages that have waited since before a time; return how many. Of some the time is not known."""
    old = [
        Key(row[len(_SINCE) :])
        for row, value in change.scan("meta", _SINCE, _after(_SINCE))
        if 0 < int.from_bytes(value[:8], "big") < before_s
    ]
    return drop_all(change, old)


def drop_all(change: Transaction, keys: Iterable[Key]) -> int:
    """Forget waiting messages; return how many there were."""
    wanted = {key for key in keys if holds(change, key)}
    parents = missing(change) if wanted else {}
    for key in wanted:
        drop(change, key, change.get("pending", key) or b"", tuple(parents[key]))
    return len(wanted)


def _check_quota(view: View, row: bytes, name: str, limit: int) -> None:
    waiting = int.from_bytes(view.get("meta", row) or b"", "big")
    if waiting >= limit:
        raise TooLarge(
            f"{waiting} messages of {name} are pending already; the quota is {limit}",
            size=waiting + 1,
            limit=limit,
            advice="Sync with a peer that has the missing parents.",
        )


def _count(change: Transaction, row: bytes, step: int) -> None:
    waiting = int.from_bytes(change.get("meta", row) or b"", "big") + step
    if waiting > 0:
        change.put("meta", row, waiting.to_bytes(4, "big"))
    else:
        change.delete("meta", row)


def _is_full(view: View, limits: PendingLimits, more: int) -> bool:
    return count(view) >= limits.count or bytes_held(view) + more > limits.size


def _after(prefix: bytes) -> bytes:
    """Return the first key beyond all keys that begin with `prefix`."""
    trimmed = prefix.rstrip(b"\xff")
    return trimmed[:-1] + bytes((trimmed[-1] + 1,)) if trimmed else prefix + b"\xff" * KEY_BYTES
