"""Cases for the ledger's bytes: payload hash, envelope, tree, block, every step written out.

The key is the Ed25519 seed 00 01 … 1f. Numbers that were published before this program existed are kept in `PRINTED`,
and the program refuses to write anything that disagrees with them.
"""

from __future__ import annotations

import hashlib
from typing import Any

from ropewalk.kernel import cbor, jcs, merkle
from ropewalk.kernel.digest import Tag, blake3, tagged
from ropewalk.kernel.keys import Algorithm, PublicKey, SigningKey
from ropewalk.kernel.multiformats import base64_encode

Case = dict[str, Any]

SECRET = bytes(range(32))
PAYLOAD: jcs.Json = {"b": [1, 2, {"z": None}], "a": "é"}
# S4 §7.2, the default, in its order.
SIGNED_FIELDS = (
    "protocol_version",
    "domain",
    "event_class",
    "event_type",
    "correlation_id",
    "causality_chain",
    "timestamp",
    "origin_identity",
    "payload_hash",
    "integrity_proof",
    "confidentiality_tag",
    "policy_tag",
)
PRINTED: dict[str, Any] = {
    "payload_hash": "56b512d0d4cac4ee26fd1536e9ed2db5406b1be6cdf0b2f320e049f606327e5c",
    "signature": "c0144edd3fa6c47d",
    "jcs_bytes": 769,
    "cbor_bytes": 671,
    "envelope_id": "550a1c4dfb3bb74acad545dc635bf17fc6c7f9d5e634724796d92d38d7d645f9",
    "root_0": "a8ca3348",
    "root_1": "746a0f0f",
    "root_2": "55721cd8dc3ae895ccfa639922d6c66919c9dd2718e224c02422c26ae814149e",
    "root_3": "ea0e47a3559333198034582b45a8619ce3a0d367f7fc5a3f357ad5e21eb06167",
    "root_5": "d4043f28041a63b5b47a6b4638f85d78a27a203ab42732024fdebc8e6a653c20",
    "root_7": "251f0c3405916a146f004f29d28ae34d9e8fa36094d19101a679d50d7bee205d",
    "root_8": "28759320f34935b94cc1f6e29c419b5595a052b5eb8369489dd1da445449aeb4",
    "block_hash": "3096b6fc1cc0ef1ceb5b0a9b72828804a74043af3e678e6431a5be6b6790d43f",
    "tlog_leaf": "073f16fa32d5854afc4927fc2f628cfb185a596421f6f0b332206110700bdfc3",
}


def agreed(name: str, value: Any) -> Any:
    """The value, if it is the printed one (or begins with it, where only the beginning was printed)."""
    printed = PRINTED.get(name, value)
    same = value.startswith(printed) if isinstance(value, str) else value == printed
    if not same:
        raise SystemExit(f"ledger vectors: {name} is {value}, printed was {printed}")
    return value


def payload_hash() -> Case:
    raw = jcs.encode(PAYLOAD)
    others: dict[str, jcs.Json] = {"null": None, "empty_object": {}, "number": 1.0, "text": "\u20ac"}
    return {
        "name": "payload_hash",
        "why": "BLAKE3 of the JCS bytes of the payload, with no tag, as 64 lower-case hex digits (S4 §7.1).",
        "cases": [
            {
                "name": "published",
                "why": "keys sorted, é as two bytes of UTF-8, null kept inside a payload",
                "input": PAYLOAD,
                "expect": {"jcs": raw.hex(), "payload_hash": agreed("payload_hash", blake3(raw).hex())},
            },
            *(
                {
                    "name": name,
                    "input": value,
                    "expect": {"jcs": jcs.encode(value).hex(), "payload_hash": hashed(value)},
                }
                for name, value in others.items()
            ),
        ],
    }


def hashed(value: jcs.Json) -> str:
    return blake3(jcs.encode(value)).hex()


def signed(key: SigningKey, fields: dict[str, Any]) -> tuple[bytes, bytes, dict[str, Any]]:
    """Preimage, signature and whole envelope."""
    pairs: jcs.Json = [[name, fields.get(name)] for name in SIGNED_FIELDS]
    preimage = Tag.SIGNATURE + jcs.encode(pairs)
    signature = key.sign(preimage)
    seal = {"alg": key.alg, "sig": base64_encode(signature), "signed_fields": list(SIGNED_FIELDS)}
    return preimage, signature, {**fields, "signature": seal}


def fields(public: PublicKey) -> dict[str, Any]:
    return {
        "protocol_version": "1.0.0",
        "domain": "ea.core",
        "event_class": "Observation",
        "event_type": "test.vector",
        "correlation_id": "c-1",
        "causality_chain": ["c-1"],
        "timestamp": "2024-11-01T12:00:00Z",
        "origin_identity": public.to_json(),
        "payload_hash": hashed(PAYLOAD),
        "payload": PAYLOAD,
    }


def envelope_id(envelope: dict[str, Any]) -> str:
    return tagged(Tag.ENVELOPE, jcs.encode(envelope)).hex()


def envelope_case(alg: Algorithm) -> Case:
    key = SigningKey(alg, SECRET)
    given = fields(key.public)
    preimage, signature, envelope = signed(key, given)
    canonical, binary = jcs.encode(envelope), cbor.encode(envelope)
    found = {
        "preimage": preimage.hex(),
        "signature": signature.hex(),
        "envelope": envelope,
        "jcs": canonical.hex(),
        "jcs_bytes": len(canonical),
        "cbor": binary.hex(),
        "cbor_bytes": len(binary),
        "envelope_id": envelope_id(envelope),
    }
    if alg == "ed25519":
        found = {name: agreed(name, value) for name, value in found.items()}
    return {
        "name": f"published_{alg}" if alg == "ed25519" else alg,
        "input": {"alg": alg, "secret": SECRET.hex(), "fields": given, "signed_fields": list(SIGNED_FIELDS)},
        "expect": found,
    }


