"""SSH signatures on commits, judged in-process so that every machine comes to the same verdict.

`git shiplog` signs with `ssh-keygen`; whether that program is here, and how it is configured, must not decide what an
import reports. The roster is the `allowed_signers` file of the trust tree the entry itself names.
"""

from __future__ import annotations

import binascii
import hashlib
import re
import struct
from base64 import b64decode
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Literal

from ropewalk.errors import RopewalkError
from ropewalk.kernel.keys import PublicKey

Verdict = Literal["none", "good", "untrusted", "bad", "unsupported"]

ARMOR = re.compile(rb"-----BEGIN SSH SIGNATURE-----\s(.*?)-----END SSH SIGNATURE-----\s*", re.DOTALL)
MAGIC = b"SSHSIG"
NAMESPACE = b"git"
HASHES = {b"sha256": "sha256", b"sha512": "sha512"}
CURVES = {b"nistp256": "SECP256R1", b"nistp384": "SECP384R1", b"nistp521": "SECP521R1"}
CURVE_HASHES = {b"nistp256": "SHA256", b"nistp384": "SHA384", b"nistp521": "SHA512"}
RSA_HASHES = {b"rsa-sha2-256": "SHA256", b"rsa-sha2-512": "SHA512"}
RSA_BITS_MIN = 2048  # ssh-keygen's own floor is 1024; too weak today
ROSTER_LINES_MAX = 100_000
OPTION = re.compile(r'(namespaces|valid-after|valid-before)="((?:[^"\\]|\\.)*)"(?:,(?=.)|$)', re.IGNORECASE)
MOMENT = re.compile(r"(\d{8}(?:\d{4}(?:\d\d)?)?)(?:Z|UTC)?", re.ASCII | re.IGNORECASE)
KEY_TYPE = re.compile(r"(sk-)?(ssh|ecdsa)-\S+")


class _Malformed(Exception):
    """The bytes end too early or say something else than they should."""


class _Unsupported(Exception):
    """A kind of key or hash that is not judged here."""


@dataclass(frozen=True, slots=True)
class AllowedSigner:
    """One key of a roster, and when and for what it counts."""

    key: bytes
    namespaces: tuple[str, ...] | None
    valid_after_s: int | None
    valid_before_s: int | None

    def counts(self, time_s: int) -> bool:
        """Return whether the key may sign commits at that moment."""
        if self.namespaces is not None and not _listed_in(self.namespaces):
            return False
        if self.valid_after_s is not None and time_s < self.valid_after_s:
            return False
        return self.valid_before_s is None or time_s < self.valid_before_s


Roster = tuple[AllowedSigner, ...]


def split_signature(raw: bytes) -> tuple[bytes, bytes | None]:
    """Return a commit without its signature, which is what was signed, and the signature.

    >>> split_signature(b"tree x\\ngpgsig A\\n B\\nauthor y\\n\\nhello")
    (b'tree x\\nauthor y\\n\\nhello', b'A\\nB')
    """
    head, blank, message = raw.partition(b"\n\n")
    kept: list[bytes] = []
    signature: list[bytes] | None = None
    inside = False
    for line in head.split(b"\n"):
        if line.startswith(b" ") and inside:
            assert signature is not None
            signature.append(line[1:])
            continue
        inside = signature is None and line.startswith(b"gpgsig ")
        if inside:
            signature = [line.removeprefix(b"gpgsig ")]
        else:
            kept.append(line)
    if signature is None:
        return raw, None
    return b"\n".join(kept) + blank + message, b"\n".join(signature)


def parse_allowed_signers(text: str) -> Roster:
    """Return the keys of an `allowed_signers` file; lines that cannot be read are passed over, as ssh-keygen does."""
    found: list[AllowedSigner] = []
    for line in text.splitlines()[:ROSTER_LINES_MAX]:
        fields = line.strip().split(None, 1)
        if len(fields) < 2 or fields[0].startswith("#"):
            continue
        listed = _listed(fields[1])
        if listed is not None:
            found.append(listed)
    return tuple(found)


