"""Sources for checking published heads: a folder with tiles, or a channel."""

from __future__ import annotations

from pathlib import Path

from ropewalk.disk.durable import unavailable
from ropewalk.errors import Damaged, NotFound
from ropewalk.kernel.note.note import SignedHead
from ropewalk.ledger.channel.channel import Channel
from ropewalk.ledger.transparency.head_check import TreeSource
from ropewalk.ledger.transparency.publish import header_tree
from ropewalk.ledger.transparency.tile_tree import ReadTile, TileTree, check_tiles
from ropewalk.ledger.transparency.tiles import (
    TILE_BYTES_MAX,
    TILE_WIDTH,
    Tile,
    decode_entries,
    encode_entries,
    tile_path,
)

HASH_BYTES = 32


def tile_tree(folder: Path, size: int) -> TileTree:
    """Return the tree of `size` leaves in a folder of tiles, as `ledger tiles` or any C2SP log writes them."""
    return TileTree(size, _reader(folder))


def tile_source(folder: Path, size: int, *, deep: bool = False) -> TreeSource:
    """Return the tiles of a folder as a source; `deep` checks every tile and every entry."""
    read = _reader(folder)

    def look(head: SignedHead) -> None:
        check_tiles(head.size, head.root, read)

    name = f"every tile in {folder}" if deep else f"tiles in {folder}"
    return TreeSource(name, TileTree(size, read), look if deep else None)


def channel_source(channel: Channel) -> TreeSource:
    """Return a channel as a source."""
    return TreeSource(f"channel {channel.settings.channel}", header_tree(channel))


def _reader(folder: Path) -> ReadTile:
    def read(tile: Tile) -> bytes:
        path, width = _find(folder, tile)
        try:
            with path.open("rb") as stream:
                raw = stream.read(TILE_BYTES_MAX + 1)
        except FileNotFoundError as error:
            raise NotFound(f"no file {path}", name=str(path)) from error
        except OSError as error:
            raise unavailable(error, "tiles") from error
        if tile.level is None:
            return raw if width == tile.width else _first_entries(raw, width, tile.width)
        if len(raw) != width * HASH_BYTES:
            raise Damaged(
                f"{path} has {len(raw)} bytes; {width} hashes take {width * HASH_BYTES}",
                reason="tile",
                advice="Get the tile again from where it was published.",
            )
        return raw[: tile.width * HASH_BYTES]

    return read


def _first_entries(raw: bytes, width: int, wanted: int) -> bytes:
    entries = decode_entries(raw)
    return encode_entries(entries[:wanted]) if len(entries) == width else raw


def _find(folder: Path, tile: Tile) -> tuple[Path, int]:
    """Return the file of a tile, or of a wider one: a log may drop a partial tile once the full one exists."""
    exact, full = folder / tile_path(tile), folder / tile_path(Tile(tile.level, tile.number, TILE_WIDTH))
    if exact.is_file():
        return exact, tile.width
    if full.is_file():
        return full, TILE_WIDTH
    partial = full.with_name(f"{full.name}.p")
    for width in range(tile.width + 1, TILE_WIDTH):
        if (partial / str(width)).is_file():
            return partial / str(width), width
    # Not opened to see: what is no file, such as a pipe, might never end.
    raise NotFound(f"no file {exact}", name=str(exact))
