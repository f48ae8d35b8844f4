"""Roots, platforms, collateral and DCAP quotes made for tests, byte for byte in the form Intel gives them."""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding
from tests.unit.ledger.attesting import DAY, NOON, PAYLOAD, Authority, attested

from ropewalk.ledger.envelope.model import Envelope, payload_hash
from ropewalk.ledger.evidence.binding import report_data

SGX_EXTENSION = "1.2.840.113741.1.13.1"
FMSPC = bytes.fromhex("90c06f000000")
MR_TD, MR_ENCLAVE, MR_SIGNER = b"\x11" * 48, b"\x22" * 32, b"\x33" * 32
RTMRS = tuple(bytes([0x40 + number]) * 48 for number in range(4))
QE_SIGNER = b"\x55" * 32
COMPONENTS = bytes([7, 7, 2, 2, 3, 1, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0])
TEE_TCB_SVN = bytes([5, 1, 6, *bytes(13)])
P256 = ec.SECP256R1()
AUTH = bytes(range(32))
PREFIX = bytes.fromhex("2a864886f84d010d01")


def element(tag: int, content: bytes) -> bytes:
    """DER, for contents below 64 KiB."""
    size = len(content)
    if size < 0x80:
        return bytes([tag, size]) + content
    return (
        bytes([tag]) + (bytes([0x81, size]) if size < 0x100 else b"\x82" + size.to_bytes(2, "big")) + content
    )


