"""Archive a channel: its old blocks as write-once files, verified first, with everything verification depends on.

<to>/<channel>/<first>-<last>/…              the archives of a channel, without a gap from its first block on
<to>/<channel>.snapshots/<first>-<last>/…    those of its companion, if it has one: the snapshots of replays

The channel is not changed and no file is overwritten. What an archive holds is described in
docs/guide/retention.md.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from ropewalk.disk.durable import Disk
from ropewalk.disk.folder_lock import hold_folder
from ropewalk.errors import Conflict, Damaged, Forked, NotFound, RangeExceeded, RopewalkError, Unverified
from ropewalk.kernel import jcs, merkle
from ropewalk.kernel.digest import blake3
from ropewalk.kernel.entry import join
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.archive.files import (
    ArchiveFolder,
    ArchiveWriter,
    Blocks,
    Watch,
    archive_folders,
    read_small,
)
from ropewalk.ledger.archive.manifest import (
    ARCHIVE_BLOCKS_MAX,
    BLOCKS,
    KEY_PROOFS,
    MANIFEST,
    SETTINGS,
    SIGNATURE,
    ArchiveChain,
    ArchiveManifest,
    check_manifest_signature,
    is_archived_name,
    parse_archive_manifest,
    sign_manifest,
)
from ropewalk.ledger.block.block import parse_record
from ropewalk.ledger.bundle.manifest_fields import File
from ropewalk.ledger.channel.channel import Channel
from ropewalk.ledger.channel.settings import channels
from ropewalk.ledger.ingest.sealer import foreign_channel
from ropewalk.ledger.json_form import members_of
from ropewalk.ledger.keys.history import KeyHistory
from ropewalk.ledger.proof.verify import BlockSpan, check_block
from ropewalk.ledger.replay.replay import companion

RANGE_BYTES: Final = 64 << 20  # before packing; a new archive is begun beyond this, as a segment is
DAY_NS: Final = 86_400 * 10**9
DAYS_MAX: Final = 1_000_000
_DETACHED: Final = b'"payload_ref":{'


@dataclass(frozen=True, slots=True)
class ArchivedRange:
    """A new archive: its path, heights, and sizes before and after packing."""

    path: Path
    start: int
    end: int
    size: int
    packed: int

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form that `ledger archive` prints."""
        return members_of(self, start="start_height", end="end_height", size="bytes", packed="packed_bytes")


