"""Archives: what is written, what is refused, and that every change to them is noticed and located."""

from __future__ import annotations

import json
import os
import shutil

import pytest
import zstandard
from blake3 import blake3
from tests.unit.ledger.archiving import (
    CHANNEL,
    TRUST,
    archived,
    contents,
    failures,
    filled,
    folders,
    forged,
    writable,
)
from tests.unit.ledger.making import ADA, NODE, NOON_NS, chain_of_blocks, observed, opened

from ropewalk.disk.folder_lock import hold_folder
from ropewalk.errors import Conflict, Forked, Invalid, NotFound, RangeExceeded, Unavailable, Unverified
from ropewalk.kernel import jcs, merkle
from ropewalk.kernel.digest import Tag
from ropewalk.kernel.keys import Signature
from ropewalk.ledger.archive.check import verify_archives
from ropewalk.ledger.archive.manifest import BLOCKS, MANIFEST, SIGNATURE, parse_archive_manifest
from ropewalk.ledger.archive.write import archive_channel
from ropewalk.ledger.channel.channel import open_channel, open_log
from ropewalk.ledger.channel.segments.writer import SegmentWriter
from ropewalk.ledger.channel.settings import create_channel
from ropewalk.ledger.proof.trust import Trust

DAY_NS = 86_400 * 10**9


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A channel of seven blocks, archived in three ranges; nobody writes into it."""
    folder = tmp_path_factory.mktemp("kept")
    home = filled(folder / "home", 7)
    for before in (3, 4, 7):
        archived(home, folder / "cold", before=before)
    return folder


@pytest.fixture(scope="module")
def paced(tmp_path_factory):
    """A channel with a block every half day."""
    home = tmp_path_factory.mktemp("paced")
    for number in range(6):
        with opened(home, now_ns=lambda number=number: NOON_NS + number * DAY_NS // 2) as ledger:
            ledger.log.submit(observed(number).raw)
    return home


@pytest.fixture
def cold(kept, tmp_path):
    """A copy of its archives to tamper with."""
    return writable(kept / "cold", tmp_path / "cold")


# What is written.


def test_archive_can_be_checked_by_plain_tools(tmp_path):
    home = filled(tmp_path / "home", 3)
    (made,) = archived(home, tmp_path / "cold").made
    packed = (made.path / BLOCKS).read_bytes()
    manifest = json.loads((made.path / MANIFEST).read_bytes())
    unpacked = zstandard.ZstdDecompressor().decompressobj().decompress(packed)
    assert unpacked == (home / "ledger" / CHANNEL / "segments" / f"{0:020d}.seg").read_bytes()
    listed = {file["name"]: (file["blake3"], file["bytes"]) for file in manifest["files"]}
    assert listed[BLOCKS] == (blake3(packed).hexdigest(), len(packed))
    assert {path.name for path in made.path.iterdir()} == {*listed, MANIFEST, SIGNATURE}


def test_manifest_names_range_and_predecessor(kept):
    with open_channel(kept / "home", CHANNEL) as channel:
        hashes = [channel.index.block_hash(height) for height in range(7)]
    previous = None
    for folder, (start, end) in zip(folders(kept / "cold"), ((0, 2), (3, 3), (4, 6)), strict=True):
        raw = (folder / MANIFEST).read_bytes()
        manifest = parse_archive_manifest(raw)
        assert (manifest.channel, manifest.start_height, manifest.end_height) == (CHANNEL, start, end)
        assert manifest.block_hashes == tuple(each.hex() for each in hashes[start : end + 1])
        assert manifest.range_root == merkle.root(hashes[start : end + 1], merkle.RANGE).hex()
        assert manifest.outer_root == merkle.root(hashes[: end + 1], merkle.RANGE).hex()
        assert manifest.previous == previous
        assert (manifest.signer, manifest.policy_hash, manifest.envelopes) == (
            NODE.public,
            None,
            end - start + 1,
        )
        signature = Signature.from_json(jcs.parse((folder / SIGNATURE).read_bytes()))
        NODE.public.verify(b"ea:archive:v1" + raw, signature.raw)
        previous = blake3(raw).hexdigest()


def test_honest_archives_pass_every_step(kept):
    report = verify_archives(kept / "cold", trust=TRUST, deep=True)
    unchecked = {step.name for step in report.steps if step.status != "passed"}
    assert unchecked == {"policy_hash"}  # none is pinned
    assert report.counts == {"entries": 7, "blocks": 7, "archives": 3}


def test_without_a_trust_file_nobody_is_said_to_have_signed(kept):
    report = verify_archives(kept / "cold")
    statuses = {step.name: step.status for step in report.steps}
    assert not report.ok and report.verdict == "untrusted"
    assert report.accept(untrusted=True).ok
    assert (statuses["signatures"], statuses["block_signatures"]) == ("not_checked", "not_checked")


def test_doing_it_again_writes_nothing_and_says_so(tmp_path):
    home = filled(tmp_path / "home", 3)
    first = archived(home, tmp_path / "cold")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "cold").rglob("*")}
    again = archived(home, tmp_path / "cold")
    assert (len(first.made), again.made, again.kept, again.blocks) == (1, (), 1, 3)
    assert again.outer_root == first.outer_root
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cold").rglob("*")} == before


def test_the_same_range_gives_the_same_bytes(tmp_path):
    home = filled(tmp_path / "home", 3)
    archived(home, tmp_path / "one")
    archived(home, tmp_path / "two")
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_archived_files_are_read_only(kept):
    modes = [path.stat().st_mode for path in (kept / "cold").rglob("*") if path.is_file()]
    assert len(modes) == 12 and not any(mode & 0o222 for mode in modes)


def test_a_long_range_is_cut_into_several_archives(tmp_path):
    home = filled(tmp_path / "home", 5)
    done = archived(home, tmp_path / "cold", range_bytes=1500)
    assert [(each.start, each.end) for each in done.made] == [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4)]
    assert failures(tmp_path / "cold") == {}


@pytest.mark.parametrize(
    ("options", "blocks"),
    [
        ({}, 6),
        ({"keep_blocks": 0}, 6),
        ({"keep_blocks": 2}, 4),
        ({"keep_blocks": 9}, 0),
        ({"before": 1}, 1),
        ({"before": 6}, 6),
        ({"keep_days": 0}, 6),
        ({"keep_days": 1}, 4),  # two blocks a day: the last two are younger
        ({"keep_days": 100}, 0),
    ],
)
def test_what_is_kept_out_is_kept_out(paced, tmp_path, options, blocks):
    now = NOON_NS + 5 * DAY_NS // 2 + 1
    assert archived(paced, tmp_path / "cold", now_ns=lambda: now, **options).blocks == blocks
    assert (tmp_path / "cold").exists() == (blocks > 0)


def test_what_cannot_be_meant_is_refused(tmp_path):
    home = filled(tmp_path / "home", 2)
    with pytest.raises(RangeExceeded):
        archived(home, tmp_path / "cold", before=3)
    with pytest.raises(RangeExceeded):
        archived(home, tmp_path / "cold", before=1, keep_blocks=1)
    with pytest.raises(Conflict):
        archive_channel(home, CHANNEL, ADA, tmp_path / "cold")
    create_channel(home, "empty", "node", NODE.public)
    with pytest.raises(NotFound):
        archive_channel(home, "empty", NODE, tmp_path / "cold")
    assert not (tmp_path / "cold").exists()


def test_one_at_a_time_writes_into_a_folder(tmp_path):
    home = filled(tmp_path / "home", 1)
    with hold_folder(tmp_path / "cold" / CHANNEL, 0), pytest.raises(Unavailable, match="another process"):
        archived(home, tmp_path / "cold")
    assert archived(home, tmp_path / "cold").blocks == 1


# What is refused.


def test_a_channel_of_another_history_adds_nothing(kept, tmp_path):
    cold = writable(kept / "cold", tmp_path / "cold")
    before = contents(cold)
    other = tmp_path / "other"
    for number in range(8):
        with opened(other, now_ns=lambda: NOON_NS) as ledger:
            ledger.log.submit(observed(100 + number).raw)
    with pytest.raises(Forked, match="block 6 of the archives is not the channel's"):
        archived(other, cold)
    with pytest.raises(Conflict, match="7 blocks, and the channel has only 2"):
        archived(filled(tmp_path / "short", 2), cold)
    assert contents(cold) == before


def test_archives_of_another_key_are_not_added_to(kept, tmp_path):
    cold = writable(kept / "cold", tmp_path / "cold")
    create_channel(tmp_path / "home", CHANNEL, "ada", ADA.public)
    with open_log(tmp_path / "home", CHANNEL, ADA, now_ns=lambda: NOON_NS) as ledger:
        ledger.log.submit(observed(0).raw)
    with pytest.raises(Conflict, match="signed by did:key"):
        archive_channel(tmp_path / "home", CHANNEL, ADA, cold)


def test_nothing_that_is_there_is_written_over(tmp_path):
    home = filled(tmp_path / "home", 2)
    place = tmp_path / "cold" / CHANNEL / f"{0:020d}-{1:020d}"
    place.mkdir(parents=True)
    with pytest.raises(Conflict, match=r"archive\.manifest\.json is missing"):
        archived(home, tmp_path / "cold")
    assert list(place.iterdir()) == []


def test_an_archive_that_lost_a_file_is_not_built_upon(kept, cold):
    (folders(cold)[1] / "channel.json").unlink()
    with pytest.raises(Conflict, match=r"channel\.json is missing"):
        archived(kept / "home", cold)


@pytest.mark.parametrize("damage", ["byte", "seal"])
def test_a_channel_that_does_not_hold_is_not_archived(tmp_path, damage):
    home = tmp_path / "home"
    create_channel(home, CHANNEL, "node", NODE.public)
    blocks = [block.lines() for block in chain_of_blocks(4)]
    if damage == "seal":  # well stored, but sealed by nobody
        at = blocks[2][0].index(b'"sig":"') + 10
        other = b"A" if blocks[2][0][at : at + 1] != b"A" else b"B"
        blocks[2][0] = blocks[2][0][:at] + other + blocks[2][0][at + 1 :]
    with SegmentWriter(home / "ledger" / CHANNEL) as writer:
        for height, lines in enumerate(blocks):
            place = writer.append(height, lines)
        writer.sync()
    with open_channel(home, CHANNEL) as channel:
        assert channel.head().height == 4  # the index knows no seals
    if damage == "byte":
        path = home / "ledger" / CHANNEL / "segments" / f"{0:020d}.seg"
        raw = bytearray(path.read_bytes())
        raw[place.offset - 200] ^= 1
        path.write_bytes(raw)
    with pytest.raises(Unverified, match="block 2"):
        archived(home, tmp_path / "cold")
    assert contents(tmp_path / "cold") == {}
    assert archived(home, tmp_path / "cold", before=2).blocks == 2


# What is noticed.


def test_every_flipped_byte_is_noticed_and_located(tmp_path, flip_step):
    home = filled(tmp_path / "home", 2)
    archived(home, tmp_path / "cold", before=1)
    cold = writable(tmp_path / "cold", tmp_path / "copy")
    (one,) = folders(cold)
    assert failures(cold) == {}
    for path in sorted(one.iterdir()):
        good = path.read_bytes()
        for at in range(0, len(good), flip_step):
            bad = bytearray(good)
            bad[at] ^= 1 << at % 8
            path.write_bytes(bad)
            found = failures(cold)
            assert found, f"{path.name}: byte {at}"
            places = {(each.get("archive"), each.get("file")) for each in found.values()}
            # A manifest that still reads as one is caught by its signature.
            names = {MANIFEST, SIGNATURE} if path.name == MANIFEST else {path.name}
            assert places & {(one.name, name) for name in names}, f"{path.name}: byte {at}: {found}"
        path.write_bytes(good)
    assert failures(cold) == {}


def test_damage_in_the_blocks_names_archive_file_and_block(kept, cold):
    path = folders(cold)[2] / BLOCKS
    raw = zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes())
    with open_channel(kept / "home", CHANNEL) as channel:
        start = 64 + channel.index.block(4).place.length + 64  # of block 5
    bad = raw[: start + 100] + bytes([raw[start + 100] ^ 1]) + raw[start + 101 :]
    path.write_bytes(zstandard.ZstdCompressor(write_checksum=True).compress(bad))
    found = failures(cold)
    assert found.keys() == {"files", "storage"}
    assert found["files"]["file"] == BLOCKS
    assert found["storage"]["height"] == 5
    assert f"archive {path.parent.name}, {BLOCKS}, block 5: body differs" in found["storage"]["detail"]


def test_a_cut_off_file_names_the_block_it_ends_in(cold):
    path = folders(cold)[0] / BLOCKS
    path.write_bytes(path.read_bytes()[:-20])
    found = failures(cold)
    assert found.keys() == {"files", "storage"}
    assert "end too early" in found["storage"]["detail"]


def test_a_missing_archive_is_a_gap_with_its_heights(cold):
    shutil.rmtree(folders(cold)[1])
    assert "blocks 3 to 3 are in no archive" in failures(cold)["manifests"]["detail"]


def test_archives_without_their_beginning_are_no_channel(cold):
    shutil.rmtree(folders(cold)[0])
    assert "blocks 0 to 2 are in no archive" in failures(cold)["manifests"]["detail"]


def test_a_file_more_or_less_is_noticed(cold):
    (folders(cold)[0] / "more").write_bytes(b"")
    assert "more is not in the manifest" in failures(cold)["files"]["detail"]
    (folders(cold)[0] / "more").unlink()
    (folders(cold)[1] / BLOCKS).unlink()
    assert f"{BLOCKS} is missing" in failures(cold)["files"]["detail"]


@pytest.mark.parametrize("name", [MANIFEST, SIGNATURE, BLOCKS, "channel.json"])
def test_a_pipe_in_place_of_a_file_hangs_nobody(cold, name):
    (folders(cold)[0] / name).unlink()
    os.mkfifo(folders(cold)[0] / name)
    assert any(f"{name} is no file" in each["detail"] for each in failures(cold).values())


def test_another_channel_s_archive_is_noticed(cold, tmp_path):
    home = tmp_path / "other"
    create_channel(home, "other", "node", NODE.public)
    with opened(home, "other") as ledger:
        for number in range(8):
            ledger.log.submit(observed(number).raw)
    archive_channel(home, "other", NODE, tmp_path / "theirs", before=3)
    archive_channel(home, "other", NODE, tmp_path / "theirs", before=4)
    shutil.rmtree(folders(cold)[1])
    shutil.copytree(folders(tmp_path / "theirs", "other")[1], cold / CHANNEL / f"{3:020d}-{3:020d}")
    assert 'it belongs to channel "other"' in failures(cold)["manifests"]["detail"]


def test_an_archive_under_another_name_is_noticed(cold):
    folders(cold)[2].rename(cold / CHANNEL / f"{4:020d}-{5:020d}")
    assert "it holds blocks 4 to 6" in failures(cold)["manifests"]["detail"]


@pytest.mark.parametrize(
    ("changes", "step"),
    [
        ({"previous": "00" * 32}, "manifests"),
        ({"outer_root": "00" * 32}, "manifests"),
        ({"range_root": "00" * 32}, "manifests"),
        ({"signer": ADA.public.to_json()}, "signatures"),
        ({"files": [{"name": BLOCKS, "blake3": "00" * 32, "bytes": 7}]}, "files"),
    ],
)
def test_a_manifest_that_lies_is_caught_although_it_is_signed(cold, changes, step):
    forged(folders(cold)[1], **changes)
    assert step in failures(cold)


def test_hashes_of_other_blocks_are_caught_although_all_roots_fit_them(tmp_path):
    home = filled(tmp_path / "home", 1)
    archived(home, tmp_path / "cold")
    cold = writable(tmp_path / "cold", tmp_path / "copy")
    other = bytes(32)
    root = merkle.root([other], merkle.RANGE).hex()
    forged(folders(cold)[0], block_hashes=[other.hex()], range_root=root, outer_root=root)
    assert "block 0 is not the listed one" in failures(cold)["manifests"]["detail"]


def test_a_signature_for_a_bundle_is_none_for_an_archive(cold):
    raw = (folders(cold)[0] / MANIFEST).read_bytes()
    signature = Signature(NODE.alg, NODE.sign(Tag.BUNDLE + raw))
    (folders(cold)[0] / SIGNATURE).write_bytes(jcs.encode(signature.to_json()))
    assert "signatures" in failures(cold)


def test_who_is_not_trusted_has_sealed_nothing(kept):
    found = failures(kept / "cold", Trust((ADA.public,), ()))
    assert "is not trusted" in found["signatures"]["detail"]
    assert found.keys() == {"signatures", "block_signatures"}


def test_a_pinned_policy_that_the_blocks_were_not_made_under_fails(kept):
    found = failures(kept / "cold", Trust((NODE.public,), (), bytes(32)))
    assert found.keys() == {"policy_hash"}


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 2},
        {"version": True},
        {"end_height": 3},
        {"start_height": -1},
        {"block_hashes": ["x"] * 3},
        {"block_hashes": []},
        {"files": []},
        {"files": [{"name": BLOCKS, "blake3": "00" * 32, "bytes": 1}] * 2},
        {"files": [{"name": "../channel.json", "blake3": "00" * 32, "bytes": 1}]},
        {"previous": 7},
        {"signer": {}},
        {"more": 1},
    ],
)
def test_what_is_no_manifest_is_not_read_as_one(cold, changes):
    value = jcs.parse((folders(cold)[0] / MANIFEST).read_bytes())
    assert isinstance(value, dict)
    with pytest.raises(Invalid):
        parse_archive_manifest(jcs.encode({**value, **changes}))


def test_a_manifest_comes_back_as_it_was(kept):
    raw = (folders(kept / "cold")[1] / MANIFEST).read_bytes()
    assert parse_archive_manifest(raw).to_bytes() == raw
