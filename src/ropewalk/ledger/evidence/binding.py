"""How evidence is tied to its envelope (S4 §6, §7.5): evidence about something else proves nothing here.

This module compares; whether the evidence itself holds (signatures, certificate chains) is `evidence`'s to say.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Sequence
from typing import Any, Final

from ropewalk.errors import InvalidEnvelope, InvalidJson, RopewalkError
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import Tag, blake3
from ropewalk.kernel.keys import SigningKey
from ropewalk.kernel.report import Status
from ropewalk.ledger.envelope.fields import decode_base64
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.evidence.snark import is_bound

# Names in a statement; nothing is fetched.
STATEMENT: Final = "https://in-toto.io/Statement/v1"
PROVENANCE: Final = "https://slsa.dev/provenance/v1"
PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"


def report_data(payload_hash: bytes, correlation_id: str | None) -> bytes:
    """Return the 64 bytes a trusted environment puts into its report: fixed length, so they fit every kind of hardware.

    >>> len(report_data(bytes(32), "c-1"))
    64
    """
    return hashlib.sha512(Tag.REPORT_DATA + payload_hash + (correlation_id or "").encode()).digest()


def dsse_statement(report: dict[str, Any]) -> dict[str, Any]:
    """Return the in-toto statement inside a DSSE envelope, unverified."""
    payload = report.get("payload")
    if not isinstance(payload, str):
        raise InvalidEnvelope("DSSE envelope without payload", where="/attestation_evidence/report/payload")
    statement = jcs.parse(decode_base64(payload, "/attestation_evidence/report/payload"))
    if not isinstance(statement, dict):
        raise InvalidEnvelope("DSSE payload is no statement", where="/attestation_evidence/report/payload")
    return statement


def wrap_report(kind: str, report: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a report as the evidence of an envelope: with its format and its hash.

    >>> sorted(wrap_report("slsa.v1", {}))
    ['evidence_hash', 'format', 'report']
    """
    return {"format": kind, "evidence_hash": blake3(jcs.encode(report)).hex(), "report": report, **more}


def signed_bytes(payload_type: str, payload: bytes) -> bytes:
    """Return what a DSSE signature covers: type and payload, each after its length.

    >>> signed_bytes("a/b", b"hi")
    b'DSSEv1 3 a/b 2 hi'
    """
    kind = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def make_provenance(
    key: SigningKey,
    payload_hash: str,
    *,
    builder: str,
    build_type: str,
    name: str = "payload",
    parameters: dict[str, Any] | None = None,
    dependencies: Sequence[str] = (),
    finished_on: str | None = None,
) -> dict[str, Any]:
    """Make evidence of the form `slsa.v1`: a signed statement that a builder made what has this hash.

    `finished_on` is when; a verifier that limits the age of evidence asks for it.

    >>> key = SigningKey.generate("ed25519", bytes(32))
    >>> made = make_provenance(key, "00" * 32, builder="urn:b", build_type="urn:t")
    >>> dsse_statement(made["report"])["predicate"]["runDetails"]
    {'builder': {'id': 'urn:b'}}
    """
    definition: dict[str, Any] = {"buildType": build_type, "externalParameters": parameters or {}}
    if dependencies:
        definition["resolvedDependencies"] = [{"digest": {"blake3": each}} for each in dependencies]
    details: dict[str, Any] = {"builder": {"id": builder}}
    if finished_on is not None:
        details["metadata"] = {"finishedOn": finished_on}
    statement: dict[str, Any] = {
        "_type": STATEMENT,
        "subject": [{"name": name, "digest": {"blake3": payload_hash}}],
        "predicateType": PROVENANCE,
        "predicate": {"buildDefinition": definition, "runDetails": details},
    }
    raw = jcs.encode(statement)
    signature = {
        "keyid": key.public.did(),
        "sig": b64encode(key.sign(signed_bytes(PAYLOAD_TYPE, raw))).decode(),
    }
    report = {"payloadType": PAYLOAD_TYPE, "payload": b64encode(raw).decode(), "signatures": [signature]}
    return wrap_report("slsa.v1", report)


def check_binding(envelope: Envelope) -> tuple[Status, str]:
    """Return whether the evidence speaks of this envelope."""
    evidence = envelope.value.get("attestation_evidence")
    if evidence is None:
        if envelope.event_class == "Attestation":
            return "failed", "an Attestation carries evidence"
        return "passed", ""
    report = evidence.get("report")
    if report is None:
        return "not_checked", "the report is not included; only its hash is here"
    want = blake3(jcs.encode(report))
    if _digest(evidence["evidence_hash"]) != want:
        return "failed", f"evidence_hash is not the hash of the report, {want.hex()}"
    if evidence["format"] == "tee.report":
        return _check_report_data(envelope, report)
    if evidence["format"] == "slsa.v1":
        return _check_subject(envelope, report)
    if is_bound(report, envelope.payload_hash):
        return "passed", ""
    return "failed", "public inputs 0 and 1 of the proof must be the two halves of payload_hash"


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
    """Return a digest in hex, or in base64 as S4 §6 shows it."""
    try:
        return (
            bytes.fromhex(text)
            if len(text) == 64
            else decode_base64(text, "/attestation_evidence/evidence_hash")
        )
    except (ValueError, RopewalkError):
        return None
