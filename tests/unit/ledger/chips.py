"""Roots, chips and SEV-SNP reports made for tests, byte for byte in the form AMD gives them."""

from __future__ import annotations

from base64 import b64encode
from datetime import datetime
from functools import cache
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from tests.unit.ledger.attesting import DAY, NOON, PAYLOAD, attested

from ropewalk.ledger.envelope.model import Envelope, payload_hash
from ropewalk.ledger.evidence.binding import report_data

CHIP = bytes(range(64))
MEASUREMENT = b"\x5a" * 48
LEVELS = {"fmc": 2, "bootloader": 4, "tee": 0, "snp": 24, "microcode": 219}
POLICY = 0x30000  # SMT is allowed, and the bit that must be one
_AMD = "1.3.6.1.4.1.3704.1."


@cache
def rsa_key(number: int, bits: int = 4096) -> rsa.RSAPrivateKey:
    """A key of this size; slow to make, so each is made once."""
    return rsa.generate_private_key(65537, bits)


def certify(
    name: str,
    key: Any,
    above: tuple[x509.Certificate, Any] | None,
    *,
    ca: bool,
    extensions: dict[str, bytes] | None = None,
    usage: bool = True,
    start: datetime = NOON - DAY,
    end: datetime = NOON + DAY,
    pss: bool = True,
) -> x509.Certificate:
    """A certificate as AMD issues it: authorities say what they may do, keys of chips only whose they are."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    issuer, signer = (subject, key) if above is None else (above[0].subject, above[1])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
    )
    if ca:
        builder = builder.add_extension(x509.BasicConstraints(True, None), critical=True)
        if usage:
            flags = dict.fromkeys(
                (
                    "digital_signature",
                    "content_commitment",
                    "key_encipherment",
                    "data_encipherment",
                    "key_agreement",
                    "encipher_only",
                    "decipher_only",
                ),
                False,
            )
            builder = builder.add_extension(
                x509.KeyUsage(key_cert_sign=True, crl_sign=True, **flags), critical=True
            )
    for number, value in (extensions or {}).items():
        extension = x509.UnrecognizedExtension(x509.ObjectIdentifier(number), value)
        builder = builder.add_extension(extension, critical=False)
    if not pss:
        return builder.sign(signer, hashes.SHA384())
    filling = padding.PSS(padding.MGF1(hashes.SHA384()), 48)
    return builder.sign(signer, hashes.SHA384(), rsa_padding=filling)


def chip_extensions(layout: int = 0, chip: bytes | None = CHIP, cloud: str | None = None) -> dict[str, bytes]:
    """What AMD writes into the certificate of a chip."""
    numbers = {"1": layout, "3.4": 0, "3.5": 0, "3.6": 0, "3.7": 0}
    numbers |= {"3.1": LEVELS["bootloader"], "3.2": LEVELS["tee"], "3.3": LEVELS["snp"]}
    numbers |= {"3.8": LEVELS["microcode"]} | ({"3.9": LEVELS["fmc"]} if layout else {})
    found = {_AMD + name: _integer(number) for name, number in numbers.items()}
    product = b"Turin-B0" if layout else b"Milan-B1"
    found[_AMD + "2"] = bytes([0x16, len(product)]) + product
    if chip is not None:
        found[_AMD + "4"] = chip
    if cloud is not None:
        found[_AMD + "5"] = bytes([0x16, len(cloud)]) + cloud.encode()
    return found


def _integer(number: int) -> bytes:
    content = number.to_bytes(1 + number.bit_length() // 8, "big")
    return bytes([2, len(content)]) + content


class Vendor:
    """ARK and ASK with their keys, able to certify chips. The two share no key."""

    def __init__(self, number: int = 0, **options: Any) -> None:
        self.ark_key, self.ask_key = rsa_key(2 * number), rsa_key(2 * number + 1)
        self.ark = certify("ARK-Milan", self.ark_key, None, ca=True)
        self.ask = certify("SEV-Milan", self.ask_key, (self.ark, self.ark_key), ca=True, **options)

    def chip(self, extensions: dict[str, bytes] | None = None, **options: Any) -> Chip:
        """A chip with its key."""
        key = ec.generate_private_key(options.pop("curve", ec.SECP384R1()))
        said = chip_extensions() if extensions is None else extensions
        leaf = certify("SEV-VCEK", key, (self.ask, self.ask_key), ca=False, extensions=said, **options)
        return Chip(key, leaf, self)


class Chip:
    """A secure processor: its key, and the chain above it."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, leaf: x509.Certificate, vendor: Vendor) -> None:
        self.key, self.leaf, self.vendor = key, leaf, vendor

    @property
    def chain(self) -> list[str]:
        """What stands beside a report: VCEK and ASK."""
        return [pem(self.leaf), pem(self.vendor.ask)]

    def report(self, *, layout: int = 0, version: int = 2, changes: dict[int, bytes] | None = None) -> bytes:
        """A report; `changes` replace bytes at places of it before it is signed."""
        raw = bytearray(0x2A0)
        raw[0x000:0x004] = version.to_bytes(4, "little")
        raw[0x008:0x010] = POLICY.to_bytes(8, "little")
        raw[0x034] = 1
        raw[0x050:0x090] = report_data(bytes.fromhex(payload_hash(PAYLOAD)), "c-1")
        raw[0x090:0x0C0] = MEASUREMENT
        raw[0x160:0x180] = b"\xff" * 32
        for place in (0x038, 0x180, 0x1E0, 0x1F0):
            raw[place : place + 8] = tcb(layout)
        if version >= 3:
            raw[0x188:0x18B] = bytes([0x1A, 2, 0]) if layout else bytes([0x19, 1, 1])
        raw[0x1A0:0x1E0] = CHIP if not layout else CHIP[:8] + bytes(56)
        for place, value in (changes or {}).items():
            raw[place : place + len(value)] = value
        return sealed(self.key, bytes(raw))


