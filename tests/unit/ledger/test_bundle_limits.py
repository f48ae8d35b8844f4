"""Hostile bundles, manifests, proofs and settings are refused before they are parsed, in little memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard
from tests.unit.ledger.bundling import TRUST, export, pack, signed, tar_of, unpack, verdict
from tests.unit.ledger.making import ADA, NODE

from ropewalk.errors import Invalid, InvalidJson, RopewalkError, TooLarge
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import Tag
from ropewalk.kernel.keys import PublicKey, Signature, SigningKey
from ropewalk.ledger.archive.manifest import ARCHIVE_MANIFEST_BYTES_MAX, parse_archive_manifest
from ropewalk.ledger.block.fork import FORK_BYTES_MAX, parse_fork
from ropewalk.ledger.bundle.format import MANIFEST, SIGNATURE, frame_member
from ropewalk.ledger.bundle.manifest_fields import claimed_signer
from ropewalk.ledger.bundle.members import (
    MANIFEST_UNKNOWN_BYTES_MAX,
    MANIFEST_UNSIGNED_BYTES_MAX,
    PROOF_LINE_MAX,
    open_manifest,
    parse_proof_line,
)
from ropewalk.ledger.evidence.trust import EVIDENCE_SETTINGS_BYTES_MAX, parse_evidence_settings
from ropewalk.ledger.keys.approvals import APPROVALS_BYTES_MAX, parse_approval
from ropewalk.ledger.keys.revocations import REVOCATIONS_BYTES_MAX, parse_revocation_list
from ropewalk.ledger.proof.proof import PROOF_BYTES_MAX, parse_consistency, parse_proof, parse_range
from ropewalk.ledger.proof.trust import TRUST_BYTES_MAX, parse_trust
from ropewalk.ledger.rules.policy import POLICY_BYTES_MAX, parse_policy
from ropewalk.ledger.transparency.head_fork import HEAD_FORK_BYTES_MAX, parse_head_fork
from ropewalk.ledger.versions.versions import LIFECYCLE_BYTES_MAX, parse_lifecycle

# Says how much memory verifying a file took, beyond what the imports take, and how it ended.
CHILD = """
import json, re, resource, sys
from pathlib import Path
from ropewalk.errors import RopewalkError
from ropewalk.ledger.proof.trust import parse_trust
from ropewalk.ledger.bundle.files import inspect_bundle, verify_bundle
def peak():
    # The most memory so far, in KiB. Linux hands ru_maxrss on from the parent; VmHWM is our own.
    try:
        return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
    except FileNotFoundError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
trust = parse_trust(Path(sys.argv[2]).read_bytes())
verify_bundle(Path(sys.argv[3]), trust)
before = peak()
try:
    if sys.argv[4] == "inspect":
        inspect_bundle(Path(sys.argv[1]))
    report = verify_bundle(Path(sys.argv[1]), trust).report
    ended = report.verdict
except RopewalkError as error:
    ended = error.code
