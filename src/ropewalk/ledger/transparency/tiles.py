"""The header tree as files that any transparency-log client reads (C2SP tlog-tiles, tlog-proof).

checkpoint                    the signed head, written last
tile/<L>/<N>[.p/<W>]          256 hashes of one level, or the first W of them
tile/entries/<N>[.p/<W>]      the headers, each with a two-byte length prefix

A full tile never changes, so publishing again only adds tiles and repairs changed ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ropewalk.errors import Damaged, InvalidProof, RopewalkError, TooLarge
from ropewalk.kernel import merkle
from ropewalk.kernel.multiformats import base64_decode, base64_encode

TILE_WIDTH: Final = 256
TILE_HEIGHT: Final = 8
ENTRY_BYTES_MAX: Final = 0xFFFF
TILE_BYTES_MAX: Final = TILE_WIDTH * (ENTRY_BYTES_MAX + 2)
_MAGIC: Final = "c2sp.org/tlog-proof@v1"
_HASHES_MAX: Final = 63


@dataclass(frozen=True, slots=True)
class Tile:
    """One tile: its level (None for entries), its number, and how many of its 256 places are filled."""

    level: int | None
    number: int
    width: int

    @property
    def is_full(self) -> bool:
        """Whether it will never change."""
        return self.width == TILE_WIDTH

    @property
    def start(self) -> int:
        """The first index of its level."""
        return self.number * TILE_WIDTH


def tile_path(tile: Tile) -> str:
    """Return the path of a published tile.

    >>> tile_path(Tile(0, 1234067, 256)), tile_path(Tile(None, 0, 5))
    ('tile/0/x001/x234/067', 'tile/entries/000.p/5')
    """
    digits = f"{tile.number:03d}"
    digits = digits.zfill(-(-len(digits) // 3) * 3)
    groups = [digits[at : at + 3] for at in range(0, len(digits), 3)]
    path = "/".join([f"x{group}" for group in groups[:-1]] + groups[-1:])
    level = "entries" if tile.level is None else str(tile.level)
    return f"tile/{level}/{path}" + ("" if tile.is_full else f".p/{tile.width}")


def tiles_of(size: int) -> Iterator[Tile]:
    """Yield every tile of a tree of that size: entries first, then the levels from the leaves up.

    >>> [tile_path(tile) for tile in tiles_of(257)][-3:]
    ['tile/0/000', 'tile/0/001.p/1', 'tile/1/000.p/1']
    """
    yield from entry_tiles(size)
    yield from hash_tiles(size)


def entry_tiles(size: int) -> Iterator[Tile]:
    """Return the tiles with the entries of a log of that size.

    >>> [tile_path(tile) for tile in entry_tiles(257)]
    ['tile/entries/000', 'tile/entries/001.p/1']
    """
    return _tiles_of_level(None, size)


def hash_tiles(size: int) -> Iterator[Tile]:
    """Return the tiles with the hashes of a tree of that size, from the leaves up.

    >>> [tile_path(tile) for tile in hash_tiles(257)]
    ['tile/0/000', 'tile/0/001.p/1', 'tile/1/000.p/1']
    """
    level = 0
    while count := size >> level * TILE_HEIGHT:
        yield from _tiles_of_level(level, count)
        level += 1


def _tiles_of_level(level: int | None, count: int) -> Iterator[Tile]:
    for number in range(-(-count // TILE_WIDTH)):
        yield Tile(level, number, min(TILE_WIDTH, count - number * TILE_WIDTH))


def hash_tile(tree: merkle.MerkleTree, tile: Tile) -> bytes:
    """Return the bytes of a tile of hashes."""
    assert tile.level is not None
    return tree.nodes(tile.level * TILE_HEIGHT, tile.start, tile.start + tile.width)


def encode_entries(entries: Sequence[bytes]) -> bytes:
    """Return the bytes of a tile of entries.

    >>> encode_entries([b"ab"])
    b'\\x00\\x02ab'
    """
    for entry in entries:
        if len(entry) > ENTRY_BYTES_MAX:
            raise TooLarge(
                f"an entry must have at most {ENTRY_BYTES_MAX} bytes, got {len(entry)}",
                size=len(entry),
                limit=ENTRY_BYTES_MAX,
            )
    return b"".join(len(entry).to_bytes(2, "big") + entry for entry in entries)


def decode_entries(raw: bytes) -> list[bytes]:
    """Return the entries in the bytes of a tile; reject a truncated entry.

    >>> decode_entries(encode_entries([b"ab", b""]))
    [b'ab', b'']
    """
    entries: list[bytes] = []
    at = 0
    while at < len(raw):
        end = at + 2 + int.from_bytes(raw[at : at + 2], "big")
        if end > len(raw) or at + 2 > len(raw):
            raise Damaged(f"entry {len(entries)} of the tile is cut off", reason="entry")
        entries.append(raw[at + 2 : end])
        at = end
    return entries


def holds_entries(raw: bytes, leaves: bytes) -> bool:
    """Return whether the bytes of a tile are exactly the entries with these hashes.

    >>> leaves = merkle.SHA256.leaf(b"ab")
    >>> holds_entries(encode_entries([b"ab"]), leaves), holds_entries(b"", leaves)
    (True, False)
    """
    try:
        entries = decode_entries(raw)
    except Damaged:
        return False
    return b"".join(map(merkle.SHA256.leaf, entries)) == leaves


@dataclass(frozen=True, slots=True)
class TlogProof:
    """An offline proof of one entry of the header tree: index, path, signed head, and our addition (`extra`)."""

    index: int
    path: tuple[bytes, ...]
    head: bytes
    extra: bytes = b""

    def to_bytes(self) -> bytes:
        """Return the bytes of a `.tlog-proof` file.

        >>> TlogProof(5, (), b"head\\n").to_bytes().decode().splitlines()[:2]
        ['c2sp.org/tlog-proof@v1', 'index 5']
        """
        lines = [_MAGIC]
        if self.extra:
            lines.append(f"extra {base64_encode(self.extra)}")
        lines.append(f"index {self.index}")
        lines += [base64_encode(each) for each in self.path]
        return "\n".join([*lines, "", ""]).encode() + self.head


def parse_tlog_proof(raw: bytes) -> TlogProof:
    """Parse a proof file; only the form is checked.

    >>> proof = TlogProof(5, (bytes(32),), b"head\\n", b"more")
    >>> parse_tlog_proof(proof.to_bytes()) == proof
    True
    """
    try:
        front, head = raw.split(b"\n\n", 1)
        lines = front.decode("ascii").split("\n")
        extra = b""
        if lines[0] != _MAGIC:
            raise ValueError
        if lines[1].startswith("extra "):
            extra = base64_decode(lines.pop(1)[6:])
        number = lines[1].removeprefix("index ")
        path = tuple(base64_decode(line) for line in lines[2:])
        if not lines[1].startswith("index ") or str(int(number)) != number or int(number) < 0:
            raise ValueError
    except (ValueError, IndexError, RopewalkError) as error:
        raise InvalidProof("not a c2sp.org/tlog-proof@v1") from error
    if len(path) > _HASHES_MAX or any(len(each) != 32 for each in path):
        raise InvalidProof("a path must be a short list of hashes of 32 bytes")
    return TlogProof(int(number), path, head, extra)
