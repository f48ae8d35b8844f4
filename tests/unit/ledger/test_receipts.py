"""COSE receipts: ours, checked by a stranger's library and by our own verifier."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import cbor2
import pytest
import scitt_cose
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.ledger.making import ADA, NODE, P256, SECP, chain_of_blocks, observed, opened

from ropewalk.errors import InvalidProof, ProofRefused, RopewalkError, SigInvalid
from ropewalk.kernel import merkle
from ropewalk.kernel.report import Step
from ropewalk.ledger.channel.channel import open_channel
from ropewalk.ledger.envelope.envelope import parse_stored
from ropewalk.ledger.transparency.publish import make_cose_receipt
from ropewalk.ledger.transparency.receipts import check_receipt, make_receipt, parse_receipt, verify_receipt

BLOCKS = chain_of_blocks(7, 5)
TREE = merkle.MerkleTree((merkle.SHA256.leaf(block.header.encode()) for block in BLOCKS), merkle.SHA256)


def receipt(height=3, index=2, key=NODE, **changes):
    block = BLOCKS[height]
    ids = [parse_stored(raw).id for raw in block.envelopes]
    options = {
        "origin": "log.example/ea.core",
        "envelope_id": ids[index],
        "header": block.header,
        "index": index,
        "inner_path": merkle.inclusion_proof(ids, index),
        "size": TREE.size,
        "path": TREE.inclusion(height),
        "root": TREE.root(),
        **changes,
    }
    return make_receipt(key, **options), parse_stored(block.envelopes[index])


def pem(public):
    if public.alg == "ed25519":
        key: Any = ed25519.Ed25519PublicKey.from_public_bytes(public.raw)
    else:
        key = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), public.raw)
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


@pytest.mark.parametrize("key", [NODE, P256], ids=["ed25519", "p256"])
@pytest.mark.parametrize("height", range(7))
def test_a_stranger_verifies_our_receipt(height, key):
    raw, envelope = receipt(height, key=key)
    entry = BLOCKS[height].header.encode().hex()
    result = scitt_cose.verify_receipt(raw, leaf_entry_hex=entry, log_public_key_pem=pem(key.public))
    assert result.ok, result.errors
    assert (result.tree_size, result.leaf_index, result.root) == (7, height, TREE.root().hex())
    assert (result.issuer, result.subject) == ("log.example/ea.core", envelope.hex_id)
    other = BLOCKS[(height + 1) % 7].header.encode().hex()
    assert not scitt_cose.verify_receipt(raw, leaf_entry_hex=other, log_public_key_pem=pem(key.public)).ok
    assert not scitt_cose.verify_receipt(raw, leaf_entry_hex=entry, log_public_key_pem=pem(ADA.public)).ok


@pytest.mark.parametrize("key", [NODE, P256, SECP], ids=["ed25519", "p256", "secp256k1"])
def test_our_verifier_goes_all_the_way_to_the_envelope(key):
    for height, index in ((0, 0), (3, 4), (6, 2)):
        raw, envelope = receipt(height, index, key)
        assert verify_receipt(raw, envelope, key.public).height == height
        with pytest.raises(SigInvalid):
            verify_receipt(raw, envelope, ADA.public) if key is NODE else verify_receipt(
                receipt(height, index, type(key).generate(key.alg, b"\7" * 32))[0], envelope, key.public
            )


def test_receipts_that_lead_elsewhere_are_refused():
    raw, envelope = receipt()
    with pytest.raises(ProofRefused, match="about"):
        verify_receipt(raw, observed(99), NODE.public)
    with pytest.raises(ProofRefused):
        verify_receipt(raw, envelope, P256.public)
    for change in (
        {"index": 1},
        {"inner_path": (bytes(32), bytes(32), bytes(32))},
        {"header": BLOCKS[2].header},
        {"path": (bytes(32),) * 3},
        {"path": ()},
        # Not 8, which has the same shape: a path proves the place, and the size only as far as it shapes the path.
        {"size": 9},
        {"root": bytes(32)},
    ):
        wrong, _ = receipt(**change)
        with pytest.raises((ProofRefused, InvalidProof, SigInvalid)):
            verify_receipt(wrong, envelope, NODE.public)


def test_forms_that_are_not_ours_are_refused():
    raw, _ = receipt()
    outer = cbor2.loads(raw)
    protected, unprotected, _, signature = outer.value

    def again(*parts, tag=18):
        return cbor2.dumps(cbor2.CBORTag(tag, list(parts)), canonical=True)

    for wrong in (
        b"",
        b"\xf6",
        raw + b"\0",
        raw[:-1],
        again(protected, unprotected, None, signature, tag=17),
        again(protected, unprotected, b"attached", signature),
        again(protected, unprotected, None),
        again(b"\xa0", unprotected, None, signature),
        again(
            cbor2.dumps({1: -8, 4: b"", 15: {1: "a", 2: "b"}, 395: 2}, canonical=True),
            unprotected,
            None,
            signature,
        ),
        again(protected, {}, None, signature),
        again(protected, {396: {}, "inner": {}}, None, signature),
        again(protected, {396: {-1: [b"\x80"]}, "inner": {}}, None, signature),
        again(protected, {**unprotected, 1: 2}, None, signature),
        b"\xd2\x9f" + raw[2:],
        b"x" * ((1 << 20) + 1),
    ):
        with pytest.raises(InvalidProof):
            parse_receipt(wrong)


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_no_changed_byte_survives_but_the_size_which_nobody_signs(data):
    """COSE signs the root alone, and a path has one shape in trees of several sizes: the size is only said."""
    raw, envelope = receipt()
    honest = verify_receipt(raw, envelope, NODE.public)
    at = data.draw(st.integers(0, len(raw) - 1))
    wrong = raw[:at] + bytes([raw[at] ^ data.draw(st.integers(1, 255))]) + raw[at + 1 :]
    try:
        found = verify_receipt(wrong, envelope, NODE.public)
    except RopewalkError:
        return
    assert found.size != honest.size and replace(found, size=honest.size) == honest


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=200))
def test_the_parser_survives_anything(raw):
    with pytest.raises(InvalidProof):
        parse_receipt(raw)


def test_a_channel_gives_receipts(tmp_path):
    with opened(tmp_path) as ledger:
        receipts = [ledger.log.submit(observed(number).raw) for number in range(5)]
    with open_channel(tmp_path, "ea.core") as channel:
        for each in receipts:
            raw = make_cose_receipt(channel, each.envelope_id, NODE, "log.example")
            envelope = channel.envelope(each.envelope_id)
            assert verify_receipt(raw, envelope, NODE.public).size == 5
            header = channel.prove(each.envelope_id).block.header
            assert scitt_cose.verify_receipt(
                raw, leaf_entry_hex=header.encode().hex(), log_public_key_pem=pem(NODE.public)
            ).ok


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"path": (b"x" * 31,)}, "32 bytes"),
        ({"inner_path": (b"x" * 33,)}, "32 bytes"),
        ({"path": ("x" * 32,)}, "32 bytes"),
        ({"path": (bytes(32),) * 65}, "short list"),
        ({"size": -1}, "natural numbers"),
        ({"size": True}, "natural numbers"),
    ],
)
def test_a_receipt_of_another_form_is_refused_before_anything_is_hashed(change, word):
    made, _ = receipt(**change)
    with pytest.raises(InvalidProof, match=word):
        parse_receipt(made)


@pytest.mark.parametrize("header", [b"[]", b"7", b"null", b'"merkle_root"'])
def test_signed_header_must_be_an_object(header):
    tree = merkle.MerkleTree([merkle.SHA256.leaf(header)], merkle.SHA256)
    said = SimpleNamespace(height=0, encode=lambda: header)
    made, envelope = receipt(header=said, size=1, path=tree.inclusion(0), root=tree.root())
    with pytest.raises(InvalidProof, match="the header must be an object"):
        verify_receipt(made, envelope, NODE.public)


def test_a_report_says_what_a_receipt_shows_and_what_it_does_not():
    raw, envelope = receipt()
    other = observed(77)
    whole = check_receipt(raw, envelope, [ADA.public, NODE.public])
    assert [(step.name, step.status) for step in whole.steps] == [
        ("envelope", "passed"),
        ("inclusion", "passed"),
        ("signature", "passed"),
    ]
    alone = check_receipt(raw, None, [])
    assert alone.verdict == "untrusted"
    assert [step.status for step in alone.steps] == ["not_checked", "passed", "not_checked"]
    assert [step.status for step in check_receipt(raw, other, [NODE.public]).steps] == [
        "failed",
        "passed",
        "passed",
    ]
    assert check_receipt(raw, envelope, [ADA.public]).first_failure == Step(
        "signature", "failed", "none of 1 trusted keys signed this root"
    )
