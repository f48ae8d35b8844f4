"""Names for bytes: BLAKE3 and SHA-256 digests, content ids, CIDs, and every domain tag in one table.

A tag is put in front of the bytes before hashing or signing, so that a digest made for one purpose can never
pass for another. That works only if no tag begins with another, and only if every tag is written in this module:
tests hold both.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from enum import Enum
from typing import NewType

from blake3 import blake3 as _blake3

from ropewalk.errors import InvalidDigest
from ropewalk.kernel.multiformats import (
    base32_decode,
    base32_encode,
    base58_decode,
    base58_encode,
    varint_decode,
    varint_encode,
)

ContentId = NewType("ContentId", str)
"""`blake3:` and 64 lower-case hex digits: the name of canonical bytes."""

RAW = 0x55
DAG_PB = 0x70
DAG_CBOR = 0x71
SHA2_256 = 0x12

_HASH = re.compile(r"[0-9a-f]{64}")
_CONTENT_ID = re.compile(r"blake3:[0-9a-f]{64}")
_CID_ADVICE = "Copy the CID again from its source: it has exactly one spelling."
_sha256 = hashlib.sha256


class Tag(bytes, Enum):
    """Every domain tag of the house, with what it is for. A member is its bytes.

    >>> Tag.NODE + b"!"
    b'ea:node:v1!'
    >>> Tag.NODE.purpose
    'inner node of the tree over the envelopes of a block'
    """

    purpose: str

    def __new__(cls, tag: bytes, purpose: str) -> Tag:
        member = bytes.__new__(cls, tag)
        member._value_ = tag
        member.purpose = purpose
        return member

    # Ledger (S4); the names in the specification's own spelling.
    ENVELOPE = b"ea:envelope:v1", "envelope id, which is also the leaf in its block's tree"
    NODE = b"ea:node:v1", "inner node of the tree over the envelopes of a block"
    EMPTY = b"ea:empty:v1", "root of a tree without leaves"
    BLOCK = b"ea:block:v1", "block hash, over the header"
    BLOCK_SIGNATURE = b"ea:block-signature:v1", "what the channel's key signs when a block is sealed"
    SIGNATURE = b"ea:signature:v1", "what the author signs: the list of signed fields with their values"
    IDENTITY = b"ea:identity:v1", "digest of a public key together with its type"
    RANGE_NODE = b"ea:range-node:v1", "inner node of the outer tree over the blocks of a channel"
    POLICY = b"ea:policy:v1", "policy hash: rules, evaluator version and capability matrix"
    CAPABILITY = b"ea:capability:v1", "transcript of a negotiation, so that a downgrade shows"
    CHECKPOINT = b"ea:checkpoint:v1", "digest of a replay snapshot"
    BUNDLE = b"ea:bundle:v1", "what is signed over a bundle's manifest"
    ARCHIVE = b"ea:archive:v1", "what is signed over an archive's manifest"
    MAILBOX = b"ea:mailbox:v1", "root over the slots of a mailbox"
    MAILBOX_SLOT = b"ea:mailbox-slot:v1", "digest of one slot of a mailbox"
    ENCLAVE = b"ea:enclave:v1", "what the seal of an envelope for an enclave is bound to"
    ENCLAVE_KEY = b"ea:enclave-key:v1", "HKDF context that derives the key an enclave opens with"
    REPORT_DATA = b"ea:report-data:v1", "what a trusted environment binds into its report"
    STATE = b"ea:state:v1", "root over the state that a replay arrives at"
    STATE_MAP = b"ea:state-map:v1", "root over the members of a replayed state, with their number"
    STATE_LEAF = b"ea:state-leaf:v1", "leaf of a state map: a key and the hash of its value"
    STATE_NODE = b"ea:state-node:v1", "inner node of the tree over the leaves of a state map"
    STATE_VALUE = b"ea:state-value:v1", "hash of one value in a state map"
    KEY_ACCEPTANCE = b"ea:key-acceptance:v1", "what a new key signs to take over the sealing of a channel"
    APPROVAL = b"ea:approval:v1", "what a person signs who approves of an act that takes two"
    # Gitlog (S0).
    POINTER_NONCE = b"gatos:ptr:nonce:v1", "HKDF context that derives the nonce of a sealed pointer"
    POINTER_PRIVATE = b"gatos:ptr:priv:", "HKDF context of keyed digests for private attestations"
    IMPORT = b"shiplog-import:v1:", "randomness of the ULID of an imported commit"
    KEY_ID = b"ropewalk:key-id:v1", "short id of a key in listings"


def blake3(raw: bytes) -> bytes:
    """Return the BLAKE3-256 of the bytes.

    >>> blake3(b"").hex()[:16]
    'af1349b9f5f9a1a6'
    """
    return _blake3(raw).digest()


def sha256(raw: bytes) -> bytes:
    """Return the SHA-256 of the bytes.

    >>> sha256(b"").hex()[:16]
    'e3b0c44298fc1c14'
    """
    return _sha256(raw).digest()


def tagged(tag: Tag, *parts: bytes) -> bytes:
    """Return the BLAKE3-256 of the tag followed by the parts, nothing between them.

    The parts of one tag have fixed lengths or carry their own ends: nothing here marks where one stops.

    >>> tagged(Tag.EMPTY) == blake3(b"ea:empty:v1")
    True
    """
    return _blake3(b"".join((tag, *parts))).digest()


def hash_from_hex(text: object) -> bytes | None:
    """Return the 32 bytes of a hash in its one spelling, 64 lower-case hex digits; None for anything else.

    >>> hash_from_hex("0f" * 32) == b"\\x0f" * 32, hash_from_hex("0F" * 32), hash_from_hex(None)
    (True, None, None)
    """
    return bytes.fromhex(text) if isinstance(text, str) and _HASH.fullmatch(text) is not None else None


def content_id(raw: bytes) -> ContentId:
    """Return the name of canonical bytes, as S0 writes it.

    >>> content_id(b"{}")
    'blake3:6e46dd10defc9b56c29a6ec56b508c21f54c08192194e4df25bf36f0c9c3c279'
    """
    return ContentId("blake3:" + _blake3(raw).hexdigest())


def parse_content_id(text: str) -> bytes:
    """Return the 32 bytes of a content id; upper case, other algorithms and other lengths are refused.

    >>> parse_content_id("blake3:" + "0f" * 32) == b"\\x0f" * 32
    True
    """
    if _CONTENT_ID.fullmatch(text) is None:
        raise InvalidDigest(
            f'content id {text[:80]!r}: expected "blake3:" and 64 lower-case hex digits', text=text[:80]
        )
    return bytes.fromhex(text[7:])


@dataclass(frozen=True, slots=True)
class Cid:
    """The parts of a CID: what kind of bytes it names, by which hash."""

    version: int
    codec: int
    hash_code: int
    digest: bytes


def cid(codec: int, raw: bytes) -> bytes:
    """Return the CIDv1 of the bytes with SHA2-256, in binary form.

    >>> cid(RAW, b"rope").hex()[:8]
    '01551220'
    """
    return b"\x01" + varint_encode(codec) + b"\x12\x20" + _sha256(raw).digest()


def split_cid(raw: bytes) -> Cid:
    """Return the parts of a binary CID, version 0 or 1; anything malformed or padded is refused.

    Which codecs and hashes are good enough is for who follows the link to say: payloads link to foreign things.

    >>> split_cid(cid(DAG_CBOR, b"")).codec == DAG_CBOR
    True
    """
    if len(raw) == 34 and raw[:2] == b"\x12\x20":
        return Cid(0, DAG_PB, SHA2_256, raw[2:])
    version, end = varint_decode(raw)
    if version != 1:
        raise InvalidDigest(
            f"CID {raw.hex()[:80]}: version {version}; expected 0 or 1", advice=_CID_ADVICE, reason="version"
        )
    codec, end = varint_decode(raw, end)
    hash_code, end = varint_decode(raw, end)
    length, end = varint_decode(raw, end)
    digest = raw[end:]
    if len(digest) != length:
        raise InvalidDigest(
            f"CID {raw.hex()[:80]}: {len(digest)} digest bytes where {length} were announced",
            advice=_CID_ADVICE,
            reason="length",
        )
    return Cid(1, codec, hash_code, digest)


def cid_text(raw: bytes) -> str:
    """Return a binary CID as text: base32 with the prefix `b`; a version 0 CID keeps its bare base58.

    >>> cid_text(cid(RAW, b"rope"))[:8]
    'bafkreih'
    """
    return base58_encode(raw) if split_cid(raw).version == 0 else "b" + base32_encode(raw)


def parse_cid(text: str) -> bytes:
    """Return the binary form of a CID text, if `cid_text` would write it the same way.

    >>> parse_cid(cid_text(cid(RAW, b"rope"))) == cid(RAW, b"rope")
    True
    """
    is_v1 = text.startswith("b")
    raw = base32_decode(text[1:]) if is_v1 else base58_decode(text) if text.startswith("Qm") else b""
    if not raw or split_cid(raw).version != int(is_v1):
        raise InvalidDigest(
            f'CID {text[:80]!r}: expected base32 after "b", or "Qm" and base58',
            advice=_CID_ADVICE,
            text=text[:80],
        )
    return raw
