"""ECDSA over P-256 as Intel spells it: bare numbers in big-endian, keys as two of them, signatures as two of them."""

from __future__ import annotations

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from ropewalk.errors import Unverified
from ropewalk.ledger.evidence.certificates import public_key_of


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
