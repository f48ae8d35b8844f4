"""Adapters and versions: what is newer or older can be read, and what was really said stays provable."""

from __future__ import annotations

import json
from base64 import b64encode

import pytest
from tests.unit.ledger.making import ADA, NODE, NOON, P256, changed, command, observed, opened, resigned

from ropewalk.errors import Invalid, InvalidEnvelope, RopewalkError, TooLarge, Unverified
from ropewalk.kernel import jcs
from ropewalk.ledger.envelope.adapt import adapt, check_adapted, original_of, resign, view
from ropewalk.ledger.envelope.envelope import parse
from ropewalk.ledger.envelope.fields import NANOS, parse_timestamp
from ropewalk.ledger.envelope.model import envelope_id
from ropewalk.ledger.rules.rules import judge
from ropewalk.ledger.rules.verdict import Context
from ropewalk.ledger.versions.versions import (
    LIFECYCLE,
    Lifecycle,
    access,
    due_notices,
    highest_common,
    parse_lifecycle,
    parse_range,
    version_of,
    writable_minors,
)

LATER = "2024-11-02T00:00:00Z"
SUNSET = "2025-01-01T00:00:00Z"
DAY = 86_400 * NANOS


def newer(**members):
    """An envelope of 1.2.0, signed by its author, with whatever that version might bring."""
    value = {**observed(1, correlation_id="c-1").value, "protocol_version": "1.2.0", **members}
    return resigned(value)


# --- versions ---


def test_ranges_are_compared_as_numbers():
    assert highest_common(["1.0.x", "1.2.x", "1.10.x"], ["1.10.x", "1.2.x"]) == "1.10.x"
    assert highest_common(["1.0.x"], ["1.1.x"]) is None
    assert highest_common([], []) is None
    for wrong in ("1.0", "1.0.0", "01.0.x", "1.x.x", "1.0.x ", "a"):
        with pytest.raises(Invalid):
            parse_range(wrong)
    for wrong in ("1.0", "1.0.x", "1.0.0-rc1", "01.0.0"):
        with pytest.raises(Invalid):
            version_of(wrong)


def test_each_stage_of_a_life_gates_what_comes_in():
    before, after = parse_timestamp(SUNSET) - 1, parse_timestamp(SUNSET)

    def at(stage, moment, **more):
        return access("1.0", moment, [Lifecycle("1.0", stage, SUNSET)], **more)[0]

    assert at("preview", before) == "none"
    assert at("preview", before, previews=["1.0"]) == "write"
    assert at("active", after) == at("maintenance", after) == "write"
    assert at("deprecated", before) == "write"
    assert at("deprecated", after) == "read"
    assert at("deprecated", after + 89 * DAY) == "read"
    assert at("deprecated", after + 90 * DAY) == "none"
    assert at("disabled", before) == "none"
    assert access("2.0", before)[0] == "none"


def test_rule_4_takes_the_minors_that_may_be_written():
    table = [Lifecycle("1.0", "disabled"), Lifecycle("1.1", "active"), Lifecycle("1.2", "preview")]
    minors = writable_minors(0, table)
    assert minors == {"1.1"}
    assert writable_minors(0, table, ["1.2"]) == {"1.1", "1.2"}
    old, new = observed(1), observed(1, protocol_version="1.1.4")
    assert judge(old, Context(supported_minors=minors)).findings[3].status == "failed"
    assert judge(new, Context(supported_minors=minors)).findings[3].status == "passed"
    assert writable_minors(0) == {"1.0", "1.1"}


def test_a_life_goes_only_forward():
    life = Lifecycle("1.0", "active")
    gone = life.moved_to("deprecated", SUNSET).moved_to("disabled")
    assert (gone.stage, gone.sunset) == ("disabled", SUNSET)
    for stage in ("active", "preview"):
        with pytest.raises(Invalid):
            life.moved_to(stage)


def test_notices_are_due_30_14_and_7_days_before_sunset():
    table = [Lifecycle("1.0", "deprecated", SUNSET)]
    sunset = parse_timestamp(SUNSET)
    assert due_notices(sunset - 31 * DAY, table) == []
    for left, days in ((30, 30), (15, 30), (14, 14), (8, 14), (7, 7), (1, 7)):
        assert [each["days"] for each in due_notices(sunset - left * DAY, table)] == [days]
    assert due_notices(sunset, table) == []
    assert due_notices(0, LIFECYCLE) == []