@dataclass(frozen=True, slots=True)
class ArchiveResult:
    """How far a channel is archived: new archives, number of existing ones, and their end."""

    channel: str
    blocks: int
    outer_root: bytes
    made: tuple[ArchivedRange, ...]
    kept: int
    snapshots: ArchiveResult | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form that `ledger archive` prints."""
        return members_of(self, blocks="archived_blocks")


def archive_channel(
    home: Path,
    channel: str,
    key: SigningKey,
    to: Path,
    *,
    keep_blocks: int | None = None,
    keep_days: float | None = None,
    before: int | None = None,
    now_ns: Callable[[], int] = time.time_ns,
    watch: Watch | None = None,
    disk: Disk | None = None,
    range_bytes: int = RANGE_BYTES,
) -> ArchiveResult:
    """Archive the blocks of a channel that no archive in `to` holds yet, and its snapshots.

    All blocks, or up to a limit: all but the last `keep_blocks`, those older than `keep_days`, or those below the
    height `before`. The key is the channel's own. Running it again makes only what is missing.

    >>> import tempfile
    >>> from ropewalk import ledger
    >>> key = SigningKey.generate("ed25519", bytes(32))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     home, cold = Path(folder, "home"), Path(folder, "cold")
    ...     _ = ledger.create_channel(home, "ea.core", "node", key.public)
    ...     with ledger.open_log(home, "ea.core", key) as opened:
    ...         for number in range(3):
    ...             said = ledger.build(key, domain="ea.core", event_class="Observation", event_type="seen",
    ...                                 payload={"n": number}, timestamp="2024-11-01T12:00:00Z")
    ...             _ = opened.log.submit(said.raw)
    ...     first = archive_channel(home, "ea.core", key, cold, keep_blocks=1)
    ...     again = archive_channel(home, "ea.core", key, cold, keep_blocks=1)
    >>> first.blocks, len(first.made), len(again.made), again.kept
    (2, 1, 0, 1)
    """
    if sum(each is not None for each in (keep_blocks, keep_days, before)) > 1:
        raise RangeExceeded("only one of keep_blocks, keep_days and before may be given")
    with Channel(home, channel) as reading:
        if reading.key_history().validity(key.public) is None:
            raise foreign_channel(channel, reading.key_history().current.key)
        size = reading.head().height
        if not size:
            raise NotFound(f"channel {channel} has no blocks yet", channel=channel)
        if before is not None and before > size:
            raise RangeExceeded(f"blocks below {before} of a channel of {size} blocks", size=size)
        end = before
        if end is None:
            end = hot_from(reading, size, keep_blocks=keep_blocks, keep_days=keep_days, now_ns=now_ns)
        done = _archive(reading, key, to, end, watch, disk or Disk(), range_bytes)
    beside = companion(channel)
    if beside not in channels(home):
        return done
    with Channel(home, beside) as reading:
        # Signed with the channel's key, as snapshots are; ignore a companion signed by another key.
        if reading.key_history().validity(key.public) is None or not reading.head().height:
            return done
        below = _archive(reading, key, to, reading.head().height, None, disk or Disk(), range_bytes)
    return replace(done, snapshots=below)


def hot_from(
    reading: Channel,
    size: int,
    *,
    keep_blocks: int | None,
    keep_days: float | None,
    now_ns: Callable[[], int],
) -> int:
    """Return the first height among the last blocks, or not older than so many days; without either, the end."""
    if keep_blocks is not None:
        return max(0, size - keep_blocks)
    if keep_days is None:
        return size
    if not 0 <= keep_days <= DAYS_MAX:
        raise RangeExceeded(f"keep_days must be from 0 to {DAYS_MAX}, got {keep_days}")
    moment_ns = now_ns() - int(keep_days * DAY_NS)

    def time_at(height: int) -> int:
        return parse_record(reading.index.lines_of(height, None)[0]).header.timestamp_ns

    return bisect_left(range(size), moment_ns, key=time_at)  # times never decrease within a channel


def _archive(
    reading: Channel, key: SigningKey, to: Path, end: int, watch: Watch | None, disk: Disk, range_bytes: int
) -> ArchiveResult:
    name = reading.settings.channel
    folder = to / name
    if not end and not folder.exists():
        return ArchiveResult(name, 0, merkle.RANGE.empty, (), 0)
    made: list[ArchivedRange] = []
    with hold_folder(folder, 0, disk):
        chain, kept, carried = _read_chain(folder, name, reading.key_history())
        _check_history(reading, folder, chain)
        if chain.height < end:
            forks = _forks(reading.folder, carried)
            lines: Blocks = reading.lines(chain.height, end - 1)
            if watch is not None:
                lines = watch(lines, end - chain.height)
            source = iter(lines)
            while chain.height < end:
                made.append(_write_one(reading, key, folder, chain, source, forks, disk, range_bytes))
                forks = {}
    if chain.height:
        reading.note_head(chain.height, chain.block_hash, "an archive")
    return ArchiveResult(name, chain.height, chain.outer_root, tuple(made), kept)


def _write_one(
    reading: Channel,
    key: SigningKey,
    folder: Path,
    chain: ArchiveChain,
    source: Iterator[tuple[int, list[bytes]]],
    forks: dict[str, bytes],
    disk: Disk,
    range_bytes: int,
) -> ArchivedRange:
    """Write the next archive: as many verified blocks as fill it, then its manifest, then its name."""
    settings, trust = reading.settings, reading.trust()
    # The first block must follow this one.
    span = BlockSpan(channel=settings.channel, last=chain.height - 1, above=chain.block_hash, blocks=1)
    hashes: list[bytes] = []
    envelopes = detached = last_ns = 0
    with ArchiveWriter(folder, chain.height, BLOCKS, disk) as writer:
        for height, lines in source:
            one = check_block(lines, height, trust=trust, deep=False)
            span = require_span(join(span, one))
            writer.add(lines)
            hashes.append(one.above)
            envelopes, last_ns = envelopes + one.envelopes, one.last_ns
            detached += sum(map(_is_detached, lines[1:]))
            if writer.size >= range_bytes or len(hashes) == ARCHIVE_BLOCKS_MAX:
                break
        if not hashes:
            raise Damaged(f"channel {settings.channel} ends before block {chain.height}", height=chain.height)
        reading.key_history().check_unended(key.public, writer.height - 1, last_ns)
        digest, packed = writer.pack()
        small = {**_settings(reading.folder), **forks}
        if said := reading.key_proofs():
            small[KEY_PROOFS] = jcs.encode([each.to_json() for each in said])
        manifest = ArchiveManifest(
            settings.channel,
            writer.first,
            writer.height - 1,
            tuple(each.hex() for each in hashes),
            merkle.root(hashes, merkle.RANGE).hex(),
            chain.grown(hashes).root().hex(),
            chain.previous,
            envelopes,
            detached,
            trust.policy_hash.hex() if trust.policy_hash is not None else None,
            str(last_ns),  # not the clock: the same range gives the same bytes
            key.public,
            (
                File(BLOCKS, digest, packed),
                *(File(name, blake3(raw).hex(), len(raw)) for name, raw in sorted(small.items())),
            ),
        )
        raw = manifest.to_bytes()
        found = writer.finish({**small, MANIFEST: raw, SIGNATURE: sign_manifest(raw, key)})
        chain.follow(manifest, raw)
    return ArchivedRange(found.path, found.first, found.last, writer.size, packed)


def require_span(span: BlockSpan) -> BlockSpan:
    """Return the span if it is valid; an invalid one must not be archived or packed for good."""
    if span.fault is not None:
        raise Unverified(
            f"{span.fault.step}: {span.fault.detail}",
            height=span.fault.height,
            step=span.fault.step,
            advice="Nothing of this range was written. Restore the channel from a replica or from archives.",
        )
    return span


def verified_blocks(
    reading: Channel, start: int, count: int, before: bytes | None = None, watch: Watch | None = None
) -> Iterator[tuple[list[bytes], BlockSpan]]:
    """Return `count` stored blocks from a height on, each verified (form, seal, link) without its envelopes' rules.

    The first must follow the block with the hash `before`, or the one below it in this channel.
    """
    trust = reading.trust()
    below = before if before is not None else reading.index.block_hash(start - 1) if start else bytes(32)
    span = BlockSpan(channel=reading.settings.channel, last=start - 1, above=below, blocks=1)
    lines = reading.lines(start, start + count - 1)
    for height, block in watch(lines, count) if watch is not None else lines:
        one = check_block(block, height, trust=trust, deep=False)
        span = require_span(join(span, one))
        yield block, one


def _is_detached(raw: bytes) -> bool:
    if _DETACHED not in raw:  # most have none, and canonical bytes have one encoding of the name
        return False
    value = jcs.parse(raw)
    return isinstance(value, dict) and bool(value.get("payload_ref")) and value.get("payload") is None


def _settings(folder: Path) -> dict[str, bytes]:
    """Return the files that verification of a channel depends on."""
    places = {name: (folder.parent if name == "lifecycle.json" else folder) / name for name in SETTINGS}
    return {name: read_small(path) for name, path in places.items() if path.is_file()}


def _forks(folder: Path, carried: set[str]) -> dict[str, bytes]:
    """Return both sides of every known fork, unless an archive has them."""
    found = sorted((folder / "evidence").glob("fork-*.json"))
    return {
        path.name: read_small(path)
        for path in found
        if is_archived_name(path.name) and path.name not in carried
    }


def _read_chain(folder: Path, channel: str, key_history: KeyHistory) -> tuple[ArchiveChain, int, set[str]]:
    """Return the chain of existing archives, their number, and the files they carry. Blocks are not read again."""
    chain, carried, count = ArchiveChain(), set[str](), 0
    chain.channel = channel
    for one in archive_folders(folder):
        try:
            raw = read_small(one.path / MANIFEST)
            manifest = parse_archive_manifest(raw)
            if key_history.validity(manifest.signer) is None:
                raise Conflict(f"it is signed by {manifest.signer.did()}, not by the channel's key")
            check_manifest_signature(raw, read_small(one.path / SIGNATURE), manifest.signer)
            chain.follow(manifest, raw)
            _check_sizes(one, manifest)
        except RopewalkError as error:
            raise Conflict(
                f"archive {one.path}: {error.detail}",
                advice="Nothing was written. Run `ropewalk verify` for details, or choose another folder with --to.",
                archive=one.name,
            ) from error
        carried |= {file.name for file in manifest.files}
        count += 1
    return chain, count, carried


def _check_sizes(one: ArchiveFolder, manifest: ArchiveManifest) -> None:
    if (manifest.start_height, manifest.end_height) != (one.first, one.last):
        raise Damaged(f"it holds blocks {manifest.start_height} to {manifest.end_height}")
    for file in manifest.files:
        path = one.path / file.name
        if not path.is_file() or path.stat().st_size != file.size:
            raise Damaged(f"{file.name} is missing or does not have the size in its manifest")


def _check_history(reading: Channel, folder: Path, chain: ArchiveChain) -> None:
    """Raise unless the last archived block is in the channel."""
    size = reading.head().height
    if chain.height > size:
        raise Conflict(
            f"{folder} holds {chain.height} blocks, and the channel has only {size}",
            advice="Nothing was written. Bring back what is missing with `ropewalk ledger restore`.",
        )
    if chain.height and reading.index.block_hash(chain.height - 1) != chain.block_hash:
        raise Forked(
            f"{folder}: block {chain.height - 1} of the archives is not the channel's",
            height=chain.height - 1,
            ours=reading.index.block_hash(chain.height - 1).hex(),
            theirs=chain.block_hash.hex(),
        )
