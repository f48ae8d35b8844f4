"""Read the header tree from its tiles: roots and proofs of any size, and a check of every hash.

Tiles are not trusted. Results count only if they give the root of a signed head; a tile that is
missing or truncated is named, and a wrong one shows in the tile above it.
"""

from __future__ import annotations

from collections.abc import Callable

from ropewalk.errors import Damaged, RangeExceeded
from ropewalk.kernel import merkle
from ropewalk.ledger.transparency.tiles import (
    TILE_HEIGHT,
    TILE_WIDTH,
    Tile,
    decode_entries,
    entry_tiles,
    hash_tiles,
    tile_path,
)

ReadTile = Callable[[Tile], bytes]
"""Returns the bytes of a tile, as many hashes or entries as it is wide; raises `NotFound` without such a tile."""

ADVICE = "Fetch the tile again from its publisher; the publisher deletes it and runs `ledger tiles` again."


class TileTree(merkle.Nodes):
    """A SHA-256 tree with its nodes in tiles; each tile is read once, when needed.

    >>> leaves = [merkle.SHA256.leaf(bytes([i])) for i in range(5)]
    >>> tree = TileTree(5, lambda tile: b"".join(leaves))
    >>> tree.root(3) == merkle.root(leaves[:3], merkle.SHA256)
    True
    """

    __slots__ = ("_read", "_size", "_tiles")

    def __init__(self, size: int, read: ReadTile) -> None:
        self.hasher = merkle.SHA256
        self._size, self._read = size, read
        self._tiles: dict[tuple[int, int], merkle.MerkleTree] = {}

    @property
    def size(self) -> int:
        """The number of leaves of the tree."""
        return self._size

    def node(self, height: int, place: int) -> bytes:
        """Return one complete node, from the tile that holds the hashes below it."""
        level, above = divmod(height, TILE_HEIGHT)
        number, first = divmod(place << above, TILE_WIDTH)
        if (level, number) not in self._tiles:
            width = min(TILE_WIDTH, (self._size >> level * TILE_HEIGHT) - number * TILE_WIDTH)
            if width <= 0:
                raise RangeExceeded(f"node {place} of level {height} is not in a tree of {self._size}")
            self._tiles[level, number] = merkle.MerkleTree(
                _hashes(Tile(level, number, width), self._read), self.hasher
            )
        return self._tiles[level, number].nodes(above, first >> above, (first >> above) + 1)


def check_tiles(size: int, root: bytes, read: ReadTile) -> None:
    """Raise unless every tile of a log of that size is right, up to this root: all hashes and all entries.

    >>> leaves = [merkle.SHA256.leaf(bytes([i])) for i in range(2)]
    >>> tiles = {None: b"\\0\\1\\0" b"\\0\\1\\1", 0: b"".join(leaves)}
    >>> check_tiles(2, merkle.root(leaves, merkle.SHA256), lambda tile: tiles[tile.level])
    """
    tree = TileTree(size, read)
    if (got := tree.root()) != root:
        raise _mismatch("the tiles lead", got, root)
    # Each hash is the root of a full tile below it, so checking neighbouring levels checks all.
    for tile in hash_tiles(size):  # a missing one ends it: a false claim of a large size costs no time
        if tile.is_full:
            got = merkle.root(_hashes(tile, read), merkle.SHA256)
            if got != (want := tree.node(((tile.level or 0) + 1) * TILE_HEIGHT, tile.number)):
                raise _mismatch(f"{tile_path(tile)} leads", got, want)
    for tile in entry_tiles(size):  # last: then the entries themselves are wrong
        _check_entries(tile, read)


def _check_entries(tile: Tile, read: ReadTile) -> None:
    path = tile_path(tile)
    try:
        entries = decode_entries(read(tile))
    except Damaged as error:
        raise _damaged(f"{path}: {error.detail}") from error
    if len(entries) != tile.width:
        raise _damaged(f"{path} has {len(entries)} entries, not {tile.width}")
    for place, leaf in enumerate(_hashes(Tile(0, tile.number, tile.width), read)):
        if merkle.SHA256.leaf(entries[place]) != leaf:
            raise _damaged(f"{path}: entry {tile.start + place} is not the one in the tree")


def _hashes(tile: Tile, read: ReadTile) -> list[bytes]:
    raw, size = read(tile), tile.width * merkle.HASH_BYTES
    if len(raw) != size:
        raise _damaged(f"{tile_path(tile)} has {len(raw)} bytes; {tile.width} hashes take {size}")
    return [raw[at : at + merkle.HASH_BYTES] for at in range(0, size, merkle.HASH_BYTES)]


def _mismatch(what: str, got: bytes, want: bytes) -> Damaged:
    return _damaged(f"{what} to {got.hex()[:16]}…, not to {want.hex()[:16]}…")


def _damaged(detail: str) -> Damaged:
    return Damaged(detail, reason="tile", advice=ADVICE)
