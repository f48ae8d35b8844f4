"""Publish a channel: receipts for third-party tools, and its header tree as tiles."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropewalk.disk.durable import Disk, unavailable
from ropewalk.disk.folder_lock import hold_folder
from ropewalk.errors import Conflict, Forked, NotFound, RopewalkError
from ropewalk.kernel import jcs, merkle
from ropewalk.kernel.keys import SigningKey
from ropewalk.kernel.note.note import NOTE_BYTES_MAX, SignedHead, claimed_head
from ropewalk.ledger.block.block import parse_record
from ropewalk.ledger.channel.channel import Channel
from ropewalk.ledger.channel.witnessed import read_witnessed
from ropewalk.ledger.json_form import members_of
from ropewalk.ledger.proof.proof import head_signer, signed_head
from ropewalk.ledger.proof.steps import short
from ropewalk.ledger.transparency.receipts import make_receipt
from ropewalk.ledger.transparency.tiles import (
    TILE_BYTES_MAX,
    Tile,
    TlogProof,
    encode_entries,
    hash_tile,
    holds_entries,
    tile_path,
    tiles_of,
)

CHECKPOINT = "checkpoint"
WAIT_S = 30.0  # for another process that publishes into the folder


@dataclass(frozen=True, slots=True)
class PublishResult:
    """What was written: headers under the head, new files, and the key of the head.

    `mended` names existing files that were wrong and were rewritten.
    """

    folder: Path
    size: int
    root: bytes
    written: int
    kept: int
    mended: tuple[str, ...]
    vkey: str

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form that `ledger tiles` prints."""
        return members_of(self, folder="path")


def header_tree(channel: Channel) -> merkle.MerkleTree:
    """Return the SHA-256 tree over the channel's headers."""
    size = channel.head().height
    return merkle.MerkleTree((leaf for _, leaf in channel.index.tree_leaves(0, size)), merkle.SHA256)


def make_cose_receipt(channel: Channel, envelope_id: bytes, key: SigningKey, host: str) -> bytes:
    """Return the COSE receipt of an envelope under the current head."""
    proof, tree = channel.prove(envelope_id), header_tree(channel)
    return make_receipt(
        key,
        origin=f"{host}/{channel.settings.channel}",
        envelope_id=envelope_id,
        header=proof.block.header,
        index=proof.index,
        inner_path=proof.path,
        size=tree.size,
        path=tree.inclusion(proof.height),
        root=tree.root(),
    )


def make_tlog_proof(channel: Channel, envelope_id: bytes, key: SigningKey, host: str) -> bytes:
    """Return the same as a C2SP proof file: the block's header in the log, and the path to the envelope as `extra`.

    It is under the newest cosigned head of the channel if that covers the block, else under a new head for `host`.
    """
    proof, tree = channel.prove(envelope_id), header_tree(channel)
    extra: dict[str, Any] = {
        "envelope_id": envelope_id.hex(),
        "index": proof.index,
        "path": [each.hex() for each in proof.path],
        "header": jcs.parse(proof.block.header.encode()),
    }
    head = read_witnessed(channel.folder)
    if head is None or (size := claimed_head(head)[0].size) <= proof.height:
        size = tree.size
        head = signed_head(host, channel.settings.channel, size, tree.root(), key)
    return TlogProof(proof.height, tree.inclusion(proof.height, size), head, jcs.encode(extra)).to_bytes()


def publish_tiles(
    channel: Channel, key: SigningKey, host: str, folder: Path, *, wait_s: float = WAIT_S
) -> PublishResult:
    """Write checkpoint and tiles. Existing correct tiles are kept; the checkpoint comes last.

    If the folder has a head that this channel does not extend, nothing is written. Raise `Forked` for another history,
    `Conflict` for another log, a larger head, or a file that is not a head. One process at a time publishes into a
    folder; wait for it, or raise `Unavailable`.
    """
    if not channel.head().height:
        raise NotFound(f"channel {channel.settings.channel} has no blocks yet")
    with hold_folder(folder, wait_s):
        channel.index.catch_up()  # another process may have published more than we had read
        return _publish(channel, key, host, folder)


