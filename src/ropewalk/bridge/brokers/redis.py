"""Redis Streams as a broker (extra `[redis]`). Positions are the ids of stream entries."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, Self

from ropewalk.bridge.brokers.port import START, Incoming, Moved, Outgoing, address_of, mark_of, order
from ropewalk.errors import Unavailable

# Appends a batch only if the stream still ends where the caller believes; a script runs alone.
APPEND: Final = """
local at = '0'
if redis.call('EXISTS', KEYS[1]) == 1 then
  local facts = redis.call('XINFO', 'STREAM', KEYS[1])
  for i = 1, #facts, 2 do
    if facts[i] == 'last-generated-id' then at = facts[i + 1] end
  end
end
if at == '0-0' then at = '0' end
if at ~= ARGV[1] then return false end
for i = 2, #ARGV, 3 do
  at = redis.call('XADD', KEYS[1], '*', 'id', ARGV[i], 'headers', ARGV[i + 1], 'body', ARGV[i + 2])
end
return at
"""


class RedisBroker:
    """One stream of a Redis server. Durability is the server's: use `appendonly yes`, `appendfsync always`."""

    def __init__(self, client: Any, stream: str, mark: str) -> None:
        self._client, self.stream, self.mark = client, stream, mark

    @classmethod
    async def connect(cls, url: str, stream: str) -> Self:
        """Connect, and learn which stream this is: a key next to it tells it from those of other servers."""
        try:
            from redis import asyncio as redis
            from redis.exceptions import RedisError, ResponseError
        except ImportError as error:
            raise Unavailable(
                "the Redis bridge needs redis-py", advice='Run: pip install ".[redis]"'
            ) from error
        address = address_of("redis", url, stream)
        try:
            client = redis.from_url(url, socket_timeout=10, socket_connect_timeout=5)
            await client.ping()
            with contextlib.suppress(ResponseError):  # a replica, or a user who may only read
                await client.set(f"{stream}:ropewalk", secrets.token_hex(8), nx=True)
            known = await client.get(f"{stream}:ropewalk")
        except (RedisError, OSError, ValueError) as error:
            raise Unavailable(f"cannot connect to {address}: {error}") from error
        return cls(client, stream, mark_of(address if known is None else str(known)))

    async def last(self) -> str:
        """Return the id that was given last, also if that entry was deleted since."""
        if not await self._asked(self._client.exists(self.stream)):
            return START
        facts = await self._asked(self._client.xinfo_stream(self.stream))
        found = facts["last-generated-id"].decode()
        return START if found == "0-0" else str(found)

    async def publish(self, batch: Sequence[Outgoing], expected: str) -> str:
        """Append a batch as one script: all of it, or none."""
        arguments = [part for each in batch for part in (each.id, json.dumps(dict(each.headers)), each.body)]
        at = await self._asked(self._client.eval(APPEND, 1, self.stream, expected, *arguments))
        if at is None:
            raise Moved
        return str(at.decode())

    async def fetch(self, after: str, limit: int, wait_s: float) -> Sequence[Incoming]:
        """Return the next entries in the order of the stream."""
        found = await self._asked(
            self._client.xread({self.stream: after}, count=limit, block=max(1, int(wait_s * 1000)))
        )
        batch = [
            _incoming(identity.decode(), entry) for _, entries in found or () for identity, entry in entries
        ]
        assert all(order(each.position) > order(after) for each in batch)
        return await self._numbered(batch) if batch else ()

    async def _numbered(self, batch: list[Incoming]) -> list[Incoming]:
        """Number the first entry if it is the oldest that the stream has, and the last if it is the newest."""
        facts = await self._asked(self._client.xinfo_stream(self.stream))
        added = facts.get("entries-added")  # since Redis 7
        oldest = facts.get("first-entry") or (b"",)
        if added is not None and oldest[0].decode() == batch[0].position:
            batch[0] = replace(batch[0], number=added - facts["length"] + 1)
        if added is not None and facts["last-generated-id"].decode() == batch[-1].position:
            batch[-1] = replace(batch[-1], number=added)
        return batch

    async def _asked(self, answer: Any) -> Any:
        from redis.exceptions import RedisError

        try:
            return await answer
        except (RedisError, OSError) as error:
            raise Unavailable(f"stream {self.stream} does not answer: {error}") from error

    async def close(self) -> None:
        """Close the connection."""
        await self._client.aclose()


def _incoming(position: str, entry: dict[bytes, bytes]) -> Incoming:
    """Read an entry of ours, or of another program: fields other than `body` are headers then."""
    headers: dict[str, str] = {}
    try:
        said = json.loads(entry.get(b"headers", b"{}"))
        headers = {name: value for name, value in said.items() if isinstance(value, str)}
    except (ValueError, AttributeError, RecursionError):
        pass
    if b"body" in entry:
        return Incoming(position, entry[b"body"], headers)
    fields = {
        name.decode("utf-8", "replace"): value.decode("utf-8", "replace") for name, value in entry.items()
    }
    return Incoming(position, json.dumps(fields).encode(), headers)
