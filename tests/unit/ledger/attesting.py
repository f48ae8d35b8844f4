"""Roots, chains and documents made for tests, as a vendor would make them."""

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime, timedelta
from typing import Any

import cbor2
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from tests.unit.ledger.making import NOON_NS, observed

from ropewalk.kernel import jcs
from ropewalk.kernel.digest import blake3
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.envelope.model import Envelope, payload_hash
from ropewalk.ledger.evidence.binding import report_data, signed_bytes

NOON = datetime.fromtimestamp(NOON_NS // 10**9, UTC)
DAY = timedelta(days=1)
PAYLOAD = {"image": "web"}
PCR0 = b"\7" * 48


class Authority:
    """A certificate with its key, able to issue others."""

    certificate: x509.Certificate

    def __init__(
        self,
        name: str,
        above: Authority | None = None,
        *,
        ca: bool = True,
        path_length: int | None = None,
        sign: bool | None = None,
        usage: bool = True,
        start: datetime = NOON - DAY,
        end: datetime = NOON + DAY,
        curve: Any = None,
        critical: bool = False,
        extensions: dict[str, bytes] | None = None,
    ) -> None:
        self.key = ec.generate_private_key(curve or ec.SECP384R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        issuer: x509.Name = above.certificate.subject if above is not None else subject
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(self.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(end)
            .add_extension(x509.BasicConstraints(ca, path_length if ca else None), critical=True)
        )
        if usage:
            builder = builder.add_extension(
                x509.KeyUsage(
                    digital_signature=(not ca) if sign is None else sign,
                    content_commitment=False,
                    key_encipherment=False,
                    data_encipherment=False,
                    key_agreement=False,
                    key_cert_sign=ca if sign is None else sign and ca,
                    crl_sign=ca,
                    encipher_only=False,
                    decipher_only=False,
                ),
                critical=True,
            )
        if critical:
            builder = builder.add_extension(
                x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\5\0"), critical=True
            )
        for number, value in (extensions or {}).items():
            said = x509.UnrecognizedExtension(x509.ObjectIdentifier(number), value)
            builder = builder.add_extension(said, critical=False)
        signer = above.key if above is not None else self.key
        self.certificate = builder.sign(signer, hashes.SHA384())

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(Encoding.DER)

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()


def es384(key: ec.EllipticCurvePrivateKey, message: bytes) -> bytes:
    r, s = decode_dss_signature(key.sign(message, ec.ECDSA(hashes.SHA384())))
    return r.to_bytes(48, "big") + s.to_bytes(48, "big")


def nitro_document(
    leaf: Authority,
    bundle: list[Authority],
    *,
    correlation_id: str | None = "c-1",
    tagged: bool = False,
    **changes: Any,
) -> bytes:
    """A document as the Nitro hypervisor makes it; `changes` replace fields before it is signed."""
    document = {
        "module_id": "i-0123-enc0123",
        "digest": "SHA384",
        "timestamp": NOON_NS // 10**6,
        "pcrs": {0: PCR0, 1: b"\1" * 48, 2: b"\2" * 48},
        "certificate": leaf.der,
        "cabundle": [each.der for each in bundle],
        "public_key": None,
        "user_data": report_data(bytes.fromhex(payload_hash(PAYLOAD)), correlation_id),
        "nonce": b"\x0a\x0b",
        **changes,
    }
    protected, payload = cbor2.dumps({1: -35}), cbor2.dumps(document)
    signature = es384(leaf.key, cbor2.dumps(["Signature1", protected, b"", payload]))
    value: Any = [protected, {}, payload, signature]
    return cbor2.dumps(cbor2.CBORTag(18, value) if tagged else value)


def attested(report: dict[str, Any], format_: str = "tee.report", **more: Any) -> Envelope:
    """An Attestation with this report."""
    evidence = {
        "format": format_,
        "evidence_hash": blake3(jcs.encode(report)).hex(),
        "report": report,
        **more,
    }
    return observed(event_class="Attestation", payload=PAYLOAD, correlation_id="c-1", evidence=evidence)


def nitro(document: bytes, **more: Any) -> Envelope:
    """An envelope with a Nitro document."""
    return attested({"tee_type": "aws_nitro", "document": b64encode(document).decode()}, **more)


def statement(**changes: Any) -> dict[str, Any]:
    """Provenance of the payload."""
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": "web", "digest": {"blake3": payload_hash(PAYLOAD)}}],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {"buildType": "urn:build", "externalParameters": {"ref": "main"}},
            "runDetails": {"builder": {"id": "https://builder.example/v1"}},
        },
        **changes,
    }


def dsse(
    key: SigningKey | Authority, value: Any = None, *, kind: str = "application/vnd.in-toto+json"
) -> dict[str, Any]:
    """The statement in a signed DSSE envelope."""
    raw = jcs.encode(statement() if value is None else value)
    message = signed_bytes(kind, raw)
    ecdsa = ec.ECDSA(hashes.SHA384())
    signature = key.sign(message) if isinstance(key, SigningKey) else key.key.sign(message, ecdsa)
    return {
        "payloadType": kind,
        "payload": b64encode(raw).decode(),
        "signatures": [{"keyid": "k", "sig": b64encode(signature).decode()}],
    }
