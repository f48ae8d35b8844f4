"""Remember the answers to requests with an `Idempotency-Key`, also over a restart or a crash.

A row holds the digest of the request, the ULIDs its events were to get, and what became of them. The ULIDs are on disk
before the events are: after a crash the log itself shows which of them were appended.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ropewalk.disk.lmdb_tables import LmdbTables
from ropewalk.errors import ContentDiffers, Invalid

KEY_CHARS_MAX = 255
KEPT_MS = 7 * 86_400_000  # a client that retries after a week has forgotten the first try as well
TABLES = ("requests",)


@dataclass(slots=True)
class KeyedRequest:
    """One request with a key. `planned` and `outcomes` are None until they are known."""

    name: bytes
    digest: str
    planned: list[str] | None = None
    outcomes: list[dict[str, Any]] | None = None
    at_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)

    def to_row(self) -> bytes:
        """Return what the table keeps."""
        return json.dumps([self.digest, self.at_ms, self.planned, self.outcomes]).encode()


class IdempotencyKeys:
    """The table of one repository; safe to share between threads."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._tables = LmdbTables(folder, TABLES)
        # Client, target and key of requests with no answer yet; the event is set when there is one.
        self.under_way: dict[tuple[str, str, str], asyncio.Event] = {}

    def find(self, client: str, target: str, key: str, body: bytes) -> KeyedRequest:
        """Return the request as it is known, or a new one. A key of another body raises `ContentDiffers`."""
        request = keyed_request(client, target, key, body)
        self.refresh(request)
        return request

    def refresh(self, request: KeyedRequest) -> None:
        """Read again what is known of a request; raise `ContentDiffers` if its key has another body meanwhile."""
        with self._tables.read() as view:
            row = view.get("requests", request.name)
        if row is None:
            return
        digest, at_ms, planned, outcomes = json.loads(row)
        if digest != request.digest:
            raise ContentDiffers(
                "this Idempotency-Key was used before with another body",
                advice="Use a new key for a new request.",
            )
        request.at_ms, request.planned, request.outcomes = at_ms, planned, outcomes

    def keep(self, requests: Sequence[KeyedRequest]) -> None:
        """Write rows and wait until they are on disk."""
        rows = {each.name: each.to_row() for each in requests}

        def write(change: Any) -> None:
            for name, row in rows.items():
                change.put("requests", name, row)

        self._tables.transact(write)

    def drop_old(self, now_ms: int) -> int:
        """Drop the rows that are older than a week; return how many."""
        with self._tables.read() as view:
            old = [name for name, row in view.scan("requests") if json.loads(row)[1] < now_ms - KEPT_MS]

        def delete(change: Any) -> None:
            for name in old:
                change.delete("requests", name)

        self._tables.transact(delete)
        return len(old)

    def close(self) -> None:
        """Close the table."""
        self._tables.close()


def keyed_request(client: str, target: str, key: str, body: bytes) -> KeyedRequest:
    """Return a request with a key, of which nothing else is known yet."""
    if not 0 < len(key) <= KEY_CHARS_MAX or not all(" " < each <= "~" for each in key):
        raise Invalid(
            f"Idempotency-Key must be 1 to {KEY_CHARS_MAX} printable ASCII characters, got {len(key)}"
        )
    name = hashlib.sha256("\0".join((client, target, key)).encode()).digest()
    return KeyedRequest(name, hashlib.sha256(body).hexdigest())


def is_final(outcomes: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a retry would get the same answer: receipts and refusals, not an overload.

    >>> is_final([{"ulid": "01HF"}, {"status": 400}]), is_final([{"status": 503}])
    (True, False)
    """
    return all(each.get("status", 200) < 429 for each in outcomes)
