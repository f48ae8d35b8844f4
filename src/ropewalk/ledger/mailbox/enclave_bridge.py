"""Anchor the blocks of an enclave's channel in a public channel (S4 §5): roots and evidence go out, contents stay in.

An anchor is an Attestation envelope that names channel, height, Merkle root and hash of an inner block; its evidence
binds them to the enclave. So a verifier who has a proof of the anchor in the public channel and the record of the inner
block knows that the enclave sealed it, without reading an envelope of it.
"""

from __future__ import annotations

from typing import Any, Final

from ropewalk.errors import Invalid, Unverified
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.block.block import BlockRecord, check_signature
from ropewalk.ledger.envelope.envelope import build
from ropewalk.ledger.envelope.model import Envelope, payload_hash
from ropewalk.ledger.evidence.binding import report_data
from ropewalk.ledger.proof.proof import Proof, verify_proof
from ropewalk.ledger.proof.trust import Trust
from ropewalk.ledger.remote.negotiate import Attest
from ropewalk.ledger.remote.quarantine import judge_report

ANCHOR_TYPE: Final = "enclave.anchor"
DOMAIN: Final = "ropewalk.enclave"


def anchor_payload(record: BlockRecord) -> dict[str, Any]:
    """Return what an anchor says about a block: nothing of its contents."""
    header = record.header
    return {
        "channel": header.channel,
        "height": header.height,
        "merkle_root": header.merkle_root.hex(),
        "block_hash": record.hash.hex(),
    }


def anchor_envelope(
    key: SigningKey, record: BlockRecord, attest: Attest, *, timestamp: str, protocol_version: str
) -> Envelope:
    """Make the anchor of a block, with evidence of the enclave that sealed it."""
    payload = anchor_payload(record)
    correlation_id = f"{record.header.channel}/{record.height}/{record.hash.hex()}"
    return build(
        key,
        domain=DOMAIN,
        event_class="Attestation",
        event_type=ANCHOR_TYPE,
        payload=payload,
        timestamp=timestamp,
        correlation_id=correlation_id,
        evidence=attest(report_data(bytes.fromhex(payload_hash(payload)), correlation_id)),
        protocol_version=protocol_version,
    )


def check_anchor(anchor: Proof, record: BlockRecord, trust: Trust) -> None:
    """Raise unless a proof of the public channel leads to an inner block: proof, evidence and record must agree."""
    report = verify_proof(anchor, trust)
    if not report.ok:
        failed = next(
            (step.detail for step in report.steps if step.status == "failed"), "its signer is not trusted"
        )
        raise Unverified(f"the anchor is not proved: {failed}", step="anchor")
    if anchor.envelope.event_type != ANCHOR_TYPE:
        raise Invalid(f"the proof must be of an {ANCHOR_TYPE}, got {anchor.envelope.event_type[:40]!r}")
    check_signature(record)
    if anchor.envelope.payload != anchor_payload(record):
        raise Unverified("the anchor names another block than the record", step="record")
    status, detail = judge_report(anchor.envelope, trust, anchor.block.header.timestamp_ns)
    if status != "passed":
        raise Unverified(f"no enclave vouches for the anchor: {detail}", step="evidence")
