"""The door of a channel is stricter than its history: evidence, policy tags, repeated Alerts, audits (S4 §7, §10)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.ledger.attesting import PAYLOAD, PCR0, Authority, attested, nitro, nitro_document
from tests.unit.ledger.making import ADA, NODE, NOON, command, observed, opened

from ropewalk.errors import Denied, Replayed
from ropewalk.kernel import jcs
from ropewalk.ledger.channel.channel import verify_blocks
from ropewalk.ledger.envelope.adapt import resign
from ropewalk.ledger.envelope.envelope import build
from ropewalk.ledger.envelope.model import Envelope, payload_hash
from ropewalk.ledger.evidence.binding import report_data
from ropewalk.ledger.ingest.log import ChannelWriter
from ropewalk.ledger.ingest.ticket import LedgerReceipt
from ropewalk.ledger.proof.verify import SeenEnvelopes
from ropewalk.ledger.remote.messages import outcome_of, outcome_part
from ropewalk.ledger.rules.policy import STRICT, Policy, parse_policy
from ropewalk.ledger.rules.rules import judge
from ropewalk.ledger.rules.verdict import Context

ROOT = Authority("root")
ENCLAVE = Authority("enclave", ROOT, ca=False)
HARDWARE = {"kind": "evidence", "decision": "deny", "formats": ["tee.report"]}
ALERT: dict[str, Any] = {"event_class": "Alert", "correlation_id": "a-1"}
RESTRICTED: dict[str, Any] = {
    "confidentiality": {"level": "restricted", "key_ref": "k"},
    "detached": {"locator": "urn:x", "bytes": 1},
}
SECOND_FOREIGN = {"policy_hash": "00" * 32, "decision": "allow"}


def policy(*rules: dict[str, Any]) -> Policy:
    numbered = [{"id": f"r{i}", "name": "n", "version": 1, **rule} for i, rule in enumerate(rules)]
    return parse_policy(jcs.encode({"version": 1, "rules": numbered}))


def genuine() -> Envelope:
    return nitro(nitro_document(ENCLAVE, [ROOT]))


def made_up() -> Envelope:
    """What anybody can write: a report that names hardware, bound to the payload, signed by no hardware."""
    data = report_data(bytes.fromhex(payload_hash(PAYLOAD)), "c-1").hex()
    return attested({"tee_type": "sev", "measurement": "07" * 48, "report_data": data})


def adapted() -> Envelope:
    said = observed(payload=PAYLOAD, correlation_id="c-1")
    return resign(said.raw, NODE, NOON).envelope


def channel_believing(home: Path, rules: Policy, **pins: Any) -> Any:
    """A channel with roots and measurements for evidence, open for writing."""
    opened(home, policy=rules).close()
    roots = [ROOT.pem]
    config = {"version": 1, "roots": roots, "pcrs": {"0": [PCR0.hex()]}, **pins}
    (home / "ledger" / "ea.core" / "evidence.json").write_text(json.dumps(config))
    return opened(home)


@pytest.mark.parametrize("rules", [policy(HARDWARE), STRICT], ids=["demanded", "strict"])
@pytest.mark.parametrize("forge", [made_up, adapted])
def test_made_up_evidence_is_refused(tmp_path, rules, forge: Callable[[], Envelope]):
    with channel_believing(tmp_path, rules) as ledger:
        with pytest.raises(Denied, match=r"tee\.report evidence was not verified"):
            ledger.log.submit(forge().raw)
        assert ledger.log.submit(genuine().raw).height == 0
    assert verify_blocks(tmp_path, "ea.core", deep=True).ok


def test_demanded_evidence_needs_configured_roots(tmp_path):
    with opened(tmp_path, policy=policy(HARDWARE)) as ledger, pytest.raises(Denied, match="not verified"):
        ledger.log.submit(genuine().raw)


def test_audit_lets_pass_and_shows_in_receipt(tmp_path):
    with opened(tmp_path, policy=policy({**HARDWARE, "decision": "audit"})) as ledger:
        receipt = ledger.log.submit(made_up().raw)
    assert receipt.audit == ("r0: its tee.report evidence was not verified, which is required",)
    assert receipt.to_json()["audit"] == list(receipt.audit)
    assert outcome_of(outcome_part(receipt)) == receipt
    assert "audit" not in LedgerReceipt(bytes(32), 0, 0, bytes(32)).to_json()


def test_audited_envelopes_are_counted_by_verify(tmp_path):
    with opened(tmp_path, policy=STRICT) as ledger:
        ledger.log.submit_many([observed().raw, observed(1, **RESTRICTED).raw, observed(2, **RESTRICTED).raw])
    steps = {step.name: step for step in verify_blocks(tmp_path, "ea.core", deep=True).steps}
    assert "3 envelopes, 2 audited by the policy" in steps["envelopes"].detail


@pytest.mark.parametrize("rules", [STRICT, policy()], ids=["strict", "no_rules"])
@pytest.mark.parametrize(
    ("tag", "words"),
    [
        ({"policy_hash": "00" * 32}, "names policy 0000000000000000"),
        ({"policy_hash": "00" * 32, "decision": "allow"}, "names policy 0000000000000000"),
        ({"policy_hash": "own", "decision": "deny"}, "tag denies"),
        ({"policy_hash": "00" * 32, "decision": "deny"}, "tag denies"),
    ],
)
def test_policy_tag_is_enforced_on_entry(tmp_path, rules: Policy, tag, words):
    tag = {**tag, "policy_hash": tag["policy_hash"].replace("own", rules.hash.hex())}
    with opened(tmp_path, policy=rules) as ledger:
        with pytest.raises(Denied, match=words) as caught:
            ledger.log.submit(observed(policy_tag=tag).raw)
        assert caught.value.exit_code == 6 and ledger.log.head.height == 0


def test_policy_tag_of_the_channel_passes(tmp_path):
    own = {"policy_hash": STRICT.hash.hex()}
    with opened(tmp_path, policy=STRICT) as ledger:
        assert ledger.log.submit(observed(policy_tag=own).raw).audit == ()
        assert ledger.log.submit(observed(1, policy_tag={**own, "decision": "allow"}).raw).audit == ()
        seen = ledger.log.submit(observed(2, policy_tag={**own, "decision": "audit"}).raw)
    assert seen.audit == ("(policy_tag): its policy tag asks for audit",)


def test_deny_tag_is_refused_without_a_policy(tmp_path):
    with opened(tmp_path) as ledger:
        with pytest.raises(Denied, match="tag denies"):
            ledger.log.submit(observed(policy_tag={"policy_hash": "00" * 32, "decision": "deny"}).raw)
        ledger.log.submit(observed(policy_tag={"policy_hash": "00" * 32}).raw)  # there is none to compare


def repeated(log: ChannelWriter, tag: dict[str, str]) -> LedgerReceipt:
    log.submit(observed(**ALERT).raw)
    return log.submit(observed(1, policy_tag=tag, **ALERT).raw)


@pytest.mark.parametrize("rules", [STRICT, None], ids=["policy", "no_policy"])
def test_foreign_tag_does_not_repeat_an_alert(tmp_path, rules: Policy | None):
    with opened(tmp_path, policy=rules) as ledger:
        with pytest.raises(Replayed, match=r"Alert .a-1. is already at height 0"):
            repeated(ledger.log, SECOND_FOREIGN)
        assert ledger.log.head.height == 1


@pytest.mark.parametrize(("decision", "passes"), [("allow", True), ("audit", False), ("deny", False)])
def test_policy_rule_decides_alert_repetition(tmp_path, decision, passes):
    rules = policy({"kind": "alert_repeat", "decision": decision, "when": {"types": ["test.*"]}})
    tag = {"policy_hash": rules.hash.hex(), "decision": "allow"}
    with opened(tmp_path, policy=rules) as ledger:
        if passes:
            assert repeated(ledger.log, tag).height == 1
        else:
            with pytest.raises(Replayed):
                repeated(ledger.log, tag)


def test_sealed_blocks_keep_the_older_reading():
    """What a channel took before the door was this strict stays valid."""
    seen = SeenEnvelopes()
    for number, each in enumerate((observed(**ALERT), command("c-1"))):
        seen.remember(each, 0, number)
    sealed = Context(seen, STRICT, sealed=True)
    done = observed(event_class="Result", correlation_id="c-1")
    for old in (made_up(), done, observed(1, policy_tag=SECOND_FOREIGN, **ALERT)):
        assert judge(old, sealed).ok and not judge(old, Context(seen, STRICT)).ok


def test_adapted_result_enters_the_channel(tmp_path):
    """An adapter's Result continues the chain of the original, which may have none."""
    ask = command("c-1")
    bare = build(
        ADA,
        domain="ea.core",
        event_class="Result",
        event_type="test.done",
        payload={"ok": True},
        timestamp=NOON,
        correlation_id="c-1",
    )
    done = resign(bare.raw, NODE, NOON)
    assert done.envelope.causality_chain == (done.legacy_envelope_id, "c-1")
    with opened(tmp_path) as ledger:
        ledger.log.submit(ask.raw)
        assert ledger.log.submit(done.envelope.raw).height == 1
