"""Keys that sign notes: an Ed25519 key under a name, with the four bytes that identify it, and their C2SP text forms.

One key may sign in two ways, distinguished by a type byte that the key id covers: plainly, over the text of a note, or
as a witness, over a time and the text of a signed head.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from ropewalk.errors import InvalidDigest, InvalidKey, InvalidNote, RopewalkError, SigInvalid
from ropewalk.kernel.digest import sha256
from ropewalk.kernel.keys import SIGNATURE_BYTES, PublicKey, SigningKey
from ropewalk.kernel.multiformats import base64_decode, base64_encode

KEY_ID_BYTES = 4
TIME_MAX = 2**63 - 1  # tlog-cosignature: what a signed 64-bit number holds

_TIME_BYTES = 8
_COSIGNATURE = "cosignature/v1\n"
_SECRET_PREFIX = "PRIVATE+KEY+"  # noqa: S105 - the word that marks a secret, not a secret


class SignatureType(IntEnum):
    """What kind of signature a key makes, as the byte in front of the key.

    >>> SignatureType.COSIGNATURE.value
    4
    """

    ED25519 = 0x01
    """Ed25519 over the text of the note."""

    COSIGNATURE = 0x04
    """Ed25519 over a time and the text of a signed head: what a witness has seen by then."""


@dataclass(frozen=True, slots=True)
class Verifier:
    """A key that may have signed a note, under its name.

    >>> verifier = Verifier.from_text("PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW")
    >>> verifier.name, verifier.key_id.hex(), verifier.type.name
    ('PeterNeumann', 'c74f20a3', 'ED25519')
    """

    name: str
    key: PublicKey
    type: SignatureType = SignatureType.ED25519

    def __post_init__(self) -> None:
        if not is_key_name(self.name):
            raise InvalidKey(f'note key name "{self.name[:80]}": not empty, no spaces, no plus')
        if self.key.alg != "ed25519":
            raise InvalidKey(f"notes are signed with ed25519, not {self.key.alg}", alg=self.key.alg)

    @property
    def key_id(self) -> bytes:
        """Four bytes that tell this key from others of its name: an identifier, not a proof."""
        return sha256(self.name.encode() + b"\n" + bytes([self.type]) + self.key.raw)[:KEY_ID_BYTES]

    def to_text(self) -> str:
        """Return the key in one line, to hand around.

        >>> Verifier("example", SigningKey.generate("ed25519", bytes(32)).public).to_text()
        'example+d548005b+ATtqJ7zOtqQtYqOo0CpvDXNlMhV3HeJDpjrASKGLWdop'
        """
        return f"{self.name}+{self.key_id.hex()}+{base64_encode(bytes([self.type]) + self.key.raw)}"

    @classmethod
    def from_text(cls, text: str) -> Verifier:
        """Return the key `to_text` wrote; a key id that does not belong to name and key is refused.

        >>> Verifier.from_text("example+00000000+ATtqJ7zOtqQtYqOo0CpvDXNlMhV3HeJDpjrASKGLWdop")
        Traceback (most recent call last):
        ropewalk.errors.InvalidKey: note key of "example" has the id d548005b, not 00000000
        """
        name, key_id, kind, raw = _split_key(text)
        verifier = cls(name, PublicKey("ed25519", raw), kind)
        _check_key_id(verifier, key_id)
        return verifier

    def verify(self, text: str, signature: bytes) -> int | None:
        """Refuse a signature over the text that does not hold; return the time a cosignature vouches for.

        >>> signer = Signer("example", SigningKey.generate("ed25519", bytes(32)))
        >>> signer.verifier.verify("hello\\n", signer.sign("hello\\n")) is None
        True
        """
        if self.type == SignatureType.ED25519:
            time_s, message = None, text.encode()
        else:
            time_s = int.from_bytes(signature[:_TIME_BYTES], "big")
            signature, message = signature[_TIME_BYTES:], _cosigned(text, time_s)
        if len(signature) != SIGNATURE_BYTES or (time_s or 0) > TIME_MAX:
            raise SigInvalid(f'signature of "{self.name}" is not of the kind its key makes', name=self.name)
        try:
            self.key.verify(message, signature)
        except RopewalkError as error:
            raise SigInvalid(
                f'signature of "{self.name}" does not hold: {error.detail}', name=self.name
            ) from error
        return time_s


@dataclass(frozen=True, slots=True)
class Signer:
    """A key that signs notes under a name. Its text form is a secret; its repr is not.

    >>> Signer("example", SigningKey.generate("ed25519", bytes(32)))
    Signer(name='example', key=SigningKey(alg='ed25519'), type=<SignatureType.ED25519: 1>)
    """

    name: str
    key: SigningKey
    type: SignatureType = SignatureType.ED25519

    def __post_init__(self) -> None:
        Verifier(self.name, self.key.public, self.type)  # same rules for the name and the algorithm

    @property
    def verifier(self) -> Verifier:
        return Verifier(self.name, self.key.public, self.type)

    def sign(self, text: str) -> bytes:
        """Return a plain signature over the text of a note.

        >>> len(Signer("example", SigningKey.generate("ed25519", bytes(32))).sign("hello\\n"))
        64
        """
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
        if self.type != SignatureType.COSIGNATURE:
            raise InvalidKey(f'"{self.name}" makes plain signatures, not cosignatures')
        if not 0 <= time_s <= TIME_MAX:
            raise InvalidNote(f"{time_s} is no time of a cosignature", time_s=time_s)
        return time_s.to_bytes(_TIME_BYTES, "big") + self.key.sign(_cosigned(text, time_s))

    def to_secret_text(self) -> str:
        """Return the secret in one line, as Go's note tools keep it.

        >>> Signer("example", SigningKey.generate("ed25519", bytes(32))).to_secret_text()[:29]
        'PRIVATE+KEY+example+d548005b+'
        """
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
        signer = cls(name, SigningKey("ed25519", raw), kind)
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


def _cosigned(text: str, time_s: int) -> bytes:
    return f"{_COSIGNATURE}time {time_s}\n{text}".encode()


def _split_key(text: str) -> tuple[str, str, SignatureType, bytes]:
    name, _, rest = text.partition("+")
    key_id, _, encoded = rest.partition("+")
    try:
        raw = base64_decode(encoded)
    except InvalidDigest:
        # No cause: it would quote the text, and the text may be a secret.
        raise InvalidKey(f'note key of "{name[:80]}": the key is not base64') from None
    if not raw or raw[0] not in (SignatureType.ED25519, SignatureType.COSIGNATURE):
        raise InvalidKey(f'note key of "{name[:80]}": only types 1 (Ed25519) and 4 (cosignature) are known')
    return name, key_id, SignatureType(raw[0]), raw[1:]


def _check_key_id(verifier: Verifier, key_id: str) -> None:
    if key_id != verifier.key_id.hex():
        raise InvalidKey(
            f'note key of "{verifier.name}" has the id {verifier.key_id.hex()}, not {key_id[:80]}'
        )
