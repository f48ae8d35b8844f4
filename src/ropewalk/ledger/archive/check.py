"""Verify archives offline, in one pass over their blocks.

    manifests         every manifest can be read and follows the one before, from the first block on, without a gap
    signatures        every manifest is signed by a key of the channel
    files             every file matches its manifest, and there is no other
    storage … policy_hash, evidence    the blocks, as `ledger verify` has them
    payloads          detached payloads: archives hold their hashes only

Restoring runs the same check and writes the blocks that passed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from ropewalk.errors import Damaged, Invalid, NotFound, RopewalkError
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import blake3
from ropewalk.kernel.keys import PublicKey
from ropewalk.kernel.report import Report, Step
from ropewalk.ledger.archive.files import (
    ArchiveFolder,
    Watch,
    archive_folders,
    digest_file,
    read_blocks,
    read_small,
)
from ropewalk.ledger.archive.manifest import (
    BLOCKS,
    KEY_PROOFS,
    MANIFEST,
    SETTINGS,
    SIGNATURE,
    ArchiveChain,
    ArchiveManifest,
    check_manifest_signature,
    listed_hash,
    parse_archive_manifest,
)
from ropewalk.ledger.block.block import parse_record
from ropewalk.ledger.bundle.manifest_fields import claimed_signer
from ropewalk.ledger.channel.verify import Lines, check_stored
from ropewalk.ledger.evidence.recheck import EVIDENCE, EvidenceTally
from ropewalk.ledger.keys.history import KeyHistory, parse_key_proofs
from ropewalk.ledger.proof.trust import Trust
from ropewalk.ledger.replay.replay import companion
from ropewalk.ledger.rules.policy import Policy, parse_policy

UNSURE: Final = "valid under its own key; no trust file names that key"


def archived_channels(folder: Path) -> list[Path]:
    """Return the folders with archives of one channel each: this one, or those in it."""
    if archive_folders(folder):
        return [folder]
    try:
        inside = sorted(path for path in folder.iterdir() if path.is_dir())
    except OSError as error:
        raise NotFound(f"no archives in {folder}: {error.strerror}", name=str(folder)) from error
    return [path for path in inside if archive_folders(path)]


def verify_archives(folder: Path, *, trust: Trust | None = None, deep: bool = False) -> Report:
    """Verify every archive in a folder, of any channel. Without a trust file the keys stay unchecked.

    >>> verify_archives(Path("/nonexistent"))
    Traceback (most recent call last):
    ropewalk.errors.NotFound: no archives in /nonexistent: No such file or directory
    """
    found = archived_channels(folder)
    if not found:
        raise NotFound(f"no archives in {folder}", name=str(folder))
    reports = {
        each.name: check_archives(
            each,
            trust=_trust_in(each, trust),
            deep=deep,
            channel=None if each == folder else each.name,  # a channel's own folder may have any name
        ).report
        for each in found
    }
    if len(reports) == 1:
        return next(iter(reports.values()))
    steps = [
        replace(step, name=f"{name}:{step.name}") for name, report in reports.items() for step in report.steps
    ]
    counts = ("entries", "blocks", "archives")
    return Report(
        tuple(steps), {each: sum(report.counts[each] for report in reports.values()) for each in counts}
    )


def _trust_in(folder: Path, trust: Trust | None) -> Trust | None:
    """Return the trust for a channel's archives; snapshots have no policy."""
    if trust is None or not any(folder.name == companion(each.name) for each in folder.parent.iterdir()):
        return trust
    return replace(trust, policy_hash=None)


@dataclass(slots=True)
class ArchiveReading:
    """Reading the archives of one channel: the first failure of each step, what was read, and at the end the report."""

    trust: Trust
    key_history: KeyHistory
    stop_early: bool  # a restore stops at the first failure
    chain: ArchiveChain = field(default_factory=ArchiveChain)
    failed: dict[str, Step] = field(default_factory=dict)
    archives: int = 0
    detached: int = 0
    files: int = 0
    manifest: ArchiveManifest | None = None  # the last
    settings: dict[str, bytes] = field(default_factory=dict)  # of the last archive
    forks: dict[str, bytes] = field(default_factory=dict)
    signers: dict[PublicKey, ArchiveFolder] = field(default_factory=dict)  # with the first archive of each
    last_records: list[tuple[PublicKey, ArchiveFolder, bytes]] = field(default_factory=list)  # by signer
    known: KeyHistory | None = None  # the key history as far as the archives carry proofs of it
    report: Report = field(default_factory=lambda: Report(()))

    def fail(self, step: str, one: ArchiveFolder, detail: str, **facts: Any) -> None:
        self.failed.setdefault(
            step, Step(step, "failed", f"archive {one.name}: {detail}", {"archive": one.name, **facts})
        )

    def reach(self) -> str:
        """Return channel and range: a folder may have lost its name or its last archives."""
        return (
            f"{self.archives} archives of channel {self.chain.channel}, blocks 0 to {self.chain.height - 1}"
        )

    def step(self, name: str, detail: str) -> Step:
        return self.failed.get(name) or Step(name, "passed", detail)


