"""The overview shows the alerts of the last watch round to those who may read the channel."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

from tests.asgi import Client, served

from ropewalk.server.watch.config import WatchConfig
from ropewalk.server.watch.rounds import Watch


def watched(client: Client) -> None:
    """Do a round over a schedule that failed and a channel that cannot be read."""
    node = client.node
    home = node.place.home
    (home / "schedules").mkdir()
    jobs = {"drill": {"ok": False, "detail": "no archive"}}
    (home / "schedules" / "state.json").write_text(json.dumps({"version": 1, "jobs": jobs}))
    (home / "ledger" / "audit" / "channel.json").write_text("{}")
    keys: Any = {"channel_keys": node.channel_keys, "signing_key": node.signing_key}
    Watch(home, WatchConfig(), **keys, now_ns=time.time_ns).round()


def test_overview_shows_firing_alerts(tmp_path: Path):
    async def main() -> None:
        async with served(tmp_path) as client:
            await client.node.record_act("test", "ada", {})
            assert (await client("GET", "/overview")).json["alerts"] == []
            (client.node.place.home / "ledger" / "server.audit").rename(
                client.node.place.home / "ledger" / "audit"
            )
            await asyncio.to_thread(watched, client)
            found = await client("GET", "/overview")
            assert found.status == 200, found.body
            assert {each["name"]: each["labels"] for each in found.json["alerts"]} == {
                "ChannelUnreadable": {"channel": "audit"},
                "ScheduleFailed": {"job": "drill"},
            }

    asyncio.run(main())
