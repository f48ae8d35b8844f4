"""Signers as S3 names them: each makes a new key from the system's randomness."""

from __future__ import annotations

import os

from ropewalk.kernel.keys import SigningKey


class Ed25519Signer(SigningKey):
    """A new Ed25519 key.

    >>> Ed25519Signer().public.did().startswith("did:key:z6Mk")
    True
    """

    def __init__(self) -> None:
        super().__init__("ed25519", SigningKey.generate("ed25519", os.urandom(32)).secret)


class Secp256k1Signer(SigningKey):
    """A new secp256k1 key, for topics of profile v0.6; v0.13 takes Ed25519 keys only.

    >>> Secp256k1Signer().public.did().startswith("did:key:zQ3s")
    True
    """

    def __init__(self) -> None:
        super().__init__("secp256k1", SigningKey.generate("secp256k1", os.urandom(32)).secret)
