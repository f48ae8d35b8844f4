"""Cases for the keys of a channel: what it says about them, and whose seal counts then.

Computed from the definitions: BLAKE3 and Ed25519 from their libraries, the canonical form written out.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from blake3 import blake3
from nacl.signing import SigningKey

Case = dict[str, Any]

FIRST, SECOND, THIRD, OTHER = (SigningKey(bytes([number]) * 32) for number in range(1, 5))
NOON_NS = 1_730_462_400 * 10**9
HOUR_NS = 3_600 * 10**9
SIGNED = [
    "protocol_version",
    "domain",
    "event_class",
    "event_type",
    "timestamp",
    "origin_identity",
    "payload_hash",
]


def canonical(value: Any) -> bytes:
    """JCS of what is here: names and texts of ASCII, whole numbers."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def at(hours: int) -> str:
    return f"2024-11-01T{12 + hours:02d}:00:00Z"


def identity(key: SigningKey) -> dict[str, str]:
    return {"identity_type": "ed25519", "public_key": bytes(key.verify_key).hex()}


def fingerprint(key: SigningKey) -> str:
    return blake3(b"ea:identity:v1" + b"ed25519\0" + bytes(key.verify_key)).hexdigest()


def signature(key: SigningKey, tag: bytes, raw: bytes) -> dict[str, str]:
    return {"alg": "ed25519", "sig": base64.b64encode(key.sign(tag + raw).signature).decode()}


def rotate(
    old: SigningKey, new: SigningKey, since: int = 0, until: int = 0, **changes: Any
) -> dict[str, Any]:
    return {
        "version": 1,
        "act": "rotate",
        "channel": "ea.core",
        "key": fingerprint(old),
        "since": at(since),
        "until": at(until),
        "new_key": identity(new),
        "new_fingerprint": fingerprint(new),
        **changes,
    }


def end(act: str, key: SigningKey, since: int = 0) -> dict[str, Any]:
    return {
        "version": 1,
        "act": act,
        "channel": "ea.core",
        "key": fingerprint(key),
        "since": at(since),
        "reason": "",
    }


TYPES = {
    "rotate": "ledger.key_rotation",
    "retire": "ledger.key_retirement",
    "revoke": "ledger.key_revocation",
    "destroy": "ledger.key_destruction",
}


def said(
    height: int,
    act: dict[str, Any],
    author: SigningKey,
    *,
    new: SigningKey | None = None,
    sealer: SigningKey | None = None,
    accepts: dict[str, Any] | None = None,
) -> Case:
    """The act in an envelope, alone in a block; `accepts` is what the new key signs, where that is something else."""
    payload = {**act, "approvals": []}
    if new is not None:
        payload["acceptance"] = signature(new, b"ea:key-acceptance:v1", canonical(accepts or act))
    envelope: dict[str, Any] = {
        "protocol_version": "1.0.0",
        "domain": "ropewalk.keys",
        "event_class": "Alert",
        "event_type": TYPES[act["act"]],
        "timestamp": at(0),
        "origin_identity": identity(author),
        "payload_hash": blake3(canonical(payload)).hexdigest(),
        "payload": payload,
    }
    pairs = canonical([[name, envelope[name]] for name in SIGNED])
    envelope["signature"] = {**signature(author, b"ea:signature:v1", pairs), "signed_fields": SIGNED}
    seal = sealer or author
    header = {
        "protocol_version": 1,
        "channel": "ea.core",
        "height": height,
        "prev_block_hash": "00" * 32,
        "merkle_root": blake3(b"ea:envelope:v1" + canonical(envelope)).hexdigest(),
        "timestamp": str(NOON_NS),
        "origin_identity": fingerprint(seal),
        "integrity_proof": None,
        "policy_hash": None,
        "envelope_count": 1,
    }
    block = {
        "header": header,
        "signature": signature(seal, b"ea:block-signature:v1", canonical(header)),
        "signer": identity(seal),
    }
    return {"block": block, "envelope": envelope}


def case(
    name: str, why: str, keys: list[Case], block: tuple[int, int, SigningKey] | None = None, **outcome: Any
) -> Case:
    height, hours, signer = block or (9, 0, FIRST)
    asked = {"height": height, "timestamp": str(NOON_NS + hours * HOUR_NS), "signer": identity(signer)}
    given = {"named": [identity(FIRST)], "keys": keys, "block": asked}
    return {"name": name, "why": why, "input": given, **outcome}


