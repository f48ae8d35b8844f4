"""The header tree as tiles: every hash where a client looks for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.ledger.making import ADA, NODE, observed, opened

from ropewalk.errors import InvalidProof, NotFound, TooLarge
from ropewalk.kernel import jcs, merkle
from ropewalk.kernel.note import note
from ropewalk.ledger.channel.channel import open_channel
from ropewalk.ledger.channel.settings import create_channel
from ropewalk.ledger.proof.proof import head_signer
from ropewalk.ledger.transparency.head_check import HeadTrust
from ropewalk.ledger.transparency.publish import make_tlog_proof, publish_tiles
from ropewalk.ledger.transparency.tiles import (
    Tile,
    TlogProof,
    encode_entries,
    hash_tile,
    parse_tlog_proof,
    tile_path,
    tiles_of,
)
from ropewalk.ledger.transparency.tlog_check import check_tlog_proof


@pytest.mark.parametrize(
    ("tile", "path"),
    [
        (Tile(0, 0, 256), "tile/0/000"),
        (Tile(1, 7, 3), "tile/1/007.p/3"),
        (Tile(0, 1000, 256), "tile/0/x001/000"),
        (Tile(0, 1234067, 256), "tile/0/x001/x234/067"),
        (Tile(None, 999, 256), "tile/entries/999"),
        (Tile(None, 1234067, 12), "tile/entries/x001/x234/067.p/12"),
    ],
)
def test_paths_are_those_of_the_specification(tile, path):
    assert tile_path(tile) == path


@pytest.mark.parametrize("size", [1, 2, 255, 256, 257, 511, 512, 70_000])
def test_tiles_hold_every_complete_node_at_their_heights(size):
    leaves = [merkle.SHA256.leaf(number.to_bytes(4, "big")) for number in range(size)]
    tree = merkle.MerkleTree(leaves, merkle.SHA256)
    found: dict[int, bytes] = {}
    for tile in tiles_of(size):
        if tile.level is not None:
            assert len(found.setdefault(tile.level, b"")) == 32 * tile.start
            found[tile.level] += hash_tile(tree, tile)
    assert found[0] == b"".join(leaves)
    for level, raw in found.items():
        assert len(raw) // 32 == size >> (8 * level)
        if level:
            below = found[level - 1]
            for place in range(len(raw) // 32):
                run = below[place * 8192 : (place + 1) * 8192]
                parts = [run[at : at + 32] for at in range(0, 8192, 32)]
                assert raw[place * 32 : (place + 1) * 32] == merkle.root(parts, merkle.SHA256)
    entries = [tile for tile in tiles_of(size) if tile.level is None]
    assert sum(tile.width for tile in entries) == size


def test_entries_have_their_lengths_before_them():
    assert encode_entries([b"", b"abc"]) == b"\0\0\0\3abc"
    with pytest.raises(TooLarge):
        encode_entries([bytes(65_536)])


def test_a_channel_is_published_and_grows(tmp_path):
    folder = tmp_path / "public"
    with opened(tmp_path) as ledger:
        for number in range(3):
            ledger.log.submit(observed(number).raw)
    with open_channel(tmp_path, "ea.core") as channel:
        first = publish_tiles(channel, NODE, "log.example", folder)
        assert (first.size, first.written, first.kept) == (3, 2, 0)
        assert publish_tiles(channel, NODE, "log.example", folder).kept == 2
    with opened(tmp_path) as ledger:
        ledger.log.submit(observed(3).raw)
    with open_channel(tmp_path, "ea.core") as channel:
        assert publish_tiles(channel, NODE, "log.example", folder).written == 2
        headers = [block.header.encode() for block in channel.blocks()]
        verifier = head_signer("log.example", "ea.core", NODE).verifier
        head, _ = note.open_head((folder / "checkpoint").read_bytes(), verifier)
        assert (head.origin, head.size) == ("log.example/ea.core", 4)
        assert (folder / "tile/entries/000.p/4").read_bytes() == encode_entries(headers)
        hashes = (folder / "tile/0/000.p/4").read_bytes()
        leaves = [hashes[at : at + 32] for at in range(0, 128, 32)]
        assert leaves == [merkle.SHA256.leaf(header) for header in headers]
        assert merkle.root(leaves, merkle.SHA256) == head.root


def test_an_empty_channel_is_not_published(tmp_path):
    create_channel(tmp_path, "ea.core", "node", NODE.public)
    with open_channel(tmp_path, "ea.core") as channel, pytest.raises(NotFound):
        publish_tiles(channel, NODE, "log.example", tmp_path / "public")


def test_a_tlog_proof_leads_from_the_envelope_to_the_signed_head(tmp_path):
    with opened(tmp_path) as ledger:
        receipts = [ledger.log.submit(observed(number).raw) for number in range(6)]
    with open_channel(tmp_path, "ea.core") as channel:
        raw = make_tlog_proof(channel, receipts[4].envelope_id, NODE, "log.example")
    proof = parse_tlog_proof(raw)
    assert proof.to_bytes() == raw
    extra: Any = jcs.parse(proof.extra)
    header = jcs.encode(extra["header"])
    head, _ = note.open_head(proof.head, head_signer("log.example", "ea.core", NODE).verifier)
    merkle.verify_inclusion(
        merkle.SHA256.leaf(header), proof.index, head.size, proof.path, head.root, merkle.SHA256
    )
    merkle.verify_inclusion(
        receipts[4].envelope_id,
        extra["index"],
        extra["header"]["envelope_count"],
        [bytes.fromhex(each) for each in extra["path"]],
        bytes.fromhex(extra["header"]["merkle_root"]),
    )


SIGNED = HeadTrust(signers=(NODE.public,))


def tlog_proof(home, key=NODE):
    """A proof file, and the envelope that it is about."""
    sent = [observed(number) for number in range(6)]
    with opened(home) as ledger:
        ledger.log.submit_many(each.raw for each in sent)
        ledger.log.submit(observed(7).raw)
    with open_channel(home, "ea.core") as channel:
        return make_tlog_proof(channel, sent[4].id, key, "log.example"), sent[4]


def test_tlog_proof_passes_every_step(tmp_path):
    raw, envelope = tlog_proof(tmp_path)
    report = check_tlog_proof(raw, envelope, SIGNED)
    assert [(step.name, step.status) for step in report.steps] == [
        ("envelope", "passed"),
        ("inclusion", "passed"),
        ("checkpoint", "passed"),
        ("log_signature", "passed"),
        ("witnesses", "not_checked"),
    ]
    untrusted = {step.name: step.status for step in check_tlog_proof(raw, None, HeadTrust()).steps}
    assert (untrusted["envelope"], untrusted["log_signature"]) == ("not_checked", "not_checked")


def test_tlog_proof_of_something_else_fails(tmp_path):
    raw, envelope = tlog_proof(tmp_path)
    strangers = HeadTrust(signers=(ADA.public,))
    for one, trust, wrong in ((observed(3), SIGNED, "envelope"), (envelope, strangers, "log_signature")):
        steps = check_tlog_proof(raw, one, trust).steps
        assert {step.name for step in steps if step.status == "failed"} == {wrong}


@pytest.mark.parametrize(
    "change",
    [
        lambda said: said.update(envelope_id="00" * 32),
        lambda said: said.update(index=3),
        lambda said: said.update(path=said["path"][:-1]),
        lambda said: said.update(path=["00" * 32, *said["path"][1:]]),
        lambda said: said.update(path=["x"]),
        lambda said: said["header"].update(envelope_count=5),
        lambda said: said["header"].update(height=1),
        lambda said: said["header"].update(channel="other"),
        lambda said: said["header"].update(timestamp="1"),
        lambda said: said["header"].pop("merkle_root"),
    ],
)
def test_changed_tlog_proof_fails_inclusion(tmp_path, change):
    proof = parse_tlog_proof(tlog_proof(tmp_path)[0])
    said: Any = jcs.parse(proof.extra)
    change(said)
    report = check_tlog_proof(replace(proof, extra=jcs.encode(said)).to_bytes(), None, SIGNED)
    assert {step.name for step in report.steps if step.status == "failed"} == {"inclusion"}


@pytest.mark.parametrize("extra", [b"", b"[]", b"{}", b'{"envelope_id":"x","header":{},"index":0,"path":[]}'])
def test_tlog_proof_without_its_extra_is_refused(tmp_path, extra):
    proof = parse_tlog_proof(tlog_proof(tmp_path)[0])
    with pytest.raises(InvalidProof):
        check_tlog_proof(replace(proof, extra=extra).to_bytes(), None, SIGNED)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"c2sp.org/tlog-proof@v1\n",
        b"c2sp.org/tlog-proof@v2\nindex 0\n\nx\n",
        b"c2sp.org/tlog-proof@v1\nindex -1\n\nx\n",
        b"c2sp.org/tlog-proof@v1\nindex 01\n\nx\n",
        b"c2sp.org/tlog-proof@v1\nindex x\n\nx\n",
        b"c2sp.org/tlog-proof@v1\nextra !\nindex 0\n\nx\n",
        b"c2sp.org/tlog-proof@v1\nindex 0\nAAAA\n\nx\n",
        b"c2sp.org/tlog-proof@v1\nextra AA==\n\nx\n",
    ],
)
def test_other_forms_are_refused(raw):
    with pytest.raises(InvalidProof):
        parse_tlog_proof(raw)


def test_extra_may_be_missing():
    assert parse_tlog_proof(TlogProof(0, (), b"h\n").to_bytes()).extra == b""
