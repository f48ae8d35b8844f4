"""The watch: signals that grow with the channel, alerts that fire, resolve and survive a failure to send."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from prometheus_client import generate_latest
from tests.serving import call, command, environment
from tests.unit.ledger.attesting import NOON, Authority, attested, dsse, nitro, nitro_document
from tests.unit.ledger.making import ADA, observed
from tests.unit.ledger.witnesses import live_witness
from tests.waiting import LIMIT_S

from ropewalk.disk.key_files import load_signing
from ropewalk.errors import BrokenLink, Unavailable
from ropewalk.kernel import jcs
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.block.block import GENESIS, Block, seal
from ropewalk.ledger.channel.witnessed import read_witnessed
from ropewalk.ledger.evidence.allowed import EvidenceAllowList
from ropewalk.ledger.evidence.recheck import EvidenceTally
from ropewalk.ledger.proof.proof import head_signer
from ropewalk.ledger.proof.trust import Trust
from ropewalk.ledger.transparency.witness_policy import SETTINGS, WitnessPolicy
from ropewalk.pipeline.jobs.health import measure
from ropewalk.server.metrics import Metrics
from ropewalk.server.watch.config import WatchConfig, parse_watch
from ropewalk.server.watch.rounds import Round, Watch
from ropewalk.server.watch.signals import ChannelSignals

NODE = SigningKey.generate("ed25519", bytes(range(32)))
HOUR_NS = 3600 * 10**9
NOON_NS = int(NOON.timestamp()) * 10**9
BOB = SigningKey.generate("ed25519", bytes(range(1, 33)))
SHARED = (
    "channel", "domain", "protocol_version", "attestation_age_seconds", "attestation_chain_valid", "evidence_failed",
    "evidence_unknown", "policy_hash_mismatch",
)  # fmt: skip
DRIFTED = {"policy_hash": "22" * 32}


def chained(*hours_and_envelopes: tuple[int, list[Any]]) -> list[Block]:
    """Linked blocks, each so many hours after noon."""
    blocks: list[Block] = []
    for hour, envelopes in hours_and_envelopes:
        blocks.append(
            seal(
                NODE,
                channel="ea.core",
                height=len(blocks),
                prev_block_hash=blocks[-1].hash if blocks else GENESIS,
                envelopes=[each.raw for each in envelopes],
                timestamp_ns=NOON_NS + hour * HOUR_NS,
            )
        )
    return blocks


@pytest.mark.parametrize("hour", [1, 3, 9, 20, 23, 30, 60])
def test_signals_agree_with_the_health_job(hour):
    """Incremental, restarted after every block, and over all blocks at once: the same figures."""
    root = Authority("root")
    leaf = Authority("leaf", root, ca=False)
    blocks = chained(
        (0, [nitro(nitro_document(leaf, [root])), observed(1, policy_tag=DRIFTED)]),
        (2, [attested(dsse(ADA), "slsa.v1"), observed(2)]),
        (8, [attested(dsse(BOB), "slsa.v1")]),
        (26, [observed(3)]),
    )
    pins = EvidenceAllowList((ADA.public,), ("https://builder.example/v1",))
    now_ns = NOON_NS + hour * HOUR_NS
    past = [block for block in blocks if block.header.timestamp_ns <= now_ns]
    for trust in (Trust((), ()), Trust((), (), roots=(root.pem,), evidence=pins)):
        state: dict[str, Any] | None = None
        for block in past:
            known = ChannelSignals(state)
            known.follow([block], trust, EvidenceTally(trust), now_ns)
            state = json.loads(json.dumps(known.to_json()))
        ours = ChannelSignals(state).measure("ea.core", EvidenceTally(trust), now_ns, 86_400)
        theirs = measure("ea.core", past, trust, now_ns)
        assert len(ours) == len(theirs) == 1
        for name in SHARED:
            assert getattr(ours[0], name) == getattr(theirs[0], name), name
        assert bool(ours[0].attestation_stale) == theirs[0].stale


def test_block_that_does_not_follow_is_refused():
    one, _, three = chained(
        (0, [observed(payload={"n": 1})]), (1, [observed(payload={"n": 2})]), (2, [observed()])
    )
    trust = Trust((NODE.public,), ())
    known = ChannelSignals()
    with pytest.raises(BrokenLink):
        known.follow([one, three], trust, EvidenceTally(trust), NOON_NS)


class StandIn(HTTPServer):
    """An Alertmanager on loopback that keeps what it is sent."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, Any]] = []
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert isinstance(self.server, StandIn)
        self.server.taken.append((self.path, json.loads(body)))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def manager():
    server = StandIn()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def drifted(tmp_path):
    """A repository whose channel holds an envelope that names another policy."""
    import subprocess

    subprocess.run(
        command("init", str(tmp_path / "log.git")),
        env=environment(tmp_path), check=True, capture_output=True, timeout=LIMIT_S,
    )  # fmt: skip
    call(tmp_path, "key", "new", "ada")
    (tmp_path / "tag.json").write_text(json.dumps(DRIFTED))
    made = call(
        tmp_path, "ledger", "envelope", "--channel", "audit", "--domain", "ops", "--class", "Observation",
        "--type", "t", "--payload", "-", "--key", "ada", "--policy-tag", "tag.json", stdin=b"{}",
    )  # fmt: skip
    done = call(tmp_path, "ledger", "append", "--channel", "audit", "--file", "-", stdin=made.stdout)
    assert done.returncode == 0, done.stderr
    return tmp_path


