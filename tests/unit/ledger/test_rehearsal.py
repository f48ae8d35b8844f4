"""A version is rehearsed before it is used: both adapters, equal roots, followers first."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.ledger.calling import make
from tests.unit.ledger.evolving import evolve
from tests.unit.ledger.making import (
    ADA,
    NODE,
    NOON,
    NOON_NS,
    P256,
    SECP,
    observed,
    opened,
    rehearsed,
    shipped,
)

from ropewalk.errors import Denied, Invalid, NotFound, Unverified
from ropewalk.ledger.channel.channel import Channel, OpenReplica, open_channel
from ropewalk.ledger.channel.settings import create_channel, read_settings
from ropewalk.ledger.replay.reducers import REDUCERS, find_reducer
from ropewalk.ledger.rules.policy import EVALUATOR, Policy, parse_policy
from ropewalk.ledger.versions.change import change_version
from ropewalk.ledger.versions.lifecycle import open_minors
from ropewalk.ledger.versions.rehearsal import parse_rehearsal, rehearsal_envelope
from ropewalk.ledger.versions.rehearse import policy_hashes, rehearse, versions_for
from ropewalk.ledger.versions.statements import VersionAct, parse_version_act

CHANNEL = "ea.core"
ACTIVE = VersionAct(CHANNEL, "1.1.x", "active")
REDUCER = """
def urgent(state, event, _moment):
    state["urgent"] = state.get("urgent", 0) + ("priority" in event)
    return state
