"""Small logs with their tiles, heads and witnesses, and what can be wrong with them."""

from __future__ import annotations

from pathlib import Path

from ropewalk.kernel import merkle
from ropewalk.kernel.keys import SigningKey
from ropewalk.kernel.note.note import SignatureType, SignedHead, Signer, sign_head
from ropewalk.ledger.transparency.tiles import encode_entries, hash_tile, tile_path, tiles_of

__all__ = ["LOG", "NOW_S", "ORIGIN", "SECRET", "WITNESS", "SmallLog"]

ORIGIN = "log.example/ops"
LOG = Signer(ORIGIN, SigningKey.generate("ed25519", b"log" + bytes(29)))
SECRET = SigningKey.generate("ed25519", b"w" * 32)
WITNESS = Signer("witness.example", SECRET, SignatureType.COSIGNATURE)
NOW_S = 1_700_000_000


class SmallLog:
    """Leaves by number; from `turn` on they are others, as if the log had been written anew from there."""

    def __init__(self, size: int, turn: int | None = None) -> None:
        self.entries = [
            f"{number}{'' if turn is None or number < turn else ' otherwise'}".encode()
            for number in range(size)
        ]
        self.tree = merkle.MerkleTree((merkle.SHA256.leaf(each) for each in self.entries), merkle.SHA256)

    def head(self, size: int | None = None, signer: Signer = LOG, origin: str = ORIGIN) -> bytes:
        size = self.tree.size if size is None else size
        return sign_head(SignedHead(origin, size, self.tree.root(size)), signer)

    def publish(self, folder: Path, size: int | None = None) -> Path:
        """The tiles of the log at that size, and its checkpoint."""
        size = self.tree.size if size is None else size
        for tile in tiles_of(size):
            path = folder / tile_path(tile)
            path.parent.mkdir(parents=True, exist_ok=True)
            if tile.level is None:
                path.write_bytes(encode_entries(self.entries[tile.start : tile.start + tile.width]))
            else:
                path.write_bytes(hash_tile(self.tree, tile))
        (folder / "checkpoint").write_bytes(self.head(size))
        return folder
