"""Spellings at the edge have one canonical form and one id; JSON and CBOR are kept together and compared."""

from __future__ import annotations

import json
from base64 import b64encode

import cbor2
import pytest
from tests.unit.cli.conftest import living_in
from tests.unit.ledger.bundling import pack, signed, tar_of, unpack
from tests.unit.ledger.making import ADA, NODE, NOON_NS, chain_of_blocks, observed, opened, resigned

from ropewalk.errors import Invalid, InvalidCbor, InvalidEnvelope, InvalidJson
from ropewalk.kernel import jcs
from ropewalk.ledger.bundle.files import export_blocks, verify_bundle
from ropewalk.ledger.bundle.manifest import parse_manifest
from ropewalk.ledger.envelope.envelope import parse, parse_cbor, parse_stored, parse_wire, to_cbor
from ropewalk.ledger.proof.trust import Trust
from ropewalk.ledger.rules.rules import rule_2_signature_scope
from ropewalk.ledger.rules.verdict import Context

ONE = observed()
NS = ONE.timestamp_ns
TRUST = Trust((NODE.public,), (NODE.public,))


def spelled(**members):
    return json.dumps({**ONE.value, **members}).encode()


def hash_in_base64():
    return b64encode(ONE.payload_hash).decode()


@pytest.mark.parametrize(
    "raw",
    [
        spelled(timestamp=NS),
        spelled(payload_hash=hash_in_base64()),
        spelled(payload_hash=ONE.value["payload_hash"].upper()),
        spelled(timestamp=NS, payload_hash=hash_in_base64(), policy_tag=None),
        jcs.encode({**ONE.value, "payload_hash": hash_in_base64()}),
        cbor2.dumps({**ONE.value, "timestamp": NS}, canonical=True),
        cbor2.dumps({**ONE.value, "payload_hash": ONE.payload_hash}, canonical=True),
        cbor2.dumps({**ONE.value, "payload_hash": hash_in_base64()}, canonical=True),
    ],
)
def test_edge_spelling_has_the_same_id(raw):
    found = parse_wire(raw)
    assert (found.id, found.raw) == (ONE.id, ONE.raw)
    assert rule_2_signature_scope(found, Context()).status == "passed"


@pytest.mark.parametrize("ns", [0, 1, 2**53 - 1, NOON_NS + 1, 2**64 - 1])
def test_integer_timestamp_is_exact(ns):
    value = {**ONE.value, "timestamp": ns}
    for found in (parse(json.dumps(value).encode()), parse_cbor(cbor2.dumps(value, canonical=True))):
        assert found.timestamp_ns == ns
        assert rule_2_signature_scope(found, Context()).status == "failed", "signed over another time"


def test_edge_spelling_is_never_stored():
    for raw in (spelled(timestamp=NS), jcs.encode({**ONE.value, "payload_hash": hash_in_base64()}),
                jcs.encode({**ONE.value, "timestamp": 1})):  # fmt: skip
        with pytest.raises((InvalidEnvelope, InvalidJson)):
            parse_stored(raw)


def test_other_large_integers_stay_refused():
    payload = {"timestamp": NS}
    for value in (
        {**ONE.value, "payload": payload},
        {**ONE.value, "timestamp": NS, "payload": payload},
        {**ONE.value, "timestamp": "(integer timestamp)", "payload": payload},
    ):
        with pytest.raises(InvalidJson, match="beyond"):
            parse(json.dumps(value).encode())
        with pytest.raises(InvalidCbor):
            parse_cbor(cbor2.dumps(value, canonical=True))
    for wrong in (2**64, -1, True, 1.5):
        with pytest.raises((InvalidEnvelope, InvalidJson)):
            parse(json.dumps({**ONE.value, "timestamp": wrong}).encode())


def test_signature_over_the_spelling_is_refused():
    """An author signs the canonical form; a signature over base64 text is of another statement."""
    other = resigned({**ONE.value, "payload_hash": hash_in_base64()}, ADA)
    found = parse(other)
    assert found.value["payload_hash"] == ONE.value["payload_hash"]
    assert rule_2_signature_scope(found, Context()).status == "failed"


def test_appending_another_spelling_is_a_replay(tmp_path):
    with opened(tmp_path) as ledger:
        first = ledger.log.submit(ONE.raw)
        for raw in (spelled(timestamp=NS), cbor2.dumps({**ONE.value, "timestamp": NS}, canonical=True)):
            again = ledger.log.submit(raw)
            assert (again.envelope_id, again.replayed) == (first.envelope_id, True)


def test_bundle_of_both_encodings_verifies(tmp_path):
    blocks = chain_of_blocks(3)
    export_blocks(blocks, NODE, tmp_path / "both.tar.zst", both=True)
    found = verify_bundle(tmp_path / "both.tar.zst", TRUST)
    assert found.report.ok and found.manifest is not None and found.manifest.both
    members = unpack(tmp_path / "both.tar.zst")
    names = [name for name in members if name.startswith("cbor/")]
    assert names == [f"cbor/{height:010d}.cbor" for height in range(3)]
    wanted = b"".join(to_cbor(parse_stored(raw)) for raw in blocks[1].envelopes)
    assert members[names[1]] == wanted
    assert parse_cbor(to_cbor(parse_stored(blocks[1].envelopes[0]))).raw == blocks[1].envelopes[0]


def test_bundle_encodings_are_compared(tmp_path):
    """Whoever signs the bundle: CBOR that is not the encoding of the JSON fails the hashes."""
    blocks = chain_of_blocks(3)
    export_blocks(blocks, NODE, tmp_path / "both.tar.zst", both=True)
    members = unpack(tmp_path / "both.tar.zst")
    name = "cbor/0000000001.cbor"
    members[name] = b"".join(to_cbor(parse_stored(raw)) for raw in blocks[2].envelopes)
    pack(tmp_path / "bent.tar.zst", tar_of(signed(members)))
    steps = {s.name: s for s in verify_bundle(tmp_path / "bent.tar.zst", TRUST).report.steps}
    assert steps["bundle_signature"].status == "passed"
    assert steps["envelope_hashes"].status == "failed" and "CBOR" in steps["envelope_hashes"].detail
    value = jcs.parse(members["bundle.manifest.json"])
    with pytest.raises(Invalid, match="encodings"):
        parse_manifest(jcs.encode({**value, "encodings": ["cbor"]}))  # type: ignore[dict-item]


def test_commands_write_both_encodings(tmp_path):
    def run(*words):
        answer = living_in(tmp_path)(*words, env={"ROPEWALK_REPO": str(tmp_path / "r.git")})
        assert answer.code == 0, answer.err
        return answer.out

    run("init", "r.git")
    (tmp_path / "lines").write_bytes(b"\n".join(observed(number).raw for number in range(3)))
    run("ledger", "append", "--channel", "audit", "--file", "lines", "--jsonl")
    sequence = run("ledger", "read", "--channel", "audit", "--cbor")
    assert sequence == b"".join(to_cbor(observed(number)) for number in range(3))
    run("ledger", "trust", "--channel", "audit", "-o", "trust.json")
    export = ("bundle", "export", "--channel", "audit", "-o", "x.tar.zst", "--json")
    plain = json.loads(run(*export))["bytes"]
    assert json.loads(run(*export, "--encoding", "both"))["bytes"] > plain, "written again"
    run("bundle", "verify", "x.tar.zst", "--trust", "trust.json")