def check_archives(
    folder: Path,
    *,
    trust: Trust | None = None,
    deep: bool = False,
    channel: str | None = None,
    watch: Watch | None = None,
    take: Callable[[int, list[bytes]], None] | None = None,
) -> ArchiveReading:
    """Check the archives of one channel, from its first block on. `take` receives every valid block, and the check
    then ends at the first failure.
    """
    found = archive_folders(folder)
    if not found:
        raise NotFound(f"no archives in {folder}", name=str(folder))
    settings = _last_settings(found[-1])
    believed = trust if trust is not None else _own_trust(found, settings)
    policy = _policy(settings)
    key_history = KeyHistory(believed, policy=policy, lenient=True)
    check = ArchiveReading(believed, key_history, stop_early=take is not None)
    check.chain.channel = channel
    tally = EvidenceTally(believed)

    def look(source: Lines) -> Lines:
        for height, block in watch(source, found[-1].last + 1) if watch is not None else source:
            if deep:
                tally.look_into(height, block)
            yield height, block
            if take is not None:  # reached again only if the block is valid
                take(height, block)

    stored = _lines(found, check)
    blocks = check_stored(
        stored, trust=believed, policy=policy, key_history=key_history, deep=deep, watch=look
    )
    _check_signers(check)
    steps = [
        check.step("manifests", check.reach()),
        check.step("signatures", _signed(check)),
        check.step("files", f"{check.files} files as listed"),
        *(_located(step, found) for step in blocks.steps),
        tally.step() if deep else Step.optional(EVIDENCE, "evidence inside envelopes needs --deep"),
    ]
    if check.detached:
        steps.append(
            Step.optional("payloads", f"{check.detached} are detached; only their hashes are archived")
        )
    if trust is None:
        steps = [
            Step.untrusted(step.name, UNSURE)
            if step.name in ("signatures", "block_signatures") and step.status == "passed"
            else step
            for step in steps
        ]
    check.report = Report(tuple(steps), {**blocks.counts, "archives": check.archives})
    return check


