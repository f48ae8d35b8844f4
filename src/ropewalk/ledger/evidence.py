"""Whether evidence holds (S4 §6), offline: DSSE signatures over provenance, and AWS Nitro documents.

`binding` says that evidence speaks of an envelope; this module says whether it is true. What counts is configured:

    {"version":1, "roots":["<PEM>"…], "keys":[{identity}…], "builders":["<id>"…], "pcrs":{"0":["<hex>"…]},
     "max_age_s":n|null}

Nothing is trusted by default. Formats that cannot be judged here answer *not checked*, and policy decides.
Not looked at: revocation lists and vendors' live services, which would need the network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import cbor2
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from ropewalk.errors import Invalid, RopewalkError, Unverified
from ropewalk.kernel import jcs
from ropewalk.kernel.keys import PublicKey
from ropewalk.kernel.report import Status
from ropewalk.ledger.binding import (
    PAYLOAD_TYPE,
    PROVENANCE,
    STATEMENT,
    check_binding,
    dsse_statement,
    report_data,
    signed_bytes,
)
from ropewalk.ledger.certificates import check_chain, parse_der, parse_pem, public_key_of
from ropewalk.ledger.envelope import Envelope, decode_base64, parse_timestamp
from ropewalk.ledger.trust import EvidencePins, parse_pins

__all__ = [
    "EvidenceSettings",
    "EvidenceTrust",
    "check_evidence",
    "evidence_check",
    "parse_evidence_settings",
    "parse_evidence_trust",
    "signed_bytes",
]

ES384: Final = -35
DOCUMENT_BYTES_MAX: Final = 1 << 16
SIGNATURES_MAX: Final = 16
_PCR_BYTES: Final = (32, 48, 64)


@dataclass(frozen=True, slots=True)
class EvidenceSettings:
    """The evidence.json of a channel: the roots as PEM texts, and what is pinned beside them.

    >>> settings = EvidenceSettings((), EvidencePins(builders=("urn:x",)))
    >>> parse_evidence_settings(settings.to_bytes()) == settings
    True
    """

    roots: tuple[str, ...] = ()
    pins: EvidencePins = field(default_factory=EvidencePins)

    def to_bytes(self) -> bytes:
        """The file."""
        value: dict[str, Any] = {"version": 1, "roots": list(self.roots), **self.pins.to_json()}
        return jcs.encode(value)


@dataclass(frozen=True, slots=True)
class EvidenceTrust:
    """What a verifier of evidence believes: roots, keys, builders and measurements. Empty means nobody and nothing.

    `pinned` is False where only roots are known: signatures and chains are judged, whose evidence it is stays open.
    """

    roots: tuple[x509.Certificate, ...] = ()
    keys: tuple[PublicKey, ...] = ()
    builders: frozenset[str] = frozenset()
    pcrs: dict[int, frozenset[bytes]] = field(default_factory=dict)
    max_age_s: int | None = None
    pinned: bool = True

    @classmethod
    def of(cls, roots: Iterable[str], pins: EvidencePins | None) -> EvidenceTrust:
        """From PEM texts and pins, as trust files and settings hold them."""
        known = pins or EvidencePins()
        return cls(
            tuple(parse_pem(root) for root in roots),
            known.keys,
            frozenset(known.builders),
            {number: frozenset(map(bytes.fromhex, texts)) for number, texts in known.pcrs.items()},
            known.max_age_s,
            pins is not None,
        )


def parse_evidence_settings(raw: bytes) -> EvidenceSettings:
    """The settings of a file; anything unknown in it is refused, and so is a root that is no certificate."""
    value = jcs.parse(raw)
    if not isinstance(value, dict) or value.get("version") != 1 or value["version"] is True:
        raise _wrong("an object of version 1 with roots, keys, builders, pcrs and max_age_s is expected")
    roots = value.get("roots", [])
    if not isinstance(roots, list) or not all(isinstance(root, str) for root in roots):
        raise _wrong("roots are certificates as PEM texts")
    rest = {name: each for name, each in value.items() if name not in ("version", "roots")}
    settings = EvidenceSettings(tuple(str(root) for root in roots), parse_pins(rest, _wrong))
    EvidenceTrust.of(settings.roots, settings.pins)
    return settings


def parse_evidence_trust(raw: bytes) -> EvidenceTrust:
    """What a channel's evidence.json believes.

    >>> parse_evidence_trust(b'{"version":1,"builders":["urn:x"]}').builders
    frozenset({'urn:x'})
    """
    settings = parse_evidence_settings(raw)
    return EvidenceTrust.of(settings.roots, settings.pins)


def evidence_check(
    trust: EvidenceTrust, now_ns: Callable[[], int]
) -> Callable[[Envelope], tuple[Status, str]]:
    """What rule 5 asks, with the time of the asking."""
    return lambda envelope: check_evidence(envelope, trust, now_ns())


def check_evidence(
    envelope: Envelope, trust: EvidenceTrust, at_ns: int, *, nonce: bytes | None = None
) -> tuple[Status, str]:
    """Whether the envelope's evidence is bound to it and holds at a time. `nonce` is one the verifier had asked for."""
    evidence = envelope.value.get("attestation_evidence")
    status, detail = check_binding(envelope)
    if evidence is None or status == "failed":
        return status, detail
    report = evidence.get("report")
    if not isinstance(report, dict):
        return "not_checked", detail
    nitro = evidence["format"] == "tee.report" and report.get("tee_type") == "aws_nitro"
    try:
        # An enclave's document carries the nonce itself, signed; of other reports only their freshness may.
        _check_freshness(evidence, report, at_ns, None if nitro else nonce)
        if evidence["format"] == "slsa.v1":
            return _check_provenance(evidence, report, trust, at_ns)
        if nitro:
            return _check_nitro(envelope, evidence, report, trust, at_ns, nonce)
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
        raise Unverified("freshness is an object with nonce and expires_at")
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
    return "passed", f"provenance by {builder[:120]}, signed by {who}"


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
    check_chain(certificates[0], certificates[1:], trust.roots, at_ns)
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


