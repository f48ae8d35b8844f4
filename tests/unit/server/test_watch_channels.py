"""What a watch sees in the blocks: foreign seals, evidence that ages, and Alerts that a policy copies."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.unit.ledger.attesting import PAYLOAD, dsse
from tests.unit.ledger.making import ADA, observed
from tests.unit.server.test_watch import StandIn

from ropewalk.errors import Invalid
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import blake3
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.channel.channel import open_channel, open_log
from ropewalk.ledger.channel.settings import create_channel
from ropewalk.ledger.evidence.allowed import EvidenceAllowList
from ropewalk.ledger.evidence.settings import write_evidence
from ropewalk.ledger.evidence.trust import EvidenceSettings
from ropewalk.ledger.rules.policy import Policy, parse_policy
from ropewalk.ledger.versions.lifecycle import move_version
from ropewalk.server.watch.config import WatchConfig
from ropewalk.server.watch.rounds import Watch

NODE = SigningKey.generate("ed25519", bytes(range(32)))
EVE = SigningKey.generate("ed25519", bytes(range(7, 39)))
FRESHNESS_S = 1_000.0


class Home:
    """Channels without a git repository, all sealed by `NODE`, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "home"
        self.now = datetime.now(UTC)

    def append(self, channel: str, raw: bytes, key: SigningKey = NODE) -> None:
        with open_log(self.path, channel, key, now_ns=self.now_ns) as opened:
            opened.log.submit(raw)

    def now_ns(self) -> int:
        return int(self.now.timestamp() * 1e9)

    def envelopes(self, channel: str) -> list[bytes]:
        with open_channel(self.path, channel) as reading:
            return [raw for block in reading.blocks(0, reading.head().height - 1) for raw in block.envelopes]

    def round(self, config: WatchConfig | None = None) -> Any:
        return Watch(
            self.path, config or WatchConfig(), channel_keys=lambda _: (NODE,), signing_key=lambda _: NODE,
            now_ns=self.now_ns,
        ).round()  # fmt: skip


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_block_of_a_foreign_key_pages(home, tmp_path):
    """Checksums and links of the block are right; only its seal is not that of the channel's key."""
    create_channel(home.path, "ops", "node", NODE.public)
    other = Home(tmp_path / "other")
    create_channel(other.path, "ops", "node", EVE.public)
    other.append("ops", observed(1).raw, EVE)
    ours, theirs = home.path / "ledger" / "ops", other.path / "ledger" / "ops"
    settings = (ours / "channel.json").read_bytes()
    shutil.copytree(theirs, ours, dirs_exist_ok=True)
    (ours / "channel.json").write_bytes(settings)
    found = home.round()
    assert [each["name"] for each in found.firing] == ["ChannelUnreadable"]
    assert "signature" in found.firing[0]["summary"]
    assert [each["name"] for each in home.round().firing] == ["ChannelUnreadable"]  # it is not passed over


def evidence(number: int, when: datetime) -> bytes:
    report = dsse(ADA)
    made = observed(
        event_class="Attestation", payload=PAYLOAD, correlation_id=f"c-{number}",
        timestamp=when.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        evidence={"format": "slsa.v1", "evidence_hash": blake3(jcs.encode(report)).hex(), "report": report},
    )  # fmt: skip
    return made.raw


