"""A channel rebuilt from archives alone is the channel: blocks, roots, proofs, verdicts, replays; or it is nothing."""

from __future__ import annotations

import json
import shutil
import tracemalloc

import pytest
from blake3 import blake3 as hasher
from tests.unit.ledger.archiving import (
    CHANNEL,
    TRUST,
    archived,
    contents,
    filled,
    folders,
    forged,
    writable,
)
from tests.unit.ledger.making import ADA, NODE, NOON_NS, chain_of_blocks, observed, opened
from tests.unit.ledger.rotating import rotation

from ropewalk.disk.folder_lock import hold_folder
from ropewalk.errors import Conflict, NotFound, Unavailable, Unverified
from ropewalk.kernel.digest import blake3
from ropewalk.ledger.archive.drill import record_drill, run_drill
from ropewalk.ledger.archive.manifest import BLOCKS, MANIFEST
from ropewalk.ledger.archive.restore import restore_channel
from ropewalk.ledger.archive.write import archive_channel
from ropewalk.ledger.block.block import Fork, seal
from ropewalk.ledger.channel.channel import open_channel
from ropewalk.ledger.channel.maintenance import verify_stored
from ropewalk.ledger.channel.payloads import PayloadStore, PayloadTombstone
from ropewalk.ledger.channel.segments.writer import SegmentWriter
from ropewalk.ledger.channel.settings import create_channel
from ropewalk.ledger.envelope.envelope import build
from ropewalk.ledger.evidence.allowed import EvidenceAllowList
from ropewalk.ledger.evidence.settings import channel_trust, write_evidence
from ropewalk.ledger.evidence.trust import EvidenceSettings
from ropewalk.ledger.proof.trust import Trust
from ropewalk.ledger.replay.channel_replay import recorded_snapshots, replay_channel
from ropewalk.ledger.replay.reducers import find_reducer
from ropewalk.ledger.rules.policy import STRICT
from ropewalk.ledger.versions.lifecycle import move_version, read_lifecycle

COUNTS = find_reducer("counts")


def restored(cold, home, trust=TRUST, **options):
    return restore_channel(cold, CHANNEL, home, trust=trust, **options)


def channel_files(home):
    """What makes a channel: all its files but the index, the lock, the marks of its writer, and states."""
    apart = ("index/", "lock", "states/", "drills/", "receipted", "known.json")
    found = contents(home / "ledger")
    return {name: raw for name, raw in found.items() if not name.partition("/")[2].startswith(apart)}


@pytest.fixture(scope="module")
def rich(tmp_path_factory):
    """A home whose channel has all there is, and archives of it: policy, evidence, versions, a fork, snapshots."""
    folder = tmp_path_factory.mktemp("rich")
    home, cold = folder / "home", folder / "cold"
    create_channel(home, CHANNEL, "node", NODE.public, STRICT)
    write_evidence(home, CHANNEL, EvidenceSettings((), EvidenceAllowList((ADA.public,), ("urn:builder",))))
    move_version(home, "1.1.x", "deprecated", sunset="2099-01-01T00:00:00Z")
    with opened(home, segment_bytes=4096) as ledger:
        for number in range(12):
            ledger.log.submit(observed(number, NODE).raw)
        blocks = list(ledger.channel.blocks(4, 5))
        other = seal(
            NODE,
            channel=CHANNEL,
            height=5,
            prev_block_hash=blocks[0].hash,
            envelopes=[observed(99, NODE).raw],
            timestamp_ns=NOON_NS,
            policy_hash=STRICT.hash,
        )
        fork = Fork(blocks[1].record, other.record)
        ledger._keep_evidence(f"fork-5-{other.hash.hex()[:16]}.json", fork.to_bytes())
    replay_channel(home, CHANNEL, COUNTS, key=NODE, snapshot_every=4)
    archived(home, cold, before=5)
    archived(home, cold, before=10)
    return folder


def test_what_is_rebuilt_is_the_same_file_by_file(rich, tmp_path):
    archive_channel(rich / "home", CHANNEL, NODE, tmp_path / "cold")
    done = restored(tmp_path / "cold", tmp_path / "home")
    ours, theirs = channel_files(tmp_path / "home"), channel_files(rich / "home")
    segments = {name for name in theirs if "/segments/" in name and name.startswith(f"{CHANNEL}/")}
    assert len(segments) > 1  # the live channel began new files sooner than a restored one does
    joined = b"".join(theirs[name][64:] for name in sorted(segments))
    assert ours.pop(f"{CHANNEL}/segments/{0:020d}.seg")[64:] == joined
    assert ours == {name: raw for name, raw in theirs.items() if name not in segments}
    assert (done.blocks, done.envelopes) == (12, 12)


