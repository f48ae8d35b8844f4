"""How evidence is tied to its envelope (S4 §6, §7.5): evidence about something else proves nothing here.

This module compares; whether the evidence itself holds (signatures, certificate chains) is `evidence`'s to say.
"""

from __future__ import annotations

import hashlib
from typing import Any

from ropewalk.errors import InvalidEnvelope, InvalidJson, RopewalkError
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import Tag, blake3
from ropewalk.kernel.report import Status
from ropewalk.ledger.envelope import Envelope, decode_base64

__all__ = ["check_binding", "dsse_statement", "report_data"]


def report_data(payload_hash: bytes, correlation_id: str | None) -> bytes:
    """The 64 bytes a trusted environment puts into its report: fixed length, so they fit every kind of hardware.

    >>> len(report_data(bytes(32), "c-1"))
    64
    """
    return hashlib.sha512(Tag.REPORT_DATA + payload_hash + (correlation_id or "").encode()).digest()


def dsse_statement(report: dict[str, Any]) -> dict[str, Any]:
    """The in-toto statement inside a DSSE envelope, unverified."""
    payload = report.get("payload")
    if not isinstance(payload, str):
        raise InvalidEnvelope("DSSE envelope without payload", where="/attestation_evidence/report/payload")
    statement = jcs.parse(decode_base64(payload, "/attestation_evidence/report/payload"))
    if not isinstance(statement, dict):
        raise InvalidEnvelope("DSSE payload is no statement", where="/attestation_evidence/report/payload")
    return statement


def check_binding(envelope: Envelope) -> tuple[Status, str]:
    """Whether the evidence speaks of this envelope."""
    evidence = envelope.value.get("attestation_evidence")
    if evidence is None:
        if envelope.event_class == "Attestation":
            return "failed", "an Attestation carries evidence"
        return "passed", ""
    report = evidence.get("report")
    if report is None:
        return "not_checked", "the report lies elsewhere; only its hash is here"
    want = blake3(jcs.encode(report))
    if _digest(evidence["evidence_hash"]) != want:
        return "failed", f"evidence_hash is not the hash of the report, {want.hex()}"
    if evidence["format"] == "tee.report":
        return _check_report_data(envelope, report)
    if evidence["format"] == "slsa.v1":
        return _check_subject(envelope, report)
    return "not_checked", f"binding of {evidence['format']} is not known here"


def _check_report_data(envelope: Envelope, report: dict[str, Any]) -> tuple[Status, str]:
    want = report_data(envelope.payload_hash, envelope.correlation_id).hex()
    got = report.get("report_data")
    if got is None and "document" in report:
        return "not_checked", "the binding is inside the signed document"
    if got != want:
        return "failed", "report_data does not bind payload_hash and correlation_id"
    return "passed", ""


def _check_subject(envelope: Envelope, report: dict[str, Any]) -> tuple[Status, str]:
    try:
        subjects = dsse_statement(report).get("subject")
    except (InvalidEnvelope, InvalidJson) as error:
        return "failed", error.detail
    want = envelope.payload_hash.hex()
    for subject in subjects if isinstance(subjects, list) else ():
        digest = subject.get("digest") if isinstance(subject, dict) else None
        if isinstance(digest, dict) and digest.get("blake3") == want:
            return "passed", ""
    return "failed", f"no subject of the statement has blake3 {want}"


def _digest(text: str) -> bytes | None:
    """A digest in hex, or in base64 as S4 §6 shows it."""
    try:
        return (
            bytes.fromhex(text)
            if len(text) == 64
            else decode_base64(text, "/attestation_evidence/evidence_hash")
        )
    except (ValueError, RopewalkError):
        return None
