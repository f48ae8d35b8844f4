"""A key gives way to the next (S4 §13): the channel says so, and every block is judged by the key of its time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.ledger.making import ADA, NODE, NOON_NS, observed, payload_resigned
from tests.unit.ledger.rotating import (
    CHANNEL,
    HOUR_NS,
    NEXT,
    STRANGER,
    THIRD,
    Chain,
    act_of,
    at,
    make_channel,
    opened_with,
    rotated_chain,
    rotated_channel,
    rotation,
)

from ropewalk.disk import key_files
from ropewalk.disk.repository_paths import make_repository
from ropewalk.errors import Conflict, Damaged, Forked, RopewalkError, SigInvalid, Unverified
from ropewalk.ledger.archive.check import verify_archives
from ropewalk.ledger.archive.pack import pack_channel
from ropewalk.ledger.archive.restore import restore_channel
from ropewalk.ledger.archive.write import archive_channel
from ropewalk.ledger.block.block import Block
from ropewalk.ledger.bundle.check import BundleVerifier
from ropewalk.ledger.bundle.files import export_blocks, export_bundle, verify_bundle
from ropewalk.ledger.bundle.format import BundleBuilder, block_name, frame_member, proof_name
from ropewalk.ledger.bundle.tar import END
from ropewalk.ledger.channel.channel import open_channel, open_log, verify_blocks
from ropewalk.ledger.channel.key_heights import read_heights, write_heights
from ropewalk.ledger.channel.maintenance import rebuild_index, verify_stored
from ropewalk.ledger.channel.settings import create_channel
from ropewalk.ledger.keys.history import KeyHistory, KeyProof, parse_key_proofs
from ropewalk.ledger.keys.rotate import find_keys, rotate_key
from ropewalk.ledger.keys.statements import KeyAct, key_envelope
from ropewalk.ledger.proof.proof import parse_proof, verify_proof
from ropewalk.ledger.proof.trust import Trust, parse_trust
from ropewalk.ledger.proof.verify import Fault, check_block, check_channel, to_report
from ropewalk.ledger.replay.channel_replay import replay_channel
from ropewalk.ledger.replay.reducers import find_reducer
from ropewalk.ledger.replay.replay import companion
from ropewalk.ledger.rules.policy import EVALUATOR, Policy
from ropewalk.pipeline.source.ledger_logs import Ledgers
from ropewalk.pipeline.source.offsets import LogName, Range

FIRST = Trust((NODE.public,), (NODE.public,))
NEWEST = Trust((NEXT.public,), (NEXT.public,))
BOTH = Trust((NODE.public, NEXT.public), ())


def fault_of(chain: Chain, trust: Trust = FIRST) -> Fault:
    fault = check_channel(chain.found(), trust=trust).fault
    assert fault is not None
    return fault


def seals_of(chain: Chain, trust: Trust):
    key_history = KeyHistory(trust, lenient=True)
    span = check_channel(chain.found(), trust=trust, key_history=key_history)
    return next(
        step
        for step in to_report(span, deep=True, trust=trust, key_history=key_history).steps
        if step.name == "block_signatures"
    )


# --- what holds ---


def test_a_trust_file_with_the_first_key_alone_verifies_the_whole_chain():
    step = seals_of(rotated_chain(), FIRST)
    assert step.status == "passed"
    assert f"blocks 0–2 by {NODE.public.did()}, blocks 3–4 by {NEXT.public.did()}" in step.detail


def test_trust_with_newest_key_names_its_gaps():
    step = seals_of(rotated_chain(), NEWEST)
    assert step.status == "not_checked"
    assert "blocks 0–2" in step.detail
    assert NODE.public.did() in step.detail


def test_a_trust_file_with_both_keys_judges_everything():
    assert seals_of(rotated_chain(), BOTH).status == "passed"


def test_who_is_in_no_line_is_refused_at_the_first_block():
    fault = fault_of(rotated_chain(), Trust((STRANGER.public,), ()))
    assert (fault.height, fault.step) == (0, "block_signatures")
    assert fault_of(rotated_chain(), Trust((), ())).height == 0


def test_a_later_key_that_sealed_nothing_above_vouches_for_nothing():
    chain = Chain()
    chain.add(NODE)
    chain.add(NODE, rotation())  # a replayed rotation at the end of a history that the new key never saw
    assert fault_of(chain, NEWEST).height == 0


def test_during_the_overlap_both_keys_count():
    chain = Chain()
    chain.add(NODE, rotation(since=1, until=3))
    chain.add(NODE, hours=1)
    chain.add(NEXT, hours=2)
    chain.add(NODE, hours=2.9)
    chain.add(NEXT, hours=4)
    assert check_channel(chain.found(), trust=FIRST).fault is None


def test_keys_of_other_kinds_follow_one_another():
    chain = rotated_chain()
    chain.add(NEXT, rotation(NEXT, THIRD))
    chain.add(THIRD)
    assert check_channel(chain.found(), trust=FIRST).fault is None
    assert check_channel(chain.found(), trust=Trust((THIRD.public,), ())).fault is None


# --- what does not ---


def refusals() -> dict[str, tuple[Chain, int, str]]:
    def after(envelope, key=NODE, sealer=NODE, then=NEXT):
        chain = Chain()
        chain.add(NODE)
        chain.add(sealer, envelope)
        chain.add(then)
        return chain

    back = rotated_chain()
    back.add(NEXT, rotation(NEXT, NODE))
    twice = Chain()
    twice.add(NODE, rotation(until=5))
    twice.add(NODE, rotation(new=THIRD, until=5))
    late = Chain()
    late.add(NODE, rotation(since=1, until=3))
    late.add(NODE, hours=3)
    early = Chain()
    early.add(NODE, rotation(since=1, until=3))
    early.add(NEXT, hours=0.5)
    crowd = Chain()
    crowd.add(NODE, rotation(), observed(7))
    crowd.add(NEXT)
    return {
        "signed by a stranger": (after(rotation(signer=STRANGER)), 1, "the block is signed by"),
        "sealed by a stranger": (after(rotation(), sealer=STRANGER), 1, "not trusted"),
        "of a stranger's key": (after(rotation(STRANGER, signer=NODE)), 1, "not the key that signed it"),
        "not accepted": (after(rotation(accepted_by=STRANGER)), 1, "has not accepted"),
        "to the same key": (after(rotation(new=NODE)), 1, "to itself"),
        "with a gap": (after(rotation(since=5, until=4)), 1, "before the new one is valid"),
        "dated back": (after(rotation(said=2, since=1, until=3)), 1, "before this statement"),
        "of another channel": (after(rotation(channel="ea.other")), 1, "belongs to channel"),
        "back to a key that gave way": (back, 5, "was replaced before"),
        "a second time": (twice, 1, "already replaced by"),
        "the old key after its end": (late, 1, "until 2024-11-01T15:00:00Z"),
        "the new key before its beginning": (early, 1, "since 2024-11-01T13:00:00Z"),
        "not alone in its block": (crowd, 1, "not trusted"),
    }


@pytest.mark.parametrize("case", refusals())
def test_a_rotation_that_does_not_hold_is_refused(case):
    chain, height, why = refusals()[case]
    fault = fault_of(chain)
    assert (fault.height, fault.step) == (height, "block_signatures")
    assert why in fault.detail


def test_a_changed_date_breaks_what_the_new_key_accepted():
    act = KeyAct("rotate", CHANNEL, NODE.public.identity(), at(0), at(0), NEXT.public)
    longer = replace(act, until=at(1_000))
    accepted = key_envelope(act, NODE, at(0), new_key=NEXT).value["payload"]["acceptance"]
    forged = key_envelope(longer, NODE, at(0), new_key=STRANGER).value
    value = {**forged, "payload": {**forged["payload"], "acceptance": accepted}}
    chain = Chain()
    chain.add(NODE, payload_resigned(value, NODE))
    assert "has not accepted" in fault_of(chain).detail


def test_two_rotations_at_one_height_are_a_fork_and_each_side_is_kept(tmp_path):
    make_channel(tmp_path)
    other = Chain()
    other.add(NODE, rotation(new=THIRD))
    with opened_with(tmp_path, NODE, NEXT) as opened:
        opened.log.submit(rotation().raw)
        with pytest.raises(Forked):
            opened.log.insert(other.blocks[0])
        opened.log.submit(observed(1).raw)
    assert len(list((tmp_path / "ledger" / CHANNEL / "evidence").glob("fork-0-*.json"))) == 1
    key_history = KeyHistory(FIRST)
    with open_channel(tmp_path, CHANNEL) as reading:
        key_history.follow(reading.key_proofs())
    with pytest.raises(Unverified, match="two blocks of that height"):
        key_history.take(other.blocks[0])


# --- the open log ---


def test_from_the_rotation_on_blocks_are_sealed_by_the_new_key(tmp_path):
    rotated_channel(tmp_path)
    with open_channel(tmp_path, CHANNEL) as reading:
        signers = [block.record.signer for block in reading.blocks()]
        assert [validity.key for validity in reading.key_history().validities] == [NODE.public, NEXT.public]
    assert signers == [NODE.public] * 3 + [NEXT.public] * 2
    report = verify_stored(tmp_path, CHANNEL, deep=True)
    assert report.ok, report
    runs = f"blocks 0–2 by {NODE.public.did()}, blocks 3–4 by {NEXT.public.did()}, each while it was valid"
    named = f"5 blocks, sealed by the key this repository names ({runs}); no trust file names it"
    assert step_of(report, "block_signatures").detail == named
    trusted = step_of(verify_stored(tmp_path, CHANNEL, trust=FIRST), "block_signatures")
    assert trusted.detail == f"5 blocks, sealed by a trusted key ({runs})"
    assert verify_blocks(tmp_path, CHANNEL, trust=FIRST).ok


def test_submits_around_rotation_keep_their_order(tmp_path):
    make_channel(tmp_path)
    with opened_with(tmp_path, NODE, NEXT) as opened:
        raws = [observed(1).raw, observed(2).raw, rotation().raw, observed(3).raw, observed(4).raw]
        heights = [receipt.height for receipt in opened.log.submit_many(raws)]
    assert heights == [0, 0, 1, 2, 2]
    assert verify_blocks(tmp_path, CHANNEL, trust=FIRST, deep=True).ok


@pytest.mark.parametrize(
    ("envelope", "why"),
    [
        (rotation(signer=STRANGER), "the block is signed by"),
        (rotation(new=NODE), "to itself"),
        (rotation(since=5, until=4), "before the new one is valid"),
        (rotation(accepted_by=STRANGER), "has not accepted"),
        (observed(1, event_type="ledger.key_rotation"), "signed by|must be an Alert"),
        (observed(1, key=NODE, event_type="ledger.key_something"), "not one of"),
    ],
)
def test_a_rotation_that_does_not_hold_is_refused_at_the_door(tmp_path, envelope, why):
    make_channel(tmp_path)
    with opened_with(tmp_path, NODE) as opened:
        with pytest.raises(RopewalkError, match=why):
            opened.log.submit(envelope.raw)
        assert opened.log.submit(observed(9).raw).height == 0


def test_only_one_statement_about_keys_is_under_way_at_a_time(tmp_path):
    make_channel(tmp_path)
    with opened_with(tmp_path, NODE, NEXT) as opened:
        first, second = opened.log.submit_many([rotation(until=5).raw, rotation(new=THIRD, until=5).raw])
    assert first.height == 0
    assert isinstance(second, Conflict)


def test_a_writer_that_holds_only_the_old_key_stops_where_it_ends(tmp_path):
    make_channel(tmp_path)
    with opened_with(tmp_path, NODE) as opened:
        opened.log.submit(rotation().raw)
        with pytest.raises(Conflict, match="no available key is valid"):
            opened.log.submit(observed(1).raw)
        assert opened.log.head.height == 1
    with pytest.raises(Conflict, match="no available key is valid"):
        opened_with(tmp_path, NODE)
    with opened_with(tmp_path, NEXT) as opened:
        assert opened.log.submit(observed(1).raw).height == 1
    assert verify_blocks(tmp_path, CHANNEL, trust=FIRST, deep=True).ok


def test_an_old_process_may_go_on_until_its_key_ends_and_not_longer(tmp_path):
    make_channel(tmp_path)
    clock = [NOON_NS]
    with open_log(tmp_path, CHANNEL, NODE, now_ns=lambda: clock[0]) as opened:
        opened.log.submit(rotation(since=1, until=3).raw)
        clock[0] += 2 * HOUR_NS
        assert opened.log.submit(observed(1).raw).height == 1
        clock[0] += 2 * HOUR_NS
        with pytest.raises(Conflict, match="no available key is valid"):
            opened.log.submit(observed(2).raw)
    with opened_with(tmp_path, NEXT, hours=4) as opened:
        assert opened.log.submit(observed(2).raw).height == 2
    assert verify_blocks(tmp_path, CHANNEL, trust=FIRST, deep=True).ok


def test_a_new_key_waits_for_its_date(tmp_path):
    make_channel(tmp_path)
    with opened_with(tmp_path, NODE) as opened:
        opened.log.submit(rotation(since=1, until=3).raw)
    with pytest.raises(Conflict, match="since 2024-11-01T13:00:00Z"):
        opened_with(tmp_path, NEXT, hours=0.5)
    with opened_with(tmp_path, NEXT, hours=1) as opened:
        assert opened.log.submit(observed(1).raw).height == 1


def test_a_height_that_was_noted_and_never_written_is_nothing(tmp_path):
    make_channel(tmp_path)
    with opened_with(tmp_path, NODE) as opened:
        opened.log.submit(observed(1).raw)
    write_heights(tmp_path / "ledger" / CHANNEL, [0, 7])
    with opened_with(tmp_path, NODE) as opened:
        assert opened.log.submit(observed(2).raw).height == 1


def test_a_lost_list_of_heights_is_made_again_from_the_blocks(tmp_path):
    rotated_channel(tmp_path)
    folder = tmp_path / "ledger" / CHANNEL
    (folder / "keys.json").unlink()
    for key in (NODE, NEXT):  # the old one has given way, whatever the list says
        with pytest.raises(Damaged, match=r"keys\.json names 0 blocks about keys, and 1 were written"):
            opened_with(tmp_path, key)
    assert verify_blocks(tmp_path, CHANNEL, trust=FIRST).ok  # which reads every block
    rebuild_index(tmp_path, CHANNEL)
    assert read_heights(folder) == [2]
    with opened_with(tmp_path, NEXT) as opened:
        opened.log.submit(observed(9).raw)


def test_a_copy_takes_blocks_across_a_rotation(tmp_path):
    make_channel(tmp_path)
    with opened_with(tmp_path, NODE) as opened:
        for block in rotated_chain().blocks:
            opened.log.insert(block)
    with opened_with(tmp_path, NEXT) as opened:
        assert opened.log.submit(observed(9).raw).height == 5
    assert verify_blocks(tmp_path, CHANNEL, trust=FIRST, deep=True).ok


def test_author_policy_does_not_block_rotation(tmp_path):
    rule = {"id": "who", "name": "who", "version": 1, "kind": "signers", "decision": "deny"}
    policy = Policy("p", ({**rule, "allowed": [ADA.public.to_json()]},), EVALUATOR, {})
    rotated_channel(tmp_path, policy)
    assert verify_stored(tmp_path, CHANNEL, deep=True).ok


# --- alone ---


def test_a_block_alone_is_judged_by_a_line_that_is_known():
    chain = rotated_chain()
    key_history = KeyHistory(FIRST)
    key_history.follow(proof for block in chain.blocks if (proof := KeyProof.of(block)) is not None)
    known = replace(FIRST, key_history=key_history)
    assert all(check_block(b.lines(), b.height, trust=known).fault is None for b in reversed(chain.blocks))
    alone = check_block(chain.blocks[3].lines(), 3, trust=FIRST)
    assert alone.fault is not None and "not trusted" in alone.fault.detail


def test_proofs_of_keys_are_read_as_they_are_written():
    proof = KeyProof.of(rotated_chain().blocks[2])
    assert proof is not None
    assert parse_key_proofs([proof.to_json()]) == (proof,)


def test_a_trust_file_may_say_since_when_and_until_when_a_key_counts():
    limited = replace(BOTH, limits={NODE.public: (0, NOON_NS + HOUR_NS), NEXT.public: (NOON_NS, None)})
    assert parse_trust(limited.to_bytes()) == limited
    chain = Chain()
    chain.add(NODE)
    chain.add(NODE, hours=2)
    assert "until 2024-11-01T13:00:00Z" in fault_of(chain, limited).detail


def test_an_altered_rotation_in_a_stored_block_is_found():
    chain = rotated_chain()
    block = chain.blocks[2]
    other = Block(block.record, (rotation(until=100).raw,))
    chain.blocks[2] = other
    assert fault_of(chain).step == "block_hashes"


# --- what others carry away ---


def test_rotated_trust_file_names_keys_with_dates(tmp_path):
    rotated_channel(tmp_path)
    with open_channel(tmp_path, CHANNEL) as reading:
        trust = parse_trust(reading.trust().to_bytes())
    assert trust.block_signers == (NODE.public, NEXT.public)
    assert trust.limits == {NODE.public: (0, NOON_NS + 1), NEXT.public: (NOON_NS, None)}
    assert verify_blocks(tmp_path, CHANNEL, trust=trust, deep=True).ok


def test_proofs_lead_from_the_first_key_to_the_one_that_sealed(tmp_path):
    rotated_channel(tmp_path)
    with open_channel(tmp_path, CHANNEL) as reading:
        new, old = reading.prove(observed(3).id), reading.prove(observed(1).id)
    assert parse_proof(new.to_bytes()) == new
    step = step_of(verify_proof(new, FIRST), "block_signer")
    assert step.status == "passed"
    assert "replaced a key that is trusted" in step.detail
    assert step_of(verify_proof(new, NEWEST), "block_signer").status == "passed"
    assert step_of(verify_proof(old, FIRST), "block_signer").status == "passed"
    unsure = step_of(verify_proof(old, NEWEST), "block_signer")
    assert unsure.status == "not_checked"
    assert "cannot be checked" in unsure.detail
    bare = step_of(verify_proof(replace(new, keys=()), FIRST), "block_signer")
    assert bare.status == "failed"
    stranger = Trust((STRANGER.public,), ())
    assert step_of(verify_proof(new, stranger), "block_signer").status == "failed"


def step_of(report, name):
    return next(step for step in report.steps if step.name == name)


@pytest.mark.parametrize(("start", "end"), [(0, 4), (0, 1), (1, 3), (3, 4)])
def test_bundles_of_any_range_verify_by_the_first_key(tmp_path, start, end):
    rotated_channel(tmp_path)
    with open_channel(tmp_path, CHANNEL) as reading:
        path = tmp_path / "b.tar.zst"
        export_bundle(reading, NEXT, start, end, path)
        assert export_bundle(reading, NEXT, start, end, path).kept
    found = verify_bundle(path, FIRST, deep=True)
    assert found.report.ok, found.report
    assert step_of(found.report, "block_signatures").status == "passed"
    later = verify_bundle(path, NEWEST, deep=True).report
    assert later.verdict == ("passed" if start == 3 else "partly")
    assert step_of(later, "block_signatures").status == ("passed" if start == 3 else "not_checked")
    other = verify_bundle(path, Trust((STRANGER.public,), (STRANGER.public,))).report
    assert step_of(other, "block_signatures").status == "failed"
    assert step_of(other, "bundle_signature").status == "failed"


def test_ended_key_signs_no_later_bundle(tmp_path):
    """A key that was replaced or retired signs what it was valid for, and nothing later."""
    rotated_channel(tmp_path)
    path = tmp_path / "b.tar.zst"
    with open_channel(tmp_path, CHANNEL) as reading:
        export_bundle(reading, NODE, 0, 1, path)
        assert verify_bundle(path, FIRST).report.ok
        with pytest.raises(SigInvalid, match="is valid until"):
            export_bundle(reading, NODE, 0, 4, tmp_path / "later.tar.zst")
        export_blocks(reading.blocks(0, 4), NODE, path, reading.key_proofs())
    step = verify_bundle(path, FIRST).report.first_failure
    assert step is not None and step.name == "bundle_signature"
    assert "is valid until" in step.detail


def test_overlap_ends_with_a_retirement(tmp_path):
    """Until its end, a key in its overlap signs bundles of all blocks."""
    chain = Chain()
    chain.add(NODE)
    chain.add(NODE, rotation(until=100))
    chain.add(NEXT)
    path = tmp_path / "b.tar.zst"
    export_blocks(chain.blocks, NODE, path)
    assert verify_bundle(path, FIRST).report.ok
    chain.add(NEXT, act_of("retire", NODE, signer=NEXT))
    chain.add(NEXT)
    export_blocks(chain.blocks, NODE, path)
    assert step_of(verify_bundle(path, FIRST).report, "bundle_signature").status == "failed"
    export_blocks(chain.blocks, NEXT, path)
    assert verify_bundle(path, FIRST).report.ok


def test_an_altered_rotation_in_a_bundle_is_refused(tmp_path):
    chain = rotated_chain()
    gathering = BundleBuilder()
    members = [gathering.add(block) for block in chain.blocks]
    honest = gathering.finish(NEXT)
    (proof,) = honest.keys
    forged = replace(honest, keys=(KeyProof(proof.record, rotation(until=100)),))
    left_out = replace(honest, keys=())
    for manifest, status, why in (
        (honest, "passed", "each while it was valid"),
        (forged, "failed", "must be the only one of its block"),
        (left_out, "failed", "not trusted"),
    ):
        verifier = BundleVerifier(FIRST)
        verifier.feed(gathering.front(manifest, NODE if manifest is left_out else NEXT))
        for block, (lines, _) in zip(chain.blocks, members, strict=True):
            verifier.feed(frame_member(block_name(block.height), lines))
        for block, (_, proofs) in zip(chain.blocks, members, strict=True):
            verifier.feed(frame_member(proof_name(block.height), proofs))
        verifier.feed(END)
        step = step_of(verifier.report(), "block_signatures")
        assert step.status == status, step
        assert why in step.detail


def test_a_bundle_that_hides_what_its_blocks_say_about_keys_is_refused():
    chain = Chain()
    chain.add(NODE)
    chain.add(NODE, rotation(until=100))
    chain.add(NODE)
    gathering = BundleBuilder()
    members = [gathering.add(block) for block in chain.blocks]
    verifier = BundleVerifier(FIRST)
    verifier.feed(gathering.front(replace(gathering.finish(NODE), keys=()), NODE))
    for block, (lines, _) in zip(chain.blocks, members, strict=True):
        verifier.feed(frame_member(block_name(block.height), lines))
    for block, (_, proofs) in zip(chain.blocks, members, strict=True):
        verifier.feed(frame_member(proof_name(block.height), proofs))
    verifier.feed(END)
    assert "that the manifest does not list" in step_of(verifier.report(), "block_signatures").detail


@pytest.mark.parametrize("keep_blocks", [0, 3])
def test_archives_made_by_either_key_verify_by_the_first_and_restore(tmp_path, keep_blocks):
    home, cold, back = tmp_path / "home", tmp_path / "cold", tmp_path / "back"
    rotated_channel(home)
    archive_channel(home, CHANNEL, NODE, cold, before=1)
    archive_channel(home, CHANNEL, NEXT, cold, keep_blocks=keep_blocks)
    report = verify_archives(cold, trust=FIRST, deep=True)
    assert report.ok, report
    assert step_of(report, "signatures").status == "passed"
    assert verify_archives(cold, deep=True).verdict == "untrusted"
    refused = verify_archives(cold, trust=Trust((STRANGER.public,), ()))
    assert step_of(refused, "signatures").status == "failed"
    restored = restore_channel(cold, CHANNEL, back, trust=FIRST, deep=True)
    assert restored.blocks == 5 - keep_blocks
    with opened_with(back, NODE if keep_blocks else NEXT) as opened:
        assert opened.log.submit(observed(50).raw).height == restored.blocks
    assert verify_stored(back, CHANNEL, trust=FIRST, deep=True).ok


def test_ended_key_signs_no_later_archive(tmp_path, monkeypatch):
    rotated_channel(tmp_path / "home")
    with pytest.raises(SigInvalid, match="is valid until"):
        archive_channel(tmp_path / "home", CHANNEL, NODE, tmp_path / "cold")
    with monkeypatch.context() as patch:
        patch.setattr(KeyHistory, "check_unended", lambda *_: None)
        archive_channel(tmp_path / "home", CHANNEL, NODE, tmp_path / "cold")
    step = verify_archives(tmp_path / "cold", trust=FIRST).first_failure
    assert step is not None and step.name == "signatures" and "is valid until" in step.detail


def test_a_packed_channel_goes_on_across_a_rotation(tmp_path):
    make_channel(tmp_path)
    with opened_with(tmp_path, NODE, NEXT, segment_bytes=600) as opened:
        opened.log.submit(observed(1).raw)
        opened.log.submit(rotation().raw)
        for number in range(2, 6):
            opened.log.submit(observed(number).raw)
    pack_channel(tmp_path, CHANNEL)
    assert verify_stored(tmp_path, CHANNEL, trust=FIRST, deep=True).ok
    with opened_with(tmp_path, NEXT) as opened:
        opened.log.submit(observed(9).raw)


def test_replays_snapshots_and_their_channel_follow_the_new_key(tmp_path):
    make_channel(tmp_path)
    counts = find_reducer("counts")
    with opened_with(tmp_path, NODE) as opened:
        opened.log.submit(observed(1).raw)
    replay_channel(tmp_path, CHANNEL, counts, key=NODE, snapshot_every=1)
    rotate_key(tmp_path, CHANNEL, NODE, NEXT, now_ns=lambda: NOON_NS)
    with opened_with(tmp_path, NEXT) as opened:
        opened.log.submit(observed(2).raw)
    done = replay_channel(tmp_path, CHANNEL, counts, key=NEXT, snapshot_every=1, trust=FIRST)
    assert done.blocks == 3 and done.compared >= 1 and not done.refused
    assert replay_channel(tmp_path, CHANNEL, counts, from_snapshot=True).started_from == 2
    assert verify_stored(tmp_path, companion(CHANNEL), trust=FIRST, deep=True).ok


def test_the_pipeline_judges_every_block_by_the_key_of_its_time(tmp_path):
    place, _ = make_repository(tmp_path / "r.git")
    rotated_channel(place.home)
    ledgers = Ledgers(place)
    end = ledgers.extent(CHANNEL).end
    for start in range(end.position):
        below = ledgers.id_at(CHANNEL, start - 1) if start else ""
        part = Range(LogName("ledger", CHANNEL), start, end.position, below, end.head)
        assert [one.fault_entry for one in ledgers.check(part, deep=True)] == [None]


def test_a_channel_is_found_by_its_newest_key_whatever_that_is_called(tmp_path):
    keys = tmp_path / "keys"
    made = [key_files.make(keys, name, "ed25519", bytes([n]) * 32) for n, name in enumerate(("b", "a"), 1)]
    first, second = (key_files.load_signing(keys, each.name) for each in made)
    (keys / "broken.json").write_text("{")
    create_channel(tmp_path, "c", "b", first.public)
    rotate_key(tmp_path, "c", first, second)
    with open_channel(tmp_path, "c") as reading:
        assert [key.public for key in find_keys(reading.key_history(), keys)] == [second.public, first.public]


def test_damaged_rotation_is_reported_or_refused(tmp_path):
    place, _ = make_repository(tmp_path / "r.git")
    rotated_channel(place.home)
    (segment,) = (place.home / "ledger" / CHANNEL / "segments").glob("*.seg")
    raw = segment.read_bytes()
    at_byte = raw.index(b"ledger.key_rotation")
    segment.write_bytes(raw[:at_byte] + b"L" + raw[at_byte + 1 :])
    for trust in (None, FIRST):
        report = verify_stored(place.home, CHANNEL, trust=trust, deep=True)
        assert report.first_failure is not None
        assert (report.first_failure.name, report.first_failure.fields["height"]) == ("storage", 2)
    with pytest.raises(Damaged):
        opened_with(place.home, NEXT)
    ledgers = Ledgers(place)
    end = ledgers.extent(CHANNEL, tolerant=True).end
    part = Range(LogName("ledger", CHANNEL), 0, end.position, "", end.head)
    assert next(one.fault_entry for one in ledgers.check(part, deep=True)) == "block 2"
