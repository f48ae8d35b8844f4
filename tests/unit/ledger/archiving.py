"""Channels and archives of them for tests."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tests.unit.ledger.making import NODE, NOON_NS, observed, opened

from ropewalk.kernel import jcs
from ropewalk.ledger.archive.check import verify_archives
from ropewalk.ledger.archive.manifest import MANIFEST, SIGNATURE, sign_manifest
from ropewalk.ledger.archive.write import ArchiveResult, archive_channel
from ropewalk.ledger.proof.trust import Trust

CHANNEL = "ea.core"
TRUST = Trust((NODE.public,), (NODE.public,))


def filled(home: Path, blocks: int, start: int = 0, **options: Any) -> Path:
    """A home with a channel of some blocks, a nanosecond apart, one envelope each."""
    for number in range(start, start + blocks):
        with opened(home, now_ns=lambda number=number: NOON_NS + number, **options) as ledger:
            ledger.log.submit(observed(number).raw)
    return home


def archived(home: Path, to: Path, **options: Any) -> ArchiveResult:
    """The channel of a home, archived."""
    return archive_channel(home, CHANNEL, NODE, to, **options)


def failures(folder: Path, trust: Trust | None = TRUST, **options: Any) -> dict[str, dict[str, Any]]:
    """The steps that fail when the archives of a folder are verified, with what they say."""
    report = verify_archives(folder, trust=trust, **options)
    return {step.name: step.to_json() for step in report.steps if step.status == "failed"}


def folders(cold: Path, channel: str = CHANNEL) -> list[Path]:
    """The archives of a channel, in order."""
    return sorted((cold / channel).iterdir())


def writable(folder: Path, to: Path) -> Path:
    """A copy that can be tampered with."""
    shutil.copytree(folder, to)
    for path in to.rglob("*"):
        if path.is_file():
            path.chmod(0o644)
    return to


def forged(folder: Path, **changes: Any) -> None:
    """The manifest of an archive changed and signed again, by a channel's key that lies."""
    value = jcs.parse((folder / MANIFEST).read_bytes())
    assert isinstance(value, dict)
    raw = jcs.encode({**value, **changes})
    (folder / MANIFEST).write_bytes(raw)
    (folder / SIGNATURE).write_bytes(sign_manifest(raw, NODE))


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


__all__ = [
    "CHANNEL",
    "TRUST",
    "archived",
    "contents",
    "failures",
    "filled",
    "folders",
    "forged",
    "writable",
]
