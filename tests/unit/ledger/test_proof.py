"""Proofs: a stranger accepts the true ones and no other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.ledger.making import ADA, NODE, observed, opened

from ropewalk.errors import InvalidProof, NotFound, ProofRefused, RopewalkError
from ropewalk.kernel import jcs
from ropewalk.kernel.note import note
from ropewalk.ledger.channel.channel import open_channel
from ropewalk.ledger.envelope.envelope import parse
from ropewalk.ledger.ingest.ports import IngestLimits
from ropewalk.ledger.proof.proof import (
    head_signer,
    parse_consistency,
    parse_proof,
    parse_range,
    range_root,
    signed_head,
    verify_proof,
)
from ropewalk.ledger.proof.trust import Trust
from ropewalk.ledger.rules.policy import STRICT

TRUST = Trust((NODE.public,), ())


@pytest.fixture(scope="module")
def channel(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    with opened(home, limits=IngestLimits(block_envelopes=77)) as ledger:
        ledger.log.submit_many(observed(i).raw for i in range(400))
    with open_channel(home, "ea.core") as reading:
        yield reading


def test_every_envelope_can_be_proved_and_the_file_survives(channel):
    for block in channel.blocks():
        for index, raw in enumerate(block.envelopes):
            proof = channel.prove(parse(raw).id)
            assert (proof.height, proof.index) == (block.height, index)
            again = parse_proof(proof.to_bytes())
            assert again == proof
            report = verify_proof(again, TRUST)
            assert report.ok, report


def statuses(report: Any) -> dict[str, str]:
    return {step.name: step.status for step in report.steps}


def test_signer_is_unchecked_without_trust(channel):
    proof = channel.prove(observed(5).id)
    assert statuses(verify_proof(proof))["block_signer"] == "not_checked"
    assert statuses(verify_proof(proof, TRUST))["block_signer"] == "passed"
    assert statuses(verify_proof(proof, Trust((ADA.public,), ())))["block_signer"] == "failed"
    assert statuses(verify_proof(proof, Trust((NODE.public,), (), STRICT.hash)))["policy_hash"] == "failed"


def test_a_wrong_index_size_path_envelope_or_block_fails_its_step(channel):
    proof = channel.prove(observed(5).id)
    other = channel.prove(observed(6).id)
    for index in (0, 4, 6, 76, 77):
        assert statuses(verify_proof(replace(proof, index=index)))["merkle_path"] == "failed"
    for path in ((), proof.path[:-1], (*proof.path, bytes(32)), (bytes(32), *proof.path[1:]), other.path):
        assert statuses(verify_proof(replace(proof, path=path)))["merkle_path"] == "failed"
    assert statuses(verify_proof(replace(proof, envelope=other.envelope)))["envelope_hash"] == "failed"
    assert statuses(verify_proof(replace(proof, height=9)))["envelope_hash"] == "failed"
    smaller = replace(proof.block, header=replace(proof.block.header, envelope_count=5))
    assert statuses(verify_proof(replace(proof, block=smaller)))["merkle_path"] == "failed"
    assert statuses(verify_proof(replace(proof, block=smaller)))["block_signature"] == "failed"


def test_every_flipped_byte_of_a_proof_is_noticed(channel, flip_step):
    raw = channel.prove(observed(3).id).to_bytes()
    for position in range(0, len(raw), flip_step):
        flipped = raw[:position] + bytes([raw[position] ^ 1]) + raw[position + 1 :]
        try:
            ok = verify_proof(parse_proof(flipped), TRUST).ok
        except RopewalkError as error:
            assert error.exit_code in (5, 8)
            continue
        assert not ok, f"byte {position}"


@pytest.mark.parametrize("raw", [b"", b"{}", b"[]", b'{"version":1}', b"\xff"])
def test_what_is_no_proof_is_refused_as_input(raw):
    with pytest.raises(InvalidProof):
        parse_proof(raw)


def test_an_unknown_envelope_has_no_proof(channel):
    with pytest.raises(NotFound):
        channel.prove(bytes(32))


def test_ranges_of_blocks_are_proved_under_the_outer_root(channel):
    last = channel.head().height - 1
    for start in range(last + 1):
        for end in range(start, last + 1):
            statement = parse_range(channel.prove_range(start, end).to_bytes())
            statement.verify()
            assert list(statement.block_hashes) == [b.hash for b in channel.blocks(start, end)]
    statement = channel.prove_range(1, 3)
    shifted = replace(statement, start=2)
    dropped = replace(statement, block_hashes=statement.block_hashes[:-1])
    swapped = replace(statement, block_hashes=statement.block_hashes[::-1])
    for wrong in (shifted, dropped, swapped, replace(statement, size=9), replace(statement, root=bytes(32))):
        with pytest.raises((ProofRefused, InvalidProof)):
            wrong.verify()
    whole = channel.prove_range(0, last)
    assert whole.root == range_root([b.hash for b in channel.blocks()])


def test_a_newer_head_is_shown_to_extend_an_older_one(channel):
    size = channel.head().height
    for old in range(size + 1):
        proof = parse_consistency(channel.prove_consistency(old, size).to_bytes())
        proof.verify()
        if 0 < old < size:
            with pytest.raises((ProofRefused, InvalidProof)):
                replace(proof, old_root=bytes(32)).verify()
            with pytest.raises((ProofRefused, InvalidProof)):
                replace(proof, old=old + 1).verify()


def test_the_signed_head_is_a_note_over_the_tree_of_headers(channel):
    from ropewalk.kernel import merkle

    size, root = channel.header_head()
    leaves = [merkle.SHA256.leaf(b.header.encode()) for b in channel.blocks()]
    assert (size, root) == (len(leaves), merkle.root(leaves, merkle.SHA256))
    raw = signed_head("example.org", "ea.core", size, root, NODE)
    head, _ = note.open_head(raw, head_signer("example.org", "ea.core", NODE).verifier)
    assert (head.origin, head.size, head.root) == ("example.org/ea.core", size, root)


def test_the_file_is_canonical_and_has_the_members_of_the_contract(channel):
    raw = channel.prove(observed(3).id).to_bytes()
    value: Any = jcs.parse_canonical(raw)
    assert set(value) == {"version", "envelope", "envelope_id", "height", "index", "path", "block"}
    assert set(value["block"]) == {"header", "signature", "signer"} and len(value["block"]["header"]) == 10