def judge(raw: bytes, roster: Roster | None, time_s: int) -> Verdict:
    """Return the verdict on a commit's signature: does it hold, and is its key one the roster knows?

    Without a roster (None: the trust tree is not here) a signature that holds is still `untrusted`.

    >>> judge(b"tree x\\nauthor y\\n\\nhello", None, 0)
    'none'
    """
    signed, signature = split_signature(raw)
    if signature is None:
        return "none"
    armored = ARMOR.fullmatch(signature + b"\n")
    if armored is None:
        return "bad" if b"SSH SIGNATURE" in signature else "unsupported"
    try:
        key = _verify(b64decode(b"".join(armored[1].split()), validate=True), signed)
    except (_Malformed, binascii.Error, RopewalkError, ValueError):
        return "bad"
    except _Unsupported:
        return "unsupported"
    if any(listed.key == key and listed.counts(time_s) for listed in roster or ()):
        return "good"
    return "untrusted"


def _verify(blob: bytes, message: bytes) -> bytes:
    """Return the public key of a signature that holds."""
    reader = _Reader(blob)
    if reader.take(6) != MAGIC or reader.number() != 1:
        raise _Malformed
    key, namespace, _reserved, hash_name, signature = (reader.text() for _ in range(5))
    if not reader.done or namespace != NAMESPACE:
        raise _Malformed
    if hash_name not in HASHES:
        raise _Unsupported
    digest = hashlib.new(HASHES[hash_name], message).digest()
    signed = MAGIC + _packed(namespace) + _packed(_reserved) + _packed(hash_name) + _packed(digest)
    _check(key, signature, signed)
    return key


def _check(key: bytes, signature: bytes, signed: bytes) -> None:
    reader, proof = _Reader(key), _Reader(signature)
    kind, made_with = reader.text(), proof.text()
    if kind == b"ssh-ed25519":
        if made_with != kind:
            raise _Malformed
        PublicKey("ed25519", reader.text()).verify(signed, proof.text())
    elif kind == b"sk-ssh-ed25519@openssh.com":
        if made_with != kind:
            raise _Malformed
        raw, application, mark = reader.text(), reader.text(), proof.text()
        PublicKey("ed25519", raw).verify(_touched(application, proof.take(5), signed), mark)
    elif kind.startswith(b"ecdsa-sha2-") and kind.removeprefix(b"ecdsa-sha2-") in CURVES:
        if made_with != kind:
            raise _Malformed
        curve, point = reader.text(), reader.text()
        _check_ecdsa(curve, point, proof.text(), signed)
    elif kind == b"sk-ecdsa-sha2-nistp256@openssh.com":
        if made_with != kind:
            raise _Malformed
        curve, point, application, mark = reader.text(), reader.text(), reader.text(), proof.text()
        _check_ecdsa(curve, point, mark, _touched(application, proof.take(5), signed))
    elif kind == b"ssh-rsa":
        if made_with not in RSA_HASHES:
            raise _Unsupported  # SHA-1
        exponent, modulus = (int.from_bytes(reader.text(), "big") for _ in range(2))
        _check_rsa(exponent, modulus, RSA_HASHES[made_with], proof.text(), signed)
    else:
        raise _Unsupported
    if not reader.done or not proof.done:
        raise _Malformed


def _touched(application: bytes, flags_and_counter: bytes, signed: bytes) -> bytes:
    """Return what a security key signs: the lowest flag bit means that a person touched it."""
    if not flags_and_counter[0] & 1:
        raise _Malformed
    return hashlib.sha256(application).digest() + flags_and_counter + hashlib.sha256(signed).digest()


