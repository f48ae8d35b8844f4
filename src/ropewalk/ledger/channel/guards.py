"""Checks before a writer opens a channel: no other copy was promoted, and its evidence settings are recorded."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ropewalk.disk.durable import read_optional
from ropewalk.errors import Damaged, RopewalkError
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import blake3
from ropewalk.kernel.report import Status
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.ingest.sealer import FENCE, fenced
from ropewalk.ledger.keys.approvals import is_controlled
from ropewalk.ledger.keys.history import KeyHistory, parse_key_proofs

if TYPE_CHECKING:
    from ropewalk.ledger.channel.channel import Channel

EVIDENCE_FILE = "evidence.json"


def check_fence(channel: Channel) -> None:
    """Raise if another copy was promoted below the head of this one: blocks sealed here would be a fork."""
    path = channel.folder / "evidence" / FENCE
    raw = read_optional(path)
    if raw is None:
        return
    try:
        (promotion,) = parse_key_proofs([jcs.parse(raw)])
    except RopewalkError as error:
        raise Damaged(f"{path}: {error.detail}", reason="promotion") from error
    raise fenced(channel.settings.channel, promotion)


def channel_evidence(
    folder: Path, now_ns: Callable[[], int] = time.time_ns
) -> Callable[[Envelope], tuple[Status, str]] | None:
    """Return the evidence check of a channel with an evidence.json; without one, only its binding is checked."""
    raw = read_optional(folder / EVIDENCE_FILE)
    if raw is None:
        return None
    # Reading certificates loads a large library; only channels that need it should load it.
    from ropewalk.ledger.evidence.trust import parse_evidence_trust
    from ropewalk.ledger.evidence.verify import evidence_check

    return evidence_check(parse_evidence_trust(raw), now_ns)


def evidence_fault(channel: Channel, key_history: KeyHistory) -> str:
    """Return how the evidence settings in use differ from the recorded ones; empty if they do not.

    Unrecorded settings are a fault only if the first policy of the channel controls them.
    """
    found, recorded = evidence_hash(channel.folder), key_history.evidence
    if found == recorded or (recorded is None and not is_controlled(channel.settings.policy, "evidence")):
        return ""
    missing = "missing, so it is " if found is None else ""
    return f"evidence.json is {missing}not the one that the channel recorded"


def evidence_hash(folder: Path) -> bytes | None:
    """Return the hash of the evidence settings in use; None if there are none."""
    raw = read_optional(folder / EVIDENCE_FILE)
    return None if raw is None else blake3(raw)
