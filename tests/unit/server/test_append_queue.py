"""The bounds of the append queue."""

from __future__ import annotations

import asyncio

from tests.asgi import served

EVENT = {"type": "t", "payload": {"text": "x" * 600}}


def test_queue_is_bounded_by_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr("ropewalk.server.append_queue.WAITING_BYTES_MAX", 1_000, raising=False)

    async def main() -> None:
        async with served(tmp_path) as client:
            calls = [client("POST", "/shiplog/prod/events", EVENT) for _ in range(3)]
            assert sorted(answer.status for answer in await asyncio.gather(*calls)) == [201, 503, 503]
            assert (await client("POST", "/shiplog/prod/events", EVENT)).status == 201

    asyncio.run(main())
