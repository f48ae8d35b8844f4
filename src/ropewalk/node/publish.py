"""What a channel shows to the public: receipts that other people's tools check, and its header tree as tiles."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropewalk.errors import NotFound
from ropewalk.kernel import jcs, merkle
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.block import parse_record
from ropewalk.ledger.proof import head_signer, signed_head
from ropewalk.ledger.receipts import make_receipt
from ropewalk.ledger.tiles import TlogProof, encode_entries, hash_tile, tile_path, tiles_of
from ropewalk.node.ledger import Channel
from ropewalk.stores.durable import unavailable

__all__ = ["Published", "make_cose_receipt", "make_tlog_proof", "publish_tiles"]

CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True)
class Published:
    """What was written: how many headers the head covers, how many files are new, and the key that checks the head."""

    folder: Path
    size: int
    root: bytes
    written: int
    kept: int
    vkey: str

    def to_json(self) -> dict[str, Any]:
        """As `ledger tiles` prints it."""
        return {
            "path": str(self.folder),
            "size": self.size,
            "root": self.root.hex(),
            "written": self.written,
            "kept": self.kept,
            "vkey": self.vkey,
        }


def header_tree(channel: Channel) -> merkle.Tree:
    """The SHA-256 tree over the channel's headers."""
    size = channel.head().height
    return merkle.Tree((leaf for _, leaf in channel.index.tree_leaves(0, size)), merkle.SHA256)


def make_cose_receipt(channel: Channel, envelope_id: bytes, key: SigningKey, host: str) -> bytes:
    """The COSE receipt of an envelope under the head as it is now."""
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
    """The same as a C2SP proof file: the block's header in the log, and the way to the envelope as `extra`."""
    proof, tree = channel.prove(envelope_id), header_tree(channel)
    extra: dict[str, Any] = {
        "envelope_id": envelope_id.hex(),
        "index": proof.index,
        "path": [each.hex() for each in proof.path],
        "header": jcs.parse(proof.block.header.encode()),
    }
    head = signed_head(host, channel.settings.channel, tree.size, tree.root(), key)
    return TlogProof(proof.height, tree.inclusion(proof.height), head, jcs.encode(extra)).to_bytes()


def publish_tiles(channel: Channel, key: SigningKey, host: str, folder: Path) -> Published:
    """Write checkpoint and tiles. Full tiles that are there stay as they are; the checkpoint comes last."""
    tree = header_tree(channel)
    if not tree.size:
        raise NotFound(f"channel {channel.settings.channel} has no blocks yet")
    written = kept = 0
    try:
        for tile in tiles_of(tree.size):
            path = folder / tile_path(tile)
            if path.exists():
                kept += 1
                continue
            if tile.level is not None:
                raw = hash_tile(tree, tile)
            else:
                last = tile.start + tile.width - 1
                records = (lines[0] for _, lines in channel.lines(tile.start, last))
                raw = encode_entries([parse_record(line).header.encode() for line in records])
            _write(path, raw)
            written += 1
        head = signed_head(host, channel.settings.channel, tree.size, tree.root(), key)
        if not _has_head(folder / CHECKPOINT, head):
            _write(folder / CHECKPOINT, head)
    except OSError as error:
        raise unavailable(error, f"tiles of {channel.settings.channel}") from error
    vkey = head_signer(host, channel.settings.channel, key).verifier.to_text()
    return Published(folder, tree.size, tree.root(), written, kept, vkey)


def _has_head(path: Path, head: bytes) -> bool:
    """Whether this very head is there, perhaps with lines that witnesses have added: those are kept."""
    return path.is_file() and path.read_bytes().startswith(head)


def _write(path: Path, raw: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with beside.open("wb") as stream:
        stream.write(raw)
        stream.flush()
        os.fsync(stream.fileno())
    beside.replace(path)