def number(value: int) -> bytes:
    return element(2, value.to_bytes(1 + value.bit_length() // 8, "big"))


def member(name: bytes, value: bytes) -> bytes:
    return element(0x30, element(6, PREFIX + name) + value)


def platform_extension(
    components: bytes = COMPONENTS, pce_svn: int = 13, fmspc: bytes = FMSPC, **changes: bytes | None
) -> bytes:
    """What Intel writes into a PCK certificate; `changes` replace or remove members."""
    levels = [member(bytes([2, at]), number(svn)) for at, svn in enumerate(components, 1)]
    levels += [member(b"\2\x11", number(pce_svn)), member(b"\2\x12", element(4, components))]
    members: dict[str, bytes | None] = {
        "ppid": member(b"\1", element(4, bytes(16))),
        "tcb": member(b"\2", element(0x30, b"".join(levels))),
        "pce_id": member(b"\3", element(4, bytes(2))),
        "fmspc": member(b"\4", element(4, fmspc)),
        "type": member(b"\5", element(0x0A, b"\1")),
        **changes,
    }
    return element(0x30, b"".join(each for each in members.values() if each is not None))


def p256(key: ec.EllipticCurvePrivateKey, message: bytes) -> bytes:
    """A signature as Intel spells it."""
    r, s = decode_dss_signature(key.sign(message, ec.ECDSA(hashes.SHA256())))
    return r.to_bytes(32, "big") + s.to_bytes(32, "big")


def bent(raw: bytes, changes: dict[int, bytes] | None) -> bytes:
    found = bytearray(raw)
    for at, value in (changes or {}).items():
        found[at : at + len(value)] = value
    return bytes(found)


def enclave_report(
    data: bytes, signer: bytes, enclave: bytes = MR_ENCLAVE, prodid: int = 1, svn: int = 8
) -> bytes:
    """The 384 bytes of SGX."""
    return bent(
        bytes(384),
        {
            0: COMPONENTS,
            48: b"\x05" + bytes(7) + b"\xe7",
            64: enclave,
            128: signer,
            256: prodid.to_bytes(2, "little") + svn.to_bytes(2, "little"),
            320: data,
        },
    )


def domain_report(data: bytes, size: int = 584) -> bytes:
    """The 584 bytes of TDX 1.0, or the 648 of 1.5."""
    return bent(
        bytes(size),
        {
            0: TEE_TCB_SVN,
            16: b"\x66" * 48,
            120: bytes(3) + b"\x10",
            136: MR_TD,
            328: b"".join(RTMRS),
            520: data,
        },
    )


class Vendor:
    """A root, the authority of platforms, who signs collateral, and a platform with its quoting enclave."""

    def __init__(self, **options: Any) -> None:
        self.root = Authority("SGX Root CA", curve=P256, path_length=1)
        self.ca = Authority("SGX PCK Platform CA", self.root, curve=P256, path_length=0)
        self.signer = Authority("SGX TCB Signing", self.root, ca=False, curve=P256)
        self.pck = self.platform(**options)
        self.key = ec.generate_private_key(P256)

    def platform(self, extension: bytes | None = None, **options: Any) -> Authority:
        """A platform, with the PCK certificate of it."""
        said = {SGX_EXTENSION: platform_extension() if extension is None else extension}
        return Authority("SGX PCK Certificate", self.ca, ca=False, curve=P256, extensions=said, **options)

    def quote(
        self,
        tee: str = "tdx",
        version: int = 4,
        *,
        header: dict[int, bytes] | None = None,
        body: dict[int, bytes] | None = None,
        qe: dict[int, bytes] | None = None,
        pck: Authority | None = None,
        chain: Sequence[Authority] | None = None,
        size: int = 584,
        kind: int | None = None,
        key: ec.EllipticCurvePrivateKey | None = None,
        public: bytes | None = None,
    ) -> bytes:
        """A quote; the changes are made before each part is signed.

        `key` signs in place of the key that is named, and `public` is named in place of the key that signs.
        """
        pck = pck or self.pck
        data = report_data(bytes.fromhex(payload_hash(PAYLOAD)), "c-1")
        head = bytes(48)
        head = bent(
            head, {0: bytes([version, 0, 2, 0]), 12: bytes.fromhex("939a7233f79c4ca9940a0db3957f0607")}
        )
        head = bent(bent(head, {4: b"\x81"} if tee == "tdx" else {}), header)
        report = bent(enclave_report(data, MR_SIGNER) if tee == "sgx" else domain_report(data, size), body)
        if version == 5:
            kind = kind or {384: 1, 584: 2, 648: 3}[len(report)]
            head += kind.to_bytes(2, "little") + len(report).to_bytes(4, "little")
        point = self.key.public_key().public_numbers()
        public = public or point.x.to_bytes(32, "big") + point.y.to_bytes(32, "big")
        bound = hashlib.sha256(public + AUTH).digest() + bytes(32)
        own = enclave_report(bound, QE_SIGNER, b"\x77" * 32, 2 if tee == "tdx" else 1)
        qe_report = bent(bent(own, {48: b"\x15"}), qe)
        pems = "".join(
            each.pem for each in (chain if chain is not None else (pck, self.ca, self.root))
        ).encode()
        inner = qe_report + p256(pck.key, qe_report) + len(AUTH).to_bytes(2, "little") + AUTH
        inner += (5).to_bytes(2, "little") + len(pems).to_bytes(4, "little") + pems
        if version >= 4:
            inner = (6).to_bytes(2, "little") + len(inner).to_bytes(4, "little") + inner
        data = p256(key or self.key, head + report) + public + inner
        return head + report + len(data).to_bytes(4, "little") + data

    def collateral(
        self,
        tee: str = "tdx",
        *,
        signer: Authority | None = None,
        chain: list[str] | None = None,
        **changes: Any,
    ) -> dict[str, Any]:
        """TCB info and QE identity, signed; `tcb` and `qe` replace members of theirs."""
        signer = signer or self.signer
        return {
            "tcb_info": signed("tcbInfo", tcb_info(tee, **changes.get("tcb", {})), signer),
            "qe_identity": signed("enclaveIdentity", qe_identity(tee, **changes.get("qe", {})), signer),
            "chain": [signer.pem, self.root.pem] if chain is None else chain,
        }


def signed(name: str, value: Any, signer: Authority) -> str:
    body = json.dumps(value, separators=(",", ":"))
    return f'{{"{name}":{body},"signature":"{p256(signer.key, body.encode()).hex()}"}}'


def tcb_info(tee: str = "tdx", **changes: Any) -> dict[str, Any]:
    """What Intel says of platforms: three levels, from the best down."""

    def level(sgx: bytes, pce_svn: int, tdx: bytes, status: str) -> dict[str, Any]:
        tcb: dict[str, Any] = {"sgxtcbcomponents": [{"svn": svn} for svn in sgx], "pcesvn": pce_svn}
        if tee == "tdx":
            tcb["tdxtcbcomponents"] = [{"svn": svn} for svn in tdx]
        return {"tcb": tcb, "tcbDate": "2024-03-13T00:00:00Z", "tcbStatus": status}

    older = bytes([max(0, svn - 1) for svn in COMPONENTS])
    value: dict[str, Any] = {
        "id": tee.upper(),
        "version": 3,
        "issueDate": stamp(NOON - DAY),
        "nextUpdate": stamp(NOON + DAY),
        "fmspc": FMSPC.hex(),
        "pceId": "0000",
        "tcbType": 0,
        "tcbEvaluationDataNumber": 17,
        "tcbLevels": [
            level(COMPONENTS, 13, TEE_TCB_SVN, "UpToDate"),
            level(COMPONENTS, 11, bytes(16), "SWHardeningNeeded"),
            level(older, 5, bytes(16), "OutOfDate"),
        ],
    }
    if tee == "tdx":
        module = {"mrsigner": "00" * 48, "attributes": "00" * 8, "attributesMask": "FF" * 8}
        levels = [
            {"tcb": {"isvsvn": svn}, "tcbDate": "2024-03-13T00:00:00Z", "tcbStatus": status}
            for svn, status in ((4, "UpToDate"), (2, "OutOfDate"))
        ]
        value["tdxModule"] = module
        value["tdxModuleIdentities"] = [{"id": "TDX_01", **module, "tcbLevels": levels}]
    return value | changes


def qe_identity(tee: str = "tdx", **changes: Any) -> dict[str, Any]:
    """What Intel says of its quoting enclave."""
    return {
        "id": "TD_QE" if tee == "tdx" else "QE",
        "version": 2,
        "issueDate": stamp(NOON - DAY),
        "nextUpdate": stamp(NOON + DAY),
        "tcbEvaluationDataNumber": 17,
        "miscselect": "00000000",
        "miscselectMask": "FFFFFFFF",
        "attributes": "11" + "00" * 15,
        "attributesMask": "FB" + "FF" * 7 + "00" * 8,
        "mrsigner": QE_SIGNER.hex(),
        "isvprodid": 2 if tee == "tdx" else 1,
        "tcbLevels": [
            {"tcb": {"isvsvn": svn}, "tcbDate": "2024-03-13T00:00:00Z", "tcbStatus": status}
            for svn, status in ((8, "UpToDate"), (4, "OutOfDate"))
        ],
    } | changes


def revocations(
    issuer: Authority, *revoked: Authority, when: datetime = NOON - DAY, end: datetime = NOON + DAY
) -> str:
    """A revocation list in PEM."""
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(issuer.certificate.subject)
        .last_update(NOON - 2 * DAY)
        .next_update(end)
    )
    for each in revoked:
        entry = x509.RevokedCertificateBuilder().serial_number(each.certificate.serial_number)
        builder = builder.add_revoked_certificate(entry.revocation_date(when).build())
    return builder.sign(issuer.key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()


def stamp(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def quoted(document: bytes, tee: str = "tdx", *, said: dict[str, Any] | None = None, **more: Any) -> Envelope:
    """An envelope with a quote; `said` stands beside it."""
    report = {"tee_type": tee, "document": b64encode(document).decode(), **(said or {})}
    return attested(report, **more)