"""


@pytest.fixture
def urgent(tmp_path, monkeypatch):
    """A reducer that counts events with a priority, which older versions do not show."""
    (tmp_path / "urgent_events.py").write_text(REDUCER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "urgent_events", raising=False)
    return find_reducer("urgent_events:urgent")


def fill(home: Path, count: int = 3, policy: Policy | None = None, **members) -> None:
    with opened(home, CHANNEL, policy) as ledger:
        for number in range(count):
            ledger.log.submit(observed(number, **members).raw)


def asking(*people, **members) -> Policy:
    """A policy that asks for rehearsals by these keys, one person each."""
    followers = [{"name": f"follower {n}", **key.public.to_json()} for n, key in enumerate(people)]
    rule = {"id": "r", "name": "r", "version": 1, "kind": "rehearsal", "decision": "deny"}
    made = Policy("p", ({**rule, "followers": followers, "rehearsals": 1, **members},), EVALUATOR, {})
    return parse_policy(made.to_bytes())


def follow(home: Path, copy: Path) -> None:
    """Copy a channel block by block, as `ledger pull` does."""
    if not (copy / "ledger" / CHANNEL).exists():
        create_channel(copy, CHANNEL, "node", NODE.public, read_settings(home, CHANNEL).policy)
    with Channel(home, CHANNEL) as reading, OpenReplica(Channel(copy, CHANNEL)) as replica:
        for block in reading.blocks(replica.log.head.height):
            replica.log.insert(block)


def submit(home: Path, raw: bytes) -> None:
    with opened(home, CHANNEL) as ledger:
        ledger.log.submit(raw)


def change(home: Path, act: VersionAct, **options):
    return change_version(home, act, (NODE,), now_ns=lambda: NOON_NS, **options)


# --- both adapters ---


def test_rehearsal_seals_both_roots(tmp_path, monkeypatch):
    evolve(monkeypatch)
    fill(tmp_path, 40, protocol_version="1.1.0", added={"priority": 1})
    done = rehearse(tmp_path, CHANNEL, "1.0.x", "1.1.x")
    assert done.fault() is None and done.blocks == 40 and len(done.snapshots) == 14
    assert all(source == target for _, source, target in done.snapshots)
    assert len({source for _, source, _ in done.snapshots}) == 14  # the state of each height, not of one
    assert parse_rehearsal(done.to_json()) == done


def test_rehearsal_locates_a_divergence(tmp_path, monkeypatch, urgent):
    evolve(monkeypatch)
    fill(tmp_path, 4)
    submit(tmp_path, observed(9, protocol_version="1.1.0", added={"priority": 1}).raw)
    submit(tmp_path, observed(10).raw)
    done = rehearse(tmp_path, CHANNEL, "1.0.x", "1.1.x", urgent)
    assert "different states between block 4 and 4 of channel ea.core" in str(done.fault())
    back = rehearse(tmp_path, CHANNEL, "1.1.x", "1.0.x", urgent)  # the older adapter drops the field
    assert back.downgrade and "between block 4 and 4" in str(back.fault())
    assert rehearse(tmp_path, CHANNEL, "1.0.x", "1.1.x", REDUCERS["counts"]).fault() is None


def test_downgrade_fails_on_a_newer_major(tmp_path, monkeypatch):
    evolve(monkeypatch)
    policy = Policy("p", (), EVALUATOR, {"versions": ["1.0.x", "1.1.x", "2.0.x"]})
    fill(tmp_path, policy=policy)
    assert rehearse(tmp_path, CHANNEL, "2.0.x", "1.0.x").fault() is None
    submit(tmp_path, observed(9, protocol_version="2.0.0", added={"tenant": "acme"}).raw)
    with pytest.raises(Unverified, match=r"2\.0\.0 cannot be read by an adapter for 1\.0\.x"):
        rehearse(tmp_path, CHANNEL, "2.0.x", "1.0.x")
    assert rehearse(tmp_path, CHANNEL, "1.1.x", "2.0.x", blocks=3).fault() is None


def test_versions_to_rehearse(tmp_path, monkeypatch):
    assert versions_for(tmp_path, "1.1.x") == ("1.0.x", "1.1.x")
    assert versions_for(tmp_path, "1.0.x", downgrade=True) == ("1.1.x", "1.0.x")
    with pytest.raises(Invalid, match="oldest"):
        versions_for(tmp_path, "1.0.x")
    with pytest.raises(Invalid, match="newest"):
        versions_for(tmp_path, "1.1.x", downgrade=True)
    with pytest.raises(NotFound):
        versions_for(tmp_path, "2.0.x")
    evolve(monkeypatch)
    assert versions_for(tmp_path, "2.0.x") == ("1.1.x", "2.0.x")
    assert versions_for(tmp_path, "1.0.x", downgrade=True) == ("2.0.x", "1.0.x")


# --- followers first ---


def test_primary_waits_for_a_follower(tmp_path):
    home, copy = tmp_path / "primary", tmp_path / "follower"
    fill(home, policy=asking(ADA))
    new = observed(7, protocol_version="1.1.0")
    assert open_minors(home, read_settings(home, CHANNEL).policy, NOON_NS) == {"1.0"}
    with pytest.raises(Unverified, match="rule 4"):
        submit(home, new.raw)
    own = shipped(home, ACTIVE)  # by the primary, which is not its own follower
    with pytest.raises(Denied, match=r"must rehearse version 1\.1\.x first.*none did"):
        change(home, own)
    rehearsed(home, CHANNEL, "1.1.x", key=P256)  # by a key that the policy does not name
    with pytest.raises(Denied, match="none did"):
        change(home, own)
    follow(home, copy)
    done = rehearse(copy, CHANNEL, *versions_for(copy, "1.1.x"))
    submit(home, rehearsal_envelope(done, ADA, NOON).raw)
    change(home, own)
    submit(home, new.raw)
    follow(home, copy)  # the copy takes what the primary sealed


def test_earlier_change_opens_no_new_channel(tmp_path):
    """A change recorded before a channel existed was not held to that channel's rule."""
    with opened(tmp_path, "ops") as ledger:
        ledger.log.submit(observed(1).raw)
    change(tmp_path, shipped(tmp_path, replace(ACTIVE, channel="ops")))
    fill(tmp_path, policy=asking(ADA))
    assert open_minors(tmp_path, read_settings(tmp_path, CHANNEL).policy, NOON_NS) == {"1.0"}
    with pytest.raises(Unverified, match="rule 4"):
        submit(tmp_path, observed(7, protocol_version="1.1.0").raw)
    again = shipped(tmp_path, replace(ACTIVE, channel="ops"))
    with pytest.raises(Denied, match="none did"):  # every channel that asks must agree
        change(tmp_path, again)
    rehearsed(tmp_path, CHANNEL, "1.1.x", key=ADA)
    change(tmp_path, again)
    submit(tmp_path, observed(7, protocol_version="1.1.0").raw)


def test_sealing_key_is_no_follower(tmp_path):
    fill(tmp_path, policy=asking(NODE))
    with pytest.raises(Denied, match="none did"):
        change(tmp_path, shipped(tmp_path, ACTIVE))


@pytest.mark.parametrize("stage", ["preview", "maintenance", "deprecated"])
def test_no_stage_opens_an_unrehearsed_version(tmp_path, stage):
    fill(tmp_path, policy=asking(ADA))
    act = VersionAct(CHANNEL, "1.1.x", stage, "2099-01-01T00:00:00Z")
    with pytest.raises((Denied, Invalid)):
        change(tmp_path, shipped(tmp_path, act))
    assert open_minors(tmp_path, read_settings(tmp_path, CHANNEL).policy, NOON_NS) == {"1.0"}


