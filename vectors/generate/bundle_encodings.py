"""Cases for verifiers of bundles that hold their envelopes in CBOR too: the two must be encodings of one another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cbor2
from blake3 import blake3

from ropewalk.kernel import jcs
from ropewalk.kernel.digest import Tag
from ropewalk.kernel.keys import Signature
from ropewalk.ledger.block.block import GENESIS, seal
from ropewalk.ledger.bundle.format import (
    HEADERS,
    MANIFEST,
    SIGNATURE,
    BundleBuilder,
    block_name,
    cbor_name,
    proof_name,
)
from ropewalk.ledger.envelope.envelope import build
from vectors.generate.bundle import AUTHOR, NODE, NOON_NS

Members = dict[str, bytes]

PAYLOADS: tuple[Any, ...] = (
    {"half": 1.5, "least_half": 2**-24, "most_half": 65504, "single": 100000.5, "double": 0.1, "large": 1e21},
    {"heads": [0, 23, 24, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**53 - 1, -1, -24, -25, -(2**53) + 1]},
    {
        "aa": "length first",
        "z": "then bytes",
        "é": "two bytes",
        "ab": "𝄞 " * 130,
        "": [True, False, None, {}],
    },
    {"below_half": 2**-25, "above_half": 65520.5, "negative": -1.5, "list": list(range(300))},
)


def generate() -> dict[str, object]:
    """Relative path → JSON value."""
    good = _bundle()
    first, second = cbor_name(0), cbor_name(1)
    json_only = {name: raw for name, raw in good.items() if name not in (first, second)}
    widened = good[first].replace(bytes.fromhex("f93e00"), bytes.fromhex("fa3fc00000"), 1)
    cases = [
        ("good", "two blocks of two envelopes, each in JSON and in CBOR", good, []),
        ("good_json_only", "the same blocks in JSON alone", _signed(json_only, None), []),
        (
            "cbor_changed",
            "one bit of one member",
            {**good, second: good[second][:-1] + bytes([good[second][-1] ^ 1])},
            ["bundle_signature", "envelope_hashes"],
        ),
        (
            "cbor_of_another_block_by_signer",
            "valid CBOR of other envelopes",
            _signed({**good, second: good[first]}),
            ["envelope_hashes"],
        ),
        (
            "cbor_float_widened_by_signer",
            "1.5 in 32 bits: the value is the same, the encoding is not",
            _signed({**good, first: widened}),
            ["envelope_hashes"],
        ),
        (
            "cbor_item_added_by_signer",
            "a null after the last envelope",
            _signed({**good, second: good[second] + b"\xf6"}),
            ["envelope_hashes"],
        ),
        ("cbor_empty_by_signer", "no envelope", _signed({**good, first: b""}), ["envelope_hashes"]),
        (
            "cbor_member_missing",
            "the manifest lists a member that is not there",
            {name: raw for name, raw in good.items() if name != second},
            ["bundle_signature"],
        ),
        (
            "cbor_members_missing_by_signer",
            "the manifest says both and lists one",
            _signed(json_only),
            ["bundle_signature"],
        ),
        (
            "encodings_not_said_by_signer",
            "members in CBOR that no encoding asks for",
            _signed(good, None),
            ["bundle_signature"],
        ),
        (
            "encodings_in_another_order_by_signer",
            "one spelling only",
            _signed(good, ["cbor", "json"]),
            ["bundle_signature"],
        ),
    ]
    key = NODE.public.to_json()
    trust = {
        "version": 1,
        "block_signers": [key],
        "bundle_signers": [key],
        "policy_hash": None,
        "roots": [],
    }
    return {
        "bundle/both_encodings.json": {
            "name": "both_encodings",
            "why": "S4 §4 and §12: a bundle may hold the envelopes of a block also as a CBOR sequence, which must be "
            "the deterministic encoding of its JSON lines. As in `bundle.json`; all members are hex, and the "
            "steps in `failed` must fail, all others must not",
            "cases": [
                {
                    "name": name,
                    "why": why,
                    "input": {"members": [[key, raw.hex()] for key, raw in members.items()], "trust": trust},
                    "expect": {"failed": failed, "verdict": "failed" if failed else "passed"},
                }
                for name, why, members, failed in cases
            ],
        }
    }


def _bundle() -> Members:
    gathering, below = BundleBuilder(), GENESIS
    blocks, proofs, written = {}, {}, {}
    for height in range(2):
        envelopes = [
            build(
                AUTHOR,
                domain="ea.core",
                event_class="Observation",
                event_type="test.vector",
                payload=payload,
                timestamp="2024-11-01T12:00:00Z",
            )
            for payload in PAYLOADS[2 * height : 2 * height + 2]
        ]
        block = seal(
            NODE,
            channel="ea.core",
            height=height,
            prev_block_hash=below,
            envelopes=[each.raw for each in envelopes],
            timestamp_ns=NOON_NS + height,
        )
        below = block.hash
        blocks[block_name(height)], proofs[proof_name(height)] = gathering.add(block)
        # Written by cbor2 alone: the product's encoder is then held to it.
        written[cbor_name(height)] = b"".join(cbor2.dumps(each.value, canonical=True) for each in envelopes)
    first = {MANIFEST: gathering.finish(NODE).to_bytes(), SIGNATURE: b"", HEADERS: gathering.headers}
    return _signed({**first, **blocks, **proofs, **written})


def _signed(members: Members, encodings: Sequence[str] | None = ("json", "cbor")) -> Members:
    manifest: Any = jcs.parse(members[MANIFEST])
    manifest.pop("encodings", None)
    manifest["files"] = [
        {"name": name, "blake3": blake3(raw).hexdigest(), "bytes": len(raw)}
        for name, raw in members.items()
        if name not in (MANIFEST, SIGNATURE)
    ]
    raw = jcs.encode({**manifest, **({"encodings": list(encodings)} if encodings else {})})
    signature = Signature(NODE.alg, NODE.sign(Tag.BUNDLE + raw)).to_json()
    return {**members, MANIFEST: raw, SIGNATURE: jcs.encode(signature)}
