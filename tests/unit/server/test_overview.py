"""What is shown of many logs at once: alerts of the last watch round, and every log but those that cannot be read."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.asgi import Client, served

from ropewalk.bridge.progress import Progress
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


def test_rewritten_log_hides_no_other(tmp_path: Path):
    """A namespace that was pushed by force fails its own reads, not the figures and lists of all logs."""

    async def main() -> None:
        async with served(tmp_path) as client:
            for ns in ("a", "a", "b"):
                event = {"type": "t", "payload": {}}
                assert (await client("POST", f"/shiplog/{ns}/events", event)).status == 201
            Progress.of(client.node.log, "mirror", "shiplog/a", "messages/a").write(moved=1)
            head = "refs/gatos/shiplog/a/head"
            git = ["git", "--git-dir", str(client.node.place.git_dir)]
            subprocess.run([*git, "update-ref", head, f"{head}~1"], check=True)
            assert (await client("GET", "/shiplog/a/events")).code == "HistoryRewritten"
            assert (await client("GET", "/deployments?ns=a")).code == "HistoryRewritten"
            assert [each["lag"] for each in (await client("GET", "/bridges")).json["bridges"]] == [None]
            assert (await client("GET", "//metrics")).status == 200
            assert [each["log"] for each in (await client("GET", "/overview")).json["logs"]] == ["shiplog/b"]
            assert (await client("GET", "/deployments")).status == 200

    asyncio.run(main())
