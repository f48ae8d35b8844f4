"""Keys that sign notes: a key under a name, with the four bytes that identify it, and their C2SP text forms.

An Ed25519 key may sign in two ways, distinguished by a type byte that the key id covers: plainly, over the text of a
note, or as a witness, over a time and the text of a signed head. An ML-DSA-44 key signs as a witness only.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from ropewalk.errors import InvalidDigest, InvalidKey, InvalidNote, RopewalkError, SigInvalid, Unavailable
from ropewalk.kernel.digest import sha256
from ropewalk.kernel.keys import SIGNATURE_BYTES, PublicKey, SigningKey
from ropewalk.kernel.multiformats import base64_decode, base64_encode
from ropewalk.kernel.note.ml_dsa import ML_DSA_44, ML_DSA_SIGNATURE_BYTES, MlDsaPublicKey, MlDsaSigningKey

KEY_ID_BYTES = 4
NAME_BYTES_MAX = 255  # of a witness and of a log, inside an ML-DSA-44 cosignature
TIME_MAX = 2**63 - 1  # tlog-cosignature: what a signed 64-bit number holds

_TIME_BYTES = 8
_COSIGNATURE = "cosignature/v1\n"
_SECRET_PREFIX = "PRIVATE+KEY+"  # noqa: S105 - the word that marks a secret, not a secret


class SignatureType(IntEnum):
    """What kind of signature a key makes, as the byte in front of the key."""

    ED25519 = 0x01
    """Ed25519 over the text of the note."""

    COSIGNATURE = 0x04
    """Ed25519 over a time and the text of a signed head: what a witness has seen by then."""

    ML_DSA_44 = 0x06
    """ML-DSA-44 over a time, the name of the witness, and origin, size and root of a signed head."""

    @property
    def cosigns(self) -> bool:
        """Whether it is the signature of a witness, with a time."""
        return self != SignatureType.ED25519

    @classmethod
    def of_witness(cls, alg: str) -> SignatureType:
        """Return the type that a witness with such a key makes."""
        return cls.ML_DSA_44 if alg == ML_DSA_44 else cls.COSIGNATURE


@dataclass(frozen=True, slots=True)
class Verifier:
    """A key that may have signed a note, under its name.

    >>> verifier = Verifier.from_text("PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW")
    >>> verifier.name, verifier.key_id.hex(), verifier.type.name
    ('PeterNeumann', 'c74f20a3', 'ED25519')
    """

    name: str
    key: PublicKey | MlDsaPublicKey
    type: SignatureType = SignatureType.ED25519

    def __post_init__(self) -> None:
        if not is_key_name(self.name):
            raise InvalidKey(f'note key name "{self.name[:80]}": not empty, no spaces, no plus')
        alg = ML_DSA_44 if self.type == SignatureType.ML_DSA_44 else "ed25519"
        if self.key.alg != alg:
            raise InvalidKey(f"notes are signed with {alg}, not {self.key.alg}", alg=self.key.alg)
        if alg == ML_DSA_44 and len(self.name.encode()) > NAME_BYTES_MAX:
            raise InvalidKey(f"name of an {alg} key must have at most {NAME_BYTES_MAX} bytes")

    @property
    def key_id(self) -> bytes:
        """Four bytes that tell this key from others of its name: an identifier, not a proof."""
        return sha256(self.name.encode() + b"\n" + bytes([self.type]) + self.key.raw)[:KEY_ID_BYTES]

    def to_text(self) -> str:
        """Return the key in one line, to hand around."""
        return f"{self.name}+{self.key_id.hex()}+{base64_encode(bytes([self.type]) + self.key.raw)}"

    @classmethod
    def from_text(cls, text: str) -> Verifier:
        """Return the key `to_text` wrote; a key id that does not belong to name and key is refused.

        >>> Verifier.from_text("example+00000000+ATtqJ7zOtqQtYqOo0CpvDXNlMhV3HeJDpjrASKGLWdop")
        Traceback (most recent call last):
        ropewalk.errors.InvalidKey: note key of "example" has the id d548005b, not 00000000
        """
        name, key_id, kind, raw = _split_key(text)
        is_ml_dsa = kind == SignatureType.ML_DSA_44
        verifier = cls(name, MlDsaPublicKey(raw) if is_ml_dsa else PublicKey("ed25519", raw), kind)
        _check_key_id(verifier, key_id)
        return verifier

    def verify(self, text: str, signature: bytes) -> int | None:
        """Refuse a signature over the text that does not hold; return the time a cosignature vouches for.

        >>> signer = Signer("example", SigningKey.generate("ed25519", bytes(32)))
        >>> signer.verifier.verify("hello\\n", signer.sign("hello\\n")) is None
        True
        """
        time_s = None
        if self.type.cosigns:
            time_s, signature = int.from_bytes(signature[:_TIME_BYTES], "big"), signature[_TIME_BYTES:]
        size = ML_DSA_SIGNATURE_BYTES if self.type == SignatureType.ML_DSA_44 else SIGNATURE_BYTES
        if len(signature) != size or (time_s or 0) > TIME_MAX:
            raise SigInvalid(f'signature of "{self.name}" is not of the kind its key makes', name=self.name)
        try:
            message = text.encode() if time_s is None else self._cosigned(text, time_s)
            self.key.verify(message, signature)
        except Unavailable:  # nothing was verified: this says nothing about the signature
            raise
        except RopewalkError as error:
            raise SigInvalid(
                f'signature of "{self.name}" does not hold: {error.detail}', name=self.name
            ) from error
        return time_s

    def _cosigned(self, text: str, time_s: int) -> bytes:
        if self.type == SignatureType.COSIGNATURE:
            return f"{_COSIGNATURE}time {time_s}\n{text}".encode()
        if not time_s:
            raise SigInvalid(f'cosignature of "{self.name}" has no time: it may be of an old head')
        return subtree_message(self.name, text, time_s)


@dataclass(frozen=True, slots=True)
class Signer:
    """A key that signs notes under a name. Its text form is a secret; its repr is not.

    >>> Signer("example", SigningKey.generate("ed25519", bytes(32)))
    Signer(name='example', key=SigningKey(alg='ed25519'), type=<SignatureType.ED25519: 1>)
    """

    name: str
    key: SigningKey | MlDsaSigningKey
    type: SignatureType = SignatureType.ED25519

    def __post_init__(self) -> None:
        Verifier(self.name, self.key.public, self.type)  # same rules for the name and the algorithm

    @property
    def verifier(self) -> Verifier:
        return Verifier(self.name, self.key.public, self.type)

    def sign(self, text: str) -> bytes:
        """Return a plain signature over the text of a note."""
        if self.type != SignatureType.ED25519:
            raise InvalidKey(f'"{self.name}" makes cosignatures, which carry a time')
        if text.startswith(_COSIGNATURE):
            raise InvalidNote("a plain signature over this text would pass for a cosignature of the same key")
        return self.key.sign(text.encode())

    def cosign(self, text: str, time_s: int) -> bytes:
        """Return a cosignature: the time in eight bytes, then the signature over time and text.

        >>> witness = Signer("example", SigningKey.generate("ed25519", bytes(32)), SignatureType.COSIGNATURE)
        >>> witness.verifier.verify("head\\n", witness.cosign("head\\n", 1700000000))
        1700000000
        """
        if not self.type.cosigns:
            raise InvalidKey(f'"{self.name}" makes plain signatures, not cosignatures')
        if not 0 <= time_s <= TIME_MAX:
            raise InvalidNote(f"{time_s} is no time of a cosignature", time_s=time_s)
        return time_s.to_bytes(_TIME_BYTES, "big") + self.key.sign(self.verifier._cosigned(text, time_s))

    def to_secret_text(self) -> str:
        """Return the secret in one line, as Go's note tools keep it."""
        secret = base64_encode(bytes([self.type]) + self.key.secret)
        return f"{_SECRET_PREFIX}{self.name}+{self.verifier.key_id.hex()}+{secret}"

    @classmethod
    def from_secret_text(cls, text: str) -> Signer:
        """Return the signer `to_secret_text` wrote.

        >>> signer = Signer("example", SigningKey.generate("ed25519", bytes(32)))
        >>> Signer.from_secret_text(signer.to_secret_text()) == signer
        True
        """
        if not text.startswith(_SECRET_PREFIX):
            raise InvalidKey(f"a secret note key starts with {_SECRET_PREFIX}")
        name, key_id, kind, raw = _split_key(text.removeprefix(_SECRET_PREFIX))
        is_ml_dsa = kind == SignatureType.ML_DSA_44
        signer = cls(name, MlDsaSigningKey(raw) if is_ml_dsa else SigningKey("ed25519", raw), kind)
        _check_key_id(signer.verifier, key_id)
        return signer