after = peak()
print(json.dumps({"ended": ended, "kib": after - before}))
"""
MEMORY_KIB_MAX = 96 << 10  # of a hostile file; the manifest that the review built cost 2.4 GB


def tail(key: PublicKey) -> bytes:
    """The end that every canonical manifest has."""
    return b'"signer":' + jcs.encode(key.to_json()) + b',"start_height":0,"version":1}'


def hostile(size: int, key: PublicKey, item: bytes = b"[],") -> bytes:
    """A manifest of nothing but tiny items: twenty times as large in memory."""
    end = b"null]," + tail(key)
    head = b'{"block_hashes":['
    return head + item * ((size - len(head) - len(end)) // len(item)) + end


def signature(raw: bytes, key: SigningKey) -> bytes:
    return jcs.encode(Signature(key.alg, key.sign(Tag.BUNDLE + raw)).to_json())


def bundle(path: Path, raw: bytes, sig: bytes, noise: int = 0) -> Path:
    """A file with that manifest; `noise` bytes that do not compress follow it."""
    members = frame_member(MANIFEST, raw) + frame_member(SIGNATURE, sig)
    if noise:
        members += frame_member("headers.jsonl", os.urandom(noise))
    path.write_bytes(zstandard.ZstdCompressor(level=19).compress(members + bytes(1024)))
    return path


@pytest.mark.parametrize("act", ["verify", pytest.param("inspect", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("size", "noise", "signer"),
    [
        (62 << 20, 0, NODE),  # six kilobytes on disk, and just below what counts as a bomb
        (MANIFEST_UNKNOWN_BYTES_MAX, 2 << 20, NODE),  # a trusted key that was stolen
        (MANIFEST_UNKNOWN_BYTES_MAX, 2 << 20, ADA),  # any other key
        (MANIFEST_UNKNOWN_BYTES_MAX, 2 << 20, None),  # no signature that holds
    ],
)
def test_bundle_hostile_manifest_costs_little_memory(tmp_path, size, noise, signer, act):
    """S2: a 6 KB file with a manifest of 64 MiB cost 2.4 GB before its signature was looked at."""
    raw = hostile(size, (signer or NODE).public)
    sig = signature(raw if signer else b"other", signer or NODE)
    path = bundle(tmp_path / "x.tar.zst", raw, sig, noise)
    assert noise or path.stat().st_size < 10_000
    (tmp_path / "trust.json").write_bytes(TRUST.to_bytes())
    good = export(tmp_path / "good.tar.zst")
    names = [str(path), str(tmp_path / "trust.json"), str(good), act]
    done = subprocess.run([sys.executable, "-c", CHILD, *names], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["ended"] in ("failed", TooLarge.code), found
    assert found["kib"] < MEMORY_KIB_MAX + 3 * (len(raw) >> 10) * bool(noise), found


@pytest.mark.parametrize(
    ("size", "signer", "named", "parsed"),
    [
        (MANIFEST_UNSIGNED_BYTES_MAX - 1, None, (), True),
        (MANIFEST_UNSIGNED_BYTES_MAX + 1, None, (NODE.public,), False),
        (MANIFEST_UNKNOWN_BYTES_MAX - 1, ADA, (NODE.public,), True),
        (MANIFEST_UNKNOWN_BYTES_MAX + 1, ADA, (NODE.public,), False),
        (MANIFEST_UNKNOWN_BYTES_MAX + 1, ADA, (ADA.public,), True),
    ],
)
def test_manifest_signature_before_structure(size, signer, named, parsed):
    """What is parsed shows by its refusal: the bytes are no JSON."""
    key = (signer or NODE).public
    raw = b"{" + b"x" * (size - 1 - len(tail(key))) + tail(key)
    assert len(raw) == size and claimed_signer(raw) == key
    sig = signature(raw if signer else b"other", signer or NODE)
    if parsed:
        with pytest.raises(InvalidJson):
            open_manifest(raw, sig, named)
        return
    opened = open_manifest(raw, sig, named)
    assert opened.manifest is None and "is not parsed" in opened.refused


def test_manifest_too_many_items_is_not_parsed():
    raw = hostile(1 << 20, NODE.public)
    with pytest.raises(TooLarge, match="items"):
        open_manifest(raw, signature(raw, NODE), (NODE.public,))


def test_manifest_must_end_with_its_signer(tmp_path):
    members = unpack(export(tmp_path / "x.tar.zst"))
    for raw in (b"{}", members[MANIFEST] + b" ", members[MANIFEST].replace(b'"version":1}', b'"version":2}')):
        with pytest.raises(Invalid, match="must end with"):
            claimed_signer(raw)
    assert claimed_signer(members[MANIFEST]) == NODE.public


def test_bundle_manifest_changed_is_still_judged(tmp_path):
    """A small manifest whose signature does not hold is read, so that the other steps can be judged."""
    members = unpack(export(tmp_path / "x.tar.zst"))
    changed = {**members, MANIFEST: members[MANIFEST].replace(b'"created_at":"', b'"created_at":"1', 1)}
    report = verdict(pack(tmp_path / "y.tar.zst", tar_of(changed)))
    failed = [step.name for step in report.steps if step.status == "failed"]
    assert failed == ["bundle_signature"]
    assert verdict(pack(tmp_path / "z.tar.zst", tar_of(signed(changed)))).ok


@pytest.mark.parametrize(
    ("parse", "limit"),
    [
        (parse_proof, PROOF_BYTES_MAX),
        (parse_range, PROOF_BYTES_MAX),
        (parse_consistency, PROOF_BYTES_MAX),
        (parse_trust, TRUST_BYTES_MAX),
        (parse_policy, POLICY_BYTES_MAX),
        (parse_fork, FORK_BYTES_MAX),
        (parse_head_fork, HEAD_FORK_BYTES_MAX),
        (parse_archive_manifest, ARCHIVE_MANIFEST_BYTES_MAX),
        (parse_evidence_settings, EVIDENCE_SETTINGS_BYTES_MAX),
        (parse_revocation_list, REVOCATIONS_BYTES_MAX),
        (parse_approval, APPROVALS_BYTES_MAX),
        (parse_lifecycle, LIFECYCLE_BYTES_MAX),
        (parse_proof_line, PROOF_LINE_MAX),
    ],
)
def test_document_over_its_limit_is_not_parsed(parse, limit):
    """The bytes are no JSON: a parser would say so, a limit says that there are too many."""
    with pytest.raises(TooLarge):
        parse(b"x" * (limit + 1))
    with pytest.raises(RopewalkError) as refused:
        parse(b"x" * 10)
    assert not isinstance(refused.value, TooLarge)


def test_json_items_are_counted_before_parsing():
    raw = b"[" + b"[]," * (jcs.ITEMS_MAX // 2) + b"x"
    with pytest.raises(TooLarge, match="items"):
        jcs.parse(raw, bytes_max=len(raw))
    with pytest.raises(TooLarge, match="items"):
        jcs.parse_canonical(raw, bytes_max=len(raw))
    with pytest.raises(TooLarge, match="bytes"):
        jcs.parse(raw, bytes_max=len(raw) - 1)