def envelopes() -> Case:
    return {
        "name": "envelope",
        "why": "Signature over the tag ea:signature:v1 and the JCS of [[name, value], …] in the order of signed_fields "
        "(the default of S4 §7.2), null for a field that is absent; public_key in hex, sig in padded base64. The "
        "envelope leaves absent fields out. Its id is BLAKE3 of the tag ea:envelope:v1 and the JCS of the whole, "
        "signature and payload included. CBOR carries the same model with the same texts and gives the same id.",
        "cases": [envelope_case("ed25519"), envelope_case("p256"), envelope_case("secp256k1")],
    }


def tampered() -> Case:
    key = SigningKey("ed25519", SECRET)
    _, _, envelope = signed(key, fields(key.public))
    other = SigningKey("ed25519", bytes(32)).public.to_json()
    reordered = [*reversed(SIGNED_FIELDS)]
    fewer = [name for name in SIGNED_FIELDS if name != "policy_tag"]
    changes: dict[str, tuple[str, str, dict[str, Any]]] = {
        "payload_changed": (
            "the hash tells",
            "DigestMismatch",
            {"payload": {"b": [1, 2, {"z": None}], "a": "e"}},
        ),
        "payload_and_hash_changed": (
            "the hash agrees again, but it was signed",
            "SigInvalid",
            {"payload": "other", "payload_hash": hashed("other")},
        ),
        "field_changed": ("a signed field", "SigInvalid", {"event_type": "test.Vector"}),
        "field_added": (
            "absent was signed as null",
            "SigInvalid",
            {"policy_tag": {"policy_hash": "00" * 32}},
        ),
        "author_changed": ("another key", "SigInvalid", {"origin_identity": other}),
        "signed_fields_reordered": (
            "the list is part of what is signed",
            "SigInvalid",
            {"signature": {**envelope["signature"], "signed_fields": reordered}},
        ),
        "signed_field_left_out": (
            "even one whose value is null",
            "SigInvalid",
            {"signature": {**envelope["signature"], "signed_fields": fewer}},
        ),
        "sig_over_no_fields": (
            "an empty list would fit every envelope",
            "SigInvalid",
            {"signature": {**envelope["signature"], "signed_fields": []}},
        ),
    }
    cases: list[Case] = [
        {"name": "untouched", "input": envelope, "expect": envelope_id(envelope)},
    ]
    for name, (why, error, change) in changes.items():
        cases.append({"name": name, "why": why, "input": {**envelope, **change}, "error": error})
    return {
        "name": "envelope_tampered",
        "why": "Payload hash first, then the signature over the fields the envelope itself lists.",
        "cases": cases,
    }


def leaf(i: int) -> bytes:
    return tagged(Tag.ENVELOPE, bytes([i]))


def tree_roots() -> Case:
    return {
        "name": "tree_roots",
        "why": "Leaf i is BLAKE3 of the tag ea:envelope:v1 and the byte i. An inner node is BLAKE3 of the tag "
        "ea:node:v1 and both children; the tree splits at the largest power of two below its size (RFC 6962 §2.1); "
        "the empty tree is BLAKE3 of the tag ea:empty:v1 alone.",
        "cases": [
            {
                "name": f"n_{n}",
                "input": [leaf(i).hex() for i in range(n)],
                "expect": agreed(f"root_{n}", merkle.root([leaf(i) for i in range(n)]).hex()),
            }
            for n in range(9)
        ],
    }


def block() -> Case:
    key = SigningKey("ed25519", SECRET)
    header: dict[str, Any] = {
        "protocol_version": 1,
        "channel": "ea.core",
        "height": 0,
        "prev_block_hash": "00" * 32,
        "merkle_root": merkle.root([leaf(i) for i in range(3)]).hex(),
        "timestamp": "1730462400000000000",
        "origin_identity": key.public.identity().hex(),
        "integrity_proof": None,
        "policy_hash": None,
        "envelope_count": 3,
    }
    raw = jcs.encode(header)
    signature = key.sign(Tag.BLOCK_SIGNATURE + raw)
    return {
        "name": "block",
        "why": "The header is the JCS of ten keys, nulls kept. Block hash: BLAKE3 of the tag ea:block:v1 and the "
        "header. Signature: over the tag ea:block-signature:v1 and the header. origin_identity: BLAKE3 of the tag "
        "ea:identity:v1, the type, a zero byte and the raw key. tlog leaf: SHA-256 of a zero byte and the header "
        "(RFC 6962).",
        "cases": [
            {
                "name": "published",
                "input": {"secret": SECRET.hex(), "header": header},
                "expect": {
                    "jcs": raw.hex(),
                    "block_hash": agreed("block_hash", tagged(Tag.BLOCK, raw).hex()),
                    "tlog_leaf": agreed("tlog_leaf", hashlib.sha256(b"\0" + raw).hexdigest()),
                    "signature": signature.hex(),
                    "record": {
                        "header": header,
                        "signature": {"alg": "ed25519", "sig": base64_encode(signature)},
                        "signer": key.public.to_json(),
                    },
                },
            }
        ],
    }


def generate() -> dict[str, object]:
    return {
        "ledger/block.json": block(),
        "ledger/envelope.json": envelopes(),
        "ledger/envelope_tampered.json": tampered(),
        "ledger/payload_hash.json": payload_hash(),
        "ledger/tree_roots.json": tree_roots(),
    }