def line() -> Case:
    overlap = rotate(FIRST, SECOND, since=1, until=3)
    over = said(5, overlap, FIRST, new=SECOND)
    once = said(5, rotate(FIRST, SECOND), FIRST, new=SECOND)
    twice = said(7, rotate(SECOND, THIRD), SECOND, new=THIRD)
    longer = rotate(FIRST, SECOND, since=1, until=9)
    other = {**once, "envelope": said(5, overlap, FIRST, new=SECOND)["envelope"]}
    yes, no = {"expect": True}, {"expect": False}

    def wrong(name: str, why: str, *keys: Case) -> Case:
        return case(name, why, list(keys), error="RopewalkError")

    return {
        "name": "key_line",
        "why": "What a channel says about its keys, each statement with the sealed block that holds it alone, the "
        "lowest first; `named` is what a trust file names. Does the seal of `signer` count for a block of that height "
        "and time? If a statement does not hold, that is an error.",
        "cases": [
            case("nothing_said", "a named key counts", [], (9, 0, FIRST), **yes),
            case("stranger", "no other does", [], (9, 0, OTHER), **no),
            case("new_key", "it followed", [once], (6, 0, SECOND), **yes),
            case("new_key_below", "but not below its rotation", [once], (5, 0, SECOND), **no),
            case("old_key_below", "what was sealed stands", [once], (5, 9, FIRST), **yes),
            case("old_key_above", "it has ended", [once], (6, 0, FIRST), **no),
            case("overlap_old", "it counts until its date", [over], (6, 2, FIRST), **yes),
            case("overlap_old_ended", "and not from then on", [over], (6, 3, FIRST), **no),
            case("overlap_new_early", "the new one waits for its date", [over], (6, 0, SECOND), **no),
            case("overlap_new", "and counts from then on", [over], (6, 1, SECOND), **yes),
            case("third", "a line of three", [once, twice], (8, 0, THIRD), **yes),
            case("second_ended", "which has ended too", [once, twice], (8, 0, SECOND), **no),
            case(
                "retired",
                "ends before the overlap",
                [over, said(6, end("retire", FIRST, 1), FIRST)],
                (7, 1, FIRST),
                **no,
            ),
            case(
                "revoked",
                "is not believed",
                [over, said(6, end("revoke", FIRST), FIRST)],
                (7, 0, FIRST),
                **no,
            ),
            case(
                "revoked_below",
                "what it sealed stands",
                [over, said(6, end("revoke", FIRST), FIRST)],
                (6, 0, FIRST),
                **yes,
            ),
            wrong("revoked_new", "to a key that was revoked", said(4, end("revoke", SECOND), FIRST), once),
            wrong(
                "signed_by_another",
                "not the key that seals",
                said(5, overlap, OTHER, new=SECOND, sealer=FIRST),
            ),
            wrong("sealed_by_another", "a stranger's block", said(5, overlap, OTHER, new=SECOND)),
            wrong("not_accepted", "the new key signed nothing", said(5, overlap, FIRST, new=OTHER)),
            wrong(
                "accepted_otherwise",
                "the new key accepted another date",
                said(5, longer, FIRST, new=SECOND, accepts=overlap),
            ),
            wrong("same_key", "to itself", said(5, rotate(FIRST, FIRST), FIRST, new=FIRST)),
            wrong(
                "gap",
                "nobody would count in between",
                said(5, rotate(FIRST, SECOND, 2, 1), FIRST, new=SECOND),
            ),
            wrong(
                "twice", "a key gives way once", over, said(6, rotate(FIRST, THIRD, 0, 3), FIRST, new=THIRD)
            ),
            wrong("back", "to a key that gave way", once, said(7, rotate(SECOND, FIRST), SECOND, new=FIRST)),
            wrong(
                "other_channel",
                "said in another channel",
                said(5, rotate(FIRST, SECOND, channel="ea.other"), FIRST, new=SECOND),
            ),
            wrong(
                "other_fingerprint",
                "of another key",
                said(5, rotate(FIRST, SECOND, new_fingerprint="00" * 32), FIRST, new=SECOND),
            ),
            wrong("other_envelope", "not the one that its block holds", other),
            wrong(
                "retire_current", "the key that seals gives way first", said(5, end("retire", FIRST), FIRST)
            ),
        ],
    }


def generate() -> dict[str, object]:
    return {"ledger_keys/line.json": line()}
