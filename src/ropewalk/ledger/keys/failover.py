"""Acts on a whole channel: make a verified replica its writer, approved once per epoch, or change its settings."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from ropewalk.disk.durable import Disk
from ropewalk.errors import Conflict, NotFound, Unverified
from ropewalk.kernel import jcs
from ropewalk.kernel.keys import PublicKey, SigningKey
from ropewalk.ledger.block.block import check_channel_name, parse_record, seal
from ropewalk.ledger.channel.channel import Channel, OpenLog, OpenReplica, open_log
from ropewalk.ledger.channel.guards import check_fence
from ropewalk.ledger.channel.maintenance import verify_stored
from ropewalk.ledger.envelope.fields import format_timestamp
from ropewalk.ledger.ingest.ticket import LedgerReceipt
from ropewalk.ledger.keys.approvals import Approval
from ropewalk.ledger.keys.policies import changed_ns, policy_basis
from ropewalk.ledger.keys.promotion import promotion_basis, require_promotable
from ropewalk.ledger.keys.rotate import Clock
from ropewalk.ledger.keys.statements import KeyAct, key_envelope
from ropewalk.ledger.rules.policy import Policy
from ropewalk.ledger.versions.lifecycle import version_to_write

SECOND_NS: Final = 10**9


def propose_promotion(
    home: Path, channel: str, new_key: PublicKey, *, reason: str = "", now_ns: Clock = time.time_ns
) -> KeyAct:
    """Propose to make `new_key` the writer of a channel, on top of the last block of this copy."""
    with Channel(home, channel) as reading:
        check_fence(reading)
        head, epoch = reading.head(), reading.key_history().epoch
        if not head.height:
            raise NotFound(
                f"channel {channel} has no block here", advice="Copy it with `ropewalk ledger pull`."
            )
        require_promotable(reading.policy)
        below = parse_record(reading.index.lines_of(head.height - 1, None)[0])
    if below.signer == new_key:
        raise Conflict(
            f"{new_key.did()} is the writer of channel {channel} already",
            advice="Name another key with --to.",
        )
    now = max(now_ns() // SECOND_NS * SECOND_NS, head.timestamp_ns)
    return KeyAct(
        "promote",
        channel,
        below.signer.identity(),
        format_timestamp(now),
        new_key=new_key,
        reason=reason,
        epoch=epoch + 1,
        height=head.height,
        prev_block_hash=head.block_hash,
    )


def promote(
    home: Path,
    act: KeyAct,
    key: SigningKey,
    *,
    approvals: Iterable[Approval],
    now_ns: Clock = time.time_ns,
    wait_s: float = 0.0,
) -> LedgerReceipt:
    """Verify the copy, and seal the approved promotion on its last block with the new key."""
    if act.act != "promote" or act.new_key != key.public:
        raise Conflict(
            f"the proposal must promote {key.public.did()}", advice="Name the key of the proposal with --to."
        )
    report = verify_stored(home, act.channel, deep=True)
    failed = report.first_failure
    if failed is not None:
        raise Unverified(f"channel {act.channel} does not verify: {failed.name}: {failed.detail}")
    with OpenReplica(Channel(home, act.channel), now_ns=now_ns, wait_s=wait_s) as copy:
        check_fence(copy.channel)
        head, policy = copy.log.head, copy.log.policy
        if (head.height, head.block_hash) != (act.height, act.prev_block_hash):
            raise Conflict(
                f"channel {act.channel} must end at block {act.height - 1} of the proposal, got {head.height} blocks",
                advice="The copy has changed since: make a new proposal.",
            )
        require_promotable(policy)
        assert policy is not None
        basis = promotion_basis(parse_record(copy.index.lines_of(head.height - 1, None)[0]), policy)
        return _seal(copy, act, key, approvals, basis, now_ns(), new_key=key)


def propose_policy(
    home: Path, channel: str, new: Policy, *, reason: str = "", now_ns: Clock = time.time_ns
) -> KeyAct:
    """Propose another policy for a channel, in force from the block after the rotation on."""
    with Channel(home, channel) as reading:
        key_history, old = reading.key_history(), reading.policy
    if old is not None and old.hash == new.hash:
        raise Conflict(f"channel {channel} has that policy already", advice="Name another policy.")
    return KeyAct(
        "policy",
        channel,
        key_history.current.key.identity(),
        format_timestamp(max(now_ns() // SECOND_NS * SECOND_NS, changed_ns("policy", key_history.changes))),
        reason=reason,
        old_hash=None if old is None else old.hash,
        new_hash=new.hash,
    )


def rotate_policy(
    home: Path,
    act: KeyAct,
    new: Policy,
    keys: Sequence[SigningKey],
    *,
    approvals: Iterable[Approval] = (),
    now_ns: Clock = time.time_ns,
    wait_s: float = 0.0,
) -> LedgerReceipt:
    """Seal an approved policy rotation with the key of the channel."""
    if act.act != "policy" or act.new_hash != new.hash:
        raise Conflict("the proposal is about another policy", advice="Name the policy of the proposal.")
    with open_log(home, act.channel, keys[0], also=keys[1:], now_ns=now_ns, wait_s=wait_s) as opened:
        old = opened.log.policy
        now = None if old is None else old.hash
        return seal_change(opened, act, keys, now, approvals, policy_basis(old, new), now_ns())


def seal_change(
    opened: OpenLog,
    act: KeyAct,
    keys: Sequence[SigningKey],
    current: bytes | None,
    approvals: Iterable[Approval],
    basis: dict[str, Any],
    now_ns: int,
) -> LedgerReceipt:
    """Seal an approved change of a channel's settings with its key; raise if `current` is not what it replaces."""
    key = next((each for each in keys if each.public.identity() == act.key), None)
    if key is None or current != act.old_hash:
        raise Conflict(f"the key or the {act.act} has changed since", advice="Make a new proposal.")
    return _seal(opened, act, key, approvals, basis, now_ns)


