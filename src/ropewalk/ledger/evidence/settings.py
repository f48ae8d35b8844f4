"""Whose evidence a channel believes: its evidence.json, written, read, and put into trust files.

<home>/ledger/<channel>/evidence.json                    roots, keys, builders and measurements; without it only the
                                                         binding is judged
<home>/ledger/<channel>/evidence/settings-<blake3>.json  those that were replaced: they judge the blocks of their time
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ropewalk.disk.durable import Disk
from ropewalk.errors import Damaged, Invalid, RopewalkError, Unavailable
from ropewalk.kernel.digest import blake3
from ropewalk.kernel.report import Step
from ropewalk.ledger.channel.channel import Channel, evidence_hash
from ropewalk.ledger.channel.settings import FOLDER, channels, read_settings
from ropewalk.ledger.keys.history import KeyHistory
from ropewalk.ledger.proof.trust import FormerEvidence, Trust
from ropewalk.ledger.replay.replay import companion
from ropewalk.ledger.versions.lifecycle import seals_channel

if TYPE_CHECKING:
    from ropewalk.ledger.evidence.trust import EvidenceSettings

NAME, FORMER = "evidence.json", "evidence"

# Certificates are read with a large library, which only channels with evidence should load: hence the late imports.


def read_evidence(home: Path, channel: str) -> EvidenceSettings | None:
    """Return the evidence settings of a channel; None if it has none."""
    read_settings(home, channel)
    try:
        raw = (home / FOLDER / channel / NAME).read_bytes()
    except FileNotFoundError:
        return None
    from ropewalk.ledger.evidence.trust import parse_evidence_settings

    try:
        return parse_evidence_settings(raw)
    except Invalid as error:
        raise Damaged(f"channel {channel}: {NAME}: {error.detail}", reason="evidence") from error


def write_evidence(home: Path, channel: str, settings: EvidenceSettings) -> Path:
    """Say whom a channel believes from now on, and keep the settings before. Open writers go on as they began."""
    from ropewalk.ledger.evidence.trust import parse_evidence_settings

    read_settings(home, channel)
    path, raw = home / FOLDER / channel / NAME, settings.to_bytes()
    parse_evidence_settings(raw)
    try:
        _keep_former(path, raw)
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
    return _with_evidence(home, channel, trust)


def channel_trust(home: Path, channel: str) -> Trust:
    """Return what a verifier must believe to accept this channel, its evidence included."""
    with Channel(home, channel) as reading:
        trust = reading.trust()
    return _with_evidence(home, channel, trust)


def _with_evidence(home: Path, channel: str, trust: Trust) -> Trust:
    evidence, folder = read_evidence(home, channel), home / FOLDER / channel / FORMER
    if evidence is None:
        return trust

    def kept(name: str) -> bytes | None:
        with contextlib.suppress(FileNotFoundError):
            return (folder / name).read_bytes()
        return None

    changes = [] if trust.key_history is None else trust.key_history.evidence_changes
    former = former_evidence(changes, kept)
    return replace(trust, roots=evidence.roots, evidence=evidence.pins, former=former)


def _keep_former(path: Path, new: bytes) -> None:
    with contextlib.suppress(FileNotFoundError):
        raw = path.read_bytes()
        if raw != new:
            Disk().make_directories(path.parent / FORMER)
            Disk().replace(path.parent / FORMER / former_name(blake3(raw)), raw, mode=0o600)


def former_name(digest: bytes) -> str:
    """Return the file name of settings that were replaced."""
    return f"settings-{digest.hex()}.json"


def former_evidence(
    changes: Iterable[tuple[int, bytes | None, bytes]], kept: Callable[[str], bytes | None]
) -> tuple[FormerEvidence, ...]:
    """Return the replaced settings that a channel recorded and that were kept; `kept` reads a file by its name.

    The hash in the channel decides whether a file is the right one. Settings that are not kept are left out: then the
    next ones judge the blocks of their time, as before settings were kept.
    """
    from ropewalk.ledger.evidence.trust import parse_evidence_settings

    found: list[FormerEvidence] = []
    for height, old, _ in changes:
        raw = None if old is None else kept(former_name(old))
        if raw is None:
            continue
        if blake3(raw) != old:
            raise Damaged(
                f"{former_name(blake3(raw))} has another hash in its name",
                reason="evidence",
                advice="Restore the file, or remove it: then the settings in use judge those blocks.",
            )
        settings = parse_evidence_settings(raw)
        found.append(FormerEvidence(height, settings.roots, settings.pins))
    return tuple(found)


def evidence_settings_step(home: Path, channel: str) -> Step | None:
    """Compare the settings in use with the last recorded ones; None if the channel records none."""
    try:
        with Channel(home, channel) as reading:
            recorded = reading.key_history().evidence
    except RopewalkError as error:
        return Step("evidence_settings", "failed", error.detail)
    if recorded is None:
        return None
    found = evidence_hash(home / FOLDER / channel)
    if found == recorded:
        return Step("evidence_settings", "passed", "evidence.json is the one that the channel recorded")
    what = f"evidence.json is {'missing' if found is None else 'not the one that the channel recorded'}"
    ours = seals_channel(home, channel)
    return Step("evidence_settings", "failed", what) if ours else Step.optional("evidence_settings", what)
