"""Cases for state proofs: whole files of `ledger state prove`, with the trust file and the verdict.

Made from the rules of `docs/reference/ledger.md`, not with the product.
"""

from __future__ import annotations

from typing import Any

from blake3 import blake3

from vectors.generate.ledger_keys import (
    FIRST,
    NOON_NS,
    OTHER,
    SIGNED,
    at,
    canonical,
    fingerprint,
    identity,
    signature,
)
from vectors.generate.state_map import leaves_of, tree

Case = dict[str, Any]
STATE: Any = {
    "": "a name may be empty",
    "a": {"b": 1},
    "a/b": 2,
    "prod": {"api": {}, "web": {"version": "1.2", "zone": ["x", "y"]}},
    "~": None,
}
LEAVES = sorted(leaves_of([], STATE))
HASHES = [blake3(b"ea:state-leaf:v1" + canonical([key, each.hex()])).digest() for key, each in LEAVES]


def around(low: int, high: int, start: int = 0, end: int = len(HASHES)) -> tuple[list[bytes], list[bytes]]:
    """The largest subtrees before and after the leaves from `low` to `high`, the nearest first."""
    if end <= low:
        return [tree(HASHES[start:end])], []
    if start >= high:
        return [], [tree(HASHES[start:end])]
    if low <= start and end <= high:
        return [], []
    half = 1
    while 2 * half < end - start:
        half *= 2
    left, right = around(low, high, start, start + half), around(low, high, start + half, end)
    return right[0] + left[0], left[1] + right[1]


def map_root(size: int, root: bytes) -> str:
    return blake3(b"ea:state-map:v1" + size.to_bytes(8, "big") + root).hexdigest()


def snapshot(
    *,
    author: Any = FIRST,
    sealer: Any = FIRST,
    channel: str = "ops.snapshots",
    of_channel: str = "ops",
    **changes: Any,
) -> Case:
    """A proof of the snapshot's envelope, alone in its block."""
    payload = {
        "channel": of_channel,
        "height": 9,
        "block_hash": "11" * 32,
        "state_root": "22" * 32,
        "state_map_root": map_root(len(HASHES), tree(HASHES)),
        "policy_hash": None,
        "attestation_digest": None,
        "evaluator": "ropewalk/1 deployments",
        **changes,
    }
    payload = {name: each for name, each in payload.items() if each != "absent"}
    envelope: Case = {
        "protocol_version": "1.0.0",
        "domain": "ropewalk.replay",
        "event_class": "Attestation",
        "event_type": "ledger.checkpoint",
        "timestamp": at(0),
        "origin_identity": identity(author),
        "payload_hash": blake3(canonical(payload)).hexdigest(),
        "payload": payload,
    }
    pairs = canonical([[name, envelope[name]] for name in SIGNED])
    envelope["signature"] = {**signature(author, b"ea:signature:v1", pairs), "signed_fields": SIGNED}
    id_ = blake3(b"ea:envelope:v1" + canonical(envelope)).hexdigest()
    header = {
        "protocol_version": 1,
        "channel": channel,
        "height": 0,
        "prev_block_hash": "00" * 32,
        "merkle_root": id_,
        "timestamp": str(NOON_NS),
        "origin_identity": fingerprint(sealer),
        "integrity_proof": None,
        "policy_hash": None,
        "envelope_count": 1,
    }
    sealed = signature(sealer, b"ea:block-signature:v1", canonical(header))
    block = {"header": header, "signature": sealed, "signer": identity(sealer)}
    return {
        "version": 1,
        "envelope": envelope,
        "envelope_id": id_,
        "height": 0,
        "index": 0,
        "path": [],
        "block": block,
    }


def proof(key: list[str], low: int, high: int, *value: Any, of: Case | None = None, **changes: Any) -> Case:
    """The file: the leaves from `low` to `high` are shown."""
    left, right = around(low, high)
    return {
        "version": 1,
        "kind": "state",
        "channel": "ops",
        "height": 9,
        "reducer": "deployments",
        "key": key,
        **({"value": value[0]} if value else {"absent": True}),
        "size": len(HASHES),
        "index": low,
        "leaves": [{"key": at_, "value_hash": hash_.hex()} for at_, hash_ in LEAVES[low:high]],
        "left": [each.hex() for each in left],
        "right": [each.hex() for each in right],
        "tree_root": tree(HASHES).hex(),
        "snapshot": of or snapshot(),
        **changes,
    }


def case(name: str, why: str, made: Case, **outcome: Any) -> Case:
    trust = {
        "version": 1,
        "block_signers": [identity(FIRST)],
        "bundle_signers": [],
        "policy_hash": None,
        "roots": [],
    }
    return {"name": name, "why": why, "input": {"trust": trust, "proof": made}, **outcome}


