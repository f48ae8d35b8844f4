"""AWS Nitro documents: COSE_Sign1 messages by an enclave's hypervisor, under a root that was configured."""

from __future__ import annotations

from typing import Any, Final

import cbor2
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from ropewalk.errors import Unverified
from ropewalk.kernel.report import Status
from ropewalk.ledger.evidence.binding import report_data
from ropewalk.ledger.evidence.certificates import check_chain, parse_der, public_key_of
from ropewalk.ledger.evidence.crls import check_revoked
from ropewalk.ledger.evidence.item import EARLY_S_MAX, EvidenceItem
from ropewalk.ledger.evidence.trust import EvidenceTrust

ES384: Final = -35
DOCUMENT_BYTES_MAX: Final = 1 << 16
_PCR_BYTES: Final = (32, 48, 64)


def check_nitro(piece: EvidenceItem) -> tuple[Status, str]:
    """Return whether an enclave's document is bound to its envelope and holds."""
    envelope, evidence, trust = piece.envelope, piece.evidence, piece.trust
    protected, payload, signature = _parse_sign1(piece.document(DOCUMENT_BYTES_MAX))
    document = _parse_document(payload)
    literal = envelope.payload_hash + (envelope.correlation_id or "").encode()
    if document["user_data"] not in (report_data(envelope.payload_hash, envelope.correlation_id), literal):
        raise Unverified("user_data of the document does not bind payload_hash and correlation_id")
    leaf = parse_der(document["certificate"])
    piece.require_reported(document["pcrs"].get(0, b""), leaf, document["timestamp"])
    said = evidence.get("nonce")
    have = document["nonce"]
    if said is not None and (have is None or said not in (have.hex(), have.decode("utf-8", "replace"))):
        raise Unverified("the document does not carry the nonce of the evidence")
    if piece.nonce is not None and have != piece.nonce:
        raise Unverified("the document does not carry the nonce that was asked for")
    if not any(document["pcrs"].get(0, b"")):
        raise Unverified("PCR0 is zero: the enclave ran in debug mode")
    if not trust.roots:
        return "not_checked", "no roots are configured for enclaves"
    chain = [leaf, *(parse_der(each) for each in reversed(document["cabundle"]))]
    root = check_chain(leaf, chain[1:], trust.roots, piece.at_ns)
    check_revoked(chain, root, trust.crls, piece.at_ns)
    _check_es384(leaf, protected, payload, signature)
    if not trust.pinned:
        return (
            "not_checked",
            f"signed under a trusted root; PCR0 {document['pcrs'][0].hex()[:16]}… is not pinned",
        )
    _check_pcrs(document["pcrs"], trust)
    age_s = piece.at_ns // 10**9 - document["timestamp"] // 1000
    if trust.max_age_s is not None and not -EARLY_S_MAX <= age_s <= trust.max_age_s:
        raise Unverified(f"the document is {age_s} s old; at most {trust.max_age_s} s are allowed")
    return "passed", f"enclave {document['module_id'][:80]}, PCR0 {document['pcrs'][0].hex()[:16]}…"


def _parse_sign1(raw: bytes) -> tuple[bytes, bytes, bytes]:
    value = _cbor(raw)
    if isinstance(value, cbor2.CBORTag):
        if value.tag != 18:
            raise Unverified("the document is no COSE_Sign1 message")
        value = value.value
    if not isinstance(value, list | tuple) or len(value) != 4:
        raise Unverified("the document is no COSE_Sign1 message")
    protected, _, payload, signature = value
    if not all(isinstance(each, bytes) for each in (protected, payload, signature)):
        raise Unverified("the document is no COSE_Sign1 message")
    head = _cbor(protected)
    if not hasattr(head, "items") or dict(head.items()) != {1: ES384}:
        raise Unverified("the document is not signed with ES384")
    return protected, payload, signature


def _parse_document(payload: bytes) -> dict[str, Any]:
    """Return the attestation document, with the types and lengths its makers demand."""
    value = _cbor(payload)
    document = dict(value.items()) if hasattr(value, "items") else {}
    found: Any = document.get("pcrs")
    pcrs = dict(found.items()) if hasattr(found, "items") else {}
    bundle = document.get("cabundle")
    good = (
        isinstance(document.get("module_id"), str)
        and document["module_id"] != ""
        and document.get("digest") == "SHA384"
        and type(document.get("timestamp")) is int
        and document["timestamp"] > 0
        and 1 <= len(pcrs) <= 32
        and all(type(key) is int and 0 <= key < 32 for key in pcrs)
        and all(isinstance(each, bytes) and len(each) in _PCR_BYTES for each in pcrs.values())
        and _sized(document.get("certificate"), 1, 1024)
        and isinstance(bundle, list | tuple)
        and len(bundle) >= 1
        and all(_sized(each, 1, 1024) for each in bundle)
        and all(
            document.get(name) is None or _sized(document[name], least, most)
            for name, least, most in (("public_key", 1, 1024), ("user_data", 0, 512), ("nonce", 0, 512))
        )
    )
    if not good:
        raise Unverified("the attestation document does not have the form of an AWS Nitro document")
    return {
        **document,
        "pcrs": pcrs,
        "user_data": document.get("user_data"),
        "nonce": document.get("nonce"),
        "cabundle": list(bundle or ()),
    }


def _sized(value: Any, least: int, most: int) -> bool:
    return isinstance(value, bytes) and least <= len(value) <= most


def _check_es384(leaf: x509.Certificate, protected: bytes, payload: bytes, signature: bytes) -> None:
    key = public_key_of(leaf)
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise Unverified("the enclave's certificate has no P-384 key")
    if len(signature) != 96:
        raise Unverified(f"an ES384 signature has 96 bytes, not {len(signature)}")
    r, s = int.from_bytes(signature[:48], "big"), int.from_bytes(signature[48:], "big")
    preimage = cbor2.dumps(["Signature1", protected, b"", payload])
    try:
        key.verify(encode_dss_signature(r, s), preimage, ec.ECDSA(hashes.SHA384()))
    except InvalidSignature as error:
        raise Unverified("the document's signature does not hold") from error


def _check_pcrs(pcrs: dict[int, bytes], trust: EvidenceTrust) -> None:
    if 0 not in trust.pcrs:
        raise Unverified("no measurement is allowed: configure PCR0")
    for number, allowed in trust.pcrs.items():
        if pcrs.get(number) not in allowed:
            got = pcrs[number].hex()[:16] + "…" if number in pcrs else "missing"
            raise Unverified(f"PCR{number} is {got}, which is not allowed")


def _cbor(raw: bytes) -> Any:
    try:
        return cbor2.loads(raw)
    except (cbor2.CBORError, ValueError, TypeError, RecursionError, OverflowError, MemoryError) as error:
        raise Unverified("the document is not CBOR") from error