# --- AWS Nitro ---


def _check_nitro(
    envelope: Envelope,
    evidence: dict[str, Any],
    report: dict[str, Any],
    trust: EvidenceTrust,
    at_ns: int,
    nonce: bytes | None,
) -> tuple[Status, str]:
    raw = decode_base64(str(report.get("document", "")), "/report/document")
    protected, payload, signature = _parse_sign1(raw)
    document = _parse_document(payload)
    literal = envelope.payload_hash + (envelope.correlation_id or "").encode()
    if document["user_data"] not in (report_data(envelope.payload_hash, envelope.correlation_id), literal):
        raise Unverified("user_data of the document does not bind payload_hash and correlation_id")
    measurement = report.get("measurement")
    if measurement is not None and measurement != document["pcrs"].get(0, b"").hex():
        raise Unverified("the measurement named in the report is not the document's PCR0")
    said = evidence.get("nonce")
    have = document["nonce"]
    if said is not None and (have is None or said not in (have.hex(), have.decode("utf-8", "replace"))):
        raise Unverified("the document does not carry the nonce of the evidence")
    if nonce is not None and have != nonce:
        raise Unverified("the document does not carry the nonce that was asked for")
    if not any(document["pcrs"].get(0, b"")):
        raise Unverified("PCR0 is zero: the enclave ran in debug mode")
    if not trust.roots:
        return "not_checked", "no roots are configured for enclaves"
    leaf = parse_der(document["certificate"])
    check_chain(leaf, [parse_der(each) for each in reversed(document["cabundle"])], trust.roots, at_ns)
    _check_es384(leaf, protected, payload, signature)
    if not trust.pinned:
        return (
            "not_checked",
            f"signed under a trusted root; PCR0 {document['pcrs'][0].hex()[:16]}… is not pinned",
        )
    _check_pcrs(document["pcrs"], trust)
    age_s = at_ns // 10**9 - document["timestamp"] // 1000
    if trust.max_age_s is not None and not -300 <= age_s <= trust.max_age_s:
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
    """The attestation document, with the types and lengths its makers demand."""
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
    if len(raw) > DOCUMENT_BYTES_MAX:
        raise Unverified(f"a document of {len(raw)} bytes; at most {DOCUMENT_BYTES_MAX}")
    try:
        return cbor2.loads(raw)
    except (cbor2.CBORError, ValueError, TypeError, RecursionError, OverflowError, MemoryError) as error:
        raise Unverified("the document is not CBOR") from error


def _wrong(what: str) -> Invalid:
    return Invalid(
        f"evidence configuration: {what}", advice="Write it with `ropewalk ledger evidence set --channel C`."
    )
