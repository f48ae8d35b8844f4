"""Muscles name the versions they support; a version stays while one of them has no other."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.ledger.evolving import evolve
from tests.unit.ledger.making import ADA, NODE, NOON, NOON_NS, P256, observed, opened, shipped

from ropewalk.errors import Conflict, Denied, Invalid, NotFound, Unverified
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.channel.channel import verify_blocks
from ropewalk.ledger.envelope.envelope import build
from ropewalk.ledger.envelope.fields import format_timestamp
from ropewalk.ledger.envelope.model import payload_hash
from ropewalk.ledger.evidence.allowed import EvidenceAllowList
from ropewalk.ledger.evidence.binding import make_provenance, report_data, wrap_report
from ropewalk.ledger.evidence.settings import write_evidence
from ropewalk.ledger.evidence.trust import EvidenceSettings
from ropewalk.ledger.replay.reducers import REDUCERS, Reducer
from ropewalk.ledger.versions.change import change_version
from ropewalk.ledger.versions.lifecycle import move_version
from ropewalk.ledger.versions.muscles import (
    PUBLISH_TYPE,
    PUBLISHED_TYPE,
    Muscle,
    active_muscles,
    parse_muscle,
)
from ropewalk.ledger.versions.publish import publish_muscle, retire_muscle
from ropewalk.ledger.versions.statements import DOMAIN, VersionAct

CHANNEL = "ea.core"
BUILDER = "https://builder.example/v1"
TALLY = Muscle("tally", "1", "1.0.x", "1.0.x")
LATER = "2099-01-01T00:00:00Z"


def evidence_of(muscle: Muscle, key: SigningKey = P256, age_s: int = 60, builder: str = BUILDER):
    finished = format_timestamp(NOON_NS - age_s * 10**9)
    digest = payload_hash(muscle.to_json())
    return make_provenance(key, digest, builder=builder, build_type="urn:muscle", finished_on=finished)


@pytest.fixture
def home(tmp_path):
    with opened(tmp_path, CHANNEL) as ledger:
        for number in range(3):
            ledger.log.submit(observed(number).raw)
    pins = EvidenceAllowList(keys=(P256.public,), builders=(BUILDER,), max_age_s=3600)
    write_evidence(tmp_path, CHANNEL, EvidenceSettings((), pins))
    return tmp_path


def publish(home, muscle=TALLY, evidence=None, reducer=REDUCERS["counts"]):
    given = evidence if evidence is not None else evidence_of(muscle)
    return publish_muscle(home, CHANNEL, muscle, given, (NODE,), reducer, now_ns=lambda: NOON_NS)


def test_muscle_is_published_with_its_versions(home):
    receipt, tested = publish(home, replace(TALLY, max_version="1.1.x"))
    assert set(tested["roots"]) == {"1.0.x", "1.1.x"} and len(set(tested["roots"].values())) == 1
    ((found, height),) = active_muscles(home, CHANNEL).values()
    assert (found.min_version, found.max_version, height) == ("1.0.x", "1.1.x", receipt.height)
    assert verify_blocks(home, CHANNEL, deep=True).ok
    with pytest.raises(Conflict, match="already published"):
        publish(home, replace(TALLY, max_version="1.1.x"))
    newer = replace(TALLY, muscle_version="2")
    publish(home, newer)
    assert active_muscles(home, CHANNEL)["tally"][0] == newer


@pytest.mark.parametrize(
    ("evidence", "words"),
    [
        ({"age_s": 3601}, "at most 3600 s"),
        ({"age_s": -9999}, "at most 3600 s"),
        ({"key": ADA}, "no signature"),
        ({"builder": "urn:other"}, "not allowed"),
        ({"muscle": replace(TALLY, max_version="1.1.x")}, "no subject"),
    ],
)
def test_muscle_needs_fresh_evidence_of_its_own(home, evidence, words):
    """Evidence that is old, from another builder, or of another manifest publishes nothing."""
    with pytest.raises(Unverified, match=words):
        publish(home, evidence=evidence_of(evidence.pop("muscle", TALLY), **evidence))
    assert active_muscles(home, CHANNEL) == {}


def test_muscle_without_evidence_is_refused(home):
    with pytest.raises(Denied, match="needs evidence"):
        publish_muscle(home, CHANNEL, TALLY, None, (NODE,), REDUCERS["counts"], now_ns=lambda: NOON_NS)
    with pytest.raises(Denied, match="cannot be fresh"):
        report = {"format": "snark.v1", "evidence_hash": "00" * 32, "report": {}}
        publish(home, evidence=report)
    bound = report_data(bytes.fromhex(payload_hash(TALLY.to_json())), TALLY.correlation_id).hex()
    words_only = wrap_report("tee.report", {"tee_type": "sev", "report_data": bound})
    with pytest.raises(Unverified, match="is not checked"):
        publish(home, evidence=words_only)
    write_evidence(home, CHANNEL, EvidenceSettings((), EvidenceAllowList((P256.public,), (BUILDER,))))
    with pytest.raises(Denied, match="limits no age"):
        publish(home)


def test_muscle_is_tested_with_each_version(home, monkeypatch):
    evolve(monkeypatch)
    with opened(home, CHANNEL) as ledger:
        ledger.log.submit(observed(9, protocol_version="1.1.0", added={"priority": 1}).raw)

    def urgent(state, event, _moment):
        return {"urgent": state.get("urgent", 0) + ("priority" in event)}

    monkeypatch.setitem(REDUCERS, "urgent", Reducer("urgent", urgent))
    with pytest.raises(Unverified, match="different states with the versions of muscle tally"):
        publish(home, replace(TALLY, max_version="1.1.x"), reducer=REDUCERS["urgent"])
    publish(home, Muscle("tally", "1", "1.1.x", "1.1.x"), reducer=REDUCERS["urgent"])


def test_muscle_must_support_a_version_in_use(home):
    with pytest.raises(Denied, match="no version from"):
        publish(home, Muscle("tally", "1", "3.0.x", "9.0.x"))


@pytest.mark.parametrize("stage", ["deprecated", "disabled"])
def test_version_stays_while_a_muscle_needs_it(home, stage):
    publish(home)
    words = r"muscle tally 1 \(channel ea.core, block 3\) supports only 1\.0\.x to 1\.0\.x"
    with pytest.raises(Denied, match=words):
        move_version(home, "1.0.x", stage, sunset=LATER)
    act = shipped(home, VersionAct(CHANNEL, "1.0.x", stage, LATER))
    with pytest.raises(Denied, match=words):
        change_version(home, act, (NODE,), now_ns=lambda: NOON_NS)
    move_version(home, "1.1.x", stage, sunset=LATER)  # it does not need that one
    publish(home, Muscle("tally", "2", "1.0.x", "1.1.x"))
    with pytest.raises(Denied, match="no version is left"):
        move_version(home, "1.0.x", stage, sunset=LATER)  # 1.1.x went before


def test_wider_muscle_frees_the_version(home):
    publish(home)
    publish(home, Muscle("tally", "2", "1.0.x", "1.1.x"))
    assert move_version(home, "1.0.x", "deprecated", sunset=LATER).stage == "deprecated"


def test_retired_muscle_frees_the_version(home):
    publish(home)
    retire_muscle(home, CHANNEL, "tally", (NODE,), now_ns=lambda: NOON_NS)
    assert active_muscles(home, CHANNEL) == {}
    with pytest.raises(NotFound):
        retire_muscle(home, CHANNEL, "tally", (NODE,), now_ns=lambda: NOON_NS)
    assert move_version(home, "1.0.x", "disabled").stage == "disabled"


def test_only_the_channel_records_a_muscle(home):
    """An author's envelopes of the same types neither publish nor retire."""
    options: dict[str, Any] = {"domain": DOMAIN, "timestamp": NOON, "payload": TALLY.to_json()}
    ask = build(ADA, event_class="Command", event_type=PUBLISH_TYPE, correlation_id="x", **options)
    done = build(ADA, event_class="Result", event_type=PUBLISHED_TYPE, parent=ask, **options)
    with opened(home, CHANNEL) as ledger:
        ledger.log.submit_many([ask.raw, done.raw])
    assert active_muscles(home, CHANNEL) == {}


