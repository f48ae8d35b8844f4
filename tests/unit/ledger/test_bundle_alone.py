"""Bundles that are wrong in one thing only, by a signer who lies: no other check would notice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.ledger.bundling import TRUST as BUNDLES
from tests.unit.ledger.bundling import export, failed, pack, signed, tar_of, unpack, verdict
from tests.unit.ledger.making import (
    ADA,
    NODE,
    NOON_NS,
    chain_of_blocks,
    observed,
)

from ropewalk.errors import (
    Damaged,
    DigestMismatch,
    Invalid,
    RangeExceeded,
    TooLarge,
)
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import Tag
from ropewalk.kernel.keys import Signature
from ropewalk.ledger.block.block import (
    GENESIS,
    Block,
    seal,
)
from ropewalk.ledger.bundle.files import chunk_ranges, export_blocks
from ropewalk.ledger.bundle.format import HEADERS, MANIFEST, SIGNATURE, BundleBuilder
from ropewalk.ledger.bundle.manifest import BUNDLE_BLOCKS_MAX, parse_manifest
from ropewalk.ledger.bundle.members import MANIFEST_BYTES_MAX, ManifestReader, parse_proof_line
from ropewalk.ledger.bundle.tar import TarReader, member_header
from ropewalk.ledger.rules.policy import STRICT

# --- bundles ---


def test_a_manifest_signed_under_another_algorithm_s_name_is_refused(tmp_path):
    path = export(tmp_path / "x.tar.zst")
    members = unpack(path)
    value: Any = jcs.parse(members[SIGNATURE])
    pack(path, tar_of({**members, SIGNATURE: jcs.encode({**value, "alg": "p256"})}))
    assert failed(verdict(path)) == {"bundle_signature"}


def test_bundle_seal_of_another_key_fails(tmp_path):
    """The header is whole, and its hash is the one listed; only its seal was made with another key."""
    path = export(tmp_path / "x.tar.zst")
    members = unpack(path)
    first, *rest = members[HEADERS].splitlines(keepends=True)
    record: Any = jcs.parse(first)
    forged = Signature(ADA.alg, ADA.sign(Tag.BLOCK + jcs.encode(record["header"])))
    line = jcs.encode({**record, "signature": forged.to_json()}) + b"\n"
    pack(path, tar_of(signed({**members, HEADERS: b"".join((line, *rest))})))
    assert failed(verdict(path)) == {"block_signatures"}


@pytest.mark.parametrize("size", [None, 1, 2, 3, 4, 9])
@pytest.mark.parametrize("end", range(5, 15))
def test_chunk_ranges_cover_every_block(end, size):
    found = list(chunk_ranges(5, end, size))
    assert [height for first, last in found for height in range(first, last + 1)] == list(range(5, end + 1))


def test_the_manifest_says_the_size_of_every_file(tmp_path):
    path = export(tmp_path / "x.tar.zst")
    members = unpack(path)
    files: Any = jcs.parse(members[MANIFEST])
    listed = [{**each, "bytes": each["bytes"] + (number == 2)} for number, each in enumerate(files["files"])]
    pack(path, tar_of(signed(members)))
    assert verdict(path).ok
    pack(path, tar_of(signed(members, files=listed)))
    assert failed(verdict(path)) == {"bundle_signature"}


@pytest.mark.parametrize("act", ["turn", "add"])
def test_manifest_lists_only_files_of_its_range(tmp_path, act):
    path = export(tmp_path / "x.tar.zst")
    members = unpack(path)
    manifest: Any = jcs.parse(members[MANIFEST])
    files = manifest["files"]
    more = {"name": "blocks/0000000099.jsonl", "blake3": "0" * 64, "bytes": 0}
    pack(path, tar_of(signed(members, files=files[::-1] if act == "turn" else [*files, more])))
    assert failed(verdict(path)) == {"bundle_signature"}


def bundle_of(path: Path, *policies: bytes | None, below: bytes = GENESIS) -> Path:
    """A bundle of linked blocks, one for each policy they were made under."""
    blocks: list[Block] = []
    for height, policy_hash in enumerate(policies):
        blocks.append(
            seal(
                NODE,
                channel="ea.core",
                height=height,
                prev_block_hash=blocks[-1].hash if blocks else below,
                envelopes=[observed(height).raw],
                timestamp_ns=NOON_NS,
                policy_hash=policy_hash,
            )
        )
    export_blocks(blocks, NODE, path)
    return path


def test_a_manifest_that_names_another_policy_is_found_by_who_pins_none(tmp_path):
    path = bundle_of(tmp_path / "x.tar.zst", STRICT.hash)
    assert verdict(path).ok
    pack(path, tar_of(signed(unpack(path), policy_hash="11" * 32)))
    assert failed(verdict(path)) == {"policy_hash"}


def test_every_block_is_held_to_the_policy_and_not_only_the_last(tmp_path):
    pinned = replace(BUNDLES, policy_hash=STRICT.hash)
    assert verdict(bundle_of(tmp_path / "all.tar.zst", STRICT.hash, STRICT.hash), pinned).ok
    assert failed(verdict(bundle_of(tmp_path / "last.tar.zst", None, STRICT.hash), pinned)) == {"policy_hash"}


def test_only_the_first_block_stands_on_nothing(tmp_path):
    path = bundle_of(tmp_path / "x.tar.zst", None, below=bytes([1] * 32))
    assert failed(verdict(path)) == {"block_signatures"}


def test_nothing_may_follow_the_last_header(tmp_path):
    path = export(tmp_path / "x.tar.zst")
    members = unpack(path)
    pack(path, tar_of(signed({**members, HEADERS: members[HEADERS] + b"x"})))
    assert failed(verdict(path)) == {"block_signatures"}


@pytest.mark.parametrize("act", ["drop", "swap"])
def test_proofs_stand_one_for_each_envelope_and_in_their_order(tmp_path, act):
    path = export(tmp_path / "x.tar.zst")
    members = unpack(path)
    name = "proofs/0000000001.jsonl"
    lines = members[name].splitlines(keepends=True)
    lines = lines[:-1] if act == "drop" else [lines[1], lines[0], *lines[2:]]
    pack(path, tar_of(signed({**members, name: b"".join(lines)})))
    assert failed(verdict(path)) == {"envelope_hashes", "merkle_paths"}


def tar_record(**fields: bytes) -> bytes:
    """The header of an archive's member, with some of its fields replaced and the checksum made to fit unless given."""
    places = {"size": (124, 136), "sum": (148, 156), "magic": (257, 263)}
    record = bytearray(member_header("headers.jsonl", 0))
    for name, raw in fields.items():
        start, end = places[name]
        record[start:end] = raw.ljust(end - start, b"\0")
    if "sum" not in fields:
        total = sum(record[:148]) + 8 * 32 + sum(record[156:])
        record[148:156] = b"%06o\0 " % total
    return bytes(record)


