"""Bundle files: export a range of a channel, inspect a bundle, verify one without network or ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropewalk.errors import Conflict, Damaged, RangeExceeded, RopewalkError
from ropewalk.kernel.keys import Signature, SigningKey
from ropewalk.kernel.report import Report
from ropewalk.ledger.block.block import Block, parse_record
from ropewalk.ledger.bundle.anchors import AnchorFinding, BundleAnchor
from ropewalk.ledger.bundle.check import BundleVerifier
from ropewalk.ledger.bundle.format import BundleBuilder, block_name, cbor_name, frame_member, proof_name
from ropewalk.ledger.bundle.manifest import BUNDLE_BLOCKS_MAX, BundleManifest
from ropewalk.ledger.bundle.members import ManifestReader
from ropewalk.ledger.bundle.paths import Exhibit, ListedEnvelope
from ropewalk.ledger.bundle.tar import END
from ropewalk.ledger.bundle.zstd_file import (
    Spool,
    UnpackLimits,
    is_packed,
    packed_size,
    read_packed,
    write_packed,
)
from ropewalk.ledger.channel.channel import Channel
from ropewalk.ledger.json_form import members_of
from ropewalk.ledger.keys.history import KeyProof
from ropewalk.ledger.proof.trust import Trust
from ropewalk.ledger.rules.policy import Policy

if TYPE_CHECKING:
    from ropewalk.ledger.bundle.head_proofs import AnchorCollector

Watch = Callable[[Iterable[Block]], Iterable[Block]]


@dataclass(frozen=True, slots=True)
class ExportedBundle:
    """A bundle file: its range, its size, and whether an existing file was kept."""

    path: Path
    start: int
    end: int
    size: int
    kept: bool

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form that `bundle export` prints."""
        return members_of(self, start="start_height", end="end_height", size="bytes")


@dataclass(frozen=True, slots=True)
class BundleVerdict:
    """The report of a verification, with the data for a report page."""

    report: Report
    manifest: BundleManifest | None
    exhibits: tuple[Exhibit, ...]
    anchors: tuple[AnchorFinding, ...] = ()
    listed: tuple[ListedEnvelope, ...] = ()


def chunk_ranges(start: int, end: int, size: int | None) -> Iterator[tuple[int, int]]:
    """Yield the range split into runs of `size` blocks, from its start.

    >>> list(chunk_ranges(0, 9, 4))
    [(0, 3), (4, 7), (8, 9)]
    """
    size = size or end - start + 1
    for first in range(start, end + 1, size):
        yield first, min(first + size - 1, end)


def export_bundle(
    channel: Channel,
    key: SigningKey,
    start: int,
    end: int,
    path: Path,
    *,
    created_at: str | None = None,
    anchors: AnchorCollector | None = None,
    watch: Watch | None = None,
    both: bool = False,
) -> ExportedBundle:
    """Write the blocks from `start` to `end`, inclusive. An existing complete bundle of them is kept.

    With `anchors` the bundle carries those heads; a bundle with other anchors is written again. With `both` it holds
    the envelopes in CBOR too.
    """
    size = channel.head().height
    if not 0 <= start <= end < size:
        raise RangeExceeded(
            f"blocks {start} to {end} of a channel of {size} blocks", start=start, end=end, size=size
        )
    if end - start >= BUNDLE_BLOCKS_MAX:
        raise RangeExceeded(
            f"a bundle must have at most {BUNDLE_BLOCKS_MAX} blocks, got {end - start + 1}",
            advice="Split the range: `bundle export --chunk N` writes several files.",
        )
    channel.check_last()
    carried = anchors.over(start, end) if anchors is not None else ()
    if path.exists() and _is_complete(channel, path, start, end, created_at, carried, both):
        return ExportedBundle(path, start, end, path.stat().st_size, kept=True)
    last = parse_record(channel.index.lines_of(end, None)[0]).header
    channel.key_history().check_unended(key.public, end, last.timestamp_ns)
    blocks: Iterable[Block] = channel.blocks(start, end)
    if watch is not None:
        blocks = watch(blocks)
    keys = channel.key_proofs()
    packed = export_blocks(blocks, key, path, keys, created_at=created_at, anchors=carried, both=both)
    return ExportedBundle(path, start, end, packed, kept=False)