def _lines(found: list[ArchiveFolder], check: ArchiveReading) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the blocks of all archives in order; record other faults, and stop where necessary."""
    for one in found:
        manifest = _read_manifest(one, check)
        if manifest is None:
            return  # what follows has no predecessor
        _check_files(one, manifest, check)
        if check.stop_early and check.failed:
            return
        check.archives += 1
        check.detached += manifest.detached_payloads
        check.manifest = manifest
        try:
            for height, lines in read_blocks(one.path / BLOCKS, one.first, one.last):
                if listed_hash(lines[0]) != manifest.block_hashes[height - one.first]:
                    check.fail("manifests", one, f"block {height} is not the listed one", height=height)
                if height == one.last:
                    check.last_records.append((manifest.signer, one, lines[0]))
                yield height, lines
        except Damaged:
            raise
        except RopewalkError as error:
            raise Damaged(f"archive {one.name}: {error.detail}", height=one.first) from error


def _read_manifest(one: ArchiveFolder, check: ArchiveReading) -> ArchiveManifest | None:
    """Return the manifest of an archive if its blocks are the next ones."""
    try:
        raw = read_small(one.path / MANIFEST)
        _check_signature(one, raw, check)  # before its structure is checked
        manifest = parse_archive_manifest(raw)
        if (manifest.start_height, manifest.end_height) != (one.first, one.last):
            raise Invalid(f"it holds blocks {manifest.start_height} to {manifest.end_height}")
        check.chain.follow(manifest, raw)
    except RopewalkError as error:
        check.fail("manifests", one, error.detail, file=MANIFEST)
        return None
    check.signers.setdefault(manifest.signer, one)
    return manifest


def _check_signature(one: ArchiveFolder, raw: bytes, check: ArchiveReading) -> None:
    """Record an invalid manifest signature; raise if the bytes cannot be a manifest."""
    signer = claimed_signer(raw)
    try:
        check_manifest_signature(raw, read_small(one.path / SIGNATURE), signer)
    except RopewalkError as error:
        check.fail("signatures", one, error.detail, file=SIGNATURE)


def _check_files(one: ArchiveFolder, manifest: ArchiveManifest, check: ArchiveReading) -> None:
    listed = {file.name for file in manifest.files}
    check.settings = {}
    try:
        for name in sorted(one.names() - listed - {MANIFEST, SIGNATURE}):
            check.fail("files", one, f"{name} is not in the manifest", file=name)
    except RopewalkError as error:
        check.fail("files", one, error.detail)
    for file in manifest.files:
        try:
            if file.name == BLOCKS:
                digest, size = digest_file(one.path / file.name, file.size)
            else:
                raw = read_small(one.path / file.name)
                digest, size = blake3(raw).hex(), len(raw)
                _keep_file(file.name, raw, check)
            if (digest, size) != (file.blake3, file.size):
                raise Invalid(f"{file.name} does not match the manifest")
            check.files += 1
        except RopewalkError as error:
            check.fail("files", one, error.detail, file=file.name)


def _keep_file(name: str, raw: bytes, check: ArchiveReading) -> None:
    if name == KEY_PROOFS:
        # An old range may be signed by a later key of the channel; these proofs lead to it.
        proofs = parse_key_proofs(jcs.parse(raw))
        if any(each.record.header.channel != check.chain.channel for each in proofs):
            raise Invalid(f"{name}: a statement of another channel")
        check.known = KeyHistory(check.trust, lenient=True)
        check.known.follow(proofs)
    else:
        (check.settings if name in SETTINGS else check.forks)[name] = raw


def _check_signers(check: ArchiveReading) -> None:
    """Check that every manifest is signed by a named key or a proven successor that had not ended."""
    for signer, one in check.signers.items():
        lines = [check.key_history, *([check.known] if check.known is not None else [])]
        if not any(line.descends(signer, check.trust.block_signers) for line in lines):
            validity = check.key_history.validity(signer)
            if validity is not None and not validity.named and check.key_history.leads:
                continue  # an earlier key than the named ones: reported below
            why = f"{signer.did()} is not trusted to seal this channel"
            check.fail("signatures", one, why, file=SIGNATURE)
        elif any(signer.identity() in line.revoked for line in lines):
            check.fail("signatures", one, f"{signer.did()} was revoked", file=SIGNATURE)
    for signer, one, raw in check.last_records:
        try:
            last = parse_record(raw).header
            check.key_history.check_unended(signer, last.height, last.timestamp_ns)
        except RopewalkError as error:
            check.fail("signatures", one, error.detail, file=SIGNATURE)


def _signed(check: ArchiveReading) -> str:
    several = f", {len(check.signers)} keys one after another" if len(check.signers) > 1 else ""
    return f"{check.archives} manifests signed by the channel's key{several}"


def _last_settings(one: ArchiveFolder) -> dict[str, bytes]:
    """Return the newest settings, unverified; the checks that follow find faults."""
    out: dict[str, bytes] = {}
    for name in SETTINGS:
        try:
            out[name] = read_small(one.path / name)
        except RopewalkError:
            continue
    return out


def _policy(settings: dict[str, bytes]) -> Policy | None:
    try:
        return parse_policy(settings["policy.json"])
    except (KeyError, RopewalkError):
        return None


def _own_trust(found: list[ArchiveFolder], settings: dict[str, bytes]) -> Trust:
    """Return trust from the archives themselves: it shows consistency at best."""
    for one in found:
        try:
            manifest = parse_archive_manifest(read_small(one.path / MANIFEST))
            break
        except RopewalkError:
            continue
    else:
        return Trust((), ())
    policy = None if manifest.policy_hash is None else bytes.fromhex(manifest.policy_hash)
    first = _first_signer(settings) or manifest.signer
    trust = Trust((first,), (first,), policy)
    if "evidence.json" not in settings:
        return trust
    from ropewalk.ledger.evidence.trust import parse_evidence_settings

    try:
        evidence = parse_evidence_settings(settings["evidence.json"])
    except RopewalkError:
        return trust
    return replace(trust, roots=evidence.roots, evidence=evidence.pins)


def _first_signer(settings: dict[str, bytes]) -> PublicKey | None:
    """Return the signer of the first block from the settings; manifests may be signed by a later key."""
    try:
        value = jcs.parse(settings["channel.json"])
        return PublicKey.from_json(value.get("signer") if isinstance(value, dict) else None)
    except (KeyError, RopewalkError):
        return None


def _located(step: Step, found: list[ArchiveFolder]) -> Step:
    """Add the archive's name to a failure in a block."""
    height = step.fields.get("height")
    if step.status != "failed" or height is None:
        return step
    for one in found:
        if one.first <= height <= one.last:
            prefix = "" if step.detail.startswith("archive ") else f"archive {one.name}: "
            return replace(step, detail=prefix + step.detail, fields={**step.fields, "archive": one.name})
    return step
