"""Opaque pointers of S0 §8: nonce, associated data, sealed bytes and pointer, from the definitions."""

from __future__ import annotations

import hashlib
import hmac
import struct
from typing import Any

from blake3 import blake3
from nacl.bindings import crypto_aead_xchacha20poly1305_ietf_encrypt as encrypt

__all__ = ["generate"]

KEY = bytes(range(32))
LOCATION = "gatos-node://ed25519:" + "ab" * 32
CAPABILITY = "gatos-key://v1/xchacha20-poly1305/vault"
WHY = (
    "digest = 'blake3:' + hex(BLAKE3(plaintext)). aad = for each of digest, actor, policy: its length in four bytes, "
    "big endian, then its UTF-8. nonce = first 24 bytes of HKDF-SHA256 (no salt) with the key as secret and "
    "'gatos:ptr:nonce:v1' + aad as info. blob = nonce + XChaCha20-Poly1305 (ciphertext, then tag). The pointer's "
    "ciphertext_digest is over the blob; its size is rounded up to 1, 4, 16, 64 KiB and then to whole 64 KiB. "
    "A low-entropy pointer has extensions.class 'low-entropy' and no digest. content_id is BLAKE3 over the pointer's "
    "RFC 8785 bytes."
)


def _digest(raw: bytes) -> str:
    return "blake3:" + blake3(raw).hexdigest()


def _hkdf(secret: bytes, info: bytes, length: int) -> bytes:
    first = hmac.new(bytes(32), secret, hashlib.sha256).digest()
    return hmac.new(first, info + b"\x01", hashlib.sha256).digest()[:length]