def test_drift_pages_everybody_once(drifted, manager):
    config = {
        "version": 1,
        "alerts": {"channel": "alerts"},
        "observations": {"channel": "health"},
        "alertmanager": {"url": manager.url},
        "webhooks": [{"url": manager.url + "/hook"}],
    }
    (drifted / "watch.json").write_text(json.dumps(config))
    first = call(drifted, "watch", "--once", "--config", "watch.json", "--json")
    assert first.returncode == 5, first.stderr
    (alert,) = json.loads(first.stdout)["alerts"]
    assert alert["labels"] == {
        "alertname": "PolicyDrift", "severity": "page", "channel": "audit", "domain": "ops",
        "protocol_version": alert["labels"]["protocol_version"],
    }  # fmt: skip
    assert [path for path, _ in manager.taken] == ["/api/v2/alerts", "/hook"]
    assert manager.taken[0][1] == [alert]
    call(drifted, "watch", "--once", "--config", "watch.json")
    assert [path for path, _ in manager.taken][2:] == [
        "/api/v2/alerts"
    ]  # it forgets what it is not told again
    for channel, kind in (("alerts", "Alert"), ("health", "Observation")):
        blocks = json.loads(call(drifted, "ledger", "read", "--channel", channel, "--json").stdout)["blocks"]
        envelopes = [each for block in blocks for each in block["envelopes"]]
        assert envelopes[0]["event_class"] == kind
        if channel == "alerts":
            assert len(envelopes) == 1
    status = json.loads(call(drifted, "watch", "status", "--json").stdout)
    assert status["alerts"] == [alert] and status["channels"]["audit"] == 1 and status["last"]


def test_alert_is_sent_until_taken_and_resolves(drifted):
    sent: list[tuple[str, Any]] = []
    failing = [True]
    clock = [time.time_ns()]

    def send(url: str, document: Any) -> None:
        if failing[0]:
            raise Unavailable("nobody is there")
        sent.append((url, document))

    def watch() -> Watch:  # a new process each time
        return Watch(
            drifted / "log.git" / "ropewalk",
            WatchConfig(webhooks=("http://127.0.0.1:1/",)),
            channel_keys=lambda _: (),
            signing_key=lambda _: NODE,
            now_ns=lambda: clock[0],
            send=send,
        )

    assert watch().round().failures and not sent
    failing[0] = False
    assert [each["name"] for each in watch().round().firing] == ["PolicyDrift"]
    watch().round()
    assert len(sent) == 1 and "endsAt" not in sent[0][1]
    clock[0] += 25 * HOUR_NS
    assert watch().round().firing == ()
    watch().round()
    assert len(sent) == 2 and sent[1][1]["endsAt"]


def test_quiet_repository_exits_0_and_status_is_empty(tmp_path):
    import subprocess

    subprocess.run(
        command("init", str(tmp_path / "log.git")),
        env=environment(tmp_path), check=True, capture_output=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert call(tmp_path, "watch", "--once").stdout == b"ok  no alert fires\n"
    assert call(tmp_path, "watch", "status").returncode == 0


def test_unknown_members_of_the_configuration_are_refused():
    from ropewalk.errors import Invalid

    with pytest.raises(Invalid, match="intervall"):
        parse_watch({"version": 1, "intervall_seconds": 3})
    with pytest.raises(Invalid, match="interval_seconds"):
        parse_watch({"version": 1, "interval_seconds": "often"})
    with pytest.raises(Invalid, match="notice_days"):
        parse_watch({"version": 1, "notice_days": [60]})
    assert parse_watch({"version": 1, "notice_days": [30, 14, 7]}) == parse_watch({"version": 1})


def test_watch_asks_witnesses_and_alerts_without(drifted):
    """The background mode: each round asks for what is missing; a channel that fails closed pages."""
    home = drifted / "log.git" / "ropewalk"
    node = load_signing(home / "keys", "node")
    folder = home / "ledger" / "audit"
    with live_witness(drifted / "w", "w.example") as live:
        policy = WitnessPolicy("log.example", ((live.url, live.vkey),), 1, 10)
        (folder / SETTINGS).write_bytes(jcs.encode(policy.to_json()))

        def look() -> Round:
            return Watch(
                home,
                WatchConfig(),
                channel_keys=lambda _: (node,),
                signing_key=lambda _: node,
                now_ns=time.time_ns,
                send=lambda *_: None,
            ).round()

        first = look()
        assert (first.unwitnessed, first.witness_failures) == ((("audit", 1),), 1)
        assert [
            (each["name"], each["severity"]) for each in first.firing if each["name"] == "Unwitnessed"
        ] == [("Unwitnessed", "page")]
        live.witness.add(head_signer("log.example", "audit", node).verifier)
        second = look()
        assert (second.unwitnessed, second.witness_failures) == ((("audit", 0),), 0)
        assert not [each for each in second.firing if each["name"] == "Unwitnessed"]
        assert read_witnessed(folder) is not None
        metrics = Metrics()
        for each in (first, second):
            metrics.take_signals(each)
        text = generate_latest(metrics.registry).decode()
        assert 'ropewalk_unwitnessed_blocks{channel="audit"} 0.0' in text
        assert "ropewalk_witness_failures_total 1.0" in text