def test_tables_are_read_strictly():
    raw = b'[{"version":"1.0.x","stage":"deprecated","sunset":"2025-01-01T00:00:00Z","grace_days":3}]'
    assert parse_lifecycle(raw) == (Lifecycle("1.0", "deprecated", SUNSET, 3),)
    for wrong in (
        b"{}",
        b"[1]",
        b'[{"version":"1.0","stage":"active"}]',
        b'[{"version":"1.0.x","stage":"old"}]',
        b'[{"version":"1.0.x","stage":"deprecated"}]',
        b'[{"version":"1.0.x","stage":"active","sunset":"soon"}]',
        b'[{"version":"1.0.x","stage":"active","grace_days":-1}]',
        b'[{"version":"1.0.x","stage":"active","more":1}]',
        b'[{"version":"1.0.x","stage":"active"},{"version":"1.0.x","stage":"active"}]',
    ):
        with pytest.raises(RopewalkError):
            parse_lifecycle(wrong)


# --- shims ---


def test_a_missing_chain_is_read_from_correlation_id_or_place():
    old = changed(command("c-1"), causality_chain=None)
    assert view(old)["causality_chain"] == ["c-1"]
    assert view(observed(1), (7, 2))["causality_chain"] == ["block:7/2"]
    assert "causality_chain" not in view(observed(1))
    assert view(command("c-1"))["causality_chain"] == ["c-1"]


def test_a_missing_level_is_read_as_public_and_a_given_one_stays():
    assert view(observed(1))["confidentiality_tag"] == {"level": "public"}
    held = observed(1, confidentiality={"level": "internal"})
    assert view(held)["confidentiality_tag"] == {"level": "internal"}


def test_a_view_leaves_the_envelope_as_it_was():
    old = observed(1)
    before = jcs.encode(old.value)
    view(old, (0, 0))["confidentiality_tag"]["level"] = "restricted"
    assert jcs.encode(old.value) == before


# --- newer envelopes ---


def test_a_newer_minor_is_adapted_and_its_original_stays_provable(tmp_path):
    raw = newer(event_class="Forecast", future_field={"a": 1})
    with pytest.raises(InvalidEnvelope):
        parse(raw)
    done = adapt(raw, NODE, LATER)
    assert done.envelope.event_class == "Observation"
    assert done.envelope.protocol_version == "1.1.0"
    assert done.legacy_envelope_id == envelope_id(raw).hex()
    assert original_of(done.envelope) == raw
    assert check_adapted(done.envelope)["event_class"] == "Forecast"
    assert any("Forecast" in change for change in done.changes)
    assert any("future_field" in change for change in done.changes)
    assert judge(done.envelope, Context()).ok
    with opened(tmp_path, now_ns=lambda: parse_timestamp(LATER)) as ledger:
        assert ledger.log.submit(done.envelope.raw).height == 0


def test_a_known_class_of_a_newer_minor_keeps_its_class():
    done = adapt(newer(), NODE, LATER)
    assert done.envelope.event_class == "Observation" and len(done.changes) == 2
    alert = adapt(newer(event_class="Alert"), NODE, LATER)
    assert alert.envelope.event_class == "Alert"


def test_an_unknown_class_of_a_version_we_know_is_refused():
    with pytest.raises(InvalidEnvelope, match="does not exist"):
        adapt(newer(protocol_version="1.1.0", event_class="Forecast"), NODE, LATER)


@pytest.mark.parametrize("version", ["2.0.0", "0.9.0"])
def test_other_majors_are_refused(version):
    with pytest.raises(Unverified):
        adapt(newer(protocol_version=version), NODE, LATER)
    with pytest.raises(Unverified):
        adapt(newer(protocol_version="1.0.0"), NODE, LATER, [Lifecycle("1.1", "active")])


def test_a_forged_original_is_never_signed_again():
    value = json.loads(newer())
    for wrong in (
        {**value, "event_type": "forged"},
        {**value, "payload": {"n": 2}},
        {**value, "signature": {**value["signature"], "signed_fields": ["domain"]}},
        {**value, "signature": {**value["signature"], "sig": "AAAA"}},
        {**value, "origin_identity": {"identity_type": "ed25519", "public_key": "00" * 32}},
    ):
        with pytest.raises(Unverified):
            adapt(jcs.encode(wrong), NODE, LATER)
    unfit: list[object] = [
        [],
        {},
        {**value, "payload_hash": 1},
        {k: v for k, v in value.items() if k != "payload"},
    ]
    for broken in unfit:
        with pytest.raises(RopewalkError):
            adapt(jcs.encode(broken), NODE, LATER)


