"""Which logs a right is about."""

from __future__ import annotations

import asyncio

import pytest
from tests.asgi import served

from ropewalk.server.auth.rights import log_pattern
from ropewalk.server.run import _config


@pytest.mark.parametrize(
    ("pattern", "log", "matches"),
    [
        ("messages/a/b", "messages/a.b", False),
        ("messages/a.b", "messages/a/b", False),
        ("messages/a.b", "messages/a.b", True),
        ("messages/jobs.**", "messages/jobs/new/x", True),
        ("messages/jobs.>", "messages/jobs/new", True),
        ("messages/jobs.*", "messages/jobs/new/x", False),
        ("messages/jobs.**", "messages/jobs", False),
        ("messages/**", "messages/a.b/c", True),
        ("messages/**", "shiplog/a", False),
        ("shiplog/prod.*", "shiplog/prod.eu", True),
        ("ledger/server.**", "ledger/server.audit", True),
        ("gossip/com.x", "gossip/com.x", True),
        ("*/prod", "ledger/prod", True),
        ("**", "messages/a.b/c", True),
    ],
)
def test_log_pattern_compares_by_slashes(pattern, log, matches):
    assert log_pattern(pattern).matches(log) is matches


def test_proxy_headers_are_not_believed(tmp_path):
    async def main() -> None:
        async with served(tmp_path) as client:
            assert _config(client.node).proxy_headers is False

    asyncio.run(main())