def test_segments_of_the_usual_size_are_the_same_byte_for_byte(tmp_path):
    home = filled(tmp_path / "home", 5)
    archived(home, tmp_path / "cold", before=2)
    archived(home, tmp_path / "cold")
    restored(tmp_path / "cold", tmp_path / "back")
    assert channel_files(tmp_path / "back") == channel_files(home)


def test_a_rebuilt_follower_has_the_same_roots_proofs_and_replays(rich, tmp_path):
    done = restored(rich / "cold", tmp_path)
    with open_channel(rich / "home", CHANNEL) as live, open_channel(tmp_path, CHANNEL) as back:
        assert back.head().height == done.blocks == 10
        assert back.head().block_hash == live.index.block_hash(9) == done.block_hash
        assert back.prove_consistency(5, 10) == live.prove_consistency(5, 10)
        assert back.prove_range(0, 9).root == done.outer_root == live.prove_consistency(10, 12).old_root
        for number in range(10):
            name = observed(number, NODE).id
            assert back.prove(name) == live.prove(name)
    for until in (3, 9):
        ours = replay_channel(tmp_path, CHANNEL, COUNTS, until=until)
        theirs = replay_channel(rich / "home", CHANNEL, COUNTS, until=until)
        assert ours == theirs
        assert ours.compared == (until + 1) // 4  # with the snapshots that came along
    assert recorded_snapshots(tmp_path, CHANNEL) == recorded_snapshots(rich / "home", CHANNEL)


def test_a_rebuilt_follower_gives_the_same_verdicts(rich, tmp_path):
    archive_channel(rich / "home", CHANNEL, NODE, tmp_path / "cold")
    restored(tmp_path / "cold", tmp_path)
    assert channel_trust(tmp_path, CHANNEL) == channel_trust(rich / "home", CHANNEL)
    assert read_lifecycle(tmp_path) == read_lifecycle(rich / "home")
    with open_channel(tmp_path, CHANNEL) as back, open_channel(rich / "home", CHANNEL) as live:
        assert back.settings == live.settings
        assert back.head() == live.head()
    assert verify_stored(tmp_path, CHANNEL, deep=True) == verify_stored(rich / "home", CHANNEL, deep=True)
    assert len(list((tmp_path / "ledger" / CHANNEL / "evidence").glob("fork-5-*.json"))) == 1


def test_a_rebuilt_channel_goes_on_where_the_old_one_would_have(tmp_path):
    home = filled(tmp_path / "home", 3)
    archived(home, tmp_path / "cold")
    restored(tmp_path / "cold", tmp_path / "back")
    for each in (home, tmp_path / "back"):
        filled(each, 2, start=3)
    assert channel_files(tmp_path / "back") == channel_files(home)
    again = archived(tmp_path / "back", tmp_path / "cold")
    assert [(each.start, each.end) for each in again.made] == [(3, 4)]


def test_the_policy_s_pin_binds_the_channel_and_not_its_snapshots(rich, tmp_path):
    trust = Trust((NODE.public,), (NODE.public,), STRICT.hash)
    assert restored(rich / "cold", tmp_path, trust, deep=True).snapshots is not None


def test_erased_payloads_stay_erased_and_kept_ones_stay_out(tmp_path):
    home, stone = tmp_path / "home", PayloadTombstone(blake3(b"1").hex(), "2024-11-01T12:00:00Z", "asked")
    PayloadStore(home / "payloads").put(b"2")
    said = [
        observed(1, detached={"locator": "urn:x", "bytes": 1}),
        observed(2, NODE, event_type="ledger.tombstone", payload=stone.to_json()),
        observed(
            3, ADA, event_type="ledger.tombstone", payload={**stone.to_json(), "payload_hash": "00" * 32}
        ),
    ]
    with opened(home) as ledger:
        for each in said:
            ledger.log.submit(each.raw)
    archived(home, tmp_path / "cold")
    done = restored(tmp_path / "cold", tmp_path / "back")
    assert done.tombstones == 1
    store = PayloadStore(tmp_path / "back" / "payloads")
    assert store.erased(stone.payload_hash) == stone
    assert store.erased("00" * 32) is None  # only who seals the channel erases in it
    assert [path.name for path in store.folder.iterdir()] == [f"{stone.payload_hash}.tombstone"]
    with pytest.raises(Conflict):
        store.put(b"1")
    stranger = restored(
        tmp_path / "cold", tmp_path / "unsure", None
    )  # whose word would hold for all channels here
    assert stranger.tombstones == 0 and "none was applied" in stranger.notes[0]
    assert not (tmp_path / "unsure" / "payloads").exists()
    steps = {step.name: step for step in done.report.steps}
    assert steps["payloads"].status == "not_checked"
    assert steps["payloads"].detail.startswith("1 ")


