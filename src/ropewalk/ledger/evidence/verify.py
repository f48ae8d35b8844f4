"""Verify evidence (S4 §6), offline: signatures over provenance, and the reports of trusted hardware.

`binding` checks that evidence is bound to an envelope; this module verifies it. Trust is configured (`trust`); nothing
is trusted by default. What cannot be verified is *not checked*, and the policy decides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from ropewalk.errors import RopewalkError, Unavailable, Unverified
from ropewalk.kernel.keys import PublicKey
from ropewalk.kernel.report import Status
from ropewalk.ledger.envelope.fields import decode_base64, parse_timestamp
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.evidence.binding import (
    PAYLOAD_TYPE,
    PROVENANCE,
    STATEMENT,
    check_binding,
    dsse_statement,
    signed_bytes,
)
from ropewalk.ledger.evidence.certificates import check_chain, parse_pem, public_key_of
from ropewalk.ledger.evidence.crls import check_revoked
from ropewalk.ledger.evidence.item import EARLY_S_MAX, EvidenceItem
from ropewalk.ledger.evidence.snark import check_snark
from ropewalk.ledger.evidence.tee.dcap import check_dcap
from ropewalk.ledger.evidence.tee.nitro import check_nitro
from ropewalk.ledger.evidence.tee.sev_snp import check_sev_snp
from ropewalk.ledger.evidence.trust import EvidenceTrust

SIGNATURES_MAX: Final = 16
HARDWARE: Final[dict[str, Callable[[EvidenceItem], tuple[Status, str]]]] = {
    "aws_nitro": check_nitro,
    "sev": check_sev_snp,
    "sgx": check_dcap,
    "tdx": check_dcap,
}
"""Who judges the documents of which hardware."""


def evidence_check(
    trust: EvidenceTrust, now_ns: Callable[[], int]
) -> Callable[[Envelope], tuple[Status, str]]:
    """Return what rule 5 asks, with the time of the asking."""
    return lambda envelope: check_evidence(envelope, trust, now_ns())


def check_evidence(
    envelope: Envelope, trust: EvidenceTrust, at_ns: int, *, nonce: bytes | None = None
) -> tuple[Status, str]:
    """Return whether the envelope's evidence is bound to it and holds at a time, with the verifier's `nonce` if any."""
    evidence = envelope.value.get("attestation_evidence")
    status, detail = check_binding(envelope)
    if evidence is None or status == "failed":
        return status, detail
    report = evidence.get("report")
    if not isinstance(report, dict):
        return "not_checked", detail
    hardware = HARDWARE.get(str(report.get("tee_type"))) if evidence["format"] == "tee.report" else None
    if "document" not in report and report.get("tee_type") != "aws_nitro":
        hardware = None  # a report in words: nothing in it is signed by anybody
    try:
        # Hardware vouches for the nonce itself, in what it signs; of other reports only their freshness may.
        _check_freshness(evidence, report, at_ns, None if hardware else nonce)
        if evidence["format"] == "snark.v1":
            if nonce is not None:
                raise Unverified("a proof binds no nonce: ask for another kind of evidence")
            return check_snark(report, envelope.payload_hash, trust.snark_keys)
        if evidence["format"] == "slsa.v1":
            return _check_provenance(evidence, report, trust, at_ns)
        if hardware is not None:
            return hardware(EvidenceItem(envelope, evidence, report, trust, at_ns, nonce))
    except Unavailable:
        raise  # a missing library is no verdict
    except RopewalkError as error:
        return "failed", error.detail
    kind = report.get("tee_type") if evidence["format"] == "tee.report" else evidence["format"]
    return "not_checked", f"{kind} evidence is bound to the envelope; whether it holds is not checked"


# --- freshness ---


def _check_freshness(
    evidence: dict[str, Any], report: dict[str, Any], at_ns: int, nonce: bytes | None
) -> None:
    fresh = report.get("freshness", {})
    if not isinstance(fresh, dict):
        raise Unverified("freshness must be an object with nonce and expires_at")
    if "expires_at" in fresh and at_ns > parse_timestamp(str(fresh["expires_at"])):
        raise Unverified(f"the report expired at {str(fresh['expires_at'])[:40]}")
    said = fresh.get("nonce")
    if said is not None and "nonce" in evidence and said != evidence["nonce"]:
        raise Unverified("the nonces of report and evidence differ")
    if nonce is not None and said != nonce.hex():
        raise Unverified("the report does not carry the nonce that was asked for")


# --- slsa.v1 ---


def _check_provenance(
    evidence: dict[str, Any], report: dict[str, Any], trust: EvidenceTrust, at_ns: int
) -> tuple[Status, str]:
    if report.keys() - {"freshness"} != {"payloadType", "payload", "signatures"}:
        raise Unverified("a DSSE envelope has payloadType, payload and signatures")
    if report["payloadType"] != PAYLOAD_TYPE:
        raise Unverified(f"payload type {str(report['payloadType'])[:60]!r} is not {PAYLOAD_TYPE}")
    statement = dsse_statement(report)
    builder = _builder(statement)
    if not trust.keys and not trust.roots:
        return "not_checked", "no keys or roots are configured for provenance"
    message = signed_bytes(PAYLOAD_TYPE, decode_base64(report["payload"], "/report/payload"))
    who = _signed_by(evidence, report["signatures"], message, trust, at_ns)
    if not trust.pinned:
        return "not_checked", f"signed by {who}; builder {builder[:120]} is not pinned"
    if builder not in trust.builders:
        raise Unverified(f"builder {builder[:120]!r} is not allowed")
    _check_build_age(statement, trust.max_age_s, at_ns)
    return "passed", f"provenance by {builder[:120]}, signed by {who}"


def _check_build_age(statement: dict[str, Any], most_s: int | None, at_ns: int) -> None:
    """Raise if the build ended too long ago. SLSA names the time in `runDetails.metadata`, which its builder signs."""
    if most_s is None:
        return
    metadata = statement["predicate"]["runDetails"].get("metadata")
    said = None
    if isinstance(metadata, dict):
        said = metadata.get("finishedOn") or metadata.get("startedOn")
    if not isinstance(said, str):
        raise Unverified(
            f"the provenance must name finishedOn in runDetails.metadata; at most {most_s} s are allowed"
        )
    age_s = (at_ns - parse_timestamp(said)) // 10**9
    if not -EARLY_S_MAX <= age_s <= most_s:
        raise Unverified(f"the build is {age_s} s old; at most {most_s} s are allowed")


def _builder(statement: dict[str, Any]) -> str:
    if statement.get("_type") != STATEMENT or statement.get("predicateType") != PROVENANCE:
        raise Unverified("the statement is no in-toto Statement v1 with SLSA provenance v1")
    predicate = statement.get("predicate")
    definition = predicate.get("buildDefinition") if isinstance(predicate, dict) else None
    details = predicate.get("runDetails") if isinstance(predicate, dict) else None
    builder = details.get("builder") if isinstance(details, dict) else None
    name = builder.get("id") if isinstance(builder, dict) else None
    if not isinstance(definition, dict) or not isinstance(definition.get("buildType"), str):
        raise Unverified("the provenance names no buildType")
    if not isinstance(definition.get("externalParameters"), dict):
        raise Unverified("the provenance has no externalParameters")
    if not isinstance(name, str) or not name:
        raise Unverified("the provenance names no builder")
    return name


def _signed_by(
    evidence: dict[str, Any], signatures: Any, message: bytes, trust: EvidenceTrust, at_ns: int
) -> str:
    if not isinstance(signatures, list) or not 0 < len(signatures) <= SIGNATURES_MAX:
        raise Unverified(f"between one and {SIGNATURES_MAX} signatures are expected")
    certificate = _leaf(evidence, trust, at_ns)
    for signature in signatures:
        if not isinstance(signature, dict) or not isinstance(signature.get("sig"), str):
            raise Unverified("a DSSE signature has sig and perhaps keyid")
        raw = decode_base64(signature["sig"], "/report/signatures/sig")
        for key in trust.keys:
            try:
                key.verify(message, raw)
            except RopewalkError:
                continue
            return key.did()
        if certificate is not None and _holds(certificate, message, raw):
            return certificate.subject.rfc4514_string()[:120]
    raise Unverified("no signature over the provenance is by a configured key or under a configured root")


def _leaf(evidence: dict[str, Any], trust: EvidenceTrust, at_ns: int) -> x509.Certificate | None:
    chain = evidence.get("cert_chain")
    if not chain or not trust.roots:
        return None
    certificates = [parse_pem(str(text)) for text in chain]
    root = check_chain(certificates[0], certificates[1:], trust.roots, at_ns)
    check_revoked(certificates, root, trust.crls, at_ns)
    return certificates[0]


def _holds(certificate: x509.Certificate, message: bytes, signature: bytes) -> bool:
    key = public_key_of(certificate)
    try:
        if isinstance(key, ed25519.Ed25519PublicKey):
            PublicKey("ed25519", key.public_bytes_raw()).verify(message, signature)
        elif isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1):
            key.verify(signature, message, ec.ECDSA(hashes.SHA256()))
        elif isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP384R1):
            key.verify(signature, message, ec.ECDSA(hashes.SHA384()))
        else:
            return False
    except (InvalidSignature, RopewalkError):
        return False
    return True
