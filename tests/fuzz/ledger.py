"""Parsers of the ledger: envelopes, blocks, proofs, bundles, evidence, segments."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import cbor2
from cryptography.hazmat.primitives.serialization import Encoding

from ropewalk.disk.durable import Disk
from ropewalk.disk.index_pages import IndexDamaged
from ropewalk.kernel import digest, jcs, merkle
from ropewalk.kernel.note.key import SignatureType, Verifier
from ropewalk.ledger.archive import manifest
from ropewalk.ledger.block import block, fork
from ropewalk.ledger.block.block import Fork
from ropewalk.ledger.block.index_keys import derive
from ropewalk.ledger.bundle import anchors, check, tar
from ropewalk.ledger.bundle import manifest as bundlemanifest
from ropewalk.ledger.bundle.files import export_blocks
from ropewalk.ledger.bundle.manifest_fields import File
from ropewalk.ledger.bundle.zstd_file import read_packed
from ropewalk.ledger.channel.index import rows
from ropewalk.ledger.channel.segments import format as segment_format
from ropewalk.ledger.channel.segments import packed, reader
from ropewalk.ledger.channel.segments.cold import ColdSegment, parse_cold
from ropewalk.ledger.channel.segments.writer import SegmentWriter
from ropewalk.ledger.envelope import envelope
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.evidence import certificates, crls, snark, verify
from ropewalk.ledger.evidence import trust as evidencetrust
from ropewalk.ledger.evidence.tee import der, intel_collateral, intel_quote, sev_snp
from ropewalk.ledger.keys import approvals, revocations
from ropewalk.ledger.proof import proof, trust
from ropewalk.ledger.replay import state_proof
from ropewalk.ledger.replay.replay import SNAPSHOT_TYPE, Snapshot, parse_snapshot, snapshot_envelope
from ropewalk.ledger.replay.state_map import StateMap
from ropewalk.ledger.rules import policy
from ropewalk.ledger.rules.rules import judge
from ropewalk.ledger.rules.verdict import Context
from ropewalk.ledger.transparency import head_fork, receipts, tiles, witness, witness_policy
from ropewalk.ledger.transparency.head_check import HeadTrust
from ropewalk.ledger.transparency.head_fork import HeadFork
from ropewalk.ledger.versions import versions
from tests.fuzz.offering import Parser, work_folder
from tests.unit.ledger.attesting import Authority
from tests.unit.ledger.heading import LOG, SmallLog
from tests.unit.ledger.making import ADA, NODE, NOON_NS, chain_of_blocks, command, observed
from tests.unit.ledger.quoting import Vendor
from tests.unit.ledger.quoting import revocations as revocation_lists

__all__ = ["PARSERS"]


def _judged(one: Envelope) -> None:
    assert envelope.parse_stored(one.raw) == one
    assert envelope.parse_cbor(envelope.to_cbor(one)) == one
    judge(one, Context())
    judge(one, Context(policy=policy.STRICT))


def _envelope(raw: bytes) -> None:
    _judged(envelope.parse(raw))


def _envelope_stored(raw: bytes) -> None:
    one = envelope.parse_stored(raw)
    assert one.raw == raw
    _judged(one)


def _envelope_wire(raw: bytes) -> None:
    _judged(envelope.parse_wire(raw))


def _envelope_cbor(raw: bytes) -> None:
    _judged(envelope.parse_cbor(raw))


def _record(raw: bytes) -> None:
    assert block.parse_record(raw).raw == raw


def _proof(raw: bytes) -> None:
    found = proof.parse_proof(raw)
    assert proof.parse_proof(found.to_bytes()) == found
    proof.verify_proof(found, trust.Trust((NODE.public,), ()))


def _range(raw: bytes) -> None:
    found = proof.parse_range(raw)
    assert proof.parse_range(found.to_bytes()) == found
    found.verify()


def _consistency(raw: bytes) -> None:
    found = proof.parse_consistency(raw)
    assert proof.parse_consistency(found.to_bytes()) == found
    found.verify()


def _state_proof(raw: bytes) -> None:
    found = state_proof.parse_state_proof(raw)
    assert state_proof.parse_state_proof(found.to_bytes()) == found
    state_proof.verify_state_proof(found, trust.Trust((NODE.public,), ()))


def _policy(raw: bytes) -> None:
    found = policy.parse_policy(raw)
    assert policy.parse_policy(found.to_bytes()).hash == found.hash
    found.decide(command("c"))


def _trust(raw: bytes) -> None:
    found = trust.parse_trust(raw)
    assert trust.parse_trust(found.to_bytes()) == found


def _evidence_trust(raw: bytes) -> None:
    found = evidencetrust.parse_evidence_settings(raw)
    assert evidencetrust.parse_evidence_settings(found.to_bytes()) == found
    evidencetrust.parse_evidence_trust(raw)


def _approval(raw: bytes) -> None:
    act, found = approvals.parse_approval(raw)
    assert approvals.parse_approval(found.to_bytes(act)) == (act, found)


def _revocations(raw: bytes) -> None:
    found = revocations.parse_revocation_list(raw)
    assert revocations.parse_revocation_list(jcs.encode([each.to_json() for each in found])) == found


def _certificates(raw: bytes) -> None:
    for text in certificates.parse_certificates(raw):
        assert certificates.parse_certificates(text.encode()) == [text]


def _der(raw: bytes) -> None:
    for tag, content in der.parse_elements(raw):
        assert der.parse_element(_element(tag, content), tag) == content


def _element(tag: int, content: bytes) -> bytes:
    if len(content) < 0x80:
        return bytes([tag, len(content)]) + content
    size = len(content).to_bytes((len(content).bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 + len(size)]) + size + content


def _snp_report(raw: bytes) -> None:
    assert sev_snp.parse_snp_report(raw).measurement == raw[0x90:0xC0]


def _quote(raw: bytes) -> None:
    found = intel_quote.parse_quote(raw)
    assert raw.startswith(found.signed) and found.certificates in raw


def _tdx(raw: bytes) -> None:
    """A quote nobody vouches for yet, of whatever bytes."""
    _attested("tee.report", {"tee_type": "tdx", "document": b64encode(raw).decode()})


def _statement(raw: bytes) -> None:
    text = raw.decode("utf-8", "replace")
    found = intel_collateral.parse_statement(text, "tcbInfo")
    assert found.raw.decode() in text


def _crl(raw: bytes) -> None:
    text = crls.crl_text(raw)
    assert crls.parse_crl(text.encode()).public_bytes(Encoding.PEM).decode() == text


def _sev(raw: bytes) -> None:
    """A report nobody vouches for yet, of whatever bytes."""
    _attested("tee.report", {"tee_type": "sev", "document": b64encode(raw).decode()})


def _fork(raw: bytes) -> None:
    found = fork.parse_fork(raw)
    assert fork.parse_fork(found.to_bytes()) == found
    fork.verify_fork(found)


def _head_fork(raw: bytes) -> None:
    found = head_fork.parse_head_fork(raw)
    assert head_fork.parse_head_fork(found.to_bytes()) == found
    head_fork.verify_head_fork(found, HeadTrust(keys=(LOG.verifier,)))


def _witness_request(raw: bytes) -> None:
    found = witness.parse_request(raw)
    assert found.old is None or witness.parse_request(found.to_bytes()) == found
    witness.accept_head(witness.watch_log(None, LOG.verifier), found, 0)


def _watched_log(raw: bytes) -> None:
    assert witness.parse_watched(raw).to_bytes() == raw


def _witness_policy(raw: bytes) -> None:
    found = witness_policy.parse_witness_policy(raw)
    assert witness_policy.parse_witness_policy(jcs.encode(found.to_json())) == found


def _cold_segment(raw: bytes) -> None:
    assert parse_cold(raw).to_bytes() == raw


def _snark_key(raw: bytes) -> None:
    text = snark.key_text(raw)
    assert snark.key_text(text.encode()) == text
    snark.parse_key(text)


def _snark_report(raw: bytes) -> None:
    value = jcs.parse(raw)
    if isinstance(value, dict):
        snark.check_header_proof({"type": "snark", "proof": value}, _snark_root(), _snark_keys())


@cache
def _snark_vector() -> Any:
    return jcs.parse((Path(__file__).parents[2] / "vectors/snark/bls12381.json").read_bytes())


@cache
def _snark_root() -> bytes:
    return bytes.fromhex(_snark_vector()["merkle_root"])


@cache
def _snark_keys() -> dict[str, str]:
    text = snark.key_text(jcs.encode(_snark_vector()["verification_key"]))
    return {snark.key_digest(text): text}


def _tile_entries(raw: bytes) -> None:
    assert tiles.encode_entries(tiles.decode_entries(raw)) == raw


def _index_entry(raw: bytes) -> None:
    try:
        found = rows.unpack_entry(0, raw)
    except IndexDamaged:  # the index is rebuilt from the log then
        return
    assert rows.pack_entry(found) == raw


def _index_state(raw: bytes) -> None:
    found = rows.unpack_state(raw)
    assert found is None or rows.pack_state(found) == raw


def _lifecycle(raw: bytes) -> None:
    table = versions.parse_lifecycle(raw)
    assert versions.parse_lifecycle(versions.encode_lifecycle(table)) == table
    versions.writable_minors(NOON_NS, table)
    versions.due_notices(NOON_NS, table)


def _nitro(raw: bytes) -> None:
    """A document nobody vouches for yet, of whatever bytes."""
    report = {"tee_type": "aws_nitro", "document": b64encode(raw).decode()}
    _attested("tee.report", report)


def _dsse(raw: bytes) -> None:
    kind = "application/vnd.in-toto+json"
    _attested(
        "slsa.v1", {"payloadType": kind, "payload": b64encode(raw).decode(), "signatures": [{"sig": "AAAA"}]}
    )


def _attested(kind: str, report: dict[str, Any]) -> None:
    value: dict[str, Any] = {
        **observed(1).value,
        "attestation_evidence": {
            "format": kind,
            "evidence_hash": digest.blake3(jcs.encode(report)).hex(),
            "report": report,
        },
    }
    one = envelope.parse(jcs.encode(value))
    status, detail = verify.check_evidence(one, evidencetrust.EvidenceTrust(keys=(ADA.public,)), NOON_NS)
    assert status in ("passed", "failed", "not_checked")
    assert detail or status == "passed"


def _snp_sample() -> bytes:
    """A report that nobody has signed: nothing but its form is asked for."""
    raw = bytearray(sev_snp.REPORT_BYTES)
    raw[0], raw[0x34] = 2, 1
    return bytes(raw)


def _receipt(raw: bytes) -> None:
    receipts.parse_receipt(raw)
    receipts.verify_receipt(raw, observed(0), NODE.public)


def _tlog_proof(raw: bytes) -> None:
    found = tiles.parse_tlog_proof(raw)
    assert tiles.parse_tlog_proof(found.to_bytes()) == found


def _manifest(raw: bytes) -> None:
    assert bundlemanifest.parse_manifest(raw).to_bytes() == raw


def _archive_manifest(raw: bytes) -> None:
    found = manifest.parse_archive_manifest(raw)
    assert found.to_bytes() == raw
    manifest.ArchiveChain().follow(found, raw)


@cache
def _archived() -> bytes:
    hashes = tuple(digest.blake3(b"%d" % n).hex() for n in range(3))
    root = merkle.root([bytes.fromhex(each) for each in hashes], merkle.RANGE).hex()
    files = (
        File(manifest.BLOCKS, "0" * 64, 7),
        File("policy.json", "0" * 64, 7),
    )
    return manifest.ArchiveManifest(
        *("ea.core", 0, 2, hashes, root, root, None, 3, 0, "0" * 64, "0", NODE.public, files)
    ).to_bytes()


def _witnesses(raw: bytes) -> None:
    found = trust.parse_witnesses(raw)
    assert trust.parse_witnesses("\n".join(each.to_text() for each in found).encode()) == found


def _tar(raw: bytes) -> None:
    """However the archive is cut, its members are the same."""
    whole, cut = tar.TarReader(), tar.TarReader()
    first = _members(whole.feed(raw))
    half = len(raw) // 2
    second = [*cut.feed(raw[:half]), *cut.feed(raw[half:])]
    assert _members(iter(second)) == first
    whole.finish()


def _members(events: Any) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for event in events:
        if isinstance(event, tar.Member):
            found.append((event.name, b""))
        else:
            found[-1] = found[-1][0], found[-1][1] + event
    return found


def _bundle(raw: bytes) -> None:
    verifier = check.BundleVerifier(trust.Trust((NODE.public,), (NODE.public,)), deep=True)
    verifier.feed(raw)
    report = verifier.report()
    assert report.ok == all(step.status != "failed" for step in report.steps)
    assert not report.ok or raw in (_bundle_bytes(), _anchored_bytes())


def _packed_bundle(raw: bytes) -> None:
    path = work_folder() / "bundle.tar.zst"
    path.write_bytes(raw)
    for _ in read_packed(path):
        pass


@cache
def _bundle_bytes() -> bytes:
    return b"".join(read_packed(_bundle_file()))


@cache
def _anchored_bytes() -> bytes:
    """The same with an anchor: a head of two blocks over the one it holds."""
    path = work_folder() / "anchored.tar.zst"
    first, second = (merkle.SHA256.leaf(each.header.encode()) for each in chain_of_blocks(2, 2))
    note = proof.signed_head("log.example", "ea.core", 2, merkle.SHA256.node(first, second), NODE)
    anchor = anchors.BundleAnchor(note, merkle.RangeProof((), (second,)))
    export_blocks(chain_of_blocks(1, 2), NODE, path, anchors=[anchor])
    return b"".join(read_packed(path))


@cache
def _bundle_file() -> Path:
    path = work_folder() / "sample.tar.zst"
    export_blocks(chain_of_blocks(1, 2), NODE, path)
    return path


def _record_at(raw: bytes, height: int) -> list[bytes]:
    """Return the lines of a record in memory, checked apart from the reader."""
    head, body = segment_format.parse_head(raw[: segment_format.ALIGN]), raw[segment_format.ALIGN :]
    assert head == (height, len(body), digest.blake3(body))
    return segment_format.lines_of(body)


def _segment(raw: bytes) -> None:
    folder = work_folder() / "channel"
    (folder / "segments").mkdir(parents=True, exist_ok=True)
    store = reader.Segments(folder)
    store.path(0).write_bytes(raw)
    for record in store.scan():
        assert _record_at(raw[record.place.offset : record.place.end], record.height) == record.lines
        assert store.find(record.height) == store.read(record.place, record.height) == record


@cache
def _segment_bytes() -> bytes:
    folder = work_folder() / "written"
    writer = SegmentWriter(folder)
    for one in chain_of_blocks(2, 2):
        writer.append(one.height, one.lines())
    writer.sync()
    writer.close()
    return writer.path(0).read_bytes()


def _packed_segment(raw: bytes) -> None:
    folder = work_folder() / "packed"
    (folder / "segments").mkdir(parents=True, exist_ok=True)
    store = reader.Segments(folder)
    packed.packed_path(store.path(0)).write_bytes(raw)
    written = _segment_bytes()
    for record in store.scan():
        assert record.lines == _record_at(written[record.place.offset : record.place.end], record.height)


@cache
def _packed_bytes() -> bytes:
    folder = work_folder() / "packing"
    (folder / "segments").mkdir(parents=True, exist_ok=True)
    store = reader.Segments(folder)
    store.path(0).write_bytes(_segment_bytes())
    records = [(record.place, block.parse_record(record.lines[0]).hash) for record in store.scan()]
    packed.write_packed_segment(store.path(0), 0, records, Disk())
    return packed.packed_path(store.path(0)).read_bytes()


def _snapshot(raw: bytes) -> None:
    one = observed(payload=jcs.parse(raw), event_type=SNAPSHOT_TYPE)
    found = parse_snapshot(one)
    assert parse_snapshot(snapshot_envelope(found, NODE, NOON_NS)) == found


def _entry_sample(one: block.Block) -> rows.BlockEntry:
    lines = one.lines()
    return rows.entry_of(
        0, segment_format.BlockPlace(0, 64, 640), [len(line) for line in lines], derive(lines)
    )


def _state_sample(of_snapshot: proof.Proof) -> bytes:
    state = {"web": {"prod": "1.2"}, "n": 3}
    key = ("web",)
    return state_proof.StateProof(
        "ea.core", 1, "counts", key, (state["web"],), StateMap(state).prove(key), of_snapshot
    ).to_bytes()


def _range_sample(hashes: list[bytes]) -> bytes:
    tree = merkle.MerkleTree(hashes, merkle.RANGE)
    made = proof.RangeStatement("ea.core", 1, 3, tuple(hashes[1:2]), tree.range(1, 2), tree.root())
    made.verify()
    return made.to_bytes()


def _consistency_sample(hashes: list[bytes]) -> bytes:
    tree = merkle.MerkleTree(hashes, merkle.RANGE)
    made = proof.Consistency("ea.core", 1, 3, tree.root(1), tree.root(3), tree.consistency(1, 3))
    made.verify()
    return made.to_bytes()


def _nitro_sample() -> bytes:
    document = {
        "module_id": "i-0",
        "digest": "SHA384",
        "timestamp": 1,
        "pcrs": {0: b"\x01" * 48},
        "certificate": b"x",
        "cabundle": [b"y"],
        "user_data": observed(1).payload_hash,
        "nonce": None,
        "public_key": None,
    }
    return bytes(cbor2.dumps([cbor2.dumps({1: -35}), {}, cbor2.dumps(document), bytes(96)]))


def _receipt_sample() -> bytes:
    (one,) = chain_of_blocks(1, 1)
    header = one.header
    root = merkle.root([merkle.SHA256.leaf(header.encode())], merkle.SHA256)
    return receipts.make_receipt(
        NODE,
        origin="log.example",
        envelope_id=observed(0).id,
        header=header,
        size=1,
        path=(),
        root=root,
        index=0,
        inner_path=(),
    )


def _watched_by() -> witness_policy.WitnessPolicy:
    vkey = Verifier("w.example", NODE.public, SignatureType.COSIGNATURE)
    return witness_policy.WitnessPolicy("log.example", (("https://w.example", vkey),), 1, 5)


def _catalogue() -> tuple[Parser, ...]:
    blocks = chain_of_blocks(3)
    hashes = [each.hash for each in blocks]
    one, two, key, path = command("c"), observed(2), NODE.public, (bytes(32),)
    inclusion = proof.Proof(observed(1), 0, path, blocks[0].record, blocks[0].height, observed(1).hex_id)
    state = Snapshot("ea.core", 1, bytes(32), bytes(32), None, None, "counts/1")
    pem_free = (
        b'{"builders":["urn:x"],"keys":[],"max_age_s":5,"pcrs":{"0":["' + b"ab" * 48 + b'"]},"version":1}'
    )
    statement = (
        b'{"_type":"https://in-toto.io/Statement/v1","subject":[{"digest":{"blake3":"'
        + two.payload_hash.hex().encode()
        + b'"}}],"predicateType":"https://slsa.dev/provenance/v1","predicate":{}}'
    )
    intel = Vendor()
    listed = [
        ("envelope", _envelope, (one.raw, two.raw)),
        ("envelope_stored", _envelope_stored, (one.raw,)),
        ("envelope_wire", _envelope_wire, (one.raw, envelope.to_cbor(one))),
        ("envelope_cbor", _envelope_cbor, (envelope.to_cbor(one),)),
        ("block_record", _record, (blocks[1].record.raw,)),
        ("proof", _proof, (inclusion.to_bytes(),)),
        ("state_proof", _state_proof, (_state_sample(inclusion),)),
        ("range_proof", _range, (_range_sample(hashes),)),
        ("consistency_proof", _consistency, (_consistency_sample(hashes),)),
        ("policy", _policy, (policy.STRICT.to_bytes(),)),
        ("approval", _approval, (approvals.approve({"act": "retire"}, ADA).to_bytes({"act": "retire"}),)),
        ("revocations", _revocations, (b'[{"key":"%s","since":"2024-11-01T12:00:00Z"}]' % (b"ab" * 32),)),
        ("trust", _trust, (trust.Trust((key,), (key,), bytes(32)).to_bytes(),)),
        ("evidence_trust", _evidence_trust, (pem_free,)),
        ("certificates", _certificates, (Authority("a").pem.encode() * 2, Authority("a").der)),
        ("der", _der, (bytes.fromhex("020105160141"), _element(0x30, bytes(200)))),
        ("snp_report", _snp_report, (_snp_sample(),)),
        ("sev_report", _sev, (_snp_sample(),)),
        ("quote", _quote, (intel.quote(), intel.quote("sgx", 3))),
        ("tdx_quote", _tdx, (intel.quote(),)),
        ("tcb_info", _statement, (intel.collateral()["tcb_info"].encode(),)),
        ("crl", _crl, (revocation_lists(intel.ca, intel.pck).encode(),)),
        (
            "lifecycle",
            _lifecycle,
            (b'[{"version":"1.0.x","stage":"deprecated","sunset":"2025-01-01T00:00:00Z"}]',),
        ),
        ("fork", _fork, (Fork(blocks[1].record, blocks[1].record).to_bytes(),)),
        (
            "head_fork",
            _head_fork,
            (
                HeadFork(SmallLog(3).head(), SmallLog(3, 1).head(), SmallLog(3, 1).tree.root()).to_bytes(),
                HeadFork(SmallLog(2).head(), SmallLog(3, 1).head()).to_bytes(),
            ),
        ),
        (
            "witness_request",
            _witness_request,
            (SmallLog(3).head(), witness.WitnessRequest(SmallLog(3).head(), 0).to_bytes()),
        ),
        (
            "watched_log",
            _watched_log,
            (
                witness.WatchedLog(LOG.name, (LOG.verifier,)).to_bytes(),
                witness.WatchedLog(LOG.name, (LOG.verifier,), SmallLog(3).head(), 1_700_000_000).to_bytes(),
            ),
        ),
        ("witness_policy", _witness_policy, (jcs.encode(_watched_by().to_json()),)),
        ("cold_segment", _cold_segment, (ColdSegment("ops", 0, 9, 64, "00" * 32, "/mnt/cold").to_bytes(),)),
        ("snark_key", _snark_key, (jcs.encode(_snark_vector()["verification_key"]),)),
        ("snark_report", _snark_report, (jcs.encode(_snark_vector()["header_proof"]["proof"]),)),
        ("tile_entries", _tile_entries, (tiles.encode_entries([b"one", b"", b"three"]),)),
        ("index_entry", _index_entry, (rows.pack_entry(_entry_sample(blocks[0])),)),
        ("index_state", _index_state, (rows.pack_state(replace(rows.EMPTY, height=1)),)),
        ("nitro_document", _nitro, (_nitro_sample(),)),
        ("dsse_statement", _dsse, (statement,)),
        ("cose_receipt", _receipt, (_receipt_sample(),)),
        ("tlog_proof", _tlog_proof, (tiles.TlogProof(5, path, b"head\n", b"more").to_bytes(),)),
        (
            "manifest",
            _manifest,
            tuple(_members(tar.TarReader().feed(raw))[0][1] for raw in (_bundle_bytes(), _anchored_bytes())),
        ),
        ("archive_manifest", _archive_manifest, (_archived(),)),
        ("witnesses", _witnesses, (Verifier("w.example", NODE.public).to_text().encode(),)),
        ("tar", _tar, (tar.member_header("a", 2) + b"hi" + tar.padding(2) + tar.END,)),
        ("bundle", _bundle, (_bundle_bytes(), _anchored_bytes())),
        ("packed_bundle", _packed_bundle, (_bundle_file().read_bytes(),)),
        ("segment", _segment, (_segment_bytes(),)),
        ("packed_segment", _packed_segment, (_packed_bytes(),)),
        ("snapshot", _snapshot, (jcs.encode(state.to_json()),)),
    ]
    return tuple(Parser(name, take, samples) for name, take, samples in listed)


PARSERS = _catalogue()