def _check_ecdsa(curve: bytes, point: bytes, signature: bytes, signed: bytes) -> None:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

    if curve not in CURVES:
        raise _Unsupported
    numbers = _Reader(signature)
    r, s = (int.from_bytes(numbers.text(), "big") for _ in range(2))
    if not numbers.done:
        raise _Malformed
    public = ec.EllipticCurvePublicKey.from_encoded_point(getattr(ec, CURVES[curve])(), point)
    try:
        public.verify(encode_dss_signature(r, s), signed, ec.ECDSA(getattr(hashes, CURVE_HASHES[curve])()))
    except InvalidSignature as error:
        raise _Malformed from error


def _check_rsa(exponent: int, modulus: int, hash_name: str, signature: bytes, signed: bytes) -> None:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import padding, rsa

    if modulus.bit_length() < RSA_BITS_MIN:
        raise _Unsupported
    size = (modulus.bit_length() + 7) // 8
    try:
        rsa.RSAPublicNumbers(exponent, modulus).public_key().verify(
            signature.rjust(size, b"\x00"), signed, padding.PKCS1v15(), getattr(hashes, hash_name)()
        )
    except InvalidSignature as error:
        raise _Malformed from error


class _Reader:
    """SSH's wire form: lengths of four bytes, then as many bytes."""

    def __init__(self, raw: bytes) -> None:
        self._raw, self._at = raw, 0

    def take(self, count: int) -> bytes:
        if self._at + count > len(self._raw):
            raise _Malformed
        self._at += count
        return self._raw[self._at - count : self._at]

    def number(self) -> int:
        (value,) = struct.unpack(">I", self.take(4))
        return int(value)

    def text(self) -> bytes:
        return self.take(self.number())

    @property
    def done(self) -> bool:
        return self._at == len(self._raw)


def _packed(raw: bytes) -> bytes:
    return struct.pack(">I", len(raw)) + raw


def _listed(rest: str) -> AllowedSigner | None:
    options: dict[str, str] | None = {}
    if not KEY_TYPE.match(rest):
        end = _end_of_options(rest)
        options = _options(rest[:end])
        rest = rest[end:].lstrip()
    fields = rest.split(None, 2)
    if len(fields) < 2 or options is None:
        return None
    try:
        key = b64decode(fields[1], validate=True)
        after, before = (_moment(options.get(name)) for name in ("valid-after", "valid-before"))
    except (binascii.Error, ValueError):
        return None
    names = options.get("namespaces")
    return AllowedSigner(key, tuple(names.split(",")) if names is not None else None, after, before)


def _options(text: str) -> dict[str, str] | None:
    """Return what is said of a key; None if any of it is not known here: an option narrows what the key may do.

    `cert-authority` is not known on purpose: certificates are not judged.
    """
    found: dict[str, str] = {}
    at = 0
    while at < len(text):
        match = OPTION.match(text, at)
        if match is None or match[1].lower() in found:
            return None
        found[match[1].lower()] = match[2]
        at = match.end()
    return found


def _listed_in(patterns: tuple[str, ...]) -> bool:
    """Tell whether a list of patterns has `git`; a pattern with `!` removes it, at any position."""
    said = {each.startswith("!") for each in patterns if _is_git(each.removeprefix("!"))}
    return said == {False}


def _is_git(pattern: str) -> bool:
    return fnmatchcase("git", pattern.replace("[", "[[]"))  # only `*` and `?` stand for other letters


def _end_of_options(text: str) -> int:
    quoted = False
    for at, letter in enumerate(text):
        if letter == '"' and text[at - 1 : at] != "\\":
            quoted = not quoted
        elif letter in " \t" and not quoted:
            return at
    return len(text)


def _moment(text: str | None) -> int | None:
    """Parse `YYYYMMDD[HHMM[SS]][Z]` as UTC, so that it means the same on every machine. Raise ValueError for others."""
    if text is None:
        return None
    match = MOMENT.fullmatch(text)
    if match is None:
        raise ValueError(text)
    form = "%Y%m%d%H%M%S"[: len(match[1]) - 2]
    return int(datetime.strptime(match[1], form).replace(tzinfo=UTC).timestamp())