def is_key_name(name: str) -> bool:
    """Return whether a key may be called so: something, without spaces, plus signs or control characters.

    >>> is_key_name("example.com/log"), is_key_name("two words"), is_key_name("a+b")
    (True, False, False)
    """
    return bool(name) and not any(
        character == "+" or character.isspace() or character < " " or "\ud800" <= character <= "\udfff"
        for character in name
    )


def subtree_message(name: str, text: str, time_s: int) -> bytes:
    """Return what an ML-DSA-44 cosignature of a signed head signs: the structure `cosigned_message` of C2SP.

    Extension lines of the head are not part of it; the log's own signature covers them.

    >>> subtree_message("w.example", "log.example\\n7\\n" + "A" * 43 + "=\\n", 1)[:21]
    b'subtree/v1\\n\\x00\\tw.exampl'
    """
    from ropewalk.kernel.note.note import SignedHead  # which needs the keys here

    head = SignedHead.from_text(text)
    names = name.encode(), head.origin.encode()
    if max(map(len, names)) > NAME_BYTES_MAX:
        raise InvalidNote(f"names of a witness and of a log must have at most {NAME_BYTES_MAX} bytes here")
    who, origin = (bytes([len(each)]) + each for each in names)
    return (
        b"subtree/v1\n\0"
        + who
        + struct.pack(">Q", time_s)
        + origin
        + struct.pack(">QQ", 0, head.size)
        + head.root
    )


def _split_key(text: str) -> tuple[str, str, SignatureType, bytes]:
    name, _, rest = text.partition("+")
    key_id, _, encoded = rest.partition("+")
    try:
        raw = base64_decode(encoded)
    except InvalidDigest:
        # No cause: it would quote the text, and the text may be a secret.
        raise InvalidKey(f'note key of "{name[:80]}": the key is not base64') from None
    if not raw or raw[0] not in tuple(SignatureType):
        raise InvalidKey(
            f'note key of "{name[:80]}": the type must be 1 (Ed25519), 4 (cosignature) or 6 (ML-DSA-44)'
        )
    return name, key_id, SignatureType(raw[0]), raw[1:]


def _check_key_id(verifier: Verifier, key_id: str) -> None:
    if key_id != verifier.key_id.hex():
        raise InvalidKey(
            f'note key of "{verifier.name}" has the id {verifier.key_id.hex()}, not {key_id[:80]}'
        )