def test_stale_evidence_alerts_and_resolves(home):
    """At four fifths of the budget Alertmanager gets an alert; fresh evidence ends it."""
    manager = StandIn()
    config = WatchConfig(alertmanager=manager.url, freshness_s=FRESHNESS_S)
    create_channel(home.path, "ops", "node", NODE.public)
    pins = EvidenceAllowList((ADA.public,), ("https://builder.example/v1",))
    write_evidence(home.path, "ops", EvidenceSettings((), pins))
    begun = home.now
    home.append("ops", evidence(1, begun))
    try:
        home.now = begun + timedelta(seconds=0.79 * FRESHNESS_S)
        assert home.round(config).firing == () and manager.taken == []
        home.now = begun + timedelta(seconds=0.81 * FRESHNESS_S)
        assert [each["name"] for each in home.round(config).firing] == ["EvidenceStale"]
        path, (alert,) = manager.taken[-1]
        assert path == "/api/v2/alerts" and alert["labels"]["channel"] == "ops" and "endsAt" not in alert
        home.append("ops", evidence(2, home.now))
        home.now += timedelta(seconds=1)
        assert home.round(config).firing == ()
        (ended,) = manager.taken[-1][1]
        assert ended["labels"] == alert["labels"] and ended["endsAt"] > ended["startsAt"]
    finally:
        manager.shutdown()
        manager.server_close()


def fan_out(*channels: str, **more: Any) -> Policy:
    rule = {
        "id": "page", "name": "fanout", "version": 1, "kind": "alert_fanout", "decision": "allow",
        "channels": list(channels), **more,
    }  # fmt: skip
    document = {
        "version": 1, "name": "ops", "evaluator_version": "ropewalk/1", "capability_matrix": {}, "rules": [rule],
    }  # fmt: skip
    return parse_policy(json.dumps(document).encode())


def alert(number: int, kind: str = "disk.full") -> bytes:
    return observed(
        number, event_class="Alert", event_type=kind, correlation_id=f"a-{number}", payload={"n": number}
    ).raw


def test_policy_copies_alerts_to_its_channels(home):
    create_channel(
        home.path, "ops", "node", NODE.public, fan_out("paging", "audit", when={"types": ["disk.*"]})
    )
    wanted = alert(1)
    for raw in (wanted, alert(2, "fan.slow"), observed(3).raw):
        home.append("ops", raw)
    assert home.round().failures == ()
    assert home.envelopes("paging") == home.envelopes("audit") == [wanted]  # byte for byte
    home.round()
    assert home.envelopes("paging") == [wanted]


def test_copies_survive_a_failure_and_a_circle_ends(home):
    create_channel(home.path, "ops", "node", NODE.public, fan_out("paging"))
    create_channel(home.path, "paging", "node", EVE.public, fan_out("ops"))  # NODE cannot seal here
    home.append("ops", alert(1))
    assert "paging" in home.round().failures[0]
    shutil.rmtree(home.path / "ledger" / "paging")
    create_channel(home.path, "paging", "node", NODE.public, fan_out("ops"))
    for _ in range(3):
        assert home.round().failures == ()
    assert home.envelopes("paging") == home.envelopes("ops") == [alert(1)]


def test_own_alerts_are_copied_in_the_same_round(home):
    create_channel(home.path, "alerts", "node", NODE.public, fan_out("paging"))
    create_channel(home.path, "ops", "node", NODE.public)
    home.append("ops", observed(1, policy_tag={"policy_hash": "22" * 32}).raw)
    home.round(WatchConfig(alert_channel="alerts"))
    assert home.envelopes("paging") == home.envelopes("alerts") != []


def test_fan_out_rules_are_checked():
    for channels in ((), ("../x",), ("a/b",)):
        with pytest.raises(Invalid, match='rule "page"'):
            fan_out(*channels)
    with pytest.raises(Invalid, match="must allow"):
        fan_out("paging", decision="deny")


def test_version_notices_come_at_30_14_and_7_days(home):
    move_version(home.path, "1.0.x", "deprecated", sunset="2025-03-01T00:00:00Z")
    sunset = datetime(2025, 3, 1, tzinfo=UTC)
    seen: dict[str, dict[str, str]] = {}
    for days in (31, 29, 20, 13, 10, 6, 1):
        home.now = sunset - timedelta(days=days)
        for each in home.round().firing:
            seen.setdefault(each["fingerprint"], {"name": each["name"], **dict(each["labels"])})
    assert list(seen.values()) == [
        {"name": "VersionEnds", "version": "1.0.x", "days": days} for days in ("30", "14", "7")
    ]
