"""Record a change of the trusted evidence of a channel in the channel itself (S4 §13).

A statement like those about keys (`keys.statements`), approved if a `control` rule of the policy names `evidence`:

    ledger.evidence_rotation  {"version":1, "act":"evidence", "channel", "key", "since", "reason",
                               "evidence_hash":"<blake3>"|null, "new_evidence_hash":"<blake3>",
                               "roots":["<sha256>"…], "keys":["<fingerprint>"…], "approvals":[…]}

The hashes are those of the old and new evidence.json. Writers and `verify` compare the file with the last one.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ropewalk.errors import Conflict
from ropewalk.kernel.digest import blake3
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.channel.channel import Channel, OpenReplica
from ropewalk.ledger.channel.guards import check_fence, evidence_hash
from ropewalk.ledger.envelope.fields import format_timestamp
from ropewalk.ledger.evidence.settings import write_evidence
from ropewalk.ledger.ingest.ticket import LedgerReceipt
from ropewalk.ledger.keys.approvals import Approval, is_controlled
from ropewalk.ledger.keys.failover import SECOND_NS, seal_change
from ropewalk.ledger.keys.policies import changed_ns
from ropewalk.ledger.keys.statements import KeyAct

if TYPE_CHECKING:  # it loads a large library, as only channels with evidence should
    from ropewalk.ledger.evidence.trust import EvidenceSettings


def propose_evidence(
    reading: Channel,
    settings: EvidenceSettings,
    *,
    reason: str = "",
    now_ns: Callable[[], int] = time.time_ns,
) -> KeyAct:
    """Propose other trusted evidence for a channel."""
    from cryptography.hazmat.primitives.serialization import Encoding

    from ropewalk.ledger.evidence.certificates import parse_pem

    key_history = reading.key_history()
    ders = (parse_pem(root).public_bytes(Encoding.DER) for root in settings.roots)
    return KeyAct(
        "evidence",
        reading.settings.channel,
        key_history.current.key.identity(),
        format_timestamp(max(now_ns() // SECOND_NS * SECOND_NS, changed_ns("evidence", key_history.changes))),
        reason=reason,
        old_hash=key_history.evidence or evidence_hash(reading.folder),
        new_hash=blake3(settings.to_bytes()),
        roots=tuple(hashlib.sha256(der).digest() for der in ders),
        keys=tuple(key.identity() for key in settings.pins.keys),
    )


def rotate_evidence(
    home: Path,
    channel: str,
    settings: EvidenceSettings,
    keys: Sequence[SigningKey],
    *,
    act: KeyAct | None = None,
    approvals: Iterable[Approval] = (),
    now_ns: Callable[[], int] = time.time_ns,
    wait_s: float = 0.0,
) -> LedgerReceipt | None:
    """Replace the trusted evidence, and record it first if the channel had other settings or its policy controls them.

    Without `keys` nothing is recorded: a copy may trust other evidence than its origin. `act` is an approved proposal.
    """
    new = blake3(settings.to_bytes())
    if act is not None and (act.act, act.channel, act.new_hash) != ("evidence", channel, new):
        raise Conflict("the proposal is about other evidence", advice="Name the evidence of the proposal.")
    if not keys:
        write_evidence(home, channel, settings)
        return None
    # Opened as a replica: a writer refuses a file that is not the recorded one.
    with OpenReplica(Channel(home, channel), now_ns=now_ns, wait_s=wait_s) as opened:
        check_fence(opened.channel)
        receipt = None
        old = opened.log.key_history.evidence or evidence_hash(opened.channel.folder)
        if old != new and (old is not None or is_controlled(opened.log.policy, "evidence")):
            act = act or propose_evidence(opened.channel, settings, now_ns=now_ns)
            receipt = seal_change(opened, act, keys, old, approvals, {}, now_ns())
        write_evidence(home, channel, settings)
        return receipt
