"""Sealing bytes with a shared secret: XChaCha20-Poly1305, and HKDF to derive what a seal needs.

A nonce must never serve twice under one key, so this module makes none: who seals derives it from what is sealed
(S0 §8), or counts.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache

from ropewalk.errors import InvalidKey, SigInvalid

SEALING_ALGORITHM = "xchacha20poly1305"
KEY_BYTES = 32
NONCE_BYTES = 24
TAG_BYTES = 16

_Act = Callable[[bytes, bytes, bytes, bytes], bytes]  # text, aad, nonce, key


@dataclass(frozen=True, slots=True)
class SealingKey:
    """A secret that seals and opens; its repr never shows it.

    >>> key = SealingKey.generate(bytes(range(32)))
    >>> key.open(b"n" * 24, key.seal(b"n" * 24, b"rope", b"context"), b"context")
    b'rope'
    >>> key
    SealingKey()
    """

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.secret, bytes) or len(self.secret) != KEY_BYTES:
            raise InvalidKey(f"a sealing key has {KEY_BYTES} bytes", alg=SEALING_ALGORITHM)

    @classmethod
    def generate(cls, entropy: bytes) -> SealingKey:
        """Return the key that 32 bytes of entropy are.

        >>> SealingKey.generate(bytes(32)) == SealingKey(bytes(32))
        True
        """
        return cls(entropy)

    def seal(self, nonce: bytes, plaintext: bytes, aad: bytes) -> bytes:
        """Return ciphertext and tag; `aad` is bound to them without being stored.

        >>> len(SealingKey(bytes(32)).seal(bytes(24), b"rope", b""))
        20
        """
        _check_nonce(nonce)
        seal, _, _ = _sodium()
        return seal(plaintext, aad, nonce, self.secret)

    def open(self, nonce: bytes, sealed: bytes, aad: bytes) -> bytes:
        """Return the plaintext, if key, nonce, sealed bytes and `aad` are the ones of the sealing.

        >>> SealingKey(bytes(32)).open(bytes(24), b"not sealed by this key", b"")
        Traceback (most recent call last):
        ropewalk.errors.SigInvalid: sealed bytes do not open: the tag does not fit key, nonce and context
        """
        _check_nonce(nonce)
        _, open_, refused = _sodium()
        if len(sealed) >= TAG_BYTES:
            with suppress(refused):
                return open_(sealed, aad, nonce, self.secret)
        raise SigInvalid(
            "sealed bytes do not open: the tag does not fit key, nonce and context",
            advice="Check the key, and that actor and policy version are those of the sealing.",
            alg=SEALING_ALGORITHM,
        )


def hkdf_sha256(secret: bytes, info: bytes, length: int, salt: bytes = b"") -> bytes:
    """Derive as many bytes as asked from a secret, apart for every `info` (RFC 5869 with SHA-256).

    >>> hkdf_sha256(b"\\x0b" * 22, bytes.fromhex("f0f1f2f3f4f5f6f7f8f9"), 42, bytes(range(13))).hex()[:16]
    '3cb25f25faacd57a'
    """
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), length, salt, info).derive(secret)


@cache
def _sodium() -> tuple[_Act, _Act, type[Exception]]:
    from nacl import bindings, exceptions

    return (
        bindings.crypto_aead_xchacha20poly1305_ietf_encrypt,
        bindings.crypto_aead_xchacha20poly1305_ietf_decrypt,
        exceptions.CryptoError,
    )


def _check_nonce(nonce: bytes) -> None:
    if len(nonce) != NONCE_BYTES:
        raise InvalidKey(f"a nonce has {NONCE_BYTES} bytes, not {len(nonce)}", alg=SEALING_ALGORITHM)
