"""Whose evidence a channel believes: its evidence.json, written, read, and put into trust files.

<home>/ledger/<channel>/evidence.json   roots, keys, builders and measurements; without it only the binding is judged
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ropewalk.errors import Damaged, Invalid, Unavailable
from ropewalk.ledger.trust import Trust
from ropewalk.node.ledger import FOLDER, Channel, read_settings
from ropewalk.stores.durable import Disk

if TYPE_CHECKING:
    from ropewalk.ledger.evidencetrust import EvidenceSettings

__all__ = ["channel_trust", "read_evidence", "write_evidence"]

NAME = "evidence.json"

# Certificates are read with a large library, which only channels with evidence should load: hence the late imports.


def read_evidence(home: Path, channel: str) -> EvidenceSettings | None:
    """What a channel believes about evidence; None if it was never told."""
    read_settings(home, channel)
    try:
        raw = (home / FOLDER / channel / NAME).read_bytes()
    except FileNotFoundError:
        return None
    from ropewalk.ledger.evidencetrust import parse_evidence_settings

    try:
        return parse_evidence_settings(raw)
    except Invalid as error:
        raise Damaged(f"channel {channel}: {NAME}: {error.detail}", reason="evidence") from error


def write_evidence(home: Path, channel: str, settings: EvidenceSettings) -> Path:
    """Say whom a channel believes from now on. Writers that are open already go on as they began."""
    from ropewalk.ledger.evidencetrust import parse_evidence_settings

    read_settings(home, channel)
    path, raw = home / FOLDER / channel / NAME, settings.to_bytes()
    parse_evidence_settings(raw)
    try:
        Disk().replace(path, raw, mode=0o600)
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror}", path=str(path)) from error
    return path


def channel_trust(home: Path, channel: str) -> Trust:
    """What a verifier must believe to accept this channel, its evidence included."""
    with Channel(home, channel) as reading:
        trust = reading.trust()
    evidence = read_evidence(home, channel)
    if evidence is None:
        return trust
    return replace(trust, roots=evidence.roots, evidence=evidence.pins)