def cases() -> list[Case]:
    # Leaves: "" | a,b | a/b | prod,api | prod,web,version | prod,web,zone | ~
    web = STATE["prod"]["web"]

    def holds(name: str, why: str, made: Case) -> Case:
        return case(name, why, made, expect="passed")

    def fails(name: str, why: str, made: Case) -> Case:
        return case(name, why, made, expect="failed")

    def of(**lies: Any) -> Case:
        return proof(["a", "b"], 0, 3, 1, of=snapshot(**lies))

    no_kind = proof(["a", "b"], 0, 3, 1)
    return [
        holds("scalar", "a leaf with both neighbours", proof(["a", "b"], 0, 3, 1)),
        holds("object", "all leaves below a key", proof(["prod", "web"], 3, 7, web)),
        holds("empty_object", "is a leaf", proof(["prod", "api"], 2, 5, {})),
        holds("first", "the map begins there", proof([""], 0, 2, STATE[""])),
        holds("last", "the map ends there", proof(["~"], 5, 7, None)),
        holds("whole", "the key of the state itself", proof([], 0, 7, STATE)),
        holds("absent", "between its neighbours", proof(["c"], 2, 4)),
        holds("absent_at_the_end", "after the last leaf", proof(["~", "x"], 6, 7)),
        holds("absent_below_a_value", "a number has no members", proof(["a", "b", "c"], 1, 3)),
        holds("slash_in_a_name", "one name, not two", proof(["a/b"], 1, 4, 2)),
        holds("more_leaves_than_needed", "does no harm", proof(["a", "b"], 0, 7, 1)),
        fails("other_value", "not what the leaf says", proof(["a", "b"], 0, 3, 2)),
        fails("part_of_an_object", "a member is left out", proof(["prod", "web"], 3, 7, {"version": "1.2"})),
        fails(
            "hidden_member",
            "the leaf after it is not shown",
            proof(["prod", "web"], 3, 5, {"version": "1.2"}),
        ),
        fails("no_leaf_before", "nothing shows where the run begins", proof(["prod", "web"], 4, 7, web)),
        fails("claimed_absent", "it is there", proof(["a", "b"], 0, 3)),
        fails("absent_without_neighbour", "the leaf itself is not shown", proof(["a", "b"], 0, 1)),
        fails("slash_is_not_a_path", "the leaf of another key", proof(["a", "b"], 1, 4, 2)),
        fails("wrong_index", "the leaves lie elsewhere", proof(["a", "b"], 0, 3, 1, index=1)),
        fails("wrong_size", "the root covers the size", proof(["a", "b"], 0, 3, 1, size=8)),
        fails("cut_size", "as if the map ended there", proof(["a/b"], 1, 3, 2, size=3, right=[])),
        fails("other_tree", "not that of the snapshot", proof(["a", "b"], 0, 3, 1, tree_root="33" * 32)),
        fails("spare_hash", "one too many", proof(["a", "b"], 0, 3, 1, left=["33" * 32])),
        fails("missing_hash", "one too few", proof(["a", "b"], 0, 3, 1, right=[])),
        fails(
            "leaves_not_sorted",
            "no order, no absence",
            {**(made := proof(["c"], 2, 4)), "leaves": made["leaves"][::-1]},
        ),
        fails("other_height", "the snapshot is of another one", of(height=8)),
        fails("other_reducer", "the state of another program", of(evaluator="ropewalk/1 counts")),
        fails("other_channel", "the snapshot of another channel", of(of_channel="audit")),
        fails("snapshot_elsewhere", "snapshots have a channel of their own", of(channel="ops")),
        fails("snapshot_by_an_author", "not signed by the key that seals", of(author=OTHER)),
        fails("sealed_by_another", "a key that the trust file does not name", of(author=OTHER, sealer=OTHER)),
        fails("no_map", "a snapshot of the older form proves no single key", of(state_map_root="absent")),
        case("value_and_absent", "one of them", {**no_kind, "absent": True}, error="InvalidProof"),
        case("absent_false", "is not a form", {**proof(["c"], 2, 4), "absent": False}, error="InvalidProof"),
        case("pointer_as_key", "a key is a list of names", {**no_kind, "key": "/a/b"}, error="InvalidProof"),
    ]


def generate() -> dict[str, object]:
    about = (
        "Files of `ledger state prove` with a trust file; `expect` is the verdict of a verifier. The state is "
        '{"":…,"a":{"b":1},"a/b":2,"prod":{…},"~":null}. If a file has no such form, that is an error.'
    )
    return {"ledger/state_proof.json": {"name": "state_proof", "why": about, "cases": cases()}}