@pytest.mark.parametrize(
    "record",
    [
        tar_record(sum=b"000001\0 "),
        tar_record(magic=b"gnu"),
        tar_record(size=b"\x80" + bytes(11)),
        tar_record(size=b"9"),
        tar_record(size=b""),
    ],
    ids=["checksum", "magic", "binary size", "no octal", "no size"],
)
def test_a_member_s_header_has_one_form(record):
    assert list(TarReader().feed(tar_record()))
    with pytest.raises((Damaged, Invalid)):
        list(TarReader().feed(record))


def test_padding_holds_nothing():
    archive = bytearray(tar_of({"headers.jsonl": b"x"}))
    assert list(TarReader().feed(bytes(archive[:1024])))
    archive[600] = 1
    with pytest.raises(Damaged, match="padding"):
        list(TarReader().feed(bytes(archive[:1024])))


@pytest.mark.parametrize("wrong", ["ab" * 31, "ab" * 33, "", "zz" * 32, "AB" * 32, "ab " * 32])
def test_a_line_of_proofs_holds_whole_hashes(wrong):
    good = {"envelope_id": "ab" * 32, "index": 0, "path": ["cd" * 32]}
    assert parse_proof_line(jcs.encode(good))[1] == 0
    changes: tuple[dict[str, Any], ...] = ({"envelope_id": wrong}, {"path": [wrong]})
    for change in changes:
        with pytest.raises(Invalid, match="64 lowercase hex digits"):
            parse_proof_line(jcs.encode({**good, **change}))


