"""Whether a key statement is valid in its block: who signed it, what it may change, and who approved it.

`KeyHistory` applies a statement once it is valid; nothing is changed here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.errors import SigInvalid, Unverified
from ropewalk.kernel.keys import PublicKey
from ropewalk.ledger.block.block import BlockRecord
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.keys.approvals import require_approvals
from ropewalk.ledger.keys.policies import check_newer, check_policy_rotation
from ropewalk.ledger.keys.promotion import check_promotion
from ropewalk.ledger.keys.statements import KeyStatement, parse_key_statement
from ropewalk.ledger.keys.validity import reason_text
from ropewalk.ledger.rules.rules import rule_1_canonical_hash, rule_2_signature_scope
from ropewalk.ledger.rules.verdict import Context

if TYPE_CHECKING:
    from ropewalk.ledger.keys.history import KeyHistory
    from ropewalk.ledger.rules.policy import Policy


def check_statement(
    history: KeyHistory,
    envelope: Envelope,
    sealer: PublicKey,
    channel: str,
    policy: Policy | None,
    record: BlockRecord | None = None,
) -> KeyStatement:
    """Return the key statement of an envelope if it is valid in a block signed by `sealer`; change nothing.

    `policy` is the block's policy, if its text is available: it may require approvals. `record` is the block; a
    promotion is valid in its own block only.
    """
    for finding in (rule_1_canonical_hash(envelope, Context()), rule_2_signature_scope(envelope)):
        if finding.status != "passed":
            raise SigInvalid(finding.detail)
    said = parse_key_statement(envelope)
    act = said.act
    if envelope.public_key != sealer:
        raise SigInvalid(f"signed by {envelope.public_key.did()}, but the block is signed by {sealer.did()}")
    if act.channel != channel:
        raise Unverified(f'it belongs to channel "{act.channel[:80]}"')
    if act.act == "rotate":
        _check_rotation(history, said, envelope, sealer)
    elif act.act == "promote":
        _check_promotion(history, said, envelope, record)
    elif act.act in ("policy", "evidence"):
        _check_settings(history, said, record)
    else:
        validity = history.find(act.key)
        if validity is None and act.act != "revoke":
            raise Unverified(f"{act.key.hex()[:16]}… is not a key of this channel")
        if validity is not None and validity.successor is None and not history.anybody:
            raise Unverified(f"{validity.key.did()} was not replaced yet: rotate first, then {act.act}")
    _check_approvers(history, said, record)
    if policy is not None:
        require_approvals(act.to_json(), said.approvals, policy.controls)
    return said


def _check_promotion(
    history: KeyHistory, said: KeyStatement, envelope: Envelope, record: BlockRecord | None
) -> None:
    if record is None:
        raise Unverified("a promotion is not submitted: use `ropewalk ledger promote`")
    check_approved(history, said, envelope, record)
    if said.act.epoch != history.epoch + 1:
        raise Unverified(f"it begins epoch {said.act.epoch}, and epoch {history.epoch + 1} is next")
    _check_new(history, record.signer)


def _check_settings(history: KeyHistory, said: KeyStatement, record: BlockRecord | None) -> None:
    act = said.act
    if record is None:
        how = "policy rotate" if act.act == "policy" else "evidence set"
        raise Unverified(f"a {act.act} rotation is not submitted: use `ropewalk ledger {how}`")
    if act.key != record.signer.identity():
        raise Unverified(f"{act.key.hex()[:16]}… is not the key that signed it")
    check_newer(act, history.changes)
    if act.act == "policy":
        check_policy_rotation(said, record)
    elif act.new_hash == act.old_hash or history.evidence not in (None, act.old_hash):
        raise Unverified("it must replace the evidence settings that were recorded last by other ones")


def check_approved(history: KeyHistory, said: KeyStatement, envelope: Envelope, record: BlockRecord) -> None:
    """Raise unless a promotion is approved and rests on a block of this channel, in whatever epoch."""
    below = check_promotion(said, envelope, record)
    validity = history.validity(below.signer)
    if not history.anybody and (
        validity is None or not validity.is_valid(below.height, below.header.timestamp_ns)
    ):
        raise SigInvalid(f"the block below is signed by {below.signer.did()}, which is not valid there")
    _check_approvers(history, said, record)


def _check_approvers(history: KeyHistory, said: KeyStatement, record: BlockRecord | None) -> None:
    """Raise if an approver's key was revoked before the block; without a block, if it was revoked at all."""
    for each in said.approvals:
        for one in history.revoked.get(each.approver.identity(), ()):
            if record is None or (record.height > one.above and record.header.timestamp_ns >= one.since_ns):
                raise SigInvalid(f"approved with {each.approver.did()}, which was revoked{reason_text(one)}")


def _check_new(history: KeyHistory, new_key: PublicKey) -> None:
    """Raise if a new key was revoked or replaced before."""
    known = history.validity(new_key)
    if new_key.identity() in history.revoked:
        raise Unverified(f"the new key {new_key.did()} was revoked")
    if known is not None and known.successor is not None:
        raise Unverified(f"the new key {new_key.did()} was replaced before")


def _check_rotation(history: KeyHistory, said: KeyStatement, envelope: Envelope, sealer: PublicKey) -> None:
    act, new_key = said.act, said.act.new_key
    assert new_key is not None
    validity = history.validity(sealer)
    if act.key != sealer.identity():
        raise Unverified(f"it rotates {act.key.hex()[:16]}…, which is not the key that signed it")
    if validity is not None and validity.successor is not None:
        raise Unverified(f"{sealer.did()} was already replaced by {validity.successor.did()}")
    if new_key == sealer:
        raise Unverified("it rotates a key to itself")
    _check_new(history, new_key)
    if act.until_ns < act.since_ns:
        raise Unverified(
            f"the old key must not end on {act.until}, before the new one is valid on {act.since}"
        )
    if act.since_ns < envelope.timestamp_ns:
        raise Unverified(
            f"the new key must not be valid since {act.since}, before this statement of {envelope.timestamp}"
        )
    said.check_acceptance()
