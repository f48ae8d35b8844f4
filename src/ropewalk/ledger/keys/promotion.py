"""Promotion (S4 §2, §13): a replica becomes the writer under a new epoch, without the old writer's key.

The statement is sealed by the new key, in a block on top of the last block of the replica. Its authority comes from the
channel itself: it carries the record of the block below, sealed by a valid key, and the policy whose hash that block
has. A `control` rule of that policy must ask for approvals of `promote`, and the approvers sign epoch, height and hash
of the block below. So a promotion cannot be repeated at another place, and needs neither the old writer nor its key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ropewalk.errors import Denied, SigInvalid, Unverified
from ropewalk.kernel import jcs
from ropewalk.ledger.block.block import BlockRecord, check_signature, parse_record
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.keys.approvals import is_controlled, require_approvals
from ropewalk.ledger.keys.statements import TYPES, KeyStatement

if TYPE_CHECKING:
    from ropewalk.ledger.rules.policy import Policy

EVENT_TYPE: Final = next(name for name, act in TYPES.items() if act == "promote")


def is_promotion(envelope: Envelope) -> bool:
    """Return whether an envelope is a promotion."""
    return envelope.event_type == EVENT_TYPE


def promotion_basis(below: BlockRecord, policy: Policy) -> dict[str, Any]:
    """Return what a promotion rests on: the block below and the policy."""
    return {"below": jcs.parse(below.raw), "policy": jcs.parse(policy.to_bytes())}


def block_below(said: KeyStatement) -> BlockRecord:
    """Return the block record that a promotion carries; nothing about it is checked."""
    return parse_record(jcs.encode(said.basis["below"]))


def check_promotion(said: KeyStatement, envelope: Envelope, record: BlockRecord) -> BlockRecord:
    """Raise unless a promotion is valid in itself; return the block below, whose signer the caller must trust."""
    from ropewalk.ledger.rules.policy import parse_policy

    act, header, below = said.act, record.header, block_below(said)
    assert act.new_key is not None
    check_signature(record)
    check_signature(below)
    if not envelope.public_key == record.signer == act.new_key:
        raise SigInvalid("the new key must sign the promotion and its block")
    if (act.height, act.prev_block_hash) != (header.height, header.prev_block_hash):
        raise Unverified(
            f"it was approved for block {act.height} on {act.prev_block_hash.hex()[:16]}…, "
            f"and is block {header.height} on {header.prev_block_hash.hex()[:16]}…"
        )
    if (below.hash, below.header.channel, below.height + 1) != (
        header.prev_block_hash,
        header.channel,
        header.height,
    ):
        raise Unverified("the block below must be the one before it in its channel")
    if act.key != below.signer.identity():
        raise Unverified(f"{act.key.hex()[:16]}… did not seal the block below")
    policy = parse_policy(jcs.encode(said.basis["policy"]))
    if not policy.hash == below.header.policy_hash == header.policy_hash:
        raise Unverified("the policy must be that of the block below")
    said.check_acceptance()
    require_promotable(policy)
    require_approvals(act.to_json(), said.approvals, policy.controls)
    return below


def require_promotable(policy: Policy | None) -> None:
    """Raise unless a rule of the policy says who approves promotions."""
    if not is_controlled(policy, "promote"):
        raise Denied(
            "no rule of the channel's policy says who may promote a replica",
            advice='It needs a rule of kind "control" with the act "promote", at least two approvals, and a majority.',
        )