def test_a_manifest_is_read_from_the_front_of_a_bundle_and_nowhere_else(tmp_path):
    members = unpack(export(tmp_path / "x.tar.zst"))
    whole = ManifestReader()
    whole.feed(tar_of(members))
    assert whole.done and whole.manifest()[0].channel == "ea.core"
    turned = {SIGNATURE: members[SIGNATURE], MANIFEST: members[MANIFEST]}
    with pytest.raises(Invalid, match="begins with"):
        ManifestReader().feed(tar_of(turned))
    without = {name: raw for name, raw in members.items() if name != SIGNATURE}
    with pytest.raises(Invalid, match="begins with"):
        ManifestReader().feed(tar_of(without))
    cut = ManifestReader()
    cut.feed(tar_of({MANIFEST: members[MANIFEST]}))
    with pytest.raises(Invalid, match="ends before"):
        cut.manifest()


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"more": 1}, "exactly"),
        ({"version": 2}, "version"),
        ({"version": True}, "version"),
        ({"start_height": 3}, "heights 3 to 2"),
        ({"end_height": BUNDLE_BLOCKS_MAX}, "at most"),
        ({"end_height": -1}, "natural number"),
        ({"start_height": True}, "natural number"),
        ({"channel": None}, "must be strings"),
        ({"created_at": 5}, "must be strings"),
        ({"policy_hash": "AB" * 32}, "64 lowercase hex"),
        ({"range_root": "ab"}, "64 lowercase hex"),
        ({"block_hashes": [None]}, "64 lowercase hex"),
        ({"block_hashes": {}}, "must be a list"),
        ({"files": {}}, "must be a list"),
        ({"files": [{"name": "x", "blake3": "ab" * 32}]}, "files must have"),
        ({"merkle_proofs": [5]}, "must hold strings"),
        ({"payload_refs": [{}]}, "payload_refs must have"),
        ({"payload_refs": [5]}, "payload_refs must have"),
    ],
)
def test_malformed_manifest_names_its_fault(tmp_path, change, word):
    raw = unpack(export(tmp_path / "x.tar.zst"))[MANIFEST]
    value: Any = jcs.parse(raw)
    assert parse_manifest(raw).to_bytes() == raw
    with pytest.raises(Invalid, match=word):
        parse_manifest(jcs.encode({**value, **change}))


def test_a_manifest_larger_than_any_is_not_gathered():
    header = member_header(MANIFEST, MANIFEST_BYTES_MAX + 1)
    with pytest.raises(TooLarge):
        ManifestReader().feed(header)


def test_a_block_whose_envelopes_are_others_is_not_exported():
    block = chain_of_blocks(1)[0]
    BundleBuilder().add(block)
    with pytest.raises(DigestMismatch, match="do not match its header"):
        BundleBuilder().add(replace(block, envelopes=(*block.envelopes[:-1], observed(99).raw)))


def test_no_more_blocks_are_gathered_than_a_manifest_may_name(monkeypatch):
    monkeypatch.setattr("ropewalk.ledger.bundle.format.BUNDLE_BLOCKS_MAX", 2)
    gathering, blocks = BundleBuilder(), chain_of_blocks(3)
    for block in blocks[:2]:
        gathering.add(block)
    with pytest.raises(RangeExceeded, match="at most 2 blocks"):
        gathering.add(blocks[2])


@pytest.mark.parametrize("line", [b"[]", b"7", b"null", b'"x"'])
def test_a_line_that_is_no_object_is_a_finding_and_no_envelope(tmp_path, line):
    path = export(tmp_path / "x.tar.zst")
    members = unpack(path)
    name = "blocks/0000000001.jsonl"
    rest = members[name].splitlines(keepends=True)[1:]
    pack(path, tar_of(signed({**members, name: b"".join([line + b"\n", *rest])})))
    report = verdict(path)
    assert "envelope_hashes" in failed(report)
    assert "an envelope must be a JSON object" in next(
        step.detail for step in report.steps if step.name == "envelope_hashes"
    )
