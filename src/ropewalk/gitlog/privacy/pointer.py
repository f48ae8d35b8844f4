"""Opaque pointers: they replace private bytes in a public payload (S0 §8).

Sealing is XChaCha20-Poly1305. The nonce is derived from everything that is bound: digest of the plaintext, actor and
policy version. With the digest alone, the same bytes sealed for another actor would repeat a nonce under other
associated data, which breaks the cipher. Both generations of the pointer's schema are read; we write the Shiplog one,
because only that one can leave out the digest of a plaintext that is easy to guess.
"""

from __future__ import annotations

import math
import re
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard

from ropewalk.errors import Denied, DigestMismatch, Invalid, InvalidEnvelope, Unverified
from ropewalk.gitlog.privacy.secrets import scan_text
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import ContentId, Tag, content_id
from ropewalk.kernel.json_check import pointer
from ropewalk.kernel.schema import shipped as schema
from ropewalk.kernel.seal import NONCE_BYTES, TAG_BYTES, SealingKey, hkdf_sha256

SHIPLOG_SCHEMA = "privacy/shiplog_pointer"
NEWEST_SCHEMA = "privacy/opaque_pointer"
KIND = "opaque_pointer"
MARK = b'"opaque_pointer"'  # part of the canonical bytes of every payload with a pointer
LOW_ENTROPY = "low-entropy"
NAME_CHARACTERS_MAX = 256  # of an actor or a policy version
SIZES = (1 << 10, 4 << 10, 16 << 10, 64 << 10)  # sizes are shown in these steps, so that they tell little
GUESSABLE_BITS = 64  # below this, trying all plaintexts against a digest is a weekend's work
TOKEN = re.compile(
    r"[?&#;](?:[a-z0-9_.-]*(?:token|signature|secret|passw(?:or)?d|credential|api[_-]?key)|sig|key|x-amz-[a-z-]+)=",
    re.IGNORECASE,
)
USERINFO = re.compile(r"^[a-z][a-z0-9+.-]*://[^/@]*:[^/@]+@", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Pointer:
    """A pointer that fits one of the two schemas, exactly as it was written."""

    document: dict[str, Any]
    generation: Literal["shiplog", "newest"]

    @property
    def digest(self) -> str | None:
        """The digest of the plaintext, unless it is easy to guess and therefore left out."""
        found = self.document.get("digest")
        return str(found).lower() if found is not None else None

    @property
    def ciphertext_digest(self) -> str | None:
        """The digest of the sealed bytes; the newest generation has none."""
        found = self.document.get("ciphertext_digest")
        return str(found) if found is not None else None

    @property
    def content_id(self) -> ContentId:
        """The name of the pointer itself."""
        return content_id(jcs.encode(self.document))


@dataclass(frozen=True, slots=True)
class SealedPointer:
    """A pointer, the sealed bytes it points to, and the plaintext's digest, which a low-entropy pointer leaves out."""

    pointer: Pointer
    blob: bytes
    digest: ContentId


def parse_pointer(raw: bytes) -> Pointer:
    """Return a pointer from JSON text."""
    document = jcs.parse(raw)
    if not isinstance(document, dict):
        raise InvalidEnvelope("an opaque pointer is a JSON object", where="", schema=SHIPLOG_SCHEMA)
    return read_pointer(document)


def read_pointer(document: Mapping[str, Any]) -> Pointer:
    """Return a pointer of either generation; one that fits neither is refused by the Shiplog schema.

    >>> read_pointer({"kind": "opaque_pointer", "algo": "blake3", "digest": "blake3:" + "AB" * 32,
    ...               "location": "https://vault.example/1"}).generation
    'newest'
    """
    found = dict(document)
    try:
        schema.validate(SHIPLOG_SCHEMA, found)
        return Pointer(found, "shiplog")
    except InvalidEnvelope as refusal:
        try:
            schema.validate(NEWEST_SCHEMA, found)
        except InvalidEnvelope:
            raise refusal from None
    return Pointer(found, "newest")


def check_pointers(value: object) -> None:
    """Refuse a value that holds, at any depth, a pointer S0 does not allow in public (S0 §3, §8, §10).

    Every object whose `kind` is `opaque_pointer` must fit one of the two schemas (with a location and a digest; in the
    class low-entropy without the digest of the plaintext). Its location and capability must not hold a secret.

    >>> check_pointers({"card": [{"kind": "opaque_pointer"}]})
    Traceback (most recent call last):
    ropewalk.errors.InvalidEnvelope: opaque pointer at /card/0: "algo" is missing (privacy/shiplog_pointer)
    """
    for where, found in _pointers(value):
        try:
            document = read_pointer(found).document
            for name in ("location", "capability"):
                if name in document:
                    check_uri(name, document[name])
        except (Denied, InvalidEnvelope) as refusal:
            fields = {**refusal.fields, "where": where + str(refusal.fields.get("where", ""))}
            raise type(refusal)(
                f"opaque pointer at {where or 'the top'}: {refusal.detail}",
                advice=refusal.advice_now,
                **fields,
            ) from refusal


def may_hold_pointers(text: bytes) -> bool:
    """Return whether JSON text can hold a pointer: it names the kind, or has an escape that could spell it.

    >>> may_hold_pointers(b'{"kind": "opaque_pointer"}'), may_hold_pointers(b'{"kind": "opaque"}')
    (True, False)
    """
    return MARK in text or b"\\u" in text


def _pointers(value: object) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every object that calls itself a pointer, with its place; its schema checks what is inside."""
    waiting: list[tuple[str, object]] = [("", value)]
    while waiting:
        where, each = waiting.pop()
        if _claims_pointer(each):
            yield where, each
        elif isinstance(each, dict):
            waiting += [(where + pointer((name,)), inner) for name, inner in each.items()]
        elif isinstance(each, list):
            waiting += [(f"{where}/{at}", inner) for at, inner in enumerate(each)]


def _claims_pointer(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict) and value.get("kind") == KIND


def is_pointer(value: object) -> bool:
    """Return whether a value is a pointer of either generation.

    >>> is_pointer({"kind": "opaque_pointer"}), is_pointer("opaque_pointer")
    (False, False)
    """
    if not _claims_pointer(value):
        return False
    try:
        read_pointer(value)
    except InvalidEnvelope:
        return False
    return True


def context_of(digest: str, actor: str, policy: str) -> bytes:
    """Return what a sealing binds: digest, actor and policy version, each as UTF-8 behind its length in four bytes.

    >>> context_of("d", "user:ada", "v1")[-6:].hex()
    '000000027631'
    """
    for what, text in (("actor", actor), ("policy version", policy)):
        if (
            not text
            or len(text) > NAME_CHARACTERS_MAX
            or any(letter < " " or letter == "\x7f" for letter in text)
        ):
            raise Invalid(f"{what} {text[:40]!r}: expected 1 to {NAME_CHARACTERS_MAX} printable characters")
    parts = (part.encode() for part in (digest, actor, policy))
    return b"".join(struct.pack(">I", len(part)) + part for part in parts)


def nonce_of(key: SealingKey, digest: str, actor: str, policy: str) -> bytes:
    """Return the nonce of a sealing: 24 bytes of HKDF-SHA256, apart for every key, digest, actor and policy version.

    >>> nonce_of(SealingKey(bytes(32)), "d", "a", "1") == nonce_of(SealingKey(bytes(32)), "d", "a", "2")
    False
    """
    return hkdf_sha256(key.secret, Tag.POINTER_NONCE + context_of(digest, actor, policy), NONCE_BYTES)


def seal_pointer(
    key: SealingKey,
    plaintext: bytes,
    *,
    actor: str,
    policy: str,
    location: str,
    capability: str,
    low_entropy: bool = False,
) -> SealedPointer:
    """Seal bytes: nonce ‖ ciphertext ‖ tag, and the pointer that names them in public.

    >>> made = seal_pointer(SealingKey(bytes(32)), b"42", actor="user:ada", policy="1", low_entropy=True,
    ...                     location="gatos://private/1", capability="gatos-key://v1/xchacha20-poly1305/k")
    >>> sorted(made.pointer.document)
    ['algo', 'capability', 'ciphertext_digest', 'extensions', 'kind', 'location', 'size']
    """
    check_uri("location", location)
    check_uri("capability", capability)
    digest = content_id(plaintext)
    nonce = nonce_of(key, digest, actor, policy)
    blob = nonce + key.seal(nonce, plaintext, context_of(digest, actor, policy))
    document: dict[str, Any] = {
        "kind": KIND,
        "algo": "blake3",
        "ciphertext_digest": content_id(blob),
        "size": size_shown(len(plaintext)),
        "location": location,
        "capability": capability,
    }
    document |= {"extensions": {"class": LOW_ENTROPY}} if low_entropy else {"digest": digest}
    return SealedPointer(read_pointer(document), blob, digest)


def open_pointer(
    key: SealingKey, pointer: Pointer, blob: bytes, *, actor: str, policy: str, digest: str | None = None
) -> bytes:
    """Return the plaintext, if every byte and every bound name is the one of the sealing.

    `digest` is the plaintext's digest from the private record, needed where the pointer leaves it out.
    """
    if pointer.ciphertext_digest is not None and content_id(blob) != pointer.ciphertext_digest:
        raise DigestMismatch(
            f"the sealed bytes are {content_id(blob)}, the pointer names {pointer.ciphertext_digest}",
            expected=pointer.ciphertext_digest,
            got=content_id(blob),
            where="ciphertext",
        )
    bound = pointer.digest or digest
    if bound is None:
        raise Unverified(
            "the pointer leaves out the plaintext's digest, and no private record gives it",
            advice="Open it where it was sealed, or name the digest.",
        )
    if len(blob) < NONCE_BYTES + TAG_BYTES:
        raise Unverified(f"{len(blob)} sealed bytes are too few for a nonce and a tag", where="ciphertext")
    plaintext = key.open(blob[:NONCE_BYTES], blob[NONCE_BYTES:], context_of(bound, actor, policy))
    if content_id(plaintext) != bound:
        raise DigestMismatch(
            f"the plaintext is not the one of {bound}",
            expected=bound,
            got=content_id(plaintext),
            where="plaintext",
        )
    return plaintext


def check_uri(what: str, uri: str) -> None:
    """Refuse a location or capability that holds a secret: every reader of the log sees it.

    >>> check_uri("location", "https://vault.example/blob?X-Amz-Signature=ab")
    Traceback (most recent call last):
    ropewalk.errors.Denied: location holds a token or a password; a pointer is public
    """
    if any(USERINFO.match(form) or TOKEN.search(form) or scan_text(form) for form in {uri, _unescaped(uri)}):
        raise Denied(
            f"{what} holds a token or a password; a pointer is public",
            advice="Name where and how, not with what: the key stays with those who may open it.",
            where=f"/{what}",
        )


def _unescaped(uri: str) -> str:
    """Return a URI with its %-escapes of ASCII characters undone: an escaped token is a token."""
    return re.sub(r"%([0-7][0-9A-Fa-f])", lambda found: chr(int(found[1], 16)), uri)


def size_shown(size: int) -> int:
    """Return a size rounded up: 1, 4, 16, 64 KiB, then whole steps of 64 KiB.

    >>> size_shown(2), size_shown(5000), size_shown(70_000)
    (1024, 16384, 131072)
    """
    return next((step for step in SIZES if size <= step), -(-size // SIZES[-1]) * SIZES[-1])


def entropy_bits(raw: bytes) -> float:
    """Return how hard bytes are to guess at the very most: a count of their letters, which flatters words and dates.

    >>> round(entropy_bits(b"yes"), 1)
    4.8
    """
    counts = Counter(raw)
    return sum(count * math.log2(len(raw) / count) for count in counts.values())