def test_what_is_there_is_never_written_over(rich, tmp_path):
    filled(tmp_path, 1)
    before = contents(tmp_path)
    with pytest.raises(Conflict, match="is there already"):
        restored(rich / "cold", tmp_path)
    assert contents(tmp_path) == before


def test_the_repository_s_own_table_of_versions_is_kept(rich, tmp_path):
    move_version(tmp_path, "1.1.x", "deprecated", sunset="2098-01-01T00:00:00Z")
    own = (tmp_path / "ledger" / "lifecycle.json").read_bytes()
    assert "table of versions is kept" in restored(rich / "cold", tmp_path).notes[0]
    assert (tmp_path / "ledger" / "lifecycle.json").read_bytes() == own


@pytest.mark.parametrize("harm", ["gap", "damage", "foreign", "settings", "snapshots", "untrusted"])
def test_what_does_not_hold_leaves_nothing_behind(rich, tmp_path, harm):
    cold, home, trust, place = writable(rich / "cold", tmp_path / "cold"), tmp_path / "home", TRUST, ""
    first, second = folders(cold)
    if harm == "gap":
        shutil.rmtree(first)
        place = "blocks 0 to 4 are in no archive"
    elif harm == "damage":
        raw = bytearray((second / BLOCKS).read_bytes())
        raw[len(raw) // 2] ^= 1
        (second / BLOCKS).write_bytes(raw)
        place = f"archive {second.name}: {BLOCKS} does not match the manifest"
    elif harm == "foreign":
        forged(first, channel="other")
        place = f'archive {first.name}: it belongs to channel "other"'
    elif harm == "settings":
        value = json.loads((second / "channel.json").read_bytes())
        value["signer"] = ADA.public.to_json()
        (second / "channel.json").write_text(json.dumps(value))
        place = f"archive {second.name}: channel.json does not match the manifest"
    elif harm == "snapshots":
        (one,) = folders(cold, f"{CHANNEL}.snapshots")
        (one / BLOCKS).unlink()
        place = f"{BLOCKS} is missing"
    else:
        trust = Trust((ADA.public,), ())
        place = "is not trusted to seal this channel"
    with pytest.raises(Unverified, match="Nothing|" + place.replace(".", r"\.")) as caught:
        restored(cold, home, trust)
    assert place in caught.value.detail
    assert contents(home) == {}


@pytest.mark.parametrize("name", ["channel.json", "policy.json"])
def test_settings_that_a_lying_signer_left_out_are_missed(rich, tmp_path, name):
    cold = writable(rich / "cold", tmp_path / "cold")
    last = folders(cold)[-1]
    (last / name).unlink()
    value = json.loads((last / MANIFEST).read_bytes())
    forged(last, files=[file for file in value["files"] if file["name"] != name])
    with pytest.raises(Unverified, match=f"the archived {name} is not that of channel"):
        restored(cold, tmp_path / "home")
    assert contents(tmp_path / "home") == {}


def test_archives_of_other_channels_are_not_found(rich, tmp_path):
    with pytest.raises(NotFound):
        restore_channel(rich / "cold", "other", tmp_path)


def test_two_restores_at_once_do_not_meet(rich, tmp_path):
    with hold_folder(tmp_path / "restoring", 0), pytest.raises(Unavailable):
        restored(rich / "cold", tmp_path)


def test_memory_does_not_grow_with_the_channel(tmp_path):
    home, blocks = tmp_path / "home", 40
    create_channel(home, CHANNEL, "node", NODE.public)
    length = 250_000
    with SegmentWriter(home / "ledger" / CHANNEL) as writer:
        below = bytes(32)
        for height in range(blocks):
            said = build(
                ADA,
                domain="ea.core",
                event_class="Observation",
                event_type="t",
                payload={"body": hasher(bytes([height])).hexdigest(length=length // 2)},
                timestamp="2024-11-01T12:00:00Z",
            )
            block = seal(
                NODE,
                channel=CHANNEL,
                height=height,
                prev_block_hash=below,
                envelopes=[said.raw],
                timestamp_ns=NOON_NS,
            )
            writer.append(height, block.lines())
            below = block.hash
        writer.sync()
    with open_channel(home, CHANNEL) as channel:
        channel.head()
    tracemalloc.start()
    try:
        archived(home, tmp_path / "cold", range_bytes=1 << 20)  # the packer itself holds some megabytes
        restored(tmp_path / "cold", tmp_path / "back")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < blocks * length / 2


# Drills.


def test_drill_compares_and_leaves_only_a_record(rich, tmp_path):
    before = channel_files(rich / "home")
    done = run_drill(rich / "cold", CHANNEL, rich / "home", trust=TRUST)
    assert done.ok, done.to_json()
    assert channel_files(rich / "home") == before
    passed = {step.name for step in done.report.steps if step.status == "passed"}
    assert passed >= {"rebuilt", "proofs", "live_blocks", "live_roots", "live_proofs", "live_replay"}
    path = record_drill(done, tmp_path / "drill.json")
    record = json.loads(path.read_bytes())
    with open_channel(rich / "home", CHANNEL) as live:
        assert record["outer_root"] == live.prove_consistency(10, 12).old_root.hex()
        assert record["block_hash"] == live.index.block_hash(9).hex()
    state = replay_channel(rich / "home", CHANNEL, COUNTS, until=9).state_root
    assert record["state_root"] == state.hex()
    assert record["seconds"].keys() == {"restore", "index", "proofs", "replay", "compare"}
    assert record["ok"] is True and record["blocks"] == 10


def test_drill_passes_after_a_later_rotation(tmp_path):
    """Proofs carry all key statements of a channel; the archives hold those of their range."""
    home, cold = tmp_path / "home", tmp_path / "cold"
    create_channel(home, CHANNEL, "node", NODE.public)
    with opened(home) as ledger:
        ledger.log.submit(observed(1, NODE).raw)
        archived(home, cold)
        ledger.log.submit(rotation().raw)
    done = run_drill(cold, CHANNEL, home)
    assert done.ok, done.to_json()


def test_a_drill_on_an_empty_machine_says_what_it_could_not_compare(rich):
    done = run_drill(rich / "cold", CHANNEL)
    assert not done.ok and done.report.verdict == "untrusted"  # no trust file, no live channel
    assert run_drill(rich / "cold", CHANNEL, trust=TRUST).ok
    assert {step.status for step in done.report.steps if step.name.startswith("live_")} == {"not_checked"}


def test_a_drill_notices_that_the_live_channel_is_another(rich, tmp_path):
    create_channel(tmp_path, CHANNEL, "node", NODE.public, STRICT)
    with opened(tmp_path) as ledger:
        for number in range(10):
            ledger.log.submit(observed(number + (number == 7) * 100, NODE).raw)
    done = run_drill(rich / "cold", CHANNEL, tmp_path)
    assert not done.ok
    wrong = done.report.first_failure
    assert wrong is not None
    assert (wrong.name, wrong.fields["height"]) == ("live_blocks", 7)


def test_a_drill_with_a_damaged_archive_fails_and_says_where(rich, tmp_path):
    cold = writable(rich / "cold", tmp_path / "cold")
    (folders(cold)[1] / BLOCKS).write_bytes(b"")
    done = run_drill(cold, CHANNEL, rich / "home")
    wrong = done.report.first_failure
    assert not done.ok and wrong is not None
    assert wrong.fields["archive"] == folders(cold)[1].name


def test_a_drill_notices_that_the_live_channel_has_lost_its_end(rich, tmp_path):
    create_channel(tmp_path, CHANNEL, "node", NODE.public, STRICT)
    with opened(tmp_path) as ledger:
        for number in range(3):
            ledger.log.submit(observed(number, NODE).raw)
    done = run_drill(rich / "cold", CHANNEL, tmp_path)
    assert "the live channel has 3 blocks, its archives 10" in str(done.to_json())


def test_blocks_of_a_chain_made_elsewhere_can_be_archived_and_rebuilt(tmp_path):
    create_channel(tmp_path / "home", CHANNEL, "node", NODE.public)
    with SegmentWriter(tmp_path / "home" / "ledger" / CHANNEL) as writer:
        for block in chain_of_blocks(3):
            writer.append(block.height, block.lines())
        writer.sync()
    archived(tmp_path / "home", tmp_path / "cold")
    assert restored(tmp_path / "cold", tmp_path / "back").envelopes == 9
