"""Versions have a life: the table on disk reaches the gate, and notice comes before a sunset."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.ledger.calling import make
from tests.unit.ledger.making import ADA, NODE, NOON, NOON_NS, observed, opened, shipped

from ropewalk.disk import key_files
from ropewalk.errors import Damaged, Denied, Invalid, NotFound, Unverified
from ropewalk.ledger.channel.channel import open_channel, open_log, verify_blocks
from ropewalk.ledger.channel.maintenance import verify_stored
from ropewalk.ledger.channel.settings import create_channel
from ropewalk.ledger.rules.policy import EVALUATOR, Policy, parse_policy
from ropewalk.ledger.versions.change import change_version
from ropewalk.ledger.versions.lifecycle import (
    move_version,
    notices,
    open_minors,
    read_lifecycle,
    send_notices,
    version_to_write,
)
from ropewalk.ledger.versions.statements import VersionAct, version_envelopes

DAY_NS = 86_400 * 10**9
LATER = "2025-03-01T00:00:00Z"


def policy_of(*versions: str) -> Policy:
    return Policy("p", (), EVALUATOR, {"versions": list(versions)})


def test_without_a_table_every_version_we_know_is_let_in(tmp_path):
    assert open_minors(tmp_path, None, NOON_NS) == {"1.0", "1.1"}


def test_sunset_version_refused_but_verifiable(tmp_path):
    with opened(tmp_path) as ledger:
        ledger.log.submit(observed(1).raw)
    move_version(tmp_path, "1.0.x", "deprecated", sunset="2024-10-01T00:00:00Z")
    with (
        opened(tmp_path) as ledger,
        pytest.raises(Unverified, match=r"rule 4.*1\.0\.0 is not supported; supported: 1\.1\.x"),
    ):
        ledger.log.submit(observed(2).raw)
    with opened(tmp_path) as ledger:
        ledger.log.submit(observed(3, protocol_version="1.1.0").raw)
    assert verify_blocks(tmp_path, "ea.core", deep=True).ok
    with open_channel(tmp_path, "ea.core") as channel:
        assert channel.prove(observed(1).id).height == 0


def test_a_version_before_its_sunset_is_let_in(tmp_path):
    move_version(tmp_path, "1.0.x", "deprecated", sunset=LATER)
    with opened(tmp_path) as ledger:
        assert ledger.log.submit(observed(1).raw).height == 0


def test_a_disabled_version_is_refused(tmp_path):
    move_version(tmp_path, "1.0.x", "disabled")
    with opened(tmp_path) as ledger, pytest.raises(Unverified, match="rule 4"):
        ledger.log.submit(observed(1).raw)


def test_a_policy_narrows_the_gate(tmp_path):
    create_channel(tmp_path, "new", "node", NODE.public, policy_of("1.1.x"))
    with open_log(tmp_path, "new", NODE, now_ns=lambda: NOON_NS) as ledger:
        with pytest.raises(Unverified, match="rule 4"):
            ledger.log.submit(observed(1).raw)
        assert ledger.log.submit(observed(1, protocol_version="1.1.7").raw).height == 0


def test_a_policy_lets_in_nothing_this_code_cannot_read(tmp_path):
    assert open_minors(tmp_path, policy_of("1.1.x", "7.0.x"), NOON_NS) == {"1.1"}


def test_a_preview_is_let_in_only_where_the_policy_names_it(tmp_path):
    path = tmp_path / "ledger" / "lifecycle.json"
    path.parent.mkdir()
    path.write_text('[{"version":"1.1.x","stage":"preview"}]')
    assert open_minors(tmp_path, None, NOON_NS) == {"1.0"}
    assert open_minors(tmp_path, policy_of("1.0.x", "1.1.x"), NOON_NS) == {"1.0", "1.1"}


def test_ranges_in_a_policy_are_read_strictly():
    with pytest.raises(Invalid):
        parse_policy(b'{"version":1,"rules":[],"capability_matrix":{"versions":["one"]}}')
    with pytest.raises(Invalid, match="ranges"):
        parse_policy(b'{"version":1,"rules":[],"capability_matrix":{"versions":"1.0.x"}}')


def test_lifecycle_moves_forward_only(tmp_path):
    move_version(tmp_path, "1.0.x", "deprecated", sunset=LATER)
    assert (
        move_version(tmp_path, "1.0.x", "deprecated", sunset="2025-04-01T00:00:00Z", grace_days=3).grace_days
        == 3
    )
    with pytest.raises(Invalid, match="cannot become active"):
        move_version(tmp_path, "1.0.x", "active")
    with pytest.raises(NotFound):
        move_version(tmp_path, "9.9.x", "active")
    with pytest.raises(Invalid, match="needs a sunset"):
        move_version(tmp_path, "1.1.x", "deprecated")
    assert {life.minor: life.stage for life in read_lifecycle(tmp_path)} == {
        "1.0": "deprecated",
        "1.1": "active",
    }


def test_a_spoilt_table_is_damage_and_lets_nothing_in(tmp_path):
    with opened(tmp_path):
        pass
    (tmp_path / "ledger" / "lifecycle.json").write_text("[{}]")
    with pytest.raises(Damaged):
        opened(tmp_path)


@pytest.mark.parametrize(("days", "due"), [(31, None), (29, 30), (14, 14), (8, 14), (3, 7), (-1, None)])
def test_sunset_notice_at_30_14_and_7_days_once(tmp_path, days, due):
    move_version(tmp_path, "1.0.x", "deprecated", sunset=LATER)
    sunset_ns = 1_740_787_200 * 10**9
    now = sunset_ns - days * DAY_NS
    found = notices(tmp_path, now)
    assert [each["days"] for each in found] == ([] if due is None else [due])
    with opened(tmp_path, now_ns=lambda: now) as ledger:
        for replayed in (False, True):
            sent = send_notices(ledger.log, NODE, found, now)
            assert [receipt is None or receipt.replayed for _, receipt in sent] == [replayed] * len(found)
    if due is not None:
        with open_channel(tmp_path, "ea.core") as channel:
            (block,) = channel.blocks()
            value = json.loads(block.envelopes[0])
        assert (value["event_class"], value["event_type"]) == ("Alert", "ledger.version.sunset")
        assert value["payload"] == {"version": "1.0.x", "sunset": LATER, "days": due}


def test_what_we_write_ourselves_is_in_a_version_that_is_let_in(tmp_path):
    assert version_to_write(tmp_path, None, NOON_NS) == "1.0.0"
    move_version(tmp_path, "1.0.x", "disabled")
    assert version_to_write(tmp_path, None, NOON_NS) == "1.1.0"
    move_version(tmp_path, "1.1.x", "disabled")
    with pytest.raises(Unverified):
        version_to_write(tmp_path, None, NOON_NS)


def test_the_commands_show_set_gate_and_notify(ropewalk):
    one = make(ropewalk)
    assert ropewalk("ledger", "append", "--channel", "audit", "--file", str(one)).code == 0
    rows = ropewalk("ledger", "lifecycle", "show", "--json").json["versions"]
    assert [(row["version"], row["stage"], row["access"]) for row in rows] == [
        ("1.0.x", "active", "write"),
        ("1.1.x", "active", "write"),
    ]
    assert ropewalk("ledger", "lifecycle", "notify", "--channel", "audit", "--json").json["notices"] == []
    done = ropewalk("ledger", "lifecycle", "set", "1.0.x", "deprecated", "--sunset", "2020-01-01T00:00:00Z")
    assert done.code == 0, done
    old = make(ropewalk, "two.json", "--protocol-version", "1.0.0")
    assert ropewalk("ledger", "append", "--channel", "audit", "--file", str(old)).code == 5
    new = make(ropewalk, "new.json", "--protocol-version", "1.1.0")
    assert ropewalk("ledger", "append", "--channel", "audit", "--file", str(new)).code == 0
    status = ropewalk("ledger", "status", "--json").json
    assert status["channels"][0]["versions"] == ["1.1.x"]
    assert ropewalk("ledger", "lifecycle", "set", "1.0.x", "active").code == 8
    assert ropewalk("ledger", "lifecycle", "set", "3.0.x", "active").code == 3


def test_a_sunset_that_is_near_is_said_by_status_and_sealed_by_notify(ropewalk):
    from datetime import UTC, datetime, timedelta

    soon = (datetime.now(UTC) + timedelta(days=10)).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert ropewalk("ledger", "create", "--channel", "ops").code == 0
    assert ropewalk("ledger", "lifecycle", "set", "1.0.x", "deprecated", "--sunset", soon).code == 0
    answer = ropewalk("ledger", "status")
    assert f"1.0.x has its sunset at {soon}, within 14 days" in answer.err
    checks = ropewalk("doctor", "--json").json["checks"]
    assert any(each["name"] == "versions" and "within 14 days" in each["detail"] for each in checks)
    first = ropewalk("ledger", "lifecycle", "notify", "--channel", "ops", "--json").json["notices"]
    again = ropewalk("ledger", "lifecycle", "notify", "--channel", "ops", "--json").json["notices"]
    assert [each["replayed"] for each in (*first, *again)] == [False, True]
    (block,) = ropewalk("ledger", "read", "--channel", "ops", "--json").json["blocks"]
    assert block["envelopes"][0]["event_class"] == "Alert"


def test_status_warns_of_forks_torn_tails_and_channels_it_cannot_read(ropewalk):
    for name in ("a", "b"):
        assert ropewalk("ledger", "create", "--channel", name).code == 0
    folder = Path("repo.git/ropewalk/ledger")
    (folder / "a" / "evidence").mkdir()
    (folder / "a" / "evidence" / "fork-0-00.json").write_text("{}")
    (folder / "a" / "torn").mkdir()
    (folder / "a" / "torn" / "x").write_text("")
    (folder / "b" / "channel.json").write_text("no")
    answer = ropewalk("ledger", "status", "--json")
    assert answer.code == 0
    text = "\n".join(answer.json["warnings"])
    assert "1 forks" in text and "1 incomplete blocks" in text and "b: " in text


def test_reindex_builds_the_index_again_and_waits_for_nobody(ropewalk, tmp_path):
    one = make(ropewalk)
    assert ropewalk("ledger", "append", "--channel", "audit", "--file", str(one)).code == 0
    assert ropewalk("ledger", "reindex", "--json").json == {"channels": [{"channel": "audit", "blocks": 1}]}
    home = Path("repo.git/ropewalk")
    key = opened_key(home)
    with open_log(home, "audit", key):
        assert ropewalk("ledger", "reindex", "--channel", "audit").code == 7


def opened_key(home: Path):
    from ropewalk.disk.key_files import load_signing

    return load_signing(home / "keys", "node")


def test_open_writer_notices_a_new_sunset(tmp_path):
    clock = [NOON_NS]
    with opened(tmp_path, now_ns=lambda: clock[0]) as ledger:
        ledger.log.submit(observed(1).raw)
        move_version(tmp_path, "1.0.x", "deprecated", sunset="2024-11-02T00:00:00Z")
        ledger.log.submit(observed(2).raw)  # its sunset is tomorrow
        clock[0] += DAY_NS
        with pytest.raises(Unverified, match=r"version 1\.0\.0 is not supported"):
            ledger.log.submit(observed(3).raw)
        ledger.log.submit(observed(3, protocol_version="1.1.0").raw)


def test_damaged_table_stops_an_open_writer(tmp_path):
    with opened(tmp_path) as ledger:
        table = tmp_path / "ledger" / "lifecycle.json"
        table.write_text("no table")
        for outcome in ledger.log.submit_many([observed(1).raw, observed(2).raw]):
            assert isinstance(outcome, Damaged)
        table.unlink()
        assert ledger.log.submit(observed(1).raw).height == 0


# --- the table against what a channel recorded ---

MAINTAINED = VersionAct("ops", "1.0.x", "maintenance")


def change(home, act, **options):
    """Record a change with all that it must ship."""
    act = act if act.documents is not None else shipped(home, act)
    return change_version(home, act, (NODE,), **options)


@pytest.fixture
def recording(tmp_path):
    """A repository whose channel recorded that 1.0.x is in maintenance."""
    key_files.make(tmp_path / "keys", "node", "ed25519", b"node" + bytes(28))
    create_channel(tmp_path, "ops", "node", NODE.public)
    change(tmp_path, MAINTAINED, now_ns=lambda: NOON_NS)
    return tmp_path


def lifecycle_verdict(home) -> tuple[str, str]:
    steps = {step.name: step for step in verify_stored(home, "ops").steps}
    return steps["lifecycle"].status, steps["lifecycle"].detail


def edit(home, **members) -> None:
    path = home / "ledger" / "lifecycle.json"
    rows = json.loads(path.read_bytes())
    row = next(each for each in rows if each["version"] == "1.0.x")
    row.update(members)
    path.write_text(json.dumps([{k: v for k, v in each.items() if v is not None} for each in rows]))


def test_recorded_lifecycle_passes(recording):
    assert lifecycle_verdict(recording)[0] == "passed"
    with open_log(recording, "ops", NODE, now_ns=lambda: NOON_NS) as ledger:
        ledger.log.submit(observed(1).raw)
    assert not verify_stored(recording, "ops", deep=True).first_failure


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"stage": "active"}, "stage is active, but channel ops recorded maintenance"),
        ({"stage": "disabled"}, "stage is disabled"),
        ({"recorded": {"channel": "ops", "height": 9}}, "records no change"),
        ({"recorded": {"channel": "none", "height": 0}}, "records no change"),
    ],
)
def test_edited_lifecycle_is_refused_on_append(recording, change, words):
    with open_log(recording, "ops", NODE, now_ns=lambda: NOON_NS) as ledger:
        edit(recording, **change)
        with pytest.raises(Damaged, match=words):
            ledger.log.submit(observed(1).raw)
    with pytest.raises(Damaged, match=words):
        open_log(recording, "ops", NODE, now_ns=lambda: NOON_NS)


@pytest.mark.parametrize("change", [{"stage": "active"}, {"stage": "active", "recorded": None}, None])
def test_edited_lifecycle_fails_verify(recording, change):
    """Also where the reference to the record, or the whole table, was removed."""
    if change is None:
        (recording / "ledger" / "lifecycle.json").unlink()
    else:
        edit(recording, **change)
    status, detail = lifecycle_verdict(recording)
    assert status == "failed" and "stage is active, but channel ops recorded maintenance" in detail


def test_edited_dates_fail_verify(recording):
    change(recording, replace(MAINTAINED, stage="deprecated", sunset=LATER))
    assert lifecycle_verdict(recording)[0] == "passed"
    edit(recording, sunset="2099-01-01T00:00:00Z")
    assert "sunset is 2099" in lifecycle_verdict(recording)[1]


def test_lifecycle_of_a_copy_is_not_checked(recording, tmp_path):
    """A copy has the channel of another repository, and not its table."""
    (recording / "ledger" / "lifecycle.json").unlink()
    key_files.destroy(recording / "keys", "node")
    assert lifecycle_verdict(recording)[0] == "not_checked"


def test_recorded_version_is_not_moved_silently(recording):
    with pytest.raises(Denied, match="recorded in channel ops"):
        move_version(recording, "1.0.x", "disabled")
    change(recording, replace(MAINTAINED, stage="disabled"))
    assert lifecycle_verdict(recording)[0] == "passed"


def test_interrupted_change_is_made_again(recording):
    """Sealed, but the table was not written: verify names it, and the same command completes it."""
    before = (recording / "ledger" / "lifecycle.json").read_bytes()
    act = shipped(recording, replace(MAINTAINED, stage="disabled"))
    _, height = change(recording, act)
    (recording / "ledger" / "lifecycle.json").write_bytes(before)
    assert lifecycle_verdict(recording)[0] == "failed"
    assert change(recording, act)[1] == height
    assert lifecycle_verdict(recording)[0] == "passed"


def test_only_the_channel_records_a_change(recording):
    """An author's envelope of the same type changes nothing."""
    ask, done = version_envelopes(replace(MAINTAINED, stage="disabled"), (), ADA, NOON, "1.0.0")
    with open_log(recording, "ops", NODE, now_ns=lambda: NOON_NS) as ledger:
        ledger.log.submit_many([ask.raw, done.raw])
    assert lifecycle_verdict(recording)[0] == "passed"
