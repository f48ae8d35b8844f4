"""Proofs of single members of a replayed state: the value, its place in the state map, and the signed snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from ropewalk.errors import InvalidProof, RopewalkError
from ropewalk.kernel import jcs, merkle
from ropewalk.kernel.report import Report
from ropewalk.kernel.terminal_text import printable
from ropewalk.ledger.proof.proof import Proof, hashes, members, natural, parse_proof, verify_proof
from ropewalk.ledger.proof.steps import compared, short
from ropewalk.ledger.proof.trust import Trust
from ropewalk.ledger.replay.replay import companion, parse_snapshot
from ropewalk.ledger.replay.state_map import (
    LEAVES_MAX,
    Key,
    MemberProof,
    StateLeaf,
    check_members,
    pointer_text,
)
from ropewalk.ledger.rules.policy import EVALUATOR

KIND: Final = "state"
VALUE_CHARS: Final = 80  # in a report; the proof has the whole value
_PLACE: Final = {"size", "index", "leaves", "left", "right", "tree_root"}
_NAMES: Final = {"version", "kind", "channel", "height", "reducer", "key", "snapshot"} | _PLACE


@dataclass(frozen=True, slots=True)
class StateProof:
    """The value at a key of a state, or its absence, under a snapshot."""

    channel: str
    height: int
    reducer: str
    key: Key
    value: tuple[Any, ...]  # empty: absent
    members: MemberProof
    snapshot: Proof

    def to_bytes(self) -> bytes:
        found: dict[str, Any] = {"value": self.value[0]} if self.value else {"absent": True}
        leaves = [
            {"key": list(leaf.key), "value_hash": leaf.value_hash.hex()} for leaf in self.members.leaves
        ]
        return jcs.encode(
            {
                "version": 1,
                "kind": KIND,
                "channel": self.channel,
                "height": self.height,
                "reducer": self.reducer,
                "key": list(self.key),
                **found,
                "size": self.members.size,
                "index": self.members.index,
                "leaves": leaves,
                "left": [each.hex() for each in self.members.around.left],
                "right": [each.hex() for each in self.members.around.right],
                "tree_root": self.members.tree_root.hex(),
                "snapshot": jcs.parse(self.snapshot.to_bytes()),
            }
        )


def parse_state_proof(raw: bytes) -> StateProof:
    """Parse a state proof; only the form is checked."""
    value = members(raw, _NAMES, "a state proof", {"value", "absent"})
    if ("value" in value) == ("absent" in value) or value.get("absent", True) is not True:
        raise InvalidProof('proof: expected either "value" or "absent": true')
    leaves = value["leaves"]
    if not isinstance(leaves, list) or len(leaves) > LEAVES_MAX + 2:
        raise InvalidProof(f"proof: leaves must be a list of at most {LEAVES_MAX + 2:,}")
    return StateProof(
        _text(value, "channel"),
        natural(value, "height"),
        _text(value, "reducer"),
        _key(value["key"]),
        (value["value"],) if "value" in value else (),
        MemberProof(
            natural(value, "size"),
            natural(value, "index"),
            tuple(map(_leaf, leaves)),
            merkle.RangeProof(hashes(value["left"]), hashes(value["right"])),
            hashes([value["tree_root"]])[0],
        ),
        parse_proof(jcs.encode(value["snapshot"])),
    )


def verify_state_proof(proof: StateProof, trust: Trust | None = None) -> Report:
    """Verify a state proof offline: the snapshot's envelope first, then what it says, then the member."""
    of_snapshot = verify_proof(proof.snapshot, trust)
    where = f"{pointer_text(proof.key) or 'the whole state'} at height {proof.height}"
    value = printable(jcs.encode(proof.value[0]).decode(), VALUE_CHARS) if proof.value else "absent"
    steps = [
        *of_snapshot.steps,
        compared(
            "snapshot",
            f"{proof.channel} at {proof.height} by {proof.reducer}",
            lambda: _check_snapshot(proof),
        ),
        compared("state_member", f"{where} is {value}", lambda: _check(proof)),
    ]
    return Report.of(steps, entries=1)


def _check_snapshot(proof: StateProof) -> None:
    snapshot = parse_snapshot(proof.snapshot.envelope)
    expected = proof.channel, proof.height, f"{EVALUATOR} {proof.reducer}"
    if (snapshot.channel, snapshot.height, snapshot.evaluator) != expected:
        raise InvalidProof(
            f"proof: the snapshot is of {snapshot.channel} at {snapshot.height} by {snapshot.evaluator}"
        )
    if proof.snapshot.block.header.channel != companion(proof.channel):
        raise InvalidProof(
            f"proof: snapshots of {proof.channel} must be in channel {companion(proof.channel)}"
        )
    if proof.snapshot.envelope.public_key != proof.snapshot.block.signer:
        raise InvalidProof("proof: the key that seals the channel must have signed the snapshot")


def _check(proof: StateProof) -> None:
    root = parse_snapshot(proof.snapshot.envelope).state_map_root
    if root is None:
        raise InvalidProof("proof: the snapshot has no state_map_root")
    try:
        check_members(root, proof.members, proof.key, *proof.value)
    except RopewalkError as error:
        raise InvalidProof(f"{error.detail} (state map {short(root)})") from error


def _text(value: dict[str, Any], name: str) -> str:
    if not isinstance(value[name], str):
        raise InvalidProof(f"proof: {name} must be a string")
    return str(value[name])


def _key(value: Any) -> Key:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise InvalidProof("proof: a key must be a list of member names")
    return tuple(value)


def _leaf(value: Any) -> StateLeaf:
    if not isinstance(value, dict) or value.keys() != {"key", "value_hash"}:
        raise InvalidProof('proof: a leaf must have "key" and "value_hash"')
    return StateLeaf(_key(value["key"]), hashes([value["value_hash"]])[0])
