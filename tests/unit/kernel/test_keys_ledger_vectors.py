"""The ledger's published numbers come out of the kernel: payload, envelope, tree and block."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ropewalk import errors
from ropewalk.errors import DigestMismatch
from ropewalk.kernel import cbor, jcs, merkle
from ropewalk.kernel.digest import Tag, blake3, sha256, tagged
from ropewalk.kernel.keys import PublicKey, Signature, SigningKey

VECTORS = Path(__file__).parents[3] / "vectors" / "ledger"


def cases(path):
    stored = json.loads((VECTORS / path).read_text(encoding="utf-8"))
    return [pytest.param(case, id=case["name"]) for case in stored["cases"]]


def case_named(path, name):
    return next(param.values[0] for param in cases(path) if param.values[0]["name"] == name)


def preimage(envelope, names):
    return Tag.SIGNATURE + jcs.encode([[name, envelope.get(name)] for name in names])


@pytest.mark.parametrize("case", cases("payload_hash.json"))
def test_payload_hash_is_blake3_of_canonical_bytes(case):
    raw = jcs.encode(case["input"])
    assert raw.hex() == case["expect"]["jcs"]
    assert blake3(raw).hex() == case["expect"]["payload_hash"]


@pytest.mark.parametrize("case", cases("envelope.json"))
def test_envelope_is_signed_and_named(case):
    given, expect = case["input"], case["expect"]
    key = SigningKey(given["alg"], bytes.fromhex(given["secret"]))
    made = preimage(given["fields"], given["signed_fields"])
    assert made.hex() == expect["preimage"]
    assert key.sign(made).hex() == expect["signature"]
    raw = jcs.encode(expect["envelope"])
    assert (raw.hex(), len(raw)) == (expect["jcs"], expect["jcs_bytes"])
    assert tagged(Tag.ENVELOPE, raw).hex() == expect["envelope_id"]


@pytest.mark.parametrize("case", cases("envelope.json"))
def test_cbor_carries_the_same_envelope(case):
    expect = case["expect"]
    raw = bytes.fromhex(expect["cbor"])
    assert cbor.encode(expect["envelope"]) == raw
    assert len(raw) == expect["cbor_bytes"]
    assert jcs.encode(cbor.decode(raw)).hex() == expect["jcs"]


def check(envelope):
    if blake3(jcs.encode(envelope["payload"])).hex() != envelope["payload_hash"]:
        raise DigestMismatch("payload hash")
    seal = envelope["signature"]
    signature = Signature.from_json({"alg": seal["alg"], "sig": seal["sig"]})
    key = PublicKey.from_json(envelope["origin_identity"])
    key.verify(preimage(envelope, seal["signed_fields"]), signature.raw)
    return tagged(Tag.ENVELOPE, jcs.encode(envelope)).hex()


@pytest.mark.parametrize("case", cases("envelope_tampered.json"))
def test_tampering_is_noticed(case):
    if "error" in case:
        with pytest.raises(getattr(errors, case["error"])):
            check(case["input"])
    else:
        assert check(case["input"]) == case["expect"]


@pytest.mark.parametrize("case", cases("tree_roots.json"))
def test_tree_roots(case):
    assert merkle.root([bytes.fromhex(leaf) for leaf in case["input"]]).hex() == case["expect"]


@pytest.mark.parametrize("case", cases("block.json"))
def test_block_is_hashed_signed_and_exported(case):
    header, expect = case["input"]["header"], case["expect"]
    raw = jcs.encode(header)
    assert raw.hex() == expect["jcs"]
    assert tagged(Tag.BLOCK, raw).hex() == expect["block_hash"]
    assert sha256(b"\0" + raw).hex() == expect["tlog_leaf"]
    signer = PublicKey.from_json(expect["record"]["signer"])
    assert signer.identity().hex() == header["origin_identity"]
    signature = Signature.from_json(expect["record"]["signature"])
    assert signature.raw.hex() == expect["signature"]
    signer.verify(Tag.BLOCK_SIGNATURE + raw, signature.raw)


def test_the_numbers_printed_before_are_the_numbers_stored():
    assert case_named("payload_hash.json", "published")["expect"]["payload_hash"] == (
        "56b512d0d4cac4ee26fd1536e9ed2db5406b1be6cdf0b2f320e049f606327e5c"
    )
    envelope = case_named("envelope.json", "published_ed25519")["expect"]
    assert envelope["signature"].startswith("c0144edd3fa6c47d")
    assert (envelope["jcs_bytes"], envelope["cbor_bytes"]) == (769, 671)
    assert envelope["envelope_id"] == "550a1c4dfb3bb74acad545dc635bf17fc6c7f9d5e634724796d92d38d7d645f9"
    block = case_named("block.json", "published")["expect"]
    assert block["block_hash"] == "3096b6fc1cc0ef1ceb5b0a9b72828804a74043af3e678e6431a5be6b6790d43f"
    assert block["tlog_leaf"] == "073f16fa32d5854afc4927fc2f628cfb185a596421f6f0b332206110700bdfc3"
    roots = {param.values[0]["name"]: param.values[0]["expect"] for param in cases("tree_roots.json")}
    assert (roots["n_0"][:8], roots["n_0"][-4:]) == ("a8ca3348", "573e")
    assert (roots["n_1"][:8], roots["n_1"][-4:]) == ("746a0f0f", "47f0")
    assert roots["n_2"] == "55721cd8dc3ae895ccfa639922d6c66919c9dd2718e224c02422c26ae814149e"
    assert roots["n_3"] == "ea0e47a3559333198034582b45a8619ce3a0d367f7fc5a3f357ad5e21eb06167"
    assert roots["n_5"] == "d4043f28041a63b5b47a6b4638f85d78a27a203ab42732024fdebc8e6a653c20"
    assert roots["n_7"] == "251f0c3405916a146f004f29d28ae34d9e8fa36094d19101a679d50d7bee205d"
    assert roots["n_8"] == "28759320f34935b94cc1f6e29c419b5595a052b5eb8369489dd1da445449aeb4"
