"""The shipped Prometheus rules, evaluated by promtool over the metrics of real blocks: what pages, and when it ends."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ropewalk.ledger.block.block import GENESIS, Block, seal
from ropewalk.ledger.envelope.model import Envelope, payload_hash
from ropewalk.ledger.evidence.allowed import EvidenceAllowList
from ropewalk.ledger.evidence.snark import halves
from ropewalk.ledger.proof.trust import Trust
from ropewalk.pipeline.jobs.health import Health, measure, observation
from ropewalk.pipeline.jobs.metrics import metrics_text
from tests.pipeline.world import ADA, BOB, NODE, NOON_MS
from tests.tools import skip_or_fail
from tests.unit.ledger.attesting import NOON, PAYLOAD, PCR0, Authority, attested, dsse, nitro, nitro_document
from tests.unit.ledger.making import observed
from tests.unit.ledger.quoting import revocations

RULES = Path(__file__).parents[2] / "examples" / "prometheus" / "ropewalk.rules.yml"
HOUR_NS = 3600 * 10**9
NOON_NS = NOON_MS * 10**6
LABELS = {"channel": "ea.core", "domain": "ea.core", "protocol_version": "1.0.0"}
BUILT = EvidenceAllowList((ADA.public,), ("https://builder.example/v1",))
POLICY = "11" * 32
SUMMARIES = {
    "PolicyDrift": ("page", "ea.core: envelopes of ea.core name another policy than the channel's"),
    "EvidenceInvalid": ("page", "ea.core: evidence of ea.core failed, or no longer holds"),
    "EvidenceUnknown": (
        "ticket",
        "ea.core: evidence of ea.core cannot be judged; give its roots and pins",
    ),
    "EvidenceStale": ("ticket", "ea.core: evidence of ea.core has used up four fifths of its time"),
}


@pytest.fixture(scope="module")
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        skip_or_fail("promtool is not on PATH (Debian package prometheus)")
    return str(found)


# Bound to the payload, as a proof must be, under a verification key that is pinned nowhere.
UNKNOWN = {
    "system": "groth16",
    "curve": "bn128",
    "vk_sha256": "00" * 32,
    "public_inputs": halves(bytes.fromhex(payload_hash(PAYLOAD))),
    "proof": {},
}


def dated(hour: float, envelope: Envelope) -> Envelope:
    """The same evidence, given so many hours after noon."""
    when = (NOON + timedelta(hours=hour)).strftime("%Y-%m-%dT%H:%M:%SZ")
    evidence = dict(envelope.value["attestation_evidence"])
    return observed(
        event_class="Attestation",
        payload=PAYLOAD,
        correlation_id="c-1",
        evidence=evidence,
        timestamp=when,
    )


def sealed(hour: int, *envelopes: Envelope) -> Block:
    """One block, so many hours after noon; measuring asks nothing of the links between blocks."""
    return seal(
        NODE,
        channel="ea.core",
        height=0,
        prev_block_hash=GENESIS,
        envelopes=[each.raw for each in envelopes],
        timestamp_ns=NOON_NS + hour * HOUR_NS,
    )


def health(blocks: Sequence[Block], trust: Trust, hour: float, **options: Any) -> Health:
    now_ns = NOON_NS + round(hour * HOUR_NS)
    past = [block for block in blocks if block.header.timestamp_ns <= now_ns]
    (found,) = measure("ea.core", past, trust, now_ns, **options)
    return found


def series(blocks: Sequence[Block], trust: Trust, hours: int) -> list[dict[str, str]]:
    """What a scrape every hour sees, as promtool takes it; times count from noon."""
    values: dict[str, list[str]] = {}
    for hour in range(hours):
        text = metrics_text([health(blocks, trust, hour)], hour * HOUR_NS)
        for line in text.splitlines():
            if not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                values.setdefault(name, ["_"] * hour).append(value)
    return [{"series": name, "values": " ".join(found)} for name, found in values.items()]


def firing(*names: str) -> dict[str, list[dict[str, Any]]]:
    """What every rule about a channel is expected to say."""
    return {
        name: [
            {
                "exp_labels": {**LABELS, "severity": severity},
                "exp_annotations": {"summary": summary},
            }
        ]
        if name in names
        else []
        for name, (severity, summary) in SUMMARIES.items()
    }


def evaluate(
    promtool: str,
    folder: Path,
    given: list[dict[str, str]],
    expected: dict[str, dict[str, list[dict[str, Any]]]],
    interval: str = "1h",
) -> None:
    """Run the shipped rules over the series; `expected` says what fires at which time."""
    test = {
        "rule_files": [str(RULES)],
        "evaluation_interval": interval,
        "tests": [
            {
                "interval": interval,
                "input_series": given,
                "alert_rule_test": [
                    {"eval_time": at, "alertname": name, "exp_alerts": alerts}
                    for at, rules in expected.items()
                    for name, alerts in rules.items()
                ],
            }
        ],
    }
    path = folder / "rules.test.json"
    path.write_text(json.dumps(test))
    done = subprocess.run([promtool, "test", "rules", str(path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_rules_and_metrics_pass_promtool_check(promtool: str):
    done = subprocess.run(
        [promtool, "check", "rules", str(RULES)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and "5 rules found" in done.stdout, done.stdout + done.stderr
    block = sealed(0, attested(dsse(ADA), "slsa.v1"), observed(9, domain='a "place"\\\n'))
    text = metrics_text(measure("ea.core", [block], Trust((), ()), NOON_NS), NOON_NS)
    done = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_failed_evidence_pages_beside_unknown(promtool: str, tmp_path: Path):
    """One envelope in a format that nobody can judge keeps no page back; a day after the cause the page ends."""
    trust = Trust((), (), evidence=BUILT)
    good, bad = attested(dsse(ADA), "slsa.v1"), attested(dsse(BOB), "slsa.v1")
    unknown = attested(UNKNOWN, "snark.v1")
    blocks = [sealed(0, good), sealed(1, unknown), sealed(2, bad)]
    blocks += [sealed(hour, dated(hour, good)) for hour in (15, 30)]
    assert health(blocks, trust, 2).evidence_unknown == health(blocks, trust, 2).evidence_failed == 1
    evaluate(
        promtool,
        tmp_path,
        series(blocks, trust, 31),
        {
            "0h": firing(),
            "1h": firing("EvidenceUnknown"),
            "2h": firing("EvidenceInvalid", "EvidenceUnknown"),
            "24h": firing("EvidenceInvalid", "EvidenceUnknown"),
            "25h": firing("EvidenceInvalid"),
            "26h": firing(),
            "30h": firing(),
        },
    )


def test_policy_drift_pages_and_ends(promtool: str, tmp_path: Path):
    trust = Trust((), (), bytes.fromhex(POLICY))
    mine, other = ({"policy_hash": tag, "decision": "allow"} for tag in (POLICY, "22" * 32))
    blocks = [
        sealed(0, observed(0, policy_tag=mine)),
        sealed(3, observed(1, policy_tag=other)),
        sealed(5, observed(2)),
    ]
    evaluate(
        promtool,
        tmp_path,
        series(blocks, trust, 29),
        {"2h": firing(), "3h": firing("PolicyDrift"), "26h": firing("PolicyDrift"), "27h": firing()},
    )


def test_stale_evidence_opens_a_ticket(promtool: str, tmp_path: Path):
    """At 80 % of the budget; evidence that failed or cannot be judged is no fresh evidence."""
    trust = Trust((), (), evidence=BUILT)
    unknown = attested(UNKNOWN, "snark.v1")
    good, bad = attested(dsse(ADA), "slsa.v1"), attested(dsse(BOB), "slsa.v1")
    blocks = [sealed(0, good), sealed(18, *(dated(18, each) for each in (unknown, bad)))]
    blocks.append(sealed(21, dated(21, good)))
    evaluate(
        promtool,
        tmp_path,
        series(blocks, trust, 22),
        {
            "17h": firing(),
            "19h": firing("EvidenceInvalid", "EvidenceUnknown"),
            "20h": firing("EvidenceInvalid", "EvidenceUnknown", "EvidenceStale"),
            "21h": firing("EvidenceInvalid", "EvidenceUnknown"),
        },
    )


def test_revoked_certificate_pages_at_once(promtool: str, tmp_path: Path):
    """Evidence that held pages from the revocation on, also behind evidence in another format."""
    root = Authority("root")
    leaf = Authority("leaf", root, ca=False)
    pins = EvidenceAllowList(
        (ADA.public,),
        ("https://builder.example/v1",),
        pcrs={0: (PCR0.hex(),)},
        crls=(revocations(root, leaf, when=NOON + timedelta(hours=2)),),
    )
    trust = Trust((), (), roots=(root.pem,), evidence=pins)
    blocks = [sealed(0, nitro(nitro_document(leaf, [root]))), sealed(1, attested(dsse(ADA), "slsa.v1"))]
    evaluate(
        promtool,
        tmp_path,
        series(blocks, trust, 4),
        {"0h": firing(), "1h": firing(), "2h": firing("EvidenceInvalid"), "3h": firing("EvidenceInvalid")},
    )


def test_missing_measurement_opens_a_ticket(promtool: str, tmp_path: Path):
    alert = {
        "exp_labels": {"severity": "ticket"},
        "exp_annotations": {"summary": "the health of the channels was not measured within the last hour"},
    }
    value = metrics_text([], 0).splitlines()[-1].rsplit(" ", 1)
    evaluate(
        promtool,
        tmp_path,
        [{"series": value[0], "values": f"{value[1]}x70 _x10"}],
        {
            "60m": {"HealthNotMeasured": []},
            "61m": {"HealthNotMeasured": [alert]},
            "79m": {"HealthNotMeasured": [alert]},
        },
        "1m",
    )


def test_window_bounds_what_is_counted():
    trust = Trust((), (), bytes.fromhex(POLICY), evidence=BUILT)
    other = {"policy_hash": "22" * 32, "decision": "allow"}
    blocks = [
        sealed(0, attested(dsse(BOB), "slsa.v1"), observed(1, policy_tag=other)),
        sealed(1, attested(dsse(ADA), "slsa.v1")),
    ]

    def counts(hour: float, window_h: int) -> tuple[int, ...]:
        found = health(blocks, trust, hour, window_s=window_h * 3600)
        assert (found.envelopes, found.attested, found.window_seconds) == (3, 2, window_h * 3600)
        return found.policy_hash_mismatch, found.evidence_failed, found.evidence_held

    assert counts(3, 4) == (1, 1, 1)
    assert counts(3.9, 4) == (1, 1, 1)
    assert counts(4, 4) == (0, 0, 1)
    assert counts(90, 4) == (0, 0, 1)  # the newest that held counts however old it is


def test_chain_is_unknown_without_judged_evidence():
    trust = Trust((), (), evidence=BUILT)
    good = sealed(0, attested(dsse(ADA), "slsa.v1"))
    assert health([good], trust, 1).attestation_chain_valid is True
    assert health([good, sealed(0, attested(UNKNOWN, "snark.v1"))], trust, 1).attestation_chain_valid is None
    bad = [sealed(0, attested(dsse(BOB), "slsa.v1"))]
    assert health(bad, trust, 1).attestation_chain_valid is False
    assert health(bad, trust, 30).attestation_chain_valid is None
    text = metrics_text([health(bad, trust, 30)], NOON_NS)
    labels = ",".join(f'{name}="{value}"' for name, value in LABELS.items())
    assert f"attestation_chain_valid{{{labels}}} 0" in text.splitlines()
    assert f"attestation_evidence_failed{{{labels}}} 0" in text.splitlines()


def test_evidence_age_ignores_dates_ahead():
    ahead = dated(10 * 365 * 24, attested(dsse(ADA), "slsa.v1"))
    found = health([sealed(0, ahead)], Trust((), ()), 23)
    assert (found.attestation_age_seconds, found.stale) == (23 * 3600, True)


def test_observation_carries_every_measure():
    found = health([sealed(0, attested(dsse(ADA), "slsa.v1"))], Trust((), (), evidence=BUILT), 1)
    told = observation(found, NODE, NOON_NS)
    assert (told.event_class, told.event_type, told.domain) == (
        "Observation",
        "ledger.health",
        "ropewalk.health",
    )
    assert told.payload == found.to_json()
    assert told.timestamp == "2024-11-01T12:00:00.000000000Z"
