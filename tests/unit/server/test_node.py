"""The life of a node: what it opened is closed if it cannot start, and its background work goes on after an error."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.asgi import served
from tests.waiting import soon

from ropewalk.errors import RopewalkError
from ropewalk.gitlog.repository.repository import GitRepository
from ropewalk.server import node as node_module


def test_node_that_cannot_start_closes_the_log(tmp_path, monkeypatch):
    closed: list[GitRepository] = []
    close = GitRepository.close
    monkeypatch.setattr(GitRepository, "close", lambda log: closed.append(log) or close(log))  # type: ignore[func-returns-value]
    damaged = tmp_path / "log.git" / "ropewalk" / "server" / "idempotency" / "data.mdb"

    async def main() -> None:
        async with served(tmp_path):
            pass
        closed.clear()
        damaged.write_bytes(b"damaged" * 10_000)
        with pytest.raises(RopewalkError):
            async with served(tmp_path):
                pass

    asyncio.run(main())
    assert len(closed) == 1


def test_tick_goes_on_after_an_error(tmp_path, monkeypatch, caplog):
    """An error that was not foreseen must not keep the server from closing clients that are revoked later."""
    monkeypatch.setattr(node_module, "TICK_S", 0.01)
    looks: list[Any] = []

    def recheck() -> None:
        looks.append(None)
        raise ValueError("not foreseen")

    async def main() -> None:
        async with served(tmp_path) as client:
            monkeypatch.setattr(client.node.stream, "recheck", recheck)
            await soon(lambda: len(looks) > 3, 5.0)

    asyncio.run(main())
    assert "not foreseen" in caplog.text