def test_two_followers_are_two_people(tmp_path):
    fill(tmp_path, policy=asking(ADA, SECP, rehearsals=2))
    act = shipped(tmp_path, ACTIVE)
    for _ in range(2):
        rehearsed(tmp_path, CHANNEL, "1.1.x", key=ADA)
    with pytest.raises(Denied, match="only follower 0 did"):
        change(tmp_path, act)
    rehearsed(tmp_path, CHANNEL, "1.1.x", key=SECP)
    assert change(tmp_path, act)[0].stage == "active"


def test_downgrade_is_rehearsed_where_asked(tmp_path):
    fill(tmp_path, policy=asking(ADA, downgrade=True))
    act = shipped(tmp_path, ACTIVE, key=ADA)
    with pytest.raises(Denied, match=r"the way back from version 1\.1\.x"):
        change(tmp_path, act)
    rehearsed(tmp_path, CHANNEL, "1.0.x", key=ADA, downgrade=True)
    assert change(tmp_path, act)[0].stage == "active"


def test_old_rehearsal_does_not_count(tmp_path):
    fill(tmp_path, policy=asking(ADA, within_blocks=2))
    act = shipped(tmp_path, ACTIVE, key=ADA)
    fill(tmp_path, 3, event_type="more")
    with pytest.raises(Denied, match="within 2 blocks of its head; none did"):
        change(tmp_path, act)


def test_rehearsal_is_computed_again(tmp_path):
    """A follower that lies about roots, blocks or the history is found out."""
    fill(tmp_path, policy=asking(ADA))
    act, done = shipped(tmp_path, ACTIVE), rehearse(tmp_path, CHANNEL, "1.0.x", "1.1.x")
    size, root = done.blocks, bytes(32)
    for lie, words in (
        (replace(done, snapshots=((size, root, root),)), "other roots"),
        (replace(done, block_hash=root), "other roots"),
        (replace(done, policy_hash=None), "other roots"),
        (replace(done, snapshots=((size, root, done.snapshots[-1][2]),)), "different states"),
        (replace(done, snapshots=done.snapshots[:1]), "must cover all blocks"),
        (replace(done, blocks=99, snapshots=((99, root, root),)), "the channel has only"),
        (replace(done, reducer="os:system"), "it used reducer os:system"),
    ):
        submit(tmp_path, rehearsal_envelope(lie, ADA, NOON).raw)
        with pytest.raises(Denied, match=words):
            change(tmp_path, act)
    assert open_minors(tmp_path, read_settings(tmp_path, CHANNEL).policy, NOON_NS) == {"1.0"}
    rehearsed(tmp_path, CHANNEL, "1.1.x", key=ADA)
    assert change(tmp_path, act)[0].recorded is not None


def test_operator_names_the_reducer(tmp_path, urgent):
    fill(tmp_path)
    act = shipped(tmp_path, ACTIVE, reducer=urgent)
    with pytest.raises(Denied, match="name the same with --reducer"):
        change(tmp_path, act)
    assert change(tmp_path, act, reducer=urgent)[0].stage == "active"


@pytest.mark.parametrize(
    "wrong",
    [
        {"rehearsals": 0},
        {"rehearsals": 2},
        {"followers": [{"name": "x"}]},
        {"within_blocks": -1},
        {"downgrade": 1},
        {"decision": "audit"},
        {"when": {}},
    ],
)
def test_rehearsal_rule_is_read_strictly(wrong):
    with pytest.raises(Invalid, match='rule "r"'):
        asking(ADA, **wrong)


# --- what a change ships ---


def test_change_ships_guide_transcript_and_policies(tmp_path):
    fill(tmp_path, policy=Policy("p", (), EVALUATOR, {}))
    act = shipped(tmp_path, ACTIVE)
    assert act.documents is not None and parse_version_act(act.to_json()) == act
    _, height = change(tmp_path, act)
    with open_channel(tmp_path, CHANNEL) as channel:
        payload = observed_payload(channel, height)
    assert payload["documents"] == {
        "guide": "ab" * 32,
        "transcript": act.documents.transcript,
        "policies": policy_hashes(tmp_path),
    }
    assert policy_hashes(tmp_path) == {CHANNEL: Policy("p", (), EVALUATOR, {}).hash.hex()}


def observed_payload(channel, height):
    from ropewalk.ledger.envelope.envelope import parse_stored

    (block,) = channel.blocks(height, height)
    return parse_stored(block.envelopes[1]).payload