def _seal(
    opened: OpenLog,
    act: KeyAct,
    key: SigningKey,
    approvals: Iterable[Approval],
    basis: dict[str, Any],
    now_ns: int,
    new_key: SigningKey | None = None,
) -> LedgerReceipt:
    """Seal a statement alone in the next block of a channel."""
    head, policy = opened.log.head, opened.log.policy
    at_ns = max(now_ns, head.timestamp_ns, act.since_ns)
    said = key_envelope(
        act,
        key,
        format_timestamp(at_ns),
        new_key=new_key,
        approvals=approvals,
        protocol_version=version_to_write(opened.channel.folder.parent.parent, policy, at_ns),
        basis=basis,
    )
    block = seal(
        key,
        channel=opened.log.channel,
        height=head.height,
        prev_block_hash=head.block_hash,
        envelopes=[said.raw],
        timestamp_ns=at_ns,
        policy_hash=None if policy is None else policy.hash,
    )
    opened.log.insert(block)
    return LedgerReceipt(said.id, block.height, 0, block.hash)


def vote(folder: Path, act: KeyAct, approver: PublicKey) -> None:
    """Record, before it is signed, which promotion of an epoch an approver approves; refuse a second one.

    Every two sets of approvers share a person, so no epoch gets two writers while each approver votes in one place.
    """
    path = folder / f"{check_channel_name(act.channel)}-{act.epoch}-{approver.identity().hex()[:16]}.json"
    raw = jcs.encode(act.to_json())
    if path.exists():
        if path.read_bytes() != raw:
            raise Conflict(
                f"another promotion of channel {act.channel} to epoch {act.epoch} was approved with this key",
                advice=f"Two would fork the channel. The first is {path}; remove it only if it was never carried out.",
            )
        return
    Disk().make_directories(folder, mode=0o700)
    Disk().replace(path, raw)


def check_not_behind(home: Path, act: KeyAct) -> None:
    """Raise if the copy of the channel in this repository has blocks that a promotion would leave out."""
    with Channel(home, act.channel) as reading:
        head = reading.head()
        if head.height > act.height or (
            head.height
            and act.height <= head.height
            and reading.index.block_hash(act.height - 1) != act.prev_block_hash
        ):
            raise Conflict(
                f"channel {act.channel} has {head.height} blocks here, and the promotion would leave some out: it "
                f"follows block {act.height - 1}, {act.prev_block_hash.hex()[:16]}…",
                advice="Promote the copy with the most blocks, or pull the missing ones there first.",
            )