def sealed(key: ec.EllipticCurvePrivateKey, body: bytes) -> bytes:
    """A report's body with its signature: r and s in little-endian, each in 72 bytes, and zeros to the end."""
    r, s = decode_dss_signature(key.sign(body, ec.ECDSA(hashes.SHA384())))
    size = 72 if key.key_size <= 384 else 66
    return body + (r.to_bytes(size, "little") + s.to_bytes(size, "little")).ljust(512, b"\0")


def revocations(vendor: Vendor, *revoked: x509.Certificate) -> str:
    """A list of the root's, signed as AMD signs it."""
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(vendor.ark.subject)
        .last_update(NOON - DAY)
        .next_update(NOON + DAY)
    )
    for each in revoked:
        entry = x509.RevokedCertificateBuilder().serial_number(each.serial_number)
        builder = builder.add_revoked_certificate(entry.revocation_date(NOON - DAY).build())
    filling = padding.PSS(padding.MGF1(hashes.SHA384()), 48)
    made = builder.sign(vendor.ark_key, hashes.SHA384(), rsa_padding=filling)
    return made.public_bytes(Encoding.PEM).decode()


def tcb(layout: int = 0) -> bytes:
    """The levels as eight bytes."""
    parts = [LEVELS[name] for name in ("bootloader", "tee", "snp", "microcode")]
    if layout:
        return bytes([LEVELS["fmc"], *parts[:3], 0, 0, 0, parts[3]])
    return bytes([*parts[:2], 0, 0, 0, 0, *parts[2:]])


def pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(Encoding.PEM).decode()


def sev(document: bytes, chain: list[str], *, said: dict[str, Any] | None = None, **more: Any) -> Envelope:
    """An envelope with a SEV-SNP report; `said` stands beside the document."""
    report = {"tee_type": "sev", "document": b64encode(document).decode(), **(said or {})}
    return attested(report, cert_chain=chain, **more)
