"""Files of a channel about its witnesses: who is asked, and the newest head with enough cosignatures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ropewalk.disk.durable import read_optional
from ropewalk.errors import Damaged, RopewalkError
from ropewalk.ledger.transparency.witness_policy import NOTE, SETTINGS, WitnessPolicy, parse_witness_policy


def read_witness_policy(folder: Path) -> WitnessPolicy | None:
    """Return the witnesses set for the channel in this folder; None without any."""
    raw = read_optional(folder / SETTINGS)
    try:
        return None if raw is None else parse_witness_policy(raw)
    except RopewalkError as error:
        raise Damaged(f"{folder / SETTINGS}: {error.detail}", reason="settings") from error


def read_witnessed(folder: Path) -> bytes | None:
    """Return the newest head with enough cosignatures; None if there was none yet."""
    return read_optional(folder / NOTE)


def witness_gate(folder: Path) -> Callable[[int], None] | None:
    """Return the check before a block of a fail-closed channel is sealed; None for other channels."""
    policy = read_witness_policy(folder)
    if policy is None or policy.unwitnessed_max is None:
        return None

    def check(height: int) -> None:
        policy.check_backlog(height, policy.covered(read_witnessed(folder)))

    return check
