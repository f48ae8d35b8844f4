"""Whose evidence a channel believes: its evidence.json, written, read, and put into trust files.

<home>/ledger/<channel>/evidence.json   roots, keys, builders and measurements; without it only the binding is judged
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ropewalk.disk.durable import Disk, read_optional
from ropewalk.errors import Damaged, Invalid, RopewalkError, Unavailable
from ropewalk.kernel.report import Step
from ropewalk.ledger.channel.channel import Channel
from ropewalk.ledger.channel.guards import EVIDENCE_FILE, evidence_fault
from ropewalk.ledger.channel.settings import FOLDER, channels, read_settings
from ropewalk.ledger.keys.history import KeyHistory
from ropewalk.ledger.proof.trust import Trust
from ropewalk.ledger.replay.replay import companion
from ropewalk.ledger.versions.lifecycle import seals_channel

if TYPE_CHECKING:
    from ropewalk.ledger.evidence.trust import EvidenceSettings

# Certificates are read with a large library, which only channels with evidence should load: hence the late imports.


def read_evidence(home: Path, channel: str) -> EvidenceSettings | None:
    """Return the evidence settings of a channel; None if it has none."""
    read_settings(home, channel)
    raw = read_optional(home / FOLDER / channel / EVIDENCE_FILE)
    if raw is None:
        return None
    from ropewalk.ledger.evidence.trust import parse_evidence_settings

    try:
        return parse_evidence_settings(raw)
    except Invalid as error:
        raise Damaged(f"channel {channel}: {EVIDENCE_FILE}: {error.detail}", reason="evidence") from error


def write_evidence(home: Path, channel: str, settings: EvidenceSettings) -> Path:
    """Say whom a channel believes from now on. Writers that are open already go on as they began."""
    from ropewalk.ledger.evidence.trust import parse_evidence_settings

    read_settings(home, channel)
    path, raw = home / FOLDER / channel / EVIDENCE_FILE, settings.to_bytes()
    parse_evidence_settings(raw)
    try:
        Disk().replace(path, raw, mode=0o600)
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror}", path=str(path)) from error
    return path


def stored_trust(home: Path, channel: str) -> Trust:
    """Return the trust of a stored channel: settings, keys and evidence, with its key history.

    Key statements apply up to the first invalid one, which the verifier reports.
    """
    with Channel(home, channel) as reading:
        settings = reading.settings
        try:
            trust = reading.trust()
        except RopewalkError:
            key_history = KeyHistory(settings.trust(), policy=settings.policy)
            with contextlib.suppress(RopewalkError):
                for proof in reading.each_key_proof():
                    key_history.follow((proof,))
            key_history.channel = channel
            trust = replace(settings.trust(), key_history=key_history)
    if trust.key_history is not None:
        trust.key_history.complete = True
    if trust.policy_hash is not None and any(channel == companion(each) for each in channels(home)):
        trust = replace(trust, policy_hash=None)  # snapshots have no policy
    return _with_evidence(trust, read_evidence(home, channel))


def channel_trust(home: Path, channel: str) -> Trust:
    """Return what a verifier must believe to accept this channel, its evidence included."""
    with Channel(home, channel) as reading:
        trust = reading.trust()
    return _with_evidence(trust, read_evidence(home, channel))


def _with_evidence(trust: Trust, evidence: EvidenceSettings | None) -> Trust:
    if evidence is None:
        return trust
    return replace(trust, roots=evidence.roots, evidence=evidence.pins)


def evidence_settings_step(home: Path, channel: str) -> Step | None:
    """Compare the settings in use with the last recorded ones; None if the channel records none."""
    try:
        with Channel(home, channel) as reading:
            recorded = reading.key_history().evidence
            what = evidence_fault(reading, reading.key_history())
    except RopewalkError as error:
        return Step("evidence_settings", "failed", error.detail)
    if not what and recorded is None:
        return None
    if not what:
        return Step("evidence_settings", "passed", "evidence.json is the one that the channel recorded")
    ours = seals_channel(home, channel)
    return Step("evidence_settings", "failed", what) if ours else Step.optional("evidence_settings", what)