def test_change_without_documents_is_refused(tmp_path, monkeypatch):
    fill(tmp_path)
    with pytest.raises(Denied, match="no migration guide and no transcript"):
        change(tmp_path, ACTIVE)
    act = shipped(tmp_path, ACTIVE)
    documents = act.documents
    assert documents is not None
    for wrong, words in (
        ({"transcript": "cd" * 32}, "holds no rehearsal"),
        ({"policies": {CHANNEL: "cd" * 32}}, "policy hashes"),
    ):
        with pytest.raises(Denied, match=words):
            change(tmp_path, replace(act, documents=replace(documents, **wrong)))
    evolve(monkeypatch)
    other = rehearsed(tmp_path, CHANNEL, "2.0.x", downgrade=False)
    with pytest.raises(Denied, match="did not try version"):
        change(
            tmp_path, replace(act, protocol_version="1.0.x", documents=replace(documents, transcript=other))
        )
    with pytest.raises(Denied, match="ends more than 1 blocks"):
        monkeypatch.setattr("ropewalk.ledger.versions.rehearse.WITHIN_BLOCKS", 1)
        fill(tmp_path, 3, event_type="more")
        change(tmp_path, act)
    with open_channel(tmp_path, CHANNEL) as channel:
        assert not any(
            b"ledger.version.change" in raw for block in channel.blocks() for raw in block.envelopes
        )


@pytest.mark.parametrize(
    "wrong", [None, {}, {"guide": "x"}, {"policies": []}, {"policies": {"c": "x"}}, {"transcript": 1}]
)
def test_malformed_documents_are_refused(wrong):
    whole = {"guide": "ab" * 32, "transcript": "ab" * 32, "policies": {}}
    documents = {**whole, **wrong} if wrong else wrong
    with pytest.raises(Invalid):
        parse_version_act({**ACTIVE.to_json(), "documents": documents})


@pytest.mark.parametrize("name", ["version", "from", "to", "blocks", "snapshots", "reducer"])
def test_malformed_rehearsal_is_refused(tmp_path, name):
    fill(tmp_path, 1)
    whole = rehearse(tmp_path, CHANNEL, "1.0.x", "1.1.x").to_json()
    others: list[Any] = [None, True, -7, [1], {}]
    for other in others:
        with pytest.raises(Invalid):
            parse_rehearsal({**whole, name: other})
    with pytest.raises(Invalid, match="at most"):
        parse_rehearsal({**whole, "snapshots": whole["snapshots"] * 18})


# --- from the command line ---


def test_commands_rehearse_and_change(ropewalk):
    for n in range(3):
        one = make(ropewalk, f"{n}.json", "--timestamp", f"2024-11-01T12:00:0{n}Z")
        assert ropewalk("ledger", "append", "--channel", "audit", "--file", str(one)).code == 0
    lifecycle = ("ledger", "lifecycle")
    assert ropewalk(*lifecycle, "set", "1.1.x", "active", "--channel", "audit").code == 2  # no guide
    Path("guide.md").write_text("write 1.1.0")
    ship = ("--channel", "audit", "--guide", "guide.md")
    assert ropewalk(*lifecycle, "set", "1.1.x", "active", *ship).code == 6  # no rehearsal
    done = ropewalk(*lifecycle, "rehearse", "1.1.x", "--json").json  # the only channel
    assert (done["from"], done["to"], done["blocks"], done["height"]) == ("1.0.x", "1.1.x", 3, 3)
    assert {each["from_root"] == each["to_root"] for each in done["snapshots"]} == {True}
    assert ropewalk(*lifecycle, "rehearse", "1.0.x").code == 8
    assert ropewalk(*lifecycle, "rehearse", "1.0.x", "--downgrade").code == 0
    given = (*ship, "--transcript", done["envelope_id"])
    changed = ropewalk(*lifecycle, "set", "1.1.x", "active", *given, "--json")
    assert changed.code == 0 and changed.json["recorded"] == {"channel": "audit", "height": 5}
    assert ropewalk("ledger", "verify", "--deep").code == 0


def test_follower_writes_its_rehearsal_to_a_file(ropewalk):
    one = make(ropewalk)
    assert ropewalk("ledger", "append", "--channel", "audit", "--file", str(one)).code == 0
    done = ropewalk("ledger", "lifecycle", "rehearse", "1.1.x", "--key", "ada", "-o", "r.json", "--json")
    assert done.code == 0 and done.json["path"] == "r.json" and "height" not in done.json
    assert ropewalk("ledger", "append", "--channel", "audit", "--file", "r.json").code == 0


def test_rule_forbids_a_change_without_channel(ropewalk):
    Path("policy.json").write_bytes(asking(ADA).to_bytes())
    assert ropewalk("ledger", "create", "--channel", "c", "--policy", "policy.json").code == 0
    refused = ropewalk("ledger", "lifecycle", "set", "1.1.x", "maintenance")
    assert refused.code == 6 and "requires approvals or rehearsals" in refused.err