@pytest.mark.parametrize(
    "wrong",
    [
        {"version": 2},
        {"name": "Tally"},
        {"name": ""},
        {"muscle_version": 1},
        {"min_version": "1.0"},
        {"min_version": "1.1.x"},
        {"max_version": "0.9.x"},
        {"evidence": []},
        {"more": 1},
    ],
)
def test_manifest_is_read_strictly(wrong):
    assert parse_muscle(TALLY.to_json()) == (TALLY, None)
    with pytest.raises(Invalid):
        parse_muscle({**TALLY.to_json(), **wrong})


def test_commands_publish_list_and_retire(ropewalk):
    assert ropewalk("ledger", "create", "--channel", "ops").code == 0
    assert ropewalk("key", "new", "ci").code == 0
    Path("tally.json").write_text(json.dumps(TALLY.to_json()))
    builder = ("--key", "ci", "--builder", BUILDER)
    assert ropewalk("ledger", "evidence", "set", "--channel", "ops", *builder, "--max-age", "3600").code == 0
    made = ("--payload", "tally.json", *builder, "--build-type", "urn:muscle", "-o", "evidence.json")
    assert ropewalk("ledger", "evidence", "provenance", *made).code == 0
    muscle = ("ledger", "muscle")
    assert ropewalk(*muscle, "publish", "tally.json").code == 6
    done = ropewalk(*muscle, "publish", "tally.json", "--evidence", "evidence.json", "--json")
    assert done.code == 0 and done.json["muscle"] == TALLY.to_json() and done.json["height"] == 0
    (row,) = ropewalk(*muscle, "ls", "--json").json["muscles"]
    assert (row["channel"], row["name"], row["max_version"]) == ("ops", "tally", "1.0.x")
    assert ropewalk("ledger", "lifecycle", "set", "1.0.x", "disabled").code == 6
    assert ropewalk(*muscle, "retire", "tally").code == 0
    assert ropewalk("ledger", "lifecycle", "set", "1.0.x", "disabled").code == 0
    assert ropewalk(*muscle, "ls").out == "no muscles\n"
