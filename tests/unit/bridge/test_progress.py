"""Progress of mirrors, brokers and webhooks: one record each, listed with lag, last run and last error."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import pytest
from tests.unit.cli.conftest import living_in

from ropewalk.bridge.brokers.loops import Subscriber, find_log
from ropewalk.bridge.brokers.port import Incoming
from ropewalk.bridge.mirror import Mirror, mirror
from ropewalk.bridge.progress import HEARTBEAT_MS, Progress, list_progress
from ropewalk.bridge.webhooks.hooks import Webhook
from ropewalk.bridge.webhooks.run import WebhookRunner
from ropewalk.errors import Damaged, NotFound, OutOfOrder
from ropewalk.gitlog.core.layout import MESSAGES

HOOK = "00112233445566aa"


def append(log, ns: str = "prod", count: int = 1) -> str:
    return [str(log.append(ns, {"type": "t", "payload": {"n": n}}).ulid) for n in range(count)][-1]


def rows(log) -> list[dict[str, Any]]:
    return list(list_progress(log))


def test_mirror_lists_position_lag_and_error(log, clock):
    newest = append(log, count=3)
    mirror(log, "ns:prod", "topic:t")
    (row,) = rows(log)
    assert (row["kind"], row["source"], row["target"]) == ("mirror", "shiplog/prod", "messages/t")
    assert (row["position"], row["lag"], row["moved"], row["error"]) == (newest, 0, 3, None)
    clock.ms += 1
    append(log, count=2)
    assert rows(log)[0]["lag"] == 2
    clock.ms += 1
    log.append("t", {"ns": "", "type": "t", "payload": {}}, layout=MESSAGES)
    with pytest.raises(OutOfOrder):
        mirror(log, "ns:prod", "topic:t")
    assert "of ns:prod" in rows(log)[0]["error"] and rows(log)[0]["error_ms"] is not None
    assert rows(log)[0]["position"] == newest


def test_idle_mirror_reports_now_and_then(log, clock, place):
    append(log)
    copying = Mirror(log, "ns:prod", "topic:t")
    copying.catch_up()
    (path,) = place.home.glob("bridges/*/progress.json")
    before = path.read_bytes()
    copying.catch_up()
    assert path.read_bytes() == before  # nothing is written without news
    clock.ms += HEARTBEAT_MS
    copying.catch_up()
    assert json.loads(path.read_bytes())["run_ms"] > json.loads(before)["run_ms"]


def test_webhook_keeps_its_error_until_it_delivers(log, place, clock):
    runner = WebhookRunner(log, now_ms=log.now_ms, chance=lambda: 0.5)
    runner.add(Webhook(HOOK, "http://127.0.0.1:9/secret-path", "shiplog/prod", "61" * 16))
    newest = append(log, count=2)
    runner.once()
    clock.ms += HEARTBEAT_MS
    runner.once()
    (row,) = rows(log)
    assert (row["kind"], row["target"], row["position"]) == ("webhook", "http://127.0.0.1:9", newest)
    assert "no public address" in row["error"] and row["lag"] == 0
    assert "secret-path" not in (place.home / "webhooks" / HOOK / "state.json").read_text()
    runner.hooks.remove(HOOK)
    assert rows(log) == []
    assert not (place.home / "webhooks" / HOOK).exists()


def test_damaged_webhook_state_is_not_overwritten(log, place):
    runner = WebhookRunner(log, now_ms=log.now_ms, chance=lambda: 0.5)
    runner.add(Webhook(HOOK, "http://127.0.0.1:9/", "shiplog/prod", "61" * 16))
    (place.home / "webhooks" / HOOK / "state.json").write_text("{")
    append(log)
    runner.once()
    assert (place.home / "webhooks" / HOOK / "state.json").read_text() == "{"
    with pytest.raises(Damaged):
        runner.hooks.state(HOOK)


@pytest.mark.parametrize(
    "said", ["", "[]", '{"kind": 1}', '{"kind":"mirror","source":"x","target":"y"}', "[" * 9999]
)
def test_unreadable_records_stop_no_listing(log, place, said):
    append(log)
    mirror(log, "ns:prod", "topic:t")
    other = place.home / "bridges" / "other" / "progress.json"
    other.parent.mkdir()
    other.write_text(said)
    assert [row["target"] for row in rows(log)][:1] == ["messages/t"]


def test_lag_of_odd_positions_is_unknown(log):
    append(log, count=2)
    progress = Progress.of(log, "nats", "shiplog/prod", "nats://h:1/s")
    for ulid, lag in (("", 2), ("x", None), ("7" * 26, None)):
        progress.write(ulid=ulid, position="5")
        assert (rows(log)[0]["lag"], rows(log)[0]["position"]) == (lag, "5")
    Progress.of(log, "nats", "nats://h:1/s", find_log(log, "messages/t").name).write(position="7")
    assert [row["lag"] for row in rows(log)] == [None, None]


@dataclass
class NumberedBroker:
    """A stream that numbers its messages, as brokers do, and has removed some."""

    kept: list[int]
    stream: str = "S"
    mark: str = "00000000"

    async def last(self) -> str:
        return "99"

    async def fetch(self, after: str, limit: int, wait_s: float) -> list[Incoming]:
        return [Incoming(str(n), b"{}", {}, n if n % 2 else None) for n in self.kept if n > int(after)]


def test_lost_messages_are_counted_and_listed(log, place, tmp_path):
    """Only messages behind the first that the bridge has read are counted, also after a restart."""
    progress = Progress.of(log, "nats", "nats://h:1/s", "messages/t")
    for kept, lost in (([3, 4, 5], 0), ([5, 6, 9, 10], 2), ([15], 4), ([15, 16, 17], 0)):
        broker: Any = NumberedBroker(kept)
        taking = Subscriber(find_log(log, "messages/t"), broker, progress, origin="0" * 32)
        asyncio.run(taking.step())
        assert taking.lost == lost, kept
    assert rows(log)[0]["lost"] == 6
    shown = living_in(tmp_path)("--repo", str(place.git_dir), "bridge", "ls").out.decode()
    assert " at 17, 6 lost, last run " in shown


def test_command_lists_bridges(log, place, tmp_path):
    append(log)
    mirror(log, "ns:prod", "topic:t")
    command = living_in(tmp_path)
    shown = command("--repo", str(place.git_dir), "bridge", "ls")
    assert shown.code == 0 and b"mirror  shiplog/prod -> messages/t  at " in shown.out
    assert command("--repo", str(place.git_dir), "bridge", "ls", "--json").json["bridges"][0]["lag"] == 0
    remove = ("--repo", str(place.git_dir), "bridge", "rm", "shiplog/prod", "messages/t")
    assert command(*remove).code == 0 and rows(log) == []
    assert command(*remove).code == 3


def test_wrong_names_leave_no_record(log):
    append(log)
    with pytest.raises(NotFound):
        mirror(log, "ns:none", "topic:t")
    assert rows(log) == []
