"""Certificates of Intel's platforms: which kind a PCK certificate was made for, and at which levels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from ropewalk.errors import Invalid, Unverified
from ropewalk.ledger.evidence.certificates import extensions_of, public_key_of
from ropewalk.ledger.evidence.tee.der import (
    INTEGER,
    OBJECT_ID,
    OCTET_STRING,
    SEQUENCE,
    parse_element,
    parse_elements,
    to_number,
)

SGX_EXTENSION: Final = "1.2.840.113741.1.13.1"
COMPONENTS: Final = 16
_PREFIX: Final = bytes.fromhex("2a864886f84d010d01")  # the same object id, as DER spells it
_TCB, _PCE_ID, _FMSPC = _PREFIX + b"\2", _PREFIX + b"\3", _PREFIX + b"\4"
_PCE_SVN: Final = COMPONENTS + 1  # the numbers under _TCB: 1 to 16 are components, then this


@dataclass(frozen=True, slots=True)
class Platform:
    """Intel's statement about a platform: its kind (FMSPC), its provisioning enclave, and component levels."""

    fmspc: bytes
    pce_id: bytes
    components: bytes
    pce_svn: int


def read_platform(leaf: x509.Certificate) -> Platform:
    """Parse a PCK certificate."""
    raw = extensions_of(leaf).get(SGX_EXTENSION)
    if raw is None:
        raise Unverified("the certificate that vouches for the quoting enclave is no PCK certificate")
    try:
        found = _members(parse_element(raw, SEQUENCE))
        levels = _members(_content(found, _TCB, SEQUENCE))
        components = bytes(
            to_number(_content(levels, _TCB + bytes([number]), INTEGER), 255)
            for number in range(1, COMPONENTS + 1)
        )
        pce_svn = to_number(_content(levels, _TCB + bytes([_PCE_SVN]), INTEGER), 0xFFFF)
        fmspc, pce_id = _content(found, _FMSPC, OCTET_STRING), _content(found, _PCE_ID, OCTET_STRING)
    except Invalid as error:
        raise Unverified(f"the PCK certificate: {error.detail}") from error
    if len(fmspc) != 6 or len(pce_id) != 2:
        raise Unverified("the PCK certificate: FMSPC has 6 bytes and PCE id 2")
    return Platform(fmspc, pce_id, components, pce_svn)


def _members(raw: bytes) -> dict[bytes, tuple[int, bytes]]:
    """Return pairs of an object id and a value, by the id."""
    found: dict[bytes, tuple[int, bytes]] = {}
    for tag, content in parse_elements(raw):
        pair = parse_elements(content) if tag == SEQUENCE else []
        if len(pair) != 2 or pair[0][0] != OBJECT_ID or pair[0][1] in found:
            raise Invalid("an SGX extension holds pairs of an object id and a value, each id once")
        found[pair[0][1]] = pair[1]
    return found


def _content(found: dict[bytes, tuple[int, bytes]], name: bytes, tag: int) -> bytes:
    if name not in found or found[name][0] != tag:
        raise Invalid(f"the SGX extension lacks member {name.hex()} of tag {tag:#04x}")
    return found[name][1]


def check_p256(signer: x509.Certificate | bytes, message: bytes, signature: bytes, what: str) -> None:
    """Raise unless the signature is the signer's: the key of a certificate, or a bare one of 64 bytes."""
    if isinstance(signer, bytes):
        numbers = ec.EllipticCurvePublicNumbers(_half(signer, 0), _half(signer, 1), ec.SECP256R1())
        try:
            key = numbers.public_key()
        except ValueError as error:
            raise Unverified(f"{what}: its key is no point of P-256") from error
    else:
        key = public_key_of(signer)
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise Unverified(f"{what}: its certificate has no P-256 key")
    spelt = encode_dss_signature(_half(signature, 0), _half(signature, 1))
    try:
        key.verify(spelt, message, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature as error:
        raise Unverified(f"{what} does not hold") from error


def _half(raw: bytes, which: int) -> int:
    return int.from_bytes(raw[32 * which : 32 * (which + 1)], "big")
