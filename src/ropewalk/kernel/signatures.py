"""The strict rule for signatures: one verdict for one triple of key, message and signature, on every machine.

Ed25519 (RFC 8032, as libsodium and `verify_strict` of the Rust world decide it):
- A (the key) and R are canonical encodings: y below p, and no sign bit on x = 0;
- A and R do not have small order;
- S is below the order L of the group;
- the equation holds without the cofactor: [S]B = R + [k]A. A with a part of small order is not refused as such.

ECDSA over P-256 and secp256k1, with SHA-256:
- the key is the 33-byte compressed form of a point on the curve;
- the signature is r ‖ s, 64 bytes, both in 1 … n−1, and s in the lower half, because n−s would verify as well
  and give the same statement a second id.

Libraries do the arithmetic. What they are known to decide differently is checked here, before they are asked.
They are imported at the first use: most commands never verify anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Literal

from ropewalk.errors import InvalidKey, SigInvalid, Unavailable

Algorithm = Literal["ed25519", "p256", "secp256k1"]
SECRET_BYTES = 32
SIGNATURE_BYTES = 64

_Sign = Callable[[bytes], bytes]
_KEYS_CACHED_MAX = 1024  # a log has few authors; a flood of new ones only costs time


@dataclass(frozen=True, slots=True)
class Scheme:
    """What one algorithm can do, over plain bytes."""

    codec: int  # multicodec of the public key, as did:key writes it
    key_bytes: int
    order: int | None  # secrets are numbers below it; None where any 32 bytes are a secret
    fault: Callable[[bytes], str | None]  # what is wrong with these bytes as a public key
    open: Callable[[bytes], tuple[bytes, _Sign]]  # secret → public key and the way to sign
    verify: Callable[[bytes, bytes, bytes], None]  # key, message, signature


# ---- Ed25519 ----

_ED_P = 2**255 - 19
_ED_L = 2**252 + 27742317777372353535851937790883648493
_ED_D = -121665 * pow(121666, -1, _ED_P) % _ED_P
# The y of two of the four points of order 8; the other two have its negative.
_ED_Y8 = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826


def _refused_points() -> frozenset[bytes]:
    # All of them fit in a table: 38 encodings with y ≥ p, and the points of small order with either sign bit.
    ys = {*range(_ED_P, 2**255), 0, 1, _ED_P - 1, _ED_Y8, _ED_P - _ED_Y8}
    return frozenset((y | sign << 255).to_bytes(32, "little") for y in ys for sign in (0, 1))


_ED_REFUSED = _refused_points()
ED25519_REFUSED = b"".join(sorted(_ED_REFUSED))
"""The encodings that neither a key nor R may have, end to end."""

# Holds only in the equation multiplied by the cofactor (R carries a point of order 8).
_ED_PROBE = (
    "fad254ee07442c2517871c9961d3793e0c0d3e656ca60e5711a8302765b41923",
    "70726f6265",
    "6342e37d4e60176ef37e5eae445c057eb8c8147c7d3e813ed2bbac978469b5a3"
    "a4fb2655de72d6c2b40365aed97e2d3ae7fd69bbe8c80f77ef3ee5650d571901",
)


@cache
def _sodium() -> tuple[Callable[[bytes, bytes], bytes], type[Exception]]:
    from nacl.bindings import crypto_sign_open
    from nacl.exceptions import BadSignatureError

    key, message, signature = map(bytes.fromhex, _ED_PROBE)
    try:
        crypto_sign_open(signature + message, key)
    except BadSignatureError:
        return crypto_sign_open, BadSignatureError
    raise Unavailable(
        "this libsodium verifies Ed25519 with the cofactor; its verdicts would differ from other machines'",
        advice="Install PyNaCl from its wheel, with the libsodium it brings.",
    )


@cache
def sodium_open() -> int | None:
    """Return the address of libsodium's crypto_sign_open for compiled loops; None if it cannot be reached.

    A loop that calls it must first refuse R and S as `SCHEMES["ed25519"].verify` does.
    """
    _sodium()  # refuses a libsodium with other verdicts
    try:
        from nacl._sodium import ffi, lib

        return int(ffi.cast("uintptr_t", ffi.addressof(lib, "crypto_sign_open")))
    except (ImportError, AttributeError, TypeError):
        return None


def _ed25519_fault(raw: bytes) -> str | None:
    if raw in _ED_REFUSED:
        return "non-canonical encoding or small order"
    y = int.from_bytes(raw, "little") & (1 << 255) - 1
    yy = y * y % _ED_P
    # x² = (y² − 1) / (d·y² + 1) has a root exactly if the product of both has one.
    if pow((yy - 1) * (_ED_D * yy + 1), (_ED_P - 1) // 2, _ED_P) != 1:
        return "no point of the curve"
    return None


def _ed25519_open(secret: bytes) -> tuple[bytes, _Sign]:
    from nacl.bindings import crypto_sign, crypto_sign_seed_keypair

    public, expanded = crypto_sign_seed_keypair(secret)
    return public, lambda message: crypto_sign(message, expanded)[:SIGNATURE_BYTES]


def _ed25519_verify(key: bytes, message: bytes, signature: bytes) -> None:
    if signature[:32] in _ED_REFUSED:
        raise SigInvalid("Ed25519: R has a non-canonical encoding or small order", alg="ed25519", reason="R")
    if signature[63] >= 0x10 and int.from_bytes(signature[32:], "little") >= _ED_L:  # L is just above 2^252
        raise SigInvalid("Ed25519: S is not below the order of the group", alg="ed25519", reason="S")
    sign_open, bad_signature = _sodium()
    try:
        sign_open(signature + message, key)
    except bad_signature:
        raise SigInvalid("Ed25519: the equation does not hold", alg="ed25519", reason="equation") from None


# ---- ECDSA ----


@dataclass(frozen=True, slots=True)
class _Curve:
    """y² = x³ + ax + b over the field of p, with n points."""

    name: Algorithm
    p: int
    a: int
    b: int
    n: int

    def fault(self, raw: bytes) -> str | None:
        x = int.from_bytes(raw[1:], "big")
        if raw[0] not in (2, 3):
            return "not the compressed form"
        if x >= self.p:
            return "non-canonical encoding"
        if pow(x * x * x + self.a * x + self.b, (self.p - 1) // 2, self.p) != 1:
            return "no point of the curve"
        return None

    def der(self, signature: bytes) -> bytes:
        """Return r ‖ s as the libraries want it, if both are in range and s is low."""
        r, s = int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:], "big")
        if not (0 < r < self.n and 0 < s < self.n):
            raise SigInvalid(f"{self.name}: r or s outside 1 … n−1", alg=self.name, reason="range")
        if s > self.n // 2:
            raise SigInvalid(f"{self.name}: s in the upper half", alg=self.name, reason="high s")
        body = _der_integer(r) + _der_integer(s)
        return b"\x30" + bytes((len(body),)) + body

    def not_held(self) -> SigInvalid:
        return SigInvalid(f"{self.name}: the equation does not hold", alg=self.name, reason="equation")


def _der_integer(value: int) -> bytes:
    raw = value.to_bytes(value.bit_length() // 8 + 1, "big")
    return b"\x02" + bytes((len(raw),)) + raw


_P256 = _Curve(
    "p256",
    p=0xFFFFFFFF00000001000000000000000000000000FFFFFFFFFFFFFFFFFFFFFFFF,
    a=-3,
    b=0x5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B,
    n=0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551,
)
_SECP256K1 = _Curve(
    "secp256k1",
    p=0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEFFFFFC2F,
    a=0,
    b=7,
    n=0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141,
)


@lru_cache(maxsize=_KEYS_CACHED_MAX)
def _p256_key(raw: bytes) -> tuple[Callable[[bytes, bytes, Any], None], Any, type[Exception]]:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA256

    key = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), raw)
    return key.verify, ec.ECDSA(SHA256()), InvalidSignature


def _p256_verify(key: bytes, message: bytes, signature: bytes) -> None:
    der = _P256.der(signature)
    verify, ecdsa, bad_signature = _p256_key(key)
    try:
        verify(der, message, ecdsa)
    except bad_signature:
        raise _P256.not_held() from None


def _p256_open(secret: bytes) -> tuple[bytes, _Sign]:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec, utils
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    key = ec.derive_private_key(int.from_bytes(secret, "big"), ec.SECP256R1())
    try:
        ecdsa = ec.ECDSA(SHA256(), deterministic_signing=True)
    except UnsupportedAlgorithm as error:
        # Without RFC 6979 OpenSSL would draw randomness, and the kernel draws none.
        raise Unavailable(
            "this OpenSSL cannot sign with P-256 by RFC 6979",
            advice="Install cryptography from its wheel, with the OpenSSL it brings.",
        ) from error

    def sign(message: bytes) -> bytes:
        r, s = utils.decode_dss_signature(key.sign(message, ecdsa))
        return r.to_bytes(32, "big") + min(s, _P256.n - s).to_bytes(32, "big")

    return key.public_key().public_bytes(Encoding.X962, PublicFormat.CompressedPoint), sign


@lru_cache(maxsize=_KEYS_CACHED_MAX)
def _secp256k1_key(raw: bytes) -> Callable[..., bool]:
    from coincurve import PublicKey

    return PublicKey(raw).verify


def _secp256k1_verify(key: bytes, message: bytes, signature: bytes) -> None:
    if not _secp256k1_key(key)(_SECP256K1.der(signature), message):
        raise _SECP256K1.not_held()


def _secp256k1_open(secret: bytes) -> tuple[bytes, _Sign]:
    from coincurve import PrivateKey

    key = PrivateKey(secret)
    # libsecp256k1 takes its nonce from RFC 6979 and gives low s; the last byte identifies the point R.
    return key.public_key.format(), lambda message: key.sign_recoverable(message)[:SIGNATURE_BYTES]


def sign_digest(secret: bytes, digest: bytes) -> bytes:
    """Return a secp256k1 signature over a ready 32-byte digest, as gossip v0.6 makes it.

    >>> verify_digest(SCHEMES["secp256k1"].open(b"k" * 32)[0], b"d" * 32, sign_digest(b"k" * 32, b"d" * 32))
    """
    from coincurve import PrivateKey

    _check_digest(digest)
    return PrivateKey(secret).sign_recoverable(digest, hasher=None)[:SIGNATURE_BYTES]


def verify_digest(key: bytes, digest: bytes, signature: bytes) -> None:
    """Refuse a secp256k1 signature that does not hold over a ready 32-byte digest.

    >>> verify_digest(SCHEMES["secp256k1"].open(b"k" * 32)[0], bytes(32), b"1" * 64)
    Traceback (most recent call last):
    ropewalk.errors.SigInvalid: secp256k1: the equation does not hold
    """
    _check_digest(digest)
    if not _secp256k1_key(key)(_SECP256K1.der(signature), digest, None):
        raise _SECP256K1.not_held()


def _check_digest(digest: bytes) -> None:
    if len(digest) != 32:
        raise InvalidKey(f"secp256k1 signs a digest of 32 bytes, not {len(digest)}", alg="secp256k1")


SCHEMES: dict[Algorithm, Scheme] = {
    "ed25519": Scheme(0xED, 32, None, _ed25519_fault, _ed25519_open, _ed25519_verify),
    "p256": Scheme(0x1200, 33, _P256.n, _P256.fault, _p256_open, _p256_verify),
    "secp256k1": Scheme(0xE7, 33, _SECP256K1.n, _SECP256K1.fault, _secp256k1_open, _secp256k1_verify),
}
