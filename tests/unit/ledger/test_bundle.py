"""Bundles: the same range gives the same bytes, and every lie is found by the step whose task it is."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import tarfile
import tracemalloc
from base64 import b64decode
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.ledger.bundling import (
    TRUST,
    export,
    failed,
    pack,
    signed,
    statuses,
    tar_of,
    unpack,
    verdict,
)
from tests.unit.ledger.making import ADA, NODE, NOON_NS, chain_of_blocks, observed, opened

from ropewalk.errors import Conflict, Damaged, Invalid, NotFound, RangeExceeded, RopewalkError, TooLarge
from ropewalk.kernel import jcs, merkle
from ropewalk.kernel.digest import Tag
from ropewalk.kernel.keys import PublicKey
from ropewalk.ledger.block.block import GENESIS, parse_record, seal
from ropewalk.ledger.bundle.check import BundleVerifier
from ropewalk.ledger.bundle.files import (
    chunk_ranges,
    export_blocks,
    export_bundle,
    inspect_bundle,
    verify_bundle,
)
from ropewalk.ledger.bundle.findings import STEPS
from ropewalk.ledger.bundle.format import BundleBuilder, frame_member, prove_block
from ropewalk.ledger.bundle.manifest import parse_manifest
from ropewalk.ledger.bundle.tar import END, TarReader, member_header, padding
from ropewalk.ledger.bundle.zstd_file import UnpackLimits, read_packed
from ropewalk.ledger.channel.channel import open_channel
from ropewalk.ledger.envelope.model import envelope_id
from ropewalk.ledger.proof.proof import range_root
from ropewalk.ledger.proof.trust import Trust
from ropewalk.ledger.rules.policy import STRICT

MANIFEST, SIGNATURE = "bundle.manifest.json", "bundle.manifest.sig"
HEADERS, BLOCK, PROOF = "headers.jsonl", "blocks/0000000001.jsonl", "proofs/0000000001.jsonl"


@pytest.fixture
def bundle(tmp_path):
    return export(tmp_path / "x.tar.zst")


# --- what is written ---


def test_a_bundle_passes_all_five_steps_in_their_order(bundle):
    report = verdict(bundle, replace(TRUST, policy_hash=None))
    assert [step.name for step in report.steps] == list(STEPS)
    assert statuses(report) == {**dict.fromkeys(STEPS, "passed"), "policy_hash": "not_checked"}
    assert report.to_json()["ok"] is True
    assert (report.to_json()["envelopes"], report.to_json()["blocks"]) == (15, 3)


def test_two_exports_are_the_same_bytes(tmp_path):
    one, two = export(tmp_path / "one.tar.zst"), export(tmp_path / "two.tar.zst")
    assert one.read_bytes() == two.read_bytes()


def test_the_members_are_those_of_the_contract(bundle):
    blocks = chain_of_blocks(3, 5)
    members = unpack(bundle)
    heights = [f"{height:010d}" for height in range(3)]
    assert list(members) == [
        MANIFEST,
        SIGNATURE,
        HEADERS,
        *(f"blocks/{height}.jsonl" for height in heights),
        *(f"proofs/{height}.jsonl" for height in heights),
    ]
    assert members[HEADERS] == b"".join(block.record.raw + b"\n" for block in blocks)
    assert members[BLOCK] == b"".join(raw + b"\n" for raw in blocks[1].envelopes)
    for line, raw in zip(members[PROOF].splitlines(), blocks[1].envelopes, strict=True):
        proof = json.loads(line)
        assert line == jcs.encode(proof)
        path = [bytes.fromhex(each) for each in proof["path"]]
        assert proof["envelope_id"] == envelope_id(raw).hex()
        merkle.verify_inclusion(envelope_id(raw), proof["index"], 5, path, blocks[1].header.merkle_root)
    manifest = json.loads(members[MANIFEST])
    assert members[MANIFEST] == jcs.encode(manifest)
    assert manifest.keys() == {
        "version", "channel", "start_height", "end_height", "block_hashes", "range_root", "merkle_proofs",
        "payload_refs", "policy_hash", "created_at", "signer", "files",
    }  # fmt: skip
    assert manifest["created_at"] == str(NOON_NS + 2)
    assert manifest["range_root"] == range_root([block.hash for block in blocks]).hex()
    assert [file["name"] for file in manifest["files"]] == list(members)[2:]
    signature = json.loads(members[SIGNATURE])
    PublicKey.from_json(manifest["signer"]).verify(
        Tag.BUNDLE + members[MANIFEST], b64decode(signature["sig"])
    )


def test_the_archive_is_what_tarfile_would_write(bundle):
    raw = zstandard.ZstdDecompressor().decompressobj().decompress(bundle.read_bytes())
    again = tar_of(unpack(bundle))
    assert again.startswith(raw)
    assert not again[len(raw) :].strip(b"\0")
    assert verdict(pack(bundle, again)).ok


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 9, 100])
def test_proof_files_hold_the_paths_of_the_tree(count):
    ids = [merkle.LEDGER.leaf(bytes([number])) for number in range(count)]
    tree = merkle.MerkleTree(ids)
    for index, line in enumerate(prove_block(ids)[1].splitlines()):
        path = [each.hex() for each in tree.inclusion(index)]
        assert json.loads(line) == {"envelope_id": ids[index].hex(), "index": index, "path": path}


def test_a_range_in_the_middle_of_a_channel_stands_alone(tmp_path):
    path = tmp_path / "x.tar.zst"
    export_blocks(chain_of_blocks(6)[2:5], NODE, path)
    manifest, _ = inspect_bundle(path)
    assert (manifest.start_height, manifest.end_height) == (2, 4)
    assert verdict(path).ok


def test_detached_payloads_are_listed(tmp_path):
    away = observed(1, payload={"secret": 1}, detached={"locator": "file:///x"})
    block = seal(
        NODE, channel="ea.core", height=0, prev_block_hash=GENESIS,
        envelopes=[observed(0).raw, away.raw], timestamp_ns=NOON_NS,
    )  # fmt: skip
    path = tmp_path / "x.tar.zst"
    export_blocks([block], NODE, path)
    manifest, _ = inspect_bundle(path)
    (ref,) = manifest.payload_refs
    assert ref == {
        "envelope_id": away.hex_id,
        "payload_ref": {"locator": "file:///x"},
        "payload_hash": away.value["payload_hash"],
    }
    assert verdict(path).ok
    members = unpack(path)
    for wrong in ([], [ref, ref], [{**ref, "payload_hash": "0" * 64}]):
        pack(path, tar_of(signed(members, payload_refs=wrong)))
        assert failed(verdict(path)) == {"bundle_signature"}


def test_gathering_refuses_blocks_that_do_not_follow():
    blocks = chain_of_blocks(3)
    gathering = BundleBuilder()
    gathering.add(blocks[0])
    with pytest.raises(RopewalkError, match="does not follow"):
        gathering.add(blocks[2])
    with pytest.raises(RangeExceeded):
        BundleBuilder().finish(NODE)


# --- exports of a channel ---


@pytest.fixture
def home(tmp_path):
    with opened(tmp_path) as ledger:
        for number in range(5):
            ledger.log.submit(observed(number).raw)
    return tmp_path


def test_an_export_that_is_complete_is_kept_and_a_cut_one_made_again(home):
    path = home / "x.tar.zst"
    with open_channel(home, "ea.core") as channel:
        assert not export_bundle(channel, NODE, 0, 4, path).kept
        whole, when = path.read_bytes(), path.stat().st_mtime_ns
        assert export_bundle(channel, NODE, 0, 4, path).kept
        assert path.stat().st_mtime_ns == when
        path.write_bytes(whole[: len(whole) // 2])
        assert not export_bundle(channel, NODE, 0, 4, path).kept
        assert path.read_bytes() == whole
        path.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
        assert not export_bundle(channel, NODE, 0, 4, path).kept
        assert path.read_bytes() == whole
    assert [each.name for each in home.iterdir() if "tmp" in each.name] == []


def test_an_export_never_writes_over_something_else(home):
    path = home / "x.tar.zst"
    with open_channel(home, "ea.core") as channel:
        path.write_bytes(b"my thesis")
        with pytest.raises(Conflict):
            export_bundle(channel, NODE, 0, 1, path)
        path.unlink()
        export_bundle(channel, NODE, 0, 1, path)
        with pytest.raises(Conflict, match="blocks 0 to 1"):
            export_bundle(channel, NODE, 0, 2, path)
        with pytest.raises(RangeExceeded):
            export_bundle(channel, NODE, 0, 99, home / "y.tar.zst")


def test_chunks_cover_the_range_and_join(home):
    with open_channel(home, "ea.core") as channel:
        manifests = []
        for start, end in chunk_ranges(0, 4, 2):
            path = home / f"{start}.tar.zst"
            export_bundle(channel, NODE, start, end, path)
            assert verdict(path).ok
            manifests.append((inspect_bundle(path)[0], unpack(path)))
    for (one, _), (_, upper) in pairwise(manifests):
        first = parse_record(upper[HEADERS].split(b"\n")[0])
        assert first.header.prev_block_hash.hex() == one.block_hashes[-1]


def test_memory_stays_flat_while_blocks_stream_through(tmp_path):
    chance = random.Random(7)

    def peak(count):
        blocks, below = [], GENESIS
        for height in range(count):
            raws = [jcs.encode({"text": chance.randbytes(5_000).hex()}) for _ in range(30)]
            blocks.append(
                seal(
                    NODE, channel="ea.core", height=height, prev_block_hash=below,
                    envelopes=raws, timestamp_ns=NOON_NS,
                )
            )  # fmt: skip
            below = blocks[-1].hash
        tracemalloc.start()
        export_blocks(iter(blocks), NODE, tmp_path / f"{count}.tar.zst")
        assert verdict(tmp_path / f"{count}.tar.zst").ok
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    small, large = peak(4), peak(84)
    # Of each block headers and digests are kept, not envelopes; the packer holds a few megabytes, whatever the size.
    assert large - small < 80 * 300_000 / 3


# --- what is read ---


def test_verifying_opens_no_socket(bundle, monkeypatch):
    def no(*_args, **_kwargs):
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", no)
    monkeypatch.setattr(socket, "create_connection", no)
    monkeypatch.setattr(socket, "getaddrinfo", no)
    assert verdict(bundle, deep=True).ok


def test_verifying_writes_no_file(bundle, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert verdict(bundle).ok
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def flip(raw, at):
    return raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]


@pytest.mark.parametrize("name", [MANIFEST, SIGNATURE, HEADERS, BLOCK, PROOF])
def test_a_changed_byte_in_any_member_fails_the_signature_step(bundle, name):
    members = unpack(bundle)
    raw = members[name]
    for at in range(0, len(raw), max(1, len(raw) // 40)):
        pack(bundle, tar_of({**members, name: flip(raw, at)}))
        report = verdict(bundle)
        assert "bundle_signature" in failed(report), (name, at)
        assert not report.ok


def test_changed_envelope_fails_under_its_signer(bundle):
    members = unpack(bundle)
    lines = members[BLOCK].splitlines(keepends=True)
    lines[3] = observed(99).raw + b"\n"
    pack(bundle, tar_of(signed({**members, BLOCK: b"".join(lines)})))
    report = verdict(bundle)
    assert failed(report) == {"envelope_hashes", "merkle_paths"}
    hashes = report.steps[1]
    assert (hashes.fields["height"], hashes.fields["index"]) == (1, 3)


def test_a_changed_envelope_with_its_new_id_fails_the_paths(bundle):
    members = unpack(bundle)
    lines = members[BLOCK].splitlines()
    lines[3] = observed(99).raw
    ids = [envelope_id(raw) for raw in lines]
    forged = {**members, BLOCK: b"\n".join(lines) + b"\n", PROOF: prove_block(ids)[1]}
    pack(bundle, tar_of(signed(forged)))
    assert failed(verdict(bundle)) == {"merkle_paths"}


@pytest.mark.parametrize("act", ["drop", "double", "swap"])
def test_envelopes_dropped_doubled_or_swapped_are_found(bundle, act):
    members = unpack(bundle)
    lines = members[BLOCK].splitlines()
    if act == "drop":
        del lines[2]
    elif act == "double":
        lines.append(lines[-1])
    else:
        lines[0], lines[1] = lines[1], lines[0]
    forged = {
        **members,
        BLOCK: b"\n".join(lines) + b"\n",
        PROOF: prove_block([envelope_id(raw) for raw in lines])[1],
    }
    pack(bundle, tar_of(signed(forged)))
    assert failed(verdict(bundle)) == {"merkle_paths"}


@pytest.mark.parametrize(
    "edit",
    [
        lambda proof: {**proof, "index": proof["index"] + 1},
        lambda proof: {**proof, "path": proof["path"][::-1]},
        lambda proof: {**proof, "path": proof["path"][:-1]},
        lambda proof: {**proof, "path": [*proof["path"], "0" * 64]},
        lambda proof: {**proof, "path": ["0" * 64, *proof["path"][1:]]},
        lambda proof: {**proof, "path": ["xyz"]},
        lambda proof: {**proof, "path": None},
        lambda proof: {**proof, "more": 1},
        lambda proof: {**proof, "path": ["00" * 32] * 65},
    ],
)
def test_wrong_path_fails_only_the_paths(bundle, edit):
    members = unpack(bundle)
    lines = members[PROOF].splitlines()
    lines[1] = jcs.encode(edit(json.loads(lines[1])))
    pack(bundle, tar_of(signed({**members, PROOF: b"\n".join(lines) + b"\n"})))
    report = verdict(bundle)
    assert "merkle_paths" in failed(report) <= {"merkle_paths", "envelope_hashes"}
    assert report.steps[2].fields["height"] == 1


def test_an_id_that_is_not_the_envelopes_fails_the_hashes(bundle):
    members = unpack(bundle)
    lines = members[PROOF].splitlines()
    lines[1] = jcs.encode({**json.loads(lines[1]), "envelope_id": "0" * 64})
    pack(bundle, tar_of(signed({**members, PROOF: b"\n".join(lines) + b"\n"})))
    assert "envelope_hashes" in failed(verdict(bundle))


def test_bytes_that_are_not_canonical_fail_the_hashes(bundle):
    members = unpack(bundle)
    lines = members[BLOCK].splitlines()
    lines[0] = lines[0].replace(b'":', b'": ', 1)
    pack(bundle, tar_of(signed({**members, BLOCK: b"\n".join(lines) + b"\n"})))
    report = verdict(bundle)
    assert "envelope_hashes" in failed(report)
    assert "not canonical" in report.steps[1].detail


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("channel", "ea.other"),
        ("height", 7),
        ("prev_block_hash", "1" * 64),
        ("merkle_root", "1" * 64),
        ("timestamp", "1"),
        ("origin_identity", "1" * 64),
        ("integrity_proof", {"type": "snark"}),
        ("policy_hash", "1" * 64),
        ("envelope_count", 6),
        ("protocol_version", 2),
    ],
)
def test_an_edit_of_any_header_field_fails_the_block_signatures(bundle, member, value):
    members = unpack(bundle)
    lines = members[HEADERS].splitlines()
    record = json.loads(lines[1])
    record["header"][member] = value
    lines[1] = jcs.encode(record)
    pack(bundle, tar_of(signed({**members, HEADERS: b"\n".join(lines) + b"\n"})))
    report = verdict(bundle)
    assert "block_signatures" in failed(report)
    assert "bundle_signature" not in failed(report)


def test_a_dropped_or_doubled_header_fails_the_block_signatures(bundle):
    members = unpack(bundle)
    lines = members[HEADERS].splitlines(keepends=True)
    for wrong in (lines[:2], [*lines, lines[2]], [lines[0], lines[2], lines[1]]):
        pack(bundle, tar_of(signed({**members, HEADERS: b"".join(wrong)})))
        assert "block_signatures" in failed(verdict(bundle))


@pytest.mark.parametrize(
    ("change", "step"),
    [
        ({"range_root": "1" * 64}, "block_signatures"),
        ({"block_hashes": ["1" * 64] * 3}, "block_signatures"),
        ({"block_hashes": []}, "block_signatures"),
        ({"channel": "ea.other"}, "block_signatures"),
        ({"merkle_proofs": []}, "bundle_signature"),
        ({"files": []}, "bundle_signature"),
        ({"end_height": 1}, "bundle_signature"),
        ({"start_height": 1}, "block_signatures"),
        ({"start_height": 1, "end_height": 3}, "block_signatures"),
    ],
)
def test_a_manifest_that_lies_is_found(bundle, change, step):
    pack(bundle, tar_of(signed(unpack(bundle), **change)))
    assert step in failed(verdict(bundle))


def test_strangers_are_not_trusted(bundle):
    strange = Trust((ADA.public,), (ADA.public,))
    assert failed(verdict(bundle, strange)) == {"bundle_signature", "block_signatures"}
    assert failed(verdict(bundle, Trust((NODE.public,), ()))) == {"bundle_signature"}
    assert failed(verdict(bundle, Trust((), (NODE.public,)))) == {"block_signatures"}
    pack(bundle, tar_of(signed(unpack(bundle), ADA)))
    assert failed(verdict(bundle)) == {"bundle_signature"}


def test_policies_are_compared(tmp_path):
    with opened(tmp_path, policy=STRICT) as ledger:
        ledger.log.submit(observed(1).raw)
    path = tmp_path / "x.tar.zst"
    with open_channel(tmp_path, "ea.core") as channel:
        export_bundle(channel, NODE, 0, 0, path)
        assert statuses(verdict(path, channel.settings.trust()))["policy_hash"] == "passed"
    assert failed(verdict(path, replace(TRUST, policy_hash=bytes(32)))) == {"policy_hash"}
    assert statuses(verdict(path))["policy_hash"] == "not_checked"
    pack(path, tar_of(signed(unpack(path), policy_hash=None)))
    assert failed(verdict(path, replace(TRUST, policy_hash=STRICT.hash))) == {"policy_hash"}


def test_a_bundle_without_policy_does_not_pass_for_one_with(bundle):
    assert failed(verdict(bundle, replace(TRUST, policy_hash=STRICT.hash))) == {"policy_hash"}


def test_deep_also_judges_each_envelope(tmp_path):
    value = json.loads(observed(0).raw)
    value["event_type"] = "forged"
    block = seal(
        NODE, channel="ea.core", height=0, prev_block_hash=GENESIS,
        envelopes=[jcs.encode(value)], timestamp_ns=NOON_NS,
    )  # fmt: skip
    path = tmp_path / "x.tar.zst"
    export_blocks([block], NODE, path)
    assert verdict(path).ok
    assert failed(verdict(path, deep=True)) == {"envelope_rules"}


def test_what_a_policy_let_pass_is_not_checked_without_its_text(tmp_path):
    kept = observed(
        1,
        payload={"x": 1},
        detached={"locator": "file:///x"},
        confidentiality={"level": "restricted", "key_ref": "k"},
    )
    with opened(tmp_path, policy=STRICT) as ledger:
        ledger.log.submit(kept.raw)
    path = tmp_path / "x.tar.zst"
    with open_channel(tmp_path, "ea.core") as channel:
        export_bundle(channel, NODE, 0, 0, path)
        report = verdict(path, channel.settings.trust(), deep=True)
    assert report.ok and "not checked" in report.steps[5].detail


def test_with_the_text_of_the_policy_every_envelope_is_judged_by_it(tmp_path):
    rule = {
        "id": "form", "name": "form", "version": 1, "kind": "schema", "decision": "deny",
        "schema": {"required": ["n"], "properties": {"n": {"maximum": 7}}},
    }  # fmt: skip
    policy = replace(STRICT, rules=(rule,))
    sealed = [
        seal(
            NODE, channel="ea.core", height=0, prev_block_hash=GENESIS, policy_hash=policy.hash,
            envelopes=[observed(number, payload={"n": number}).raw], timestamp_ns=NOON_NS,
        )
        for number in (7, 8)
    ]  # fmt: skip
    good, bad = tmp_path / "good.tar.zst", tmp_path / "bad.tar.zst"
    for path, block in zip((good, bad), sealed, strict=True):
        export_blocks([block], NODE, path)
        assert verdict(path, deep=True).ok  # the text is not here
    assert verdict(good, policy=policy).ok
    found = verdict(bad, policy=policy)
    assert failed(found) == {"envelope_rules"}
    assert "/n: 8 is greater than the maximum of 7" in next(
        s.detail for s in found.steps if s.status == "failed"
    )
    assert failed(verdict(good, policy=STRICT)) == {"policy_hash"}
    with pytest.raises(Conflict, match="pins policy"):
        verdict(good, replace(TRUST, policy_hash=policy.hash), policy=STRICT)


# --- hostile containers ---


def test_what_is_no_bundle_is_said_to_be_none(tmp_path):
    path = tmp_path / "x"
    for raw in (b"", b"hello", b"PK\3\4", b"\x1f\x8b\x08"):
        path.write_bytes(raw)
        with pytest.raises(Invalid):
            verdict(path)
    for archive in (
        b"",
        b"hello" * 200,
        END,
        tar_of({"a": b"b"}),
        tar_of({MANIFEST: b"{}"}),
        tar_of({HEADERS: b""}),
    ):
        with pytest.raises(Invalid):
            verdict(pack(path, archive))
    with pytest.raises(NotFound):
        verdict(tmp_path / "nowhere")
    with pytest.raises(Invalid):
        verdict(tmp_path)


@pytest.mark.parametrize(
    "name", ["../x", "/etc/passwd", "blocks/../../x", "a\\..\\b", "./x", "a//b", ".hidden", "é"]
)
def test_names_that_lead_elsewhere_are_refused(bundle, name):
    archive = tar_of([*unpack(bundle).items(), (name, b"")])
    with pytest.raises(Invalid, match="name"):
        verdict(pack(bundle, archive))


@pytest.mark.parametrize(
    "kind",
    [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, b"x", b"L", b"S"],
)
def test_links_devices_and_extensions_are_refused(bundle, kind):
    def edit(info):
        if info.name == HEADERS:
            info.type, info.linkname = kind, "/etc/passwd"

    with pytest.raises(Invalid, match="not a regular file"):
        verdict(pack(bundle, tar_of(unpack(bundle), edit)))


def test_members_doubled_reordered_added_or_missing_are_found(bundle):
    members = list(unpack(bundle).items())
    wrongs = {
        "twice": [*members, members[-1]],
        "out of order": [*members[:3], members[4], members[3], *members[5:]],
        "not in the manifest": [*members, ("blocks/0000000009.jsonl", b"{}\n")],
        "missing": members[:-1],
    }
    for word, wrong in wrongs.items():
        report = verdict(pack(bundle, tar_of(wrong)))
        assert "bundle_signature" in failed(report), word
        assert word in report.steps[0].detail
    for number in range(2, len(members)):
        assert not verdict(pack(bundle, tar_of([*members[:number], *members[number + 1 :]]))).ok
    assert not verdict(pack(bundle, tar_of([members[0], *members[2:]]))).ok
    assert not verdict(pack(bundle, tar_of([*members[:2], members[0], *members[2:]]))).ok


def test_oversized_members_are_refused_before_they_are_read(tmp_path):
    members = unpack(export(tmp_path / "x.tar.zst"))
    front = {name: members[name] for name in (MANIFEST, SIGNATURE)}
    for name, size in ((MANIFEST, 65 << 20), (SIGNATURE, 2 << 10), (BLOCK, 5 << 20), (PROOF, 11 << 20)):
        before = [frame_member(*each) for each in front.items() if name in (BLOCK, PROOF) or name > each[0]]
        verifier = BundleVerifier(TRUST)
        with pytest.raises(TooLarge):
            verifier.feed(b"".join(before) + member_header(name, size))


def test_a_header_line_without_end_is_refused():
    verifier = BundleVerifier(TRUST)
    (block,) = chain_of_blocks(1)
    gathering = BundleBuilder()
    gathering.add(block)
    manifest = gathering.finish(NODE)
    front = gathering.front(manifest, NODE)
    verifier.feed(front[: front.index(HEADERS.encode() + b"\0")])
    with pytest.raises(TooLarge):
        verifier.feed(member_header(HEADERS, 1 << 30) + b"x" * 70_000)


def test_who_says_how_much_it_may_become_reads_what_packs_well(tmp_path):
    path = tmp_path / "much"
    pack(path, bytes(80 << 20))
    with pytest.raises(TooLarge) as refused:
        list(read_packed(path))
    assert "--max-bytes" in (refused.value.advice_now or "")
    assert sum(map(len, read_packed(path, UnpackLimits.said(100 << 20)))) == 80 << 20
    with pytest.raises(TooLarge):
        list(read_packed(path, UnpackLimits.said(70 << 20)))


def test_a_bomb_is_refused(tmp_path):
    path = tmp_path / "bomb"
    pack(path, bytes(100 << 20))
    with pytest.raises(TooLarge, match="bomb"):
        for _ in read_packed(path):
            pass
    with pytest.raises(TooLarge):
        verdict(export(path), limits=UnpackLimits(bytes_max=4096))


def test_trailing_bytes_and_second_frames_are_found(bundle):
    whole = bundle.read_bytes()
    for more in (b"x", whole, b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"):
        bundle.write_bytes(whole + more)
        report = verdict(bundle)
        assert failed(report) == {"bundle_signature"} and "follow" in report.steps[0].detail
    raw = zstandard.ZstdDecompressor().decompressobj().decompress(whole)
    report = verdict(pack(bundle, raw + b"x" * 512))
    assert "after its end" in report.steps[0].detail
    assert not verdict(pack(bundle, raw + bytes(4 << 20))).ok


def test_padding_holds_nothing(bundle):
    raw = bytearray(tar_of(unpack(bundle)))
    at = raw.index(b"\0" * 600)
    end = at + 300 - at % 512 if at % 512 else at
    raw[end] = 1
    assert not verdict(pack(bundle, bytes(raw))).ok


def test_a_bundle_cut_anywhere_never_passes(bundle):
    whole = bundle.read_bytes()
    for end in {*range(0, len(whole), 97), len(whole) - 1, len(whole) - 4}:
        bundle.write_bytes(whole[:end])
        try:
            report = verdict(bundle)
        except Invalid:
            assert end < 4
            continue
        assert "bundle_signature" in failed(report)
        assert "failed" not in {s.status for s in report.steps[1:3]} or report.steps[1].status != "passed"


def test_an_archive_cut_between_members_still_judges_what_it_holds(bundle):
    raw = zstandard.ZstdDecompressor().decompressobj().decompress(bundle.read_bytes())
    at = raw.index(b"proofs/0000000000.jsonl\0")
    report = verdict(pack(bundle, raw[:at]))
    assert "bundle_signature" in failed(report)
    assert statuses(report)["merkle_paths"] == "not_checked"


def test_each_flipped_byte_of_the_packed_file_is_found(bundle):
    whole = bundle.read_bytes()
    for at in range(4, len(whole), 41):
        bundle.write_bytes(flip(whole, at))
        with contextlib.suppress(Invalid, TooLarge):
            assert not verdict(bundle).ok, at


def test_manifests_of_another_form_are_refused():
    for raw in (b"[]", b"null", b'{"version":1}', b"{", b'{"a":1,"a":2}'):
        with pytest.raises(RopewalkError):
            parse_manifest(raw)


# --- fuzz ---

SMALL = None


def small_archive(tmp_path_factory):
    global SMALL
    if SMALL is None:
        path = export(tmp_path_factory.mktemp("fuzz") / "x.tar.zst", 2, 3)
        SMALL = zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes())
    return SMALL


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_no_edit_of_an_archive_passes_or_surprises(tmp_path_factory, data):
    raw = small_archive(tmp_path_factory)
    edited = bytearray(raw)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(edited) - 1))
        act = data.draw(st.sampled_from(["set", "cut", "insert", "copy"]))
        if act == "set":
            edited[at] = data.draw(st.integers(0, 255))
        elif act == "cut":
            del edited[at : at + data.draw(st.integers(1, 600))]
        elif act == "insert":
            edited[at:at] = data.draw(st.binary(min_size=1, max_size=40))
        else:
            edited[at:at] = edited[max(0, at - 512) : at]
        if not edited:
            break
    verifier = BundleVerifier(TRUST)
    step = data.draw(st.integers(1, 5000))
    try:
        for at in range(0, len(edited), step):
            verifier.feed(bytes(edited[at : at + step]))
        report = verifier.report()
    except (Invalid, Damaged):
        return
    # Owners, times and modes of members are not believed, so they may change; so may zeros at the end.
    if report.ok:
        assert contents(bytes(edited)) == contents(raw)


def contents(raw):
    return list(TarReader().feed(raw))


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=3000), st.integers(1, 700))
def test_the_tar_reader_survives_anything(raw, step):
    reader = TarReader()
    with contextlib.suppress(Invalid, Damaged):
        for at in range(0, len(raw), step):
            list(reader.feed(raw[at : at + step]))
        reader.finish()


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.from_regex(r"[a-z]{1,9}(/[a-z]{1,9})?", fullmatch=True), st.binary(max_size=1500))),
    st.integers(1, 3000),
)
def test_what_is_framed_is_read_in_any_pieces(files, step):
    raw = b"".join(member_header(name, len(each)) + each + padding(len(each)) for name, each in files) + END
    reader = TarReader()
    events: list[Any] = []
    for at in range(0, len(raw), step):
        events += reader.feed(raw[at : at + step])
    reader.finish()
    got: list[tuple[str, bytes]] = []
    for event in events:
        if isinstance(event, bytes):
            got[-1] = got[-1][0], got[-1][1] + event
        else:
            got.append((event.name, b""))
    assert got == files


@pytest.mark.parametrize(
    "identity", [5, {"identity_type": "ed25519", "public_key": 5}, {"identity_type": []}]
)
def test_odd_identity_does_not_stop_the_verifier(tmp_path, identity):
    """The list of a report names signers; what is no key there has no name."""
    raw = jcs.encode({"origin_identity": identity})
    block = seal(
        NODE, channel="ea.core", height=0, prev_block_hash=GENESIS, envelopes=[raw], timestamp_ns=NOON_NS
    )
    export_blocks(iter([block]), NODE, tmp_path / "odd.tar.zst")
    found = verify_bundle(tmp_path / "odd.tar.zst", Trust((NODE.public,), (NODE.public,)))
    assert [each.signer for each in found.listed] == [""]