def _sealed(plaintext: bytes, actor: str, policy: str, low_entropy: bool = False) -> dict[str, Any]:
    digest = _digest(plaintext)
    parts = [text.encode() for text in (digest, actor, policy)]
    aad = b"".join(struct.pack(">I", len(part)) + part for part in parts)
    nonce = _hkdf(KEY, b"gatos:ptr:nonce:v1" + aad, 24)
    blob = nonce + encrypt(plaintext, aad, nonce, KEY)
    step = 65536
    size = next(
        (each for each in (1024, 4096, 16384, step) if len(plaintext) <= each),
        -(-len(plaintext) // step) * step,
    )
    pointer: dict[str, Any] = {
        "algo": "blake3",
        "capability": CAPABILITY,
        "ciphertext_digest": _digest(blob),
        "kind": "opaque_pointer",
        "location": LOCATION,
        "size": size,
    }
    pointer |= {"extensions": {"class": "low-entropy"}} if low_entropy else {"digest": digest}
    # Written out by hand: every name and text here is ASCII without anything to escape.
    members = []
    for name in sorted(pointer):
        value = pointer[name]
        text = (
            '{"class":"low-entropy"}'
            if name == "extensions"
            else str(value)
            if name == "size"
            else f'"{value}"'
        )
        members.append(f'"{name}":{text}')
    return {
        "digest": digest,
        "aad": aad.hex(),
        "nonce": nonce.hex(),
        "blob": blob.hex(),
        "pointer": pointer,
        "content_id": _digest(("{" + ",".join(members) + "}").encode()),
    }


def _case(name: str, plaintext: bytes, actor: str, policy: str, low_entropy: bool = False) -> dict[str, Any]:
    given = {
        "key": KEY.hex(),
        "plaintext": plaintext.hex(),
        "actor": actor,
        "policy": policy,
        "low_entropy": low_entropy,
        "location": LOCATION,
        "capability": CAPABILITY,
    }
    return {"name": name, "input": given, "expect": _sealed(plaintext, actor, policy, low_entropy)}


def _open_cases() -> list[dict[str, Any]]:
    made = _sealed(b'{"card":"4111"}', "user:ada", "v1")
    base = {
        "key": KEY.hex(),
        "actor": "user:ada",
        "policy": "v1",
        "blob": made["blob"],
        "pointer": made["pointer"],
    }
    other = _sealed(b'{"card":"4112"}', "user:ada", "v1")
    flipped = bytearray.fromhex(made["blob"])
    flipped[30] ^= 1
    bare = {name: value for name, value in made["pointer"].items() if name != "ciphertext_digest"}
    return [
        {"name": "as sealed", "input": base, "expect": b'{"card":"4111"}'.hex()},
        {"name": "another actor", "input": {**base, "actor": "user:ben"}, "error": "SigInvalid"},
        {"name": "another policy version", "input": {**base, "policy": "v2"}, "error": "SigInvalid"},
        {
            "name": "parts that run together",
            "input": {**base, "actor": "user:adav", "policy": "1"},
            "error": "SigInvalid",
        },
        {"name": "another key", "input": {**base, "key": "00" * 32}, "error": "SigInvalid"},
        {"name": "one bit of the blob", "input": {**base, "blob": flipped.hex()}, "error": "DigestMismatch"},
        {
            "name": "one bit of the blob, and a pointer that does not name it",
            "input": {**base, "blob": flipped.hex(), "pointer": bare},
            "error": "SigInvalid",
        },
        {
            "name": "another pointer's digest",
            "input": {**base, "pointer": {**bare, "digest": other["digest"]}},
            "error": "SigInvalid",
        },
        {
            "name": "a blob that ends too early",
            "input": {**base, "blob": made["blob"][:40], "pointer": bare},
            "error": "Unverified",
        },
    ]


def _form_cases() -> list[dict[str, Any]]:
    digest = "blake3:" + "0" * 64
    shiplog = {
        "kind": "opaque_pointer",
        "algo": "blake3",
        "location": "gatos://private/blob/abc",
        "capability": "gatos://cap/abc",
    }
    newest = {
        "kind": "opaque_pointer",
        "algo": "blake3",
        "digest": "blake3:" + "AB" * 32,
        "location": "https://vault.example.test/1",
    }
    low = {"extensions": {"class": "low-entropy"}}
    return [
        {"name": "with a digest", "input": {**shiplog, "digest": digest}, "expect": "shiplog"},
        {
            "name": "with a ciphertext digest",
            "input": {**shiplog, "ciphertext_digest": digest},
            "expect": "shiplog",
        },
        {
            "name": "low entropy",
            "input": {**shiplog, "ciphertext_digest": digest, **low},
            "expect": "shiplog",
        },
        {"name": "newest", "input": newest, "expect": "newest"},
        {
            "name": "newest, with a key",
            "input": {**newest, "capability": "kms://aws/alias/a", "size": 4096},
            "expect": "newest",
        },
        {
            "name": "low entropy with a digest",
            "input": {**shiplog, "ciphertext_digest": digest, "digest": digest, **low},
            "error": "InvalidEnvelope",
        },
        {"name": "no digest at all", "input": shiplog, "error": "InvalidEnvelope"},
        {
            "name": "another kind",
            "input": {**shiplog, "digest": digest, "kind": "pointer"},
            "error": "InvalidEnvelope",
        },
        {
            "name": "a member too many",
            "input": {**shiplog, "digest": digest, "token": "x"},
            "error": "InvalidEnvelope",
        },
        {
            "name": "upper case in the Shiplog form",
            "input": {**shiplog, "digest": "blake3:" + "AB" * 32},
            "error": "InvalidEnvelope",
        },
    ]


def generate() -> dict[str, object]:
    """The files of this area."""
    sealing = [
        _case("a document", b'{"card":"4111"}', "user:ada", "v1"),
        _case("the same for another actor", b'{"card":"4111"}', "user:ben", "v1"),
        _case("the same under another policy", b'{"card":"4111"}', "user:ada", "v2"),
        _case("nothing", b"", "user:ada", "v1"),
        _case("low entropy", b"yes", "service:billing", "blake3:" + "0" * 64, low_entropy=True),
        _case("names in any script", "naïve".encode(), "user:ада", "πολιτική", low_entropy=True),
        _case("more than four kilobytes", b"x" * 5000, "agent:a", "v1"),
    ]
    return {
        "gitlog/pointer_seal.json": {"name": "sealing behind a pointer", "why": WHY, "cases": sealing},
        "gitlog/pointer_open.json": {
            "name": "opening a pointer",
            "why": "Opens only with the key, actor, policy version, digest and bytes of the sealing. " + WHY,
            "cases": _open_cases(),
        },
        "gitlog/pointer_form.json": {
            "name": "the two generations of pointers",
            "why": "A document is of the Shiplog generation if it fits that schema, else of the newest, else none.",
            "cases": _form_cases(),
        },
    }
