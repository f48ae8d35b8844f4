"""ML-DSA-44 keys of witnesses (FIPS 204). They sign heads of logs only: no envelope, block or gossip message."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from ropewalk.errors import InvalidKey, SigInvalid, Unavailable

ML_DSA_44: Final = "ml-dsa-44"
PUBLIC_BYTES: Final = 1_312
ML_DSA_SIGNATURE_BYTES: Final = 2_420
SEED_BYTES: Final = 32


@contextmanager
def _needing_ml_dsa() -> Iterator[None]:
    from cryptography.exceptions import UnsupportedAlgorithm

    try:
        yield
    except (ImportError, UnsupportedAlgorithm) as error:
        raise Unavailable(
            "the installed cryptography has no ML-DSA-44",
            advice="Install cryptography 48 or newer from its wheel, with the OpenSSL it brings.",
        ) from error


@dataclass(frozen=True)
class MlDsaPublicKey:
    """A public key that is fit to verify."""

    raw: bytes

    @property
    def alg(self) -> str:
        return ML_DSA_44

    def __post_init__(self) -> None:
        if len(self.raw) != PUBLIC_BYTES:
            raise InvalidKey(f"{ML_DSA_44} public key: {len(self.raw)} bytes instead of {PUBLIC_BYTES}")

    def verify(self, message: bytes, signature: bytes) -> None:
        """Refuse a signature that does not hold over the message."""
        from cryptography.exceptions import InvalidSignature

        if len(signature) != ML_DSA_SIGNATURE_BYTES:
            raise SigInvalid(f"ML-DSA-44: {len(signature)} bytes instead of {ML_DSA_SIGNATURE_BYTES}")
        try:
            with _needing_ml_dsa():
                from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA44PublicKey

                opened = MLDSA44PublicKey.from_public_bytes(self.raw)
            opened.verify(signature, message)
        except (InvalidSignature, ValueError) as error:
            raise SigInvalid("ML-DSA-44: the equation does not hold") from error


@dataclass(frozen=True)
class MlDsaSigningKey:
    """A secret, as the seed of FIPS 204; its repr never shows it.

    >>> key = MlDsaSigningKey(bytes(32))
    >>> key.public.verify(b"rope", key.sign(b"rope"))
    >>> key.public.verify(b"Rope", key.sign(b"rope"))
    Traceback (most recent call last):
    ropewalk.errors.SigInvalid: ML-DSA-44: the equation does not hold
    """

    secret: bytes = field(repr=False)

    @property
    def alg(self) -> str:
        return ML_DSA_44

    @cached_property
    def _opened(self) -> Any:
        if len(self.secret) != SEED_BYTES:
            raise InvalidKey(f"{ML_DSA_44} secret: {SEED_BYTES} bytes needed")
        with _needing_ml_dsa():
            from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA44PrivateKey

            return MLDSA44PrivateKey.from_seed_bytes(self.secret)

    @cached_property
    def public(self) -> MlDsaPublicKey:
        return MlDsaPublicKey(self._opened.public_key().public_bytes_raw())

    def sign(self, message: bytes) -> bytes:
        """Return a signature; the same message gives other bytes each time, as FIPS 204 recommends."""
        made: bytes = self._opened.sign(message)
        return made
