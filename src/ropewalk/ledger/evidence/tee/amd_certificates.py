"""Certificates of AMD's chips: whom a VCEK or VLEK was made for, at which levels, and the chain above it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import SignatureAlgorithmOID

from ropewalk.errors import Invalid, Unverified
from ropewalk.ledger.evidence.certificates import check_endorsement, extensions_of, public_key_of
from ropewalk.ledger.evidence.tee.der import IA5_STRING, INTEGER, OCTET_STRING, parse_element, to_number

TURIN_FAMILY: Final = 0x1A  # from here on the first byte of a TCB version is the FMC's level
RSA_BITS: Final = 4096
CHAIN_MAX: Final = 3
_CHIP_ID_BYTES: Final = 64
_AMD: Final = "1.3.6.1.4.1.3704.1."
_STRUCT, _PRODUCT, _CHIP_ID, _CLOUD = "1", "2", "4", "5"
# Position of each level in the eight bytes of a TCB version, by the number of its extension; two layouts, by the
# structure version of the certificate.
_LEVELS: Final = {
    0: {"bootloader": (0, "3.1"), "tee": (1, "3.2"), "snp": (6, "3.3"), "microcode": (7, "3.8")},
    1: {
        "fmc": (0, "3.9"),
        "bootloader": (1, "3.1"),
        "tee": (2, "3.2"),
        "snp": (3, "3.3"),
        "microcode": (7, "3.8"),
    },
}


@dataclass(frozen=True, slots=True)
class Endorsement:
    """AMD's statement about a key: its chip or cloud, and the levels it was made for."""

    product: str
    layout: int
    tcb: bytes
    chip_id: bytes | None
    cloud: str | None

    @property
    def has_fmc(self) -> bool:
        """Whether the TCB version has a level for the FMC."""
        return "fmc" in _LEVELS[self.layout]

    def levels(self) -> dict[str, int]:
        """Return each part of the platform with its level."""
        return {name: self.tcb[place] for name, (place, _) in _LEVELS[self.layout].items()}

    def whose(self) -> str:
        """Return the chip or the cloud, for people."""
        return f"chip {self.chip_id.hex()[:16]}…" if self.chip_id is not None else f"cloud {self.cloud}"


def read_endorsement(leaf: x509.Certificate) -> Endorsement:
    """Parse a VCEK or VLEK certificate; it has exactly one of a chip id and a cloud name."""
    found = extensions_of(leaf)
    try:
        layout = _level(found, _STRUCT)
        if layout not in _LEVELS:
            raise Unverified(f"the chip's certificate has structure version {layout}; known are 0 and 1")
        tcb = bytearray(8)
        for place, number in _LEVELS[layout].values():
            tcb[place] = _level(found, number)
        product = _text(found, _PRODUCT)
        chip_id = found.get(_AMD + _CHIP_ID)
        cloud = _text(found, _CLOUD) if _AMD + _CLOUD in found else None
    except Invalid as error:
        raise Unverified(f"the chip's certificate: {error.detail}") from error
    if (chip_id is None) == (cloud is None):
        raise Unverified("the chip's certificate names neither a chip nor a cloud, or both")
    return Endorsement(product, layout, bytes(tcb), None if chip_id is None else _chip_id(chip_id), cloud)


def check_amd_chain(
    chain: Sequence[x509.Certificate], roots: Sequence[x509.Certificate], at_ns: int
) -> x509.Certificate:
    """Return the root of AMD's chain: the chip's key, a signing key, a configured root, by RSA-PSS of 4096 bits.

    Raise if it is something else.
    """
    if not 2 <= len(chain) <= CHAIN_MAX:
        raise Unverified(
            f"{len(chain)} certificates; a VCEK or VLEK, an ASK or ASVK, and perhaps the ARK are expected"
        )
    root = check_endorsement(chain[0], chain[1:], roots, at_ns)
    for depth, certificate in enumerate(chain):
        pss = certificate.signature_algorithm_oid == SignatureAlgorithmOID.RSASSA_PSS
        if not pss or not isinstance(certificate.signature_hash_algorithm, hashes.SHA384):
            raise Unverified("a certificate of the chain is not signed with RSA-PSS and SHA-384")
        key = public_key_of(certificate)
        if depth and not (isinstance(key, rsa.RSAPublicKey) and key.key_size == RSA_BITS):
            raise Unverified(f"an authority of the chain has no RSA key of {RSA_BITS} bits")
    return root


def _level(found: dict[str, bytes], number: str) -> int:
    return to_number(parse_element(_value(found, number), INTEGER), 255)


def _text(found: dict[str, bytes], number: str) -> str:
    content = parse_element(_value(found, number), IA5_STRING)
    if not content.isascii() or not content.decode("ascii").isprintable() or len(content) > 80:
        raise Invalid(f"extension {_AMD}{number} is no short text")
    return content.decode("ascii")


def _value(found: dict[str, bytes], number: str) -> bytes:
    if _AMD + number not in found:
        raise Invalid(f"extension {_AMD}{number} is missing")
    return found[_AMD + number]


def _chip_id(value: bytes) -> bytes:
    """Return the chip id as reports have it. AMD writes it bare, of 64 bytes or, since Turin, of eight."""
    if len(value) not in (8, _CHIP_ID_BYTES):
        try:
            value = parse_element(value, OCTET_STRING)
        except Invalid as error:
            raise Unverified("the chip's certificate has a chip id of no known length") from error
    if len(value) not in (8, _CHIP_ID_BYTES):
        raise Unverified("the chip's certificate has a chip id of no known length")
    return value.ljust(_CHIP_ID_BYTES, b"\0")
