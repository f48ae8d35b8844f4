"""Keys: who signed, and the same key as bytes, as did:key and as JSON.

A `PublicKey` that exists names a usable point: shape, curve and order are checked when it is made, so `verify`
has only the signature to judge. `signatures` holds the rule itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from ropewalk.errors import InvalidDigest, InvalidKey
from ropewalk.kernel import signatures
from ropewalk.kernel.digest import Tag, sha256, tagged
from ropewalk.kernel.multiformats import (
    base58_decode,
    base58_encode,
    base64_decode,
    base64_encode,
    varint_decode,
    varint_encode,
)
from ropewalk.kernel.seal import SEALING_ALGORITHM as SEALING_ALGORITHM
from ropewalk.kernel.seal import SealingKey as SealingKey
from ropewalk.kernel.signatures import SCHEMES, SECRET_BYTES
from ropewalk.kernel.signatures import SIGNATURE_BYTES as SIGNATURE_BYTES
from ropewalk.kernel.signatures import Algorithm as Algorithm

ALGORITHMS: tuple[Algorithm, ...] = tuple(SCHEMES)

_DID_PREFIX = "did:key:z"
_BY_CODEC = {scheme.codec: alg for alg, scheme in SCHEMES.items()}


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A public key that is fit to verify: 32 bytes for Ed25519, 33 bytes compressed for the others.

    >>> key = PublicKey.from_did("did:key:z6MkscwJQW5zPjRP3UyWbWvvLBWTq2RVJxU8qsQ9CKowM5TC")
    >>> key.alg, len(key.raw)
    ('ed25519', 32)
    """

    alg: Algorithm
    raw: bytes

    def __post_init__(self) -> None:
        fault = _fault(self.alg, self.raw) if isinstance(self.raw, bytes) else "not bytes"
        if fault is not None:
            raise InvalidKey(f"{self.alg} public key: {fault}", alg=self.alg, reason=fault)

    def verify(self, message: bytes, signature: bytes) -> None:
        """Refuse a signature that does not hold over the message, under the strict rule.

        >>> key = SigningKey.generate("ed25519", bytes(32))
        >>> key.public.verify(b"rope", key.sign(b"rope"))
        >>> key.public.verify(b"Rope", key.sign(b"rope"))
        Traceback (most recent call last):
        ropewalk.errors.SigInvalid: Ed25519: the equation does not hold
        """
        if len(signature) != SIGNATURE_BYTES:
            raise _wrong_length(self.alg, signature)
        SCHEMES[self.alg].verify(self.raw, message, signature)

    def to_multicodec(self) -> bytes:
        """Return the key after the varint that names its algorithm, as gossip v0.6 stores it.

        >>> SigningKey.generate("ed25519", bytes(32)).public.to_multicodec()[:2].hex()
        'ed01'
        """
        return varint_encode(SCHEMES[self.alg].codec) + self.raw

    @classmethod
    def from_multicodec(cls, raw: bytes) -> PublicKey:
        """Return the key that `to_multicodec` wrote.

        >>> key = SigningKey.generate("p256", bytes(range(32))).public
        >>> PublicKey.from_multicodec(key.to_multicodec()) == key
        True
        """
        try:
            codec, end = varint_decode(raw)
        except InvalidDigest as error:
            raise InvalidKey(f"multicodec key: {error.detail}", reason=error.fields.get("reason")) from error
        if codec not in _BY_CODEC:
            raise InvalidKey(
                f"multicodec 0x{codec:x}: not an Ed25519, P-256 or secp256k1 key", reason="multicodec"
            )
        return cls(_BY_CODEC[codec], raw[end:])

    def did(self) -> str:
        """Return the key as did:key.

        >>> SigningKey.generate("ed25519", bytes(32)).public.did()
        'did:key:z6MkiTBz1ymuepAQ4HEHYSF1H8quG5GLVVQR3djdX3mDooWp'
        """
        return _DID_PREFIX + base58_encode(self.to_multicodec())

    @classmethod
    def from_did(cls, text: str) -> PublicKey:
        """Return the key that a did:key names; anything `did` would not write is refused.

        >>> PublicKey.from_did("did:key:z6MkiTBz1ymuepAQ4HEHYSF1H8quG5GLVVQR3djdX3mDooWp").raw.hex()[:8]
        '3b6a27bc'
        """
        if not isinstance(text, str) or not text.startswith(_DID_PREFIX):
            raise InvalidKey(f'{text!r:.80}: expected "{_DID_PREFIX}" and base58', reason="did:key prefix")
        try:
            raw = base58_decode(text[len(_DID_PREFIX) :])
        except InvalidDigest as error:
            raise InvalidKey(f"{text[:80]!r}: {error.detail}", reason=error.fields.get("reason")) from error
        return cls.from_multicodec(raw)

    def to_json(self) -> dict[str, str]:
        """Return the key as the JSON of envelopes, block records and trust files.

        >>> sorted(SigningKey.generate("ed25519", bytes(32)).public.to_json())
        ['identity_type', 'public_key']
        """
        return {"identity_type": self.alg, "public_key": self.raw.hex()}

    @classmethod
    def from_json(cls, value: object) -> PublicKey:
        """Return the key of such an object; its bytes may be lower-case hex or padded base64.

        >>> key = SigningKey.generate("secp256k1", bytes(range(32))).public
        >>> PublicKey.from_json(key.to_json()) == key
        True
        """
        alg, text = _two_members(value, "identity_type", "public_key")
        return cls.from_text(alg, text)

    @classmethod
    def from_text(cls, alg: str, text: str) -> PublicKey:
        """Return the key written as lower-case hex or padded base64; its length decides which.

        >>> PublicKey.from_text("ed25519", "O2onvM62pC1io6jQKm8Nc2UyFXcd4kOmOsBIoYtZ2ik=").raw.hex()[:8]
        '3b6a27bc'
        """
        known = _known(alg)
        is_hex = len(text) == 2 * SCHEMES[known].key_bytes
        return cls(known, _hex(text, known) if is_hex else _base64(text, known))

    def identity(self) -> bytes:
        """Return the digest that identifies this key in block headers.

        >>> key = SigningKey.generate("ed25519", bytes(32)).public
        >>> key.identity() == identity_digest("ed25519", key.raw)
        True
        """
        return identity_digest(self.alg, self.raw)