def export_blocks(
    blocks: Iterable[Block],
    key: SigningKey,
    path: Path,
    keys: Iterable[KeyProof] = (),
    *,
    created_at: str | None = None,
    anchors: Iterable[BundleAnchor] = (),
    both: bool = False,
) -> int:
    """Write these consecutive blocks as a bundle; return the file size. Anchors must match these blocks.

    `keys` are the channel's key statements, for verifiers that know only an earlier key.
    """
    gathering = BundleBuilder()
    kept_blocks, kept_proofs, kept_cbor = Spool(path.parent), Spool(path.parent), Spool(path.parent)
    try:
        for block in blocks:
            lines, proofs = gathering.add(block)
            kept_blocks.write(frame_member(block_name(block.height), lines))
            kept_proofs.write(frame_member(proof_name(block.height), proofs))
            if both:
                kept_cbor.write(frame_member(cbor_name(block.height), gathering.add_cbor(block)))
        front = gathering.front(gathering.finish(key, created_at, anchors, keys), key)
        pieces = chain([front], kept_blocks.read(), kept_proofs.read(), kept_cbor.read(), [END])
        return write_packed(path, pieces, gathering.archive_size(front))
    finally:
        kept_blocks.close()
        kept_proofs.close()
        kept_cbor.close()


def verify_bundle(
    path: Path,
    trust: Trust,
    *,
    deep: bool = False,
    policy: Policy | None = None,
    threshold: int | None = None,
    limits: UnpackLimits | None = None,
    anybody: bool = False,
) -> BundleVerdict:
    """Run the steps of S4 §12 over a file, as a stream. Raise `Invalid` if it is not a bundle.

    With a policy, the blocks must have been made under it, and every envelope is checked against it. With a threshold,
    at least so many trusted witnesses must have signed its anchors. With `anybody` any key may have signed, and the
    verdict is `untrusted` at best.
    """
    if policy is not None:
        if trust.policy_hash is not None and trust.policy_hash != policy.hash:
            raise Conflict(
                f"the trust file pins policy {trust.policy_hash.hex()}, and this one is {policy.hash.hex()}",
                advice="Give the policy the channel was made with (`ropewalk ledger policy hash` names one).",
            )
        trust, deep = replace(trust, policy_hash=policy.hash), True
    verifier = BundleVerifier(
        trust, deep=deep, policy=policy, threshold=threshold, anybody=anybody, packed=packed_size(path)
    )
    try:
        for piece in read_packed(path, limits):
            verifier.feed(piece)
    except Damaged as error:
        verifier.cut(error.detail)
    report = verifier.report()
    return BundleVerdict(
        report, verifier.manifest, tuple(verifier.exhibits), verifier.anchors, tuple(verifier.listed)
    )


def inspect_bundle(path: Path) -> tuple[BundleManifest, Signature]:
    """Return what a bundle says about itself, unverified; only its beginning is read."""
    reader = ManifestReader(packed_size(path))
    for piece in read_packed(path):
        reader.feed(piece)
        if reader.done:
            break
    manifest, signature, _ = reader.manifest()
    return manifest, signature


def _is_complete(
    channel: Channel,
    path: Path,
    start: int,
    end: int,
    created_at: str | None,
    anchors: tuple[BundleAnchor, ...],
    both: bool,
) -> bool:
    """Return whether the file is a complete bundle of that range. Never overwrite any other file."""
    if not is_packed(path):
        raise Conflict(f"{path} exists and is not a bundle", advice="Choose another name with -o.")
    try:
        verdict = verify_bundle(path, channel.trust())
    except RopewalkError:
        return False
    manifest = verdict.manifest
    if manifest is None or verdict.report.first_failure is not None:
        return False  # incomplete or damaged: write it again
    if (manifest.channel, manifest.start_height, manifest.end_height) != (
        channel.settings.channel,
        start,
        end,
    ):
        raise Conflict(
            f"{path} is a bundle of {manifest.channel}, blocks {manifest.start_height} to {manifest.end_height}",
            advice="Choose another name with -o.",
        )
    same_time = created_at is None or created_at == manifest.created_at
    if both != manifest.both or (anchors and anchors != manifest.anchors):
        return False  # without anchors given, keep the existing ones
    return same_time and manifest.block_hashes[-1] == channel.index.block_hash(end).hex()
