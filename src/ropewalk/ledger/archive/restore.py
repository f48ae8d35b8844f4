"""Rebuild a channel from its archives: verify block by block, and install it only if everything is valid.

`<home>/restoring/<channel>/…` holds a channel during the restore; it is moved to `<home>/ledger/` by one rename, or
removed.

Archives hold no secret key: a restored channel can be read, proved, verified and replayed, and written to if the
channel's key is available.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ropewalk.disk.durable import Disk, file_errors
from ropewalk.disk.folder_lock import hold_folder
from ropewalk.errors import Conflict, NotFound, RopewalkError, Unverified
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import hash_from_hex
from ropewalk.kernel.keys import PublicKey
from ropewalk.kernel.report import Report
from ropewalk.ledger.archive.check import ArchiveReading, check_archives
from ropewalk.ledger.archive.files import Watch, archive_folders
from ropewalk.ledger.archive.manifest import ArchiveManifest
from ropewalk.ledger.block.block import check_channel_name, parse_record
from ropewalk.ledger.channel.channel import Channel
from ropewalk.ledger.channel.key_heights import write_heights
from ropewalk.ledger.channel.payloads import PayloadStore, PayloadTombstone
from ropewalk.ledger.channel.segments.writer import SegmentWriter
from ropewalk.ledger.channel.settings import FOLDER
from ropewalk.ledger.envelope.envelope import parse_stored
from ropewalk.ledger.proof.trust import Trust
from ropewalk.ledger.replay.replay import companion
from ropewalk.ledger.rules.policy import parse_policy
from ropewalk.ledger.rules.rules import rule_2_signature_scope
from ropewalk.ledger.rules.verdict import Context

TOMBSTONE: Final = "ledger.tombstone"
_HINT: Final = (
    b"ledger.tom"  # searched in every envelope; hashes skip quickly, since they have no letters beyond f
)


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """A restored channel: its size, its end, and the report of the checks."""

    channel: str
    archives: int
    blocks: int
    envelopes: int
    block_hash: bytes
    outer_root: bytes
    report: Report
    tombstones: int = 0
    snapshots: RestoreResult | None = None
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form that `ledger restore` prints."""
        return {
            "channel": self.channel,
            "archives": self.archives,
            "blocks": self.blocks,
            "envelopes": self.envelopes,
            "block_hash": self.block_hash.hex(),
            "outer_root": self.outer_root.hex(),
            "tombstones": self.tombstones,
            "snapshots": None if self.snapshots is None else self.snapshots.blocks,
            "notes": list(self.notes),
            "verdict": self.report.verdict,
            "steps": [step.to_json() for step in self.report.steps],
        }


def restore_channel(
    source: Path,
    channel: str,
    home: Path,
    *,
    trust: Trust | None = None,
    deep: bool = False,
    watch: Watch | None = None,
    disk: Disk | None = None,
) -> RestoreResult:
    """Rebuild a channel and its snapshots from the archives in a folder. Raise `Conflict` if `home` has it.

    Without a trust file the key that the archives name is trusted, and the report says so. `Unverified` names the
    archive, the file and the block of a fault; then nothing is left behind.
    """
    check_channel_name(channel)
    disk = disk or Disk()
    folder = source / channel
    if not archive_folders(folder):
        raise NotFound(f'no archives of channel "{channel}" in {source}', channel=channel)
    if (home / FOLDER / channel).exists():
        raise Conflict(
            f'channel "{channel}" is there already',
            channel=channel,
            advice="Nothing was written. Restore into another repository with --to-repo, or rehearse with --drill.",
        )
    with hold_folder(home / "restoring", 0, disk):
        beside = source / companion(channel)
        below = None
        if archive_folders(beside):
            # Snapshots have no policy.
            believed = None if trust is None else Trust(trust.block_signers, trust.bundle_signers)
            below = _Rebuilding(home, beside, companion(channel), disk)
            below.read(believed, deep=deep, watch=None)
        main = _Rebuilding(home, folder, channel, disk)
        try:
            main.read(trust, deep=deep, watch=watch)
            snapshots = None
            if below is not None:
                below.install(keep_same=True)
                snapshots = below.restored()
            notes = main.write_attached(trusted=trust is not None)
            main.install(keep_same=False)
        finally:
            main.clear()
            if below is not None:
                below.clear()
    return main.restored(snapshots, notes)


