"""Cases for archives: manifests that follow one another, and what must not pass for that.

Computed from the definitions: BLAKE3 and Ed25519 from their libraries, the tree and the canonical form written out.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from blake3 import blake3
from nacl.signing import SigningKey

Case = dict[str, Any]

KEY, OTHER = SigningKey(bytes(range(32))), SigningKey(bytes(32))
HASHES = [blake3(bytes([number])).hexdigest() for number in range(6)]


def canonical(value: Any) -> str:
    """JCS of what is here: names and texts of ASCII, whole numbers."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def root(hashes: list[str]) -> str:
    """The RFC 6962 shape under the tag ea:range-node:v1; the leaves are the block hashes themselves."""
    if len(hashes) == 1:
        return hashes[0]
    split = 1
    while split * 2 < len(hashes):
        split *= 2
    left, right = bytes.fromhex(root(hashes[:split])), bytes.fromhex(root(hashes[split:]))
    return blake3(b"ea:range-node:v1" + left + right).hexdigest()


def identity(key: SigningKey) -> dict[str, str]:
    return {"identity_type": "ed25519", "public_key": bytes(key.verify_key).hex()}


def manifest(start: int, end: int, below: dict[str, str] | None, **changes: Any) -> str:
    return canonical(
        {
            "version": 1,
            "channel": "ea.core",
            "start_height": start,
            "end_height": end,
            "block_hashes": HASHES[start : end + 1],
            "range_root": root(HASHES[start : end + 1]),
            "outer_root": root(HASHES[: end + 1]),
            "previous": None if below is None else blake3(below["manifest"].encode()).hexdigest(),
            "envelopes": 7,
            "detached_payloads": 0,
            "policy_hash": None,
            "created_at": "1730462400000000000",
            "signer": identity(KEY),
            "files": [{"name": "blocks.seg.zst", "blake3": blake3(b"").hexdigest(), "bytes": 0}],
            **changes,
        }
    )


def signed(text: str, key: SigningKey = KEY, tag: bytes = b"ea:archive:v1") -> dict[str, str]:
    signature = base64.b64encode(key.sign(tag + text.encode()).signature).decode()
    return {"manifest": text, "signature": canonical({"alg": "ed25519", "sig": signature})}


def case(name: str, why: str, archives: list[dict[str, str]], **outcome: Any) -> Case:
    return {"name": name, "why": why, "input": {"signer": identity(KEY), "archives": archives}, **outcome}


def chain() -> Case:
    one = signed(manifest(0, 2, None))
    two = signed(manifest(3, 3, one))
    three = signed(manifest(4, 5, two))

    def lies(why: str, name: str, error: str = "BrokenLink", **changes: Any) -> Case:
        return case(name, why, [one, signed(manifest(3, 3, one, **changes))], error=error)

    whole = {"blocks": 6, "outer_root": root(HASHES)}
    return {
        "name": "archive_chain",
        "why": "Archives of a channel in their order: the manifest is canonical JSON, its signature is over the tag "
        "ea:archive:v1 and the manifest's bytes. Each begins where the one before ends, names the BLAKE3 of its "
        "manifest, and has the roots of its own blocks and of all blocks so far under ea:range-node:v1.",
        "cases": [
            case("three", "3, 1 and 2 blocks", [one, two, three], expect=whole),
            case("one", "a beginning is enough", [one], expect={"blocks": 3, "outer_root": root(HASHES[:3])}),
            case("gap", "block 3 is in no archive", [one, three], error="BrokenLink"),
            case("no_beginning", "blocks 0 to 2 are in no archive", [two, three], error="BrokenLink"),
            case("twice", "an archive cannot follow itself", [one, one], error="BrokenLink"),
            lies("it names another manifest before it", "other_previous", previous="00" * 32),
            lies("only the first names none", "no_previous", previous=None),
            lies("another channel's", "other_channel", channel="ea.other"),
            lies("the root over its own blocks", "other_range_root", range_root="00" * 32),
            lies("the root over all blocks so far", "other_outer_root", outer_root="00" * 32),
            lies("another block", "other_block", block_hashes=["00" * 32]),
            lies("one hash for two heights", "too_few_hashes", "Invalid", end_height=4),
            lies(
                "a file outside of the archive",
                "path",
                "Invalid",
                files=[{"name": "../x", "blake3": "00" * 32, "bytes": 0}],
            ),
            lies("no blocks", "no_files", "Invalid", files=[]),
            case(
                "signed_by_another", "another key", [signed(manifest(0, 2, None), OTHER)], error="SigInvalid"
            ),
            case(
                "bundle_signature",
                "signed for another purpose",
                [signed(manifest(0, 2, None), tag=b"ea:bundle:v1")],
                error="SigInvalid",
            ),
            case(
                "changed_afterwards",
                "a byte of the manifest",
                [{**one, "manifest": one["manifest"].replace('"envelopes":7', '"envelopes":8')}],
                error="SigInvalid",
            ),
        ],
    }


def generate() -> dict[str, object]:
    return {"archive/chain.json": chain()}