def _publish(channel: Channel, key: SigningKey, host: str, folder: Path) -> PublishResult:
    name, tree = channel.settings.channel, header_tree(channel)
    written, kept, mended = 0, 0, []
    try:
        _check_extends(folder / CHECKPOINT, f"{host}/{name}", tree)
        channel.note_head(tree.size, channel.index.block_hash(tree.size - 1), "a signed head")
        head = signed_head(host, name, tree.size, tree.root(), key)
        for tile in tiles_of(tree.size):
            where = tile_path(tile)
            path = folder / where
            if path.exists():
                if _is_tile(path, tile, tree):
                    kept += 1
                    continue
                mended.append(where)
            else:
                written += 1
            _write(path, _tile_bytes(channel, tile, tree))
        if not _has_head(folder / CHECKPOINT, head):
            _write(folder / CHECKPOINT, head)
    except OSError as error:
        raise unavailable(error, f"tiles of {name}") from error
    vkey = head_signer(host, name, key).verifier.to_text()
    return PublishResult(folder, tree.size, tree.root(), written, kept, tuple(mended), vkey)


def _check_extends(path: Path, origin: str, tree: merkle.MerkleTree) -> None:
    """Raise unless the published head, if any, is of this log and a prefix of this tree."""
    old = _published_head(path)
    if old is None:
        return
    if old.origin != origin:
        raise Conflict(
            f'{path} is a head of "{old.origin}", not of "{origin}"',
            advice="Nothing was written. Use a separate folder per log with -o, and the original --host.",
            origin=old.origin,
        )
    if old.size > tree.size:
        raise Conflict(
            f"{path} is a head of {old.size} blocks, and the channel has only {tree.size}",
            advice="Nothing was written. Restore the missing blocks from a replica or a bundle.",
            size=old.size,
        )
    root = tree.root(old.size)
    if root != old.root:
        raise Forked(
            f"{path} has published {old.size} blocks with the root {short(old.root)}, and in this channel they "
            f"have {short(root)}",
            advice="Nothing was written. Publish from the repository whose history this is: a log has only one.",
            ours=root.hex(),
            theirs=old.root.hex(),
        )


def _published_head(path: Path) -> SignedHead | None:
    if not os.path.lexists(path):
        return None
    advice = (
        "Nothing was written. Put the checkpoint back as it was published, or choose another folder with -o."
    )
    if not path.is_file():  # not opened to see: a pipe might never end
        raise Conflict(f"{path} exists and is no file", advice=advice)
    with path.open("rb") as stream:
        raw = stream.read(NOTE_BYTES_MAX + 1)
    try:
        return claimed_head(raw)[0]
    except RopewalkError as error:
        raise Conflict(f"{path} exists and is no checkpoint: {error.detail}", advice=advice) from error


def _is_tile(path: Path, tile: Tile, tree: merkle.MerkleTree) -> bool:
    """Return whether the file is correct. Entries are compared with the hashes in the tree: no block is read."""
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        raw = stream.read(TILE_BYTES_MAX + 1)
    if tile.level is not None:
        return raw == hash_tile(tree, tile)
    return holds_entries(raw, tree.nodes(0, tile.start, tile.start + tile.width))


def _tile_bytes(channel: Channel, tile: Tile, tree: merkle.MerkleTree) -> bytes:
    if tile.level is not None:
        return hash_tile(tree, tile)
    records = (lines[0] for _, lines in channel.lines(tile.start, tile.start + tile.width - 1))
    return encode_entries([parse_record(line).header.encode() for line in records])


def _has_head(path: Path, head: bytes) -> bool:
    """Return whether this head is there, possibly with lines added by witnesses, which are kept."""
    return path.is_file() and path.read_bytes().startswith(head)


def _write(path: Path, raw: bytes) -> None:
    disk = Disk()
    disk.make_directories(path.parent)
    disk.replace(path, raw)
