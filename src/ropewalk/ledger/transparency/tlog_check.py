"""Verify a C2SP proof file of an envelope (`ledger receipt --form tlog`), offline.

envelope         the envelope is the one that the proof names
inclusion        the envelope leads to the root of its block, and the block's header to the root of the head
checkpoint, log_signature, witnesses    the signed head inside, as in `head_check`

Only the header and the head are authenticated by the log. The way from the envelope to the header is in the line
`extra`, which is not signed: it is valid because it leads to the root in that header.
"""

from __future__ import annotations

from typing import Any

from ropewalk.errors import InvalidProof, ProofRefused, RopewalkError
from ropewalk.kernel import jcs, merkle
from ropewalk.kernel.digest import hash_from_hex
from ropewalk.kernel.note.note import SignedHead, claimed_head
from ropewalk.kernel.report import Report, Step
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.transparency.head_check import HeadTrust, verify_head
from ropewalk.ledger.transparency.tiles import TlogProof, parse_tlog_proof

_MEMBERS = {"envelope_id", "index", "path", "header"}


def check_tlog_proof(raw: bytes, envelope: Envelope | None, trust: HeadTrust) -> Report:
    """Return every step of a proof file; raise InvalidProof or InvalidNote if it is not one of an envelope."""
    proof = parse_tlog_proof(raw)
    said = _extra(proof)
    head, _ = claimed_head(proof.head)
    steps = [Step.optional("envelope", "name the envelope, to see that the proof is about its bytes")]
    if envelope is not None:
        same = envelope.hex_id == said["envelope_id"]
        text = envelope.hex_id if same else f"the proof is about {said['envelope_id']}, not {envelope.hex_id}"
        steps = [Step("envelope", "passed" if same else "failed", text)]
    try:
        _check_inclusion(proof, said, head)
        where = f"envelope {said['index']} of block {proof.index}, under a root of {head.size} blocks"
        steps.append(Step("inclusion", "passed", where))
    except RopewalkError as error:
        steps.append(Step("inclusion", "failed", error.detail))
    steps += [step for step in verify_head(proof.head, trust).steps if step.name != "consistency"]
    return Report.of(steps, entries=1)


def _extra(proof: TlogProof) -> dict[str, Any]:
    """Return the addition to C2SP's form, if it is complete."""
    value = jcs.parse(proof.extra) if proof.extra else None
    if not isinstance(value, dict) or value.keys() != _MEMBERS or not isinstance(value["header"], dict):
        raise InvalidProof("tlog-proof: the extra line must hold envelope_id, index, path and header")
    if hash_from_hex(value["envelope_id"]) is None or type(value["index"]) is not int:
        raise InvalidProof("tlog-proof: envelope_id must be 64 lowercase hex digits, index an integer")
    if not isinstance(value["path"], list):
        raise InvalidProof("tlog-proof: path must be a list")
    return value


def _check_inclusion(proof: TlogProof, said: dict[str, Any], head: SignedHead) -> None:
    header = said["header"]
    root, count = hash_from_hex(header.get("merkle_root")), header.get("envelope_count")
    path = [hash_from_hex(each) for each in said["path"]]
    if root is None or type(count) is not int or None in path:
        raise ProofRefused("the header must have merkle_root and envelope_count, the path must be hashes")
    if header.get("height") != proof.index:
        raise ProofRefused(f"the header is of block {header.get('height')}, the proof of {proof.index}")
    if not head.origin.endswith(f"/{header.get('channel')}"):
        raise ProofRefused("the header is of another channel than the signed head")
    name = bytes.fromhex(said["envelope_id"])
    merkle.verify_inclusion(name, said["index"], count, [each for each in path if each is not None], root)
    leaf = merkle.SHA256.leaf(jcs.encode(header))
    merkle.verify_inclusion(leaf, proof.index, head.size, proof.path, head.root, merkle.SHA256)
