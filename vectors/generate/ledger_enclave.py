"""Cases for envelopes sealed for an enclave: what is bound, what opens, and what must not.

HPKE is computed from RFC 9180 with X25519, HMAC and ChaCha20-Poly1305 alone, with a sender's key that is no secret.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64encode
from typing import Any

from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from ropewalk.kernel import jcs
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.envelope.envelope import build
from ropewalk.ledger.envelope.model import Envelope

ADA = SigningKey.generate("ed25519", bytes(range(32)))
SECRET = bytes(range(0x40, 0x60))
SENDER = X25519PrivateKey.from_private_bytes(bytes(range(0x80, 0xA0)))
REF, CHANNEL, SUITE = "pay-1", "pay", "x25519-hkdf-sha256-chacha20poly1305"


def _extract(salt: bytes, secret: bytes) -> bytes:
    return hmac.new(salt or bytes(32), secret, hashlib.sha256).digest()


def _expand(key: bytes, info: bytes, size: int) -> bytes:
    out, block = b"", b""
    while len(out) < size:
        block = hmac.new(key, block + info + bytes([len(out) // 32 + 1]), hashlib.sha256).digest()
        out += block
    return out[:size]


def _labeled_extract(suite: bytes, salt: bytes, label: bytes, secret: bytes) -> bytes:
    return _extract(salt, b"HPKE-v1" + suite + label + secret)


def _labeled_expand(suite: bytes, key: bytes, label: bytes, info: bytes, size: int) -> bytes:
    return _expand(key, size.to_bytes(2, "big") + b"HPKE-v1" + suite + label + info, size)


def _public(key: X25519PrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


def _seal(receiver: X25519PrivateKey, info: bytes, text: bytes) -> bytes:
    """RFC 9180, single shot, base mode, suite 0x0020, 0x0001, 0x0003."""
    kem, suite = b"KEM\x00\x20", b"HPKE\x00\x20\x00\x01\x00\x03"
    enc = _public(SENDER)
    shared = SENDER.exchange(receiver.public_key())
    prk = _labeled_extract(kem, b"", b"eae_prk", shared)
    secret = _labeled_expand(kem, prk, b"shared_secret", enc + _public(receiver), 32)
    context = (
        b"\0"
        + _labeled_extract(suite, b"", b"psk_id_hash", b"")
        + _labeled_extract(suite, b"", b"info_hash", info)
    )
    schedule = _labeled_extract(suite, secret, b"secret", b"")
    key = _labeled_expand(suite, schedule, b"key", context, 32)
    nonce = _labeled_expand(suite, schedule, b"base_nonce", context, 12)
    return enc + ChaCha20Poly1305(key).encrypt(nonce, text, b"")


def _private(ref: str) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(
        _expand(_extract(b"", SECRET), b"ea:enclave-key:v1" + ref.encode(), 32)
    )


def _key_id(ref: str) -> str:
    return blake3(b"ea:identity:v1x25519\0" + _public(_private(ref))).hexdigest()


def _envelope(ref: str | None = REF) -> Envelope:
    tag: dict[str, jcs.Json] = {"level": "restricted"}
    return build(
        ADA,
        domain="pay",
        event_class="Observation",
        event_type="salary.paid",
        payload={"amount": 7},
        timestamp="2024-11-01T12:00:00Z",
        confidentiality=tag if ref is None else {**tag, "enclave_ref": ref},
    )


def _named(**changes: Any) -> dict[str, Any]:
    return {
        "channel": CHANNEL,
        "enclave_ref": REF,
        "envelope_id": _envelope().hex_id,
        "key_id": _key_id(REF),
        "suite": SUITE,
        **changes,
    }


def _sealed(envelope: Envelope, bound: dict[str, Any], **said: Any) -> str:
    info = b"ea:enclave:v1" + jcs.encode(bound)
    raw = b64encode(_seal(_private(REF), info, envelope.raw)).decode()
    return jcs.encode({**bound, "version": 1, "sealed": raw, **said}).decode()


def _openings() -> list[dict[str, Any]]:
    good, other = _envelope(), _envelope("pay-2")
    last = _sealed(good, _named())
    cut = jcs.parse(last.encode())
    assert isinstance(cut, dict) and isinstance(cut["sealed"], str)
    cases: list[tuple[str, str, str, str | None]] = [
        ("whole", "opens to the canonical bytes of the envelope", last, None),
        (
            "channel_changed",
            "bound into the seal",
            _sealed(good, _named(channel="other"), channel=CHANNEL),
            "SigInvalid",
        ),
        (
            "envelope_id_changed",
            "bound into the seal",
            _sealed(good, _named(), envelope_id="00" * 32),
            "SigInvalid",
        ),
        ("another_channel", "said openly", _sealed(good, _named(channel="other")), "Denied"),
        ("another_enclave", "said openly", _sealed(good, _named(enclave_ref="pay-2")), "Denied"),
        ("another_key", "said openly", _sealed(good, _named(key_id=_key_id("pay-2"))), "Denied"),
        (
            "another_envelope_inside",
            "the id is that of what is inside",
            _sealed(other, _named()),
            "Unverified",
        ),
        (
            "for_another_enclave_inside",
            "the envelope itself says whose it is",
            _sealed(other, _named(envelope_id=other.hex_id)),
            "Denied",
        ),
        (
            "for_no_enclave_inside",
            "the envelope itself says whose it is",
            _sealed(_envelope(None), _named(envelope_id=_envelope(None).hex_id)),
            "Denied",
        ),
        (
            "last_byte_gone",
            "no tag",
            jcs.encode({**cut, "sealed": cut["sealed"][:-4]}).decode(),
            "SigInvalid",
        ),
        ("nothing_sealed", "shorter than a key", _sealed(good, _named(), sealed=""), "SigInvalid"),
        ("other_suite", "not known", _sealed(good, _named(), suite="x"), "Invalid"),
        ("other_version", "not known", _sealed(good, _named(), version=2), "Invalid"),
    ]
    return [
        {"name": name, "why": why, "input": text}
        | ({"expect": good.raw.decode()} if error is None else {"error": error})
        for name, why, text, error in cases
    ]


def generate() -> dict[str, object]:
    """Every file, by its path."""
    return {
        "ledger_enclave/key.json": {
            "name": "key",
            "why": "the private key is HKDF-SHA256(secret, info = ea:enclave-key:v1 ‖ enclave_ref), 32 bytes; "
            "key_id is BLAKE3(ea:identity:v1 ‖ x25519 ‖ 00 ‖ public key)",
            "cases": [
                {
                    "name": ref,
                    "input": {"secret": SECRET.hex(), "enclave_ref": ref},
                    "expect": {"public_key": _public(_private(ref)).hex(), "key_id": _key_id(ref)},
                }
                for ref in (REF, "pay-2", "é")
            ],
        },
        "ledger_enclave/open.json": {
            "name": "open",
            "why": f"opened for the channel {CHANNEL} in the enclave {REF}, whose secret is the bytes 40 … 5f",
            "cases": _openings(),
        },
    }
