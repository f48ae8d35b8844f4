"""The bounds of the append queue."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from tests.asgi import served
from tests.waiting import LIMIT_S, soon

EVENT = {"type": "t", "payload": {"text": "x" * 600}}


def test_queue_is_bounded_by_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr("ropewalk.server.append_queue.WAITING_BYTES_MAX", 1_000, raising=False)

    async def main() -> None:
        async with served(tmp_path) as client:
            calls = [client("POST", "/shiplog/prod/events", EVENT) for _ in range(3)]
            assert sorted(answer.status for answer in await asyncio.gather(*calls)) == [201, 503, 503]
            assert (await client("POST", "/shiplog/prod/events", EVENT)).status == 201

    asyncio.run(main())


def test_answered_clients_share_the_next_batch(tmp_path, monkeypatch):
    """Clients that started apart are in one batch from then on; they do not take turns in two halves."""
    monkeypatch.setattr("ropewalk.server.append_queue.GATHER_SHARE", 1_000.0)
    monkeypatch.setattr("ropewalk.server.append_queue.GATHER_S_MAX", LIMIT_S)
    sizes: list[int] = []
    others_came = threading.Event()

    async def main() -> None:
        async with served(tmp_path) as client:
            appends = client.node.appends
            write = appends._write

            def counted(layout: Any, topic: str, batch: Any) -> Any:
                sizes.append(len(batch))
                if len(sizes) == 3:
                    assert others_came.wait(LIMIT_S)
                return write(layout, topic, batch)

            monkeypatch.setattr(appends, "_write", counted)

            async def work(rounds: int) -> None:
                for _ in range(rounds):
                    assert (await client("POST", "/shiplog/prod/events", EVENT)).status == 201

            await work(2)  # a single client waits for none
            first = asyncio.create_task(work(6))
            await soon(lambda: len(sizes) == 3)
            others = [asyncio.create_task(work(5)) for _ in range(7)]
            await soon(lambda: appends.waiting == 8)
            others_came.set()
            await asyncio.gather(first, *others)

    asyncio.run(main())
    assert sizes == [1, 1, 1, *[8] * 5]