@dataclass(frozen=True, slots=True)
class Signature:
    """A signature and the algorithm it claims; a claim only, until a key verifies it.

    >>> Signature("ed25519", bytes(64)).to_json()["alg"]
    'ed25519'
    """

    alg: Algorithm
    raw: bytes

    def __post_init__(self) -> None:
        _known(self.alg)
        if len(self.raw) != SIGNATURE_BYTES:
            raise _wrong_length(self.alg, self.raw)

    def to_json(self) -> dict[str, str]:
        """Return the signature as JSON, base64 padded.

        >>> Signature("p256", bytes(64)).to_json()["sig"][-4:]
        'AA=='
        """
        return {"alg": self.alg, "sig": base64_encode(self.raw)}

    @classmethod
    def from_json(cls, value: object) -> Signature:
        """Return the signature of such an object; base64 that is not canonical is refused, it would change the id.

        >>> Signature.from_json(Signature("p256", bytes(64)).to_json()) == Signature("p256", bytes(64))
        True
        """
        alg, text = _two_members(value, "alg", "sig")
        known = _known(alg)
        return cls(known, _base64(text, known))


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A secret that signs, with its public key; its repr never shows the secret.

    The secret is the seed of RFC 8032 for Ed25519 and the number itself, big endian, for the others.

    >>> SigningKey.generate("ed25519", bytes(32))
    SigningKey(alg='ed25519')
    """

    alg: Algorithm
    secret: bytes = field(repr=False)
    public: PublicKey = field(init=False, repr=False, compare=False)
    _sign: Callable[[bytes], bytes] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        scheme = SCHEMES[_known(self.alg)]
        if not isinstance(self.secret, bytes) or len(self.secret) != SECRET_BYTES:
            raise InvalidKey(f"{self.alg} secret: {SECRET_BYTES} bytes needed", alg=self.alg, reason="length")
        if scheme.order is not None and not 0 < int.from_bytes(self.secret, "big") < scheme.order:
            raise InvalidKey(f"{self.alg} secret: outside 1 … n−1", alg=self.alg, reason="range")
        public, sign = scheme.open(self.secret)
        object.__setattr__(self, "public", PublicKey(self.alg, public))
        object.__setattr__(self, "_sign", sign)

    def __reduce__(self) -> tuple[Any, ...]:
        return SigningKey, (self.alg, self.secret)

    @classmethod
    def generate(cls, alg: Algorithm, entropy: bytes) -> SigningKey:
        """Return the key that 32 bytes of entropy give; the same entropy gives the same key.

        >>> SigningKey.generate("p256", b"e" * 32) == SigningKey.generate("p256", b"e" * 32)
        True
        """
        if len(entropy) != SECRET_BYTES:
            raise InvalidKey(f"{alg}: {SECRET_BYTES} bytes of entropy needed, not {len(entropy)}", alg=alg)
        order = SCHEMES[_known(alg)].order
        # One entropy in 2^32 is no P-256 number. Hashing on is as good as drawing again, and needs nothing new.
        while order is not None and not 0 < int.from_bytes(entropy, "big") < order:
            entropy = sha256(entropy)
        return cls(alg, entropy)

    def sign(self, message: bytes) -> bytes:
        """Return 64 bytes that `public` verifies; the same message always gives the same bytes.

        >>> key = SigningKey.generate("p256", b"e" * 32)
        >>> key.sign(b"rope") == key.sign(b"rope")
        True
        """
        return self._sign(message)


def identity_digest(identity_type: str, raw: bytes) -> bytes:
    """Return the digest of a key together with its type, as block headers name who sealed them.

    >>> identity_digest("ed25519", bytes(32)).hex()[:8]
    '34d67500'
    """
    if "\0" in identity_type:
        raise InvalidKey("identity type: holds a NUL", reason="identity type")
    return tagged(Tag.IDENTITY, identity_type.encode(), b"\0", raw)


def sign_digest(key: SigningKey, digest: bytes) -> bytes:
    """Return a secp256k1 signature over a ready 32-byte digest, as gossip v0.6 makes it.

    >>> key = SigningKey.generate("secp256k1", b"e" * 32)
    >>> verify_digest(key.public, b"d" * 32, sign_digest(key, b"d" * 32))
    """
    _only_secp256k1(key.alg)
    return signatures.sign_digest(key.secret, digest)


def verify_digest(public: PublicKey, digest: bytes, signature: bytes) -> None:
    """Refuse a secp256k1 signature that does not hold over a ready 32-byte digest.

    >>> key = SigningKey.generate("secp256k1", b"e" * 32)
    >>> verify_digest(key.public, b"D" * 32, sign_digest(key, b"d" * 32))
    Traceback (most recent call last):
    ropewalk.errors.SigInvalid: secp256k1: the equation does not hold
    """
    _only_secp256k1(public.alg)
    if len(signature) != SIGNATURE_BYTES:
        raise _wrong_length(public.alg, signature)
    signatures.verify_digest(public.raw, digest, signature)


# The same few authors come again and again, and the point check costs as much as a signature.
@lru_cache(maxsize=4096)
def _fault(alg: str, raw: bytes) -> str | None:
    scheme = SCHEMES[_known(alg)]
    if len(raw) != scheme.key_bytes:
        return f"{len(raw)} bytes instead of {scheme.key_bytes}"
    return scheme.fault(raw)


def _known(alg: str) -> Algorithm:
    if alg not in SCHEMES:
        raise InvalidKey(f"algorithm {alg!r:.80}: expected one of {', '.join(SCHEMES)}", reason="algorithm")
    return alg


def _only_secp256k1(alg: Algorithm) -> None:
    if alg != "secp256k1":
        raise InvalidKey(f"{alg}: only secp256k1 signs a ready digest", alg=alg, reason="algorithm")


def _wrong_length(alg: str, signature: bytes) -> InvalidKey:
    return InvalidKey(
        f"{alg} signature: {len(signature)} bytes instead of {SIGNATURE_BYTES}", alg=alg, reason="length"
    )


def _two_members(value: object, first: str, second: str) -> tuple[str, str]:
    if not isinstance(value, dict) or value.keys() != {first, second}:
        raise InvalidKey(f"expected an object with exactly {first} and {second}", reason="members")
    if not isinstance(value[first], str) or not isinstance(value[second], str):
        raise InvalidKey(f"{first} and {second} must be texts", reason="members")
    return value[first], value[second]


def _hex(text: str, alg: str) -> bytes:
    if not set(text) <= set("0123456789abcdef"):
        raise InvalidKey(f"{alg} {text!r:.80}: not lower-case hex", alg=alg, reason="hex")
    return bytes.fromhex(text)


def _base64(text: str, alg: str) -> bytes:
    try:
        return base64_decode(text)
    except InvalidDigest as error:
        raise InvalidKey(f"{alg}: {error.detail}", alg=alg, reason=error.fields.get("reason")) from error