class _Rebuilding:
    """A restore in progress: blocks are read and written, then settings, then the final name."""

    def __init__(self, home: Path, folder: Path, channel: str, disk: Disk) -> None:
        self._home, self._folder, self._channel, self._disk = home, folder, channel, disk
        self._staging = home / "restoring" / channel
        self._stones: list[PayloadTombstone] = []
        self._buried = 0
        self._reading: ArchiveReading | None = None
        self.clear()  # left by a killed process

    def read(self, trust: Trust | None, *, deep: bool, watch: Watch | None) -> None:
        """Verify all archives and write their blocks, settings and forks; raise at the first fault."""
        try:
            with self._annotating_errors(), SegmentWriter(self._staging, disk=self._disk) as writer:

                def take(height: int, lines: list[bytes]) -> None:
                    writer.append(height, lines, parse_record(lines[0]).hash)
                    self._stones += _tombstones(lines)

                found = check_archives(
                    self._folder, trust=trust, deep=deep, channel=self._channel, watch=watch, take=take
                )
                writer.sync()
                writer.sync_mark()
            self._check(found)
            self._write_settings(found)
        except BaseException:
            self.clear()
            raise
        self._reading = found

    def _check(self, found: ArchiveReading) -> None:
        wrong = found.report.first_failure
        if wrong is not None:
            raise Unverified(
                f"{wrong.name}: {wrong.detail}",
                step=wrong.name,
                **wrong.fields,
                advice="Nothing was restored. Take what is damaged or missing from another copy of the archives.",
            )
        assert found.manifest is not None
        _check_settings(found.settings, self._channel, found.manifest, found.key_history.runs[0].key)

    def _write_settings(self, found: ArchiveReading) -> None:
        with self._annotating_errors():
            for name, raw in found.settings.items():
                if name not in ("channel.json", "lifecycle.json"):
                    self._disk.write_new(self._staging / name, raw, mode=0o600)
            if found.forks:
                self._disk.make_directories(self._staging / "evidence")
                for name, raw in found.forks.items():
                    self._disk.write_new(self._staging / "evidence" / name, raw, mode=0o600)
            write_heights(self._staging, found.key_history.heights)
            self._disk.write_new(self._staging / "channel.json", found.settings["channel.json"], mode=0o600)
            self._staging.chmod(0o700)
            self._disk.fsync_directory(self._staging)

    def write_attached(self, *, trusted: bool) -> tuple[str, ...]:
        """Restore what belongs to the repository: the version table, and tombstones.

        A tombstone applies to every local channel, so it is written only if a trusted key signed it.
        """
        assert self._reading is not None
        notes: list[str] = []
        table, path = self._reading.settings.get("lifecycle.json"), self._home / FOLDER / "lifecycle.json"
        with self._annotating_errors():
            if table is not None and not path.exists():
                self._disk.make_directories(path.parent)
                self._disk.replace(path, table, mode=0o600)
            elif path.exists() and table != path.read_bytes():
                notes.append("the repository's own table of versions is kept; the archived one differs")
        if self._stones and not trusted:
            count = len(self._stones)
            return (
                *notes,
                f"{count} erasures are recorded by a key that no trust file names; none was applied",
            )
        store = PayloadStore(self._home / "payloads", self._disk)
        self._buried = sum(store.put_tombstone(stone) for stone in self._stones)
        if self._buried < len({stone.payload_hash for stone in self._stones}):
            notes.append(
                "some erased payloads are kept here, or have a tombstone already; these were left alone"
            )
        return tuple(notes)

    def install(self, *, keep_same: bool) -> None:
        """Move the channel to its final name. An existing identical one may be kept if the caller allows it."""
        target = self._home / FOLDER / self._channel
        if keep_same and target.exists():
            self._compare(target)
            return
        with self._annotating_errors():
            self._disk.make_directories(target.parent)
            if target.exists():
                raise Conflict(f'channel "{self._channel}" is there already', channel=self._channel)
            self._disk.rename(self._staging, target)
            self._disk.fsync_directory(target.parent)

    def _compare(self, target: Path) -> None:
        assert self._reading is not None
        chain = self._reading.chain
        with Channel(self._home, self._channel) as there:
            same = there.head().height >= chain.height
            if not same or there.index.block_hash(chain.height - 1) != chain.block_hash:
                raise Conflict(f"{target} is there already and is not what the archives hold")

    def restored(self, snapshots: RestoreResult | None = None, notes: tuple[str, ...] = ()) -> RestoreResult:
        assert self._reading is not None
        chain, report = self._reading.chain, self._reading.report
        return RestoreResult(
            self._channel,
            report.counts["archives"],
            chain.height,
            report.entries,
            chain.block_hash,
            chain.outer_root,
            report,
            self._buried,
            snapshots,
            notes,
        )

    def clear(self) -> None:
        """Remove what was not installed. Everything in that folder belongs to the restore."""
        if self._staging.exists():
            shutil.rmtree(self._staging, ignore_errors=True)

    @contextlib.contextmanager
    def _annotating_errors(self) -> Iterator[None]:
        with file_errors(f"restoring {self._channel}"):
            yield


def _check_settings(
    settings: dict[str, bytes], channel: str, manifest: ArchiveManifest, first: PublicKey
) -> None:
    """Raise unless the settings match the channel, its first signer and its policy."""
    value = jcs.parse(settings["channel.json"]) if "channel.json" in settings else None
    want = (channel, first.to_json(), manifest.policy_hash)
    names = ("channel", "signer", "policy_hash")
    if not isinstance(value, dict) or want != tuple(map(value.get, names)):
        raise Unverified(f"the archived channel.json is not that of channel {channel}", file="channel.json")
    policy = parse_policy(settings["policy.json"]).hash.hex() if "policy.json" in settings else None
    if policy != manifest.policy_hash:
        raise Unverified(f"the archived policy.json is not that of channel {channel}", file="policy.json")


def _tombstones(lines: list[bytes]) -> Iterator[PayloadTombstone]:
    """Yield the erasures that a block records, signed by the channel's key."""
    for raw in lines[1:]:
        if _HINT not in raw:
            continue
        try:
            envelope = parse_stored(raw)
            signer = parse_record(lines[0]).signer
        except RopewalkError:
            continue
        payload: Any = envelope.value.get("payload")
        if envelope.event_type != TOMBSTONE or envelope.public_key != signer or not isinstance(payload, dict):
            continue
        if rule_2_signature_scope(envelope, Context()).status != "passed":
            continue
        name, at = payload.get("payload_hash"), payload.get("erased_at")
        if isinstance(name, str) and hash_from_hex(name) is not None and isinstance(at, str):
            yield PayloadTombstone(name, at, str(payload.get("reason", "")))