def test_signing_again_bridges_algorithms_and_keeps_what_was_said():
    old = observed(5, P256, correlation_id="c-9", confidentiality={"level": "internal"})
    done = resign(old.raw, NODE, LATER)
    new = done.envelope
    assert new.public_key == NODE.public and new.id != old.id
    assert new.payload == old.payload and new.correlation_id == "c-9" and new.level == "internal"
    assert new.value["attestation_evidence"]["report"]["legacy_signature"] == old.value["signature"]
    assert original_of(new) == old.raw and check_adapted(new) == old.value
    assert judge(new, Context()).ok


def test_detached_payloads_stay_detached():
    old = observed(1, payload={"x": 1}, detached={"locator": "file:///x"})
    new = resign(old.raw, NODE, LATER).envelope
    assert new.is_detached and new.payload_hash == old.payload_hash
    check_adapted(new)


def test_an_adapter_that_lies_is_found():
    done = resign(observed(1, correlation_id="c-1").raw, NODE, LATER).envelope
    with pytest.raises(Unverified, match="event_type"):
        check_adapted(changed(done, NODE, event_type="other"))
    with pytest.raises(Unverified, match="event_class"):
        check_adapted(changed(done, NODE, event_class="Alert"))
    report = done.value["attestation_evidence"]["report"]
    for wrong in (
        {**report, "legacy_envelope_id": "0" * 64},
        {**report, "legacy_envelope": resign(observed(2).raw, ADA, NOON).envelope.value["signature"]["sig"]},
    ):
        evidence = {**done.value["attestation_evidence"], "report": wrong}
        with pytest.raises(Unverified):
            check_adapted(changed(done, NODE, attestation_evidence=evidence))
    with pytest.raises(Invalid):
        check_adapted(observed(1))
    assert original_of(observed(1)) is None


def test_originals_too_large_to_carry_are_refused():
    with pytest.raises(TooLarge):
        resign(observed(1, payload="x" * (600 << 10)).raw, NODE, LATER)


@pytest.mark.parametrize(
    "lie",
    [
        {"policy_tag": {"policy_hash": "x", "decision": "allow"}},
        {"policy_tag": None},
        {"integrity_proof": {"type": "snark", "proof": "AA=="}},
    ],
)
def test_an_adapter_changes_neither_tags_nor_proofs(lie):
    alert = observed(
        1, event_class="Alert", correlation_id="c-1", policy_tag={"policy_hash": "x", "decision": "deny"}
    )
    done = resign(alert.raw, NODE, LATER).envelope
    assert check_adapted(done) == alert.value
    with pytest.raises(Unverified, match=next(iter(lie))):
        check_adapted(changed(done, NODE, **lie))


def test_an_adapter_leaves_a_detached_payload_where_it_was():
    away = observed(1, payload={"x": 1}, detached={"locator": "file:///x"})
    done = resign(away.raw, NODE, LATER).envelope
    check_adapted(done)
    with pytest.raises(Unverified, match="payload_ref"):
        check_adapted(changed(done, NODE, payload_ref={"locator": "file:///elsewhere"}))


@pytest.mark.parametrize(
    "change",
    [
        {"correlation_id": 5},
        {"payload": None, "payload_ref": {"locator": "file:///x"}, "payload_hash": "zz"},
        {"signature": {"alg": "ed25519", "sig": "AA==", "signed_fields": [[]]}},
        {"signature": {"alg": "ed25519", "sig": "AA==", "signed_fields": 5}},
        {"origin_identity": None},
    ],
)
def test_an_original_of_another_shape_is_refused_and_never_tripped_over(change):
    value = {**json.loads(newer()), **change}
    for raw in (jcs.encode(value), *([] if "signature" in change else [resigned(value)])):
        with pytest.raises(RopewalkError):
            adapt(raw, NODE, LATER)
    raw = jcs.encode(value)
    done = resign(observed(1).raw, NODE, LATER).envelope
    evidence = done.value["attestation_evidence"]
    carried = {"legacy_envelope": b64encode(raw).decode(), "legacy_envelope_id": envelope_id(raw).hex()}
    lie = changed(done, NODE, attestation_evidence={**evidence, "report": {**evidence["report"], **carried}})
    with pytest.raises(Unverified):
        check_adapted(lie)
