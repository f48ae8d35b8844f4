"""Cases for bundle verifiers: the members of one small bundle as text, then forgeries and the steps that must fail.

Members are given in their order; how they are packed (tar, Zstandard) is not part of these cases. A forger may hold the
bundle's key: then manifest and signature are made again over the forged files, and only later steps can tell. Anchors
are heads of three blocks over the two that the bundle holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from blake3 import blake3

from ropewalk.kernel import jcs, merkle
from ropewalk.kernel.digest import Tag
from ropewalk.kernel.keys import Signature, SigningKey
from ropewalk.kernel.note.note import SignatureType, Signer, cosign_head
from ropewalk.ledger.block.block import GENESIS, Block, seal
from ropewalk.ledger.bundle.anchors import BundleAnchor
from ropewalk.ledger.bundle.format import HEADERS, MANIFEST, SIGNATURE, BundleBuilder, block_name, proof_name
from ropewalk.ledger.envelope.envelope import build
from ropewalk.ledger.proof.proof import signed_head

Members = dict[str, str]
Case = dict[str, Any]

AUTHOR = SigningKey.generate("ed25519", bytes(range(32)))
NODE = SigningKey.generate("ed25519", bytes(range(32, 64)))
WITNESS = Signer(
    "witness.example", SigningKey.generate("ed25519", bytes(range(64, 96))), SignatureType.COSIGNATURE
)
POLICY = blake3(b"a policy").digest()
NOON_NS = 1_730_462_400 * 10**9


def generate() -> dict[str, object]:
    """Relative path → JSON value."""
    good = _bundle()
    trust = {
        "version": 1,
        "block_signers": [NODE.public.to_json()],
        "bundle_signers": [NODE.public.to_json()],
        "policy_hash": POLICY.hex(),
        "roots": [],
    }
    block, proof = block_name(1), proof_name(1)

    def case(
        name: str, why: str, members: Members, failed: list[str], anchors: str | None = None, **changes: Any
    ) -> Case:
        missed = anchors == "not_checked" and "witnesses" in changes
        verdict = "failed" if failed else "partly" if missed else "passed"
        expect: dict[str, Any] = {"failed": failed, "verdict": verdict}
        expect |= {} if anchors is None else {"anchors": anchors}
        return {
            "name": name,
            "why": why,
            "input": {
                "members": [[key, text] for key, text in members.items()],
                "trust": {**trust, **changes},
            },
            "expect": expect,
        }

    def edit(name: str, change: Callable[[str], str]) -> Members:
        return {**good, name: change(good[name])}

    def lines(text: str, change: Callable[[list[str]], list[str]]) -> str:
        return "\n".join(change(text.splitlines())) + "\n"

    swapped = edit(block, lambda text: lines(text, lambda each: [each[1], each[0], *each[2:]]))
    other = edit(block, lambda text: text.replace('"n":4', '"n":9', 1))
    wrong_path = edit(
        proof,
        lambda text: lines(
            text,
            lambda each: [each[0].replace('"path":["', '"path":["0', 1).replace('0","', '","', 1), *each[1:]],
        ),
    )
    anchor = _anchor(WITNESS)
    note, (root,) = anchor["note"], anchor["right"]
    changed_root = f"{int(root[0], 16) ^ 1:x}{root[1:]}"
    witnesses = [WITNESS.verifier.to_text()]
    header = edit(HEADERS, lambda text: text.replace('"height":1', '"height":2', 1))
    return {
        "bundle/bundle.json": {
            "name": "bundle",
            "why": "S4 §12: five steps and the anchors, each judged by itself; those in `failed` must fail, all others "
            "must not; of `anchors` also what it comes to, where it is there. `verdict` is `partly` where a witness is "
            "named and none has signed",
            "cases": [
                case("good", "two blocks of three envelopes under a policy", good, []),
                case(
                    "policy_other",
                    "the verifier expects another policy",
                    good,
                    ["policy_hash"],
                    policy_hash="00" * 32,
                ),
                case(
                    "bundle_signer_unknown",
                    "nobody is trusted to sign bundles",
                    good,
                    ["bundle_signature"],
                    bundle_signers=[],
                ),
                case(
                    "block_signer_unknown",
                    "nobody is trusted to seal blocks",
                    good,
                    ["block_signatures"],
                    block_signers=[],
                ),
                case(
                    "manifest_time_changed",
                    "the manifest is signed",
                    edit(MANIFEST, lambda text: text.replace('"created_at":"', '"created_at":"1', 1)),
                    ["bundle_signature"],
                ),
                case(
                    "envelope_changed",
                    "one digit of a payload",
                    other,
                    ["bundle_signature", "envelope_hashes", "merkle_paths"],
                ),
                case(
                    "envelope_changed_by_signer",
                    "the same by the holder of the bundle's key",
                    _signed(other),
                    ["envelope_hashes", "merkle_paths"],
                ),
                case(
                    "envelopes_swapped_by_signer",
                    "order is part of the tree",
                    _signed(swapped),
                    ["envelope_hashes", "merkle_paths"],
                ),
                case(
                    "path_changed_by_signer",
                    "a path that is no path",
                    _signed(wrong_path),
                    ["envelope_hashes", "merkle_paths"],
                ),
                case("header_changed_by_signer", "a header's height", _signed(header), ["block_signatures"]),
                case(
                    "range_root_changed_by_signer",
                    "the outer root is judged with the blocks",
                    _signed(good, range_root="00" * 32),
                    ["block_signatures"],
                ),
                case(
                    "anchor_of_the_channel",
                    "no witness is named: the key that seals blocks will do",
                    _signed(good, anchors=[anchor]),
                    [],
                    anchors="passed",
                ),
                case(
                    "anchor_seen_by_a_witness",
                    "the witness is named and has cosigned",
                    _signed(good, anchors=[anchor]),
                    [],
                    anchors="passed",
                    witnesses=witnesses,
                ),
                case(
                    "anchor_not_seen_by_the_witness",
                    "a witness is named, and only the channel's own key has signed",
                    _signed(good, anchors=[_anchor()]),
                    [],
                    anchors="not_checked",
                    witnesses=witnesses,
                ),
                case(
                    "anchor_of_a_stranger",
                    "the proof leads to a head that nobody trusted has signed",
                    _signed(good, anchors=[_anchor(key=AUTHOR)]),
                    [],
                    anchors="not_checked",
                ),
                case(
                    "anchor_asked_for_and_missing",
                    "a witness is named, the bundle has no anchor",
                    good,
                    [],
                    anchors="not_checked",
                    witnesses=witnesses,
                ),
                case(
                    "anchor_added_by_a_stranger",
                    "anchors are part of what the bundle's key signed",
                    edit(MANIFEST, lambda text: _manifest(text, anchors=[anchor])),
                    ["bundle_signature"],
                    anchors="passed",
                ),
                case(
                    "anchor_proof_changed_by_signer",
                    "another hash beside the headers",
                    _signed(good, anchors=[{**anchor, "right": [changed_root]}]),
                    ["anchors"],
                    anchors="failed",
                ),
                case(
                    "anchor_proof_cut_by_signer",
                    "a hash too few",
                    _signed(good, anchors=[{**anchor, "right": []}]),
                    ["anchors"],
                    anchors="failed",
                ),
                case(
                    "anchor_note_changed_by_signer",
                    "the signatures are over another host",
                    _signed(good, anchors=[{**anchor, "note": note.replace("log.", "leg.", 1)}]),
                    ["anchors"],
                    anchors="failed",
                    witnesses=witnesses,
                ),
                case(
                    "anchor_of_another_channel_by_signer",
                    "the origin ends with the channel",
                    _signed(good, anchors=[_anchor(WITNESS, channel="other")]),
                    ["anchors"],
                    anchors="failed",
                ),
            ],
        }
    }


def _bundle() -> Members:
    gathering, blocks, proofs = BundleBuilder(), {}, {}
    below = GENESIS
    for height in range(2):
        block = _block(height, below)
        below = block.hash
        blocks[block_name(height)], proofs[proof_name(height)] = (
            raw.decode() for raw in gathering.add(block)
        )
    manifest = gathering.finish(NODE)
    first = {MANIFEST: manifest.to_bytes().decode(), SIGNATURE: "", HEADERS: gathering.headers.decode()}
    return _signed({**first, **blocks, **proofs})


def _block(height: int, below: bytes) -> Block:
    raws = [
        build(
            AUTHOR,
            domain="ea.core",
            event_class="Observation",
            event_type="test.vector",
            payload={"n": 3 * height + number},
            timestamp="2024-11-01T12:00:00Z",
        ).raw
        for number in range(3)
    ]
    return seal(
        NODE,
        channel="ea.core",
        height=height,
        prev_block_hash=below,
        envelopes=raws,
        timestamp_ns=NOON_NS + height,
        policy_hash=POLICY,
    )


def _anchor(
    witness: Signer | None = None, *, key: SigningKey = NODE, channel: str = "ea.core"
) -> dict[str, Any]:
    """The head of three blocks, and the way to it from the first two."""
    below, leaves = GENESIS, []
    for height in range(3):
        block = _block(height, below)
        below = block.hash
        leaves.append(merkle.SHA256.leaf(block.header.encode()))
    note = signed_head("log.example", channel, 3, merkle.root(leaves, merkle.SHA256), key)
    if witness is not None:
        note = cosign_head(note, witness, NOON_NS // 10**9)
    return BundleAnchor(note, merkle.RangeProof((), (leaves[2],))).to_json()


def _manifest(text: str, **changes: Any) -> str:
    manifest: Any = jcs.parse(text.encode())
    return jcs.encode({**manifest, **changes}).decode()


def _signed(members: Members, **changes: Any) -> Members:
    manifest: Any = jcs.parse(members[MANIFEST].encode())
    manifest["files"] = [
        {"name": name, "blake3": blake3(text.encode()).hexdigest(), "bytes": len(text.encode())}
        for name, text in members.items()
        if name not in (MANIFEST, SIGNATURE)
    ]
    raw = jcs.encode({**manifest, **changes})
    signature = Signature(NODE.alg, NODE.sign(Tag.BUNDLE + raw)).to_json()
    return {**members, MANIFEST: raw.decode(), SIGNATURE: jcs.encode(signature).decode()}
