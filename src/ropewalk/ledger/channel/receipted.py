"""The mark of receipted blocks: a small file next to the segments of a channel.

    <channel>/receipted    128 bytes: number of blocks; place, record digest and hash of the last; how many of them have
                           key statements; checksum

The writer sets the mark after a block is synced and before its receipts are returned. The write is not synced: it can
be late after a power failure, never early. So a log that ends below its mark has lost receipted blocks, and a torn tail
above it was never acknowledged.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ropewalk.disk.durable import Disk, read_file
from ropewalk.errors import Damaged, Unavailable
from ropewalk.kernel.digest import blake3
from ropewalk.ledger.channel.segments.format import BlockPlace

MARK: Final = "receipted"
MAGIC: Final = b"RWRCPT01"
BODY: Final = struct.Struct(">8sQQQQ32s32sQ")
UNKNOWN: Final = (1 << 64) - 1
MARK_BYTES: Final = 128  # within one sector: a disk writes it whole or not at all
READ_TRIES: Final = 20  # a reader may see a half-written mark


@dataclass(frozen=True, slots=True)
class ReceiptMark:
    """The number of receipted blocks of a channel, and the last of them."""

    blocks: int = 0
    place: BlockPlace | None = None
    digest: bytes = bytes(32)  # BLAKE3 of its record
    block_hash: bytes = bytes(32)
    statements: int | None = None  # how many of the blocks have key statements, if known

    def to_bytes(self) -> bytes:
        place = self.place or BlockPlace(0, 0, 0)
        body = BODY.pack(
            MAGIC,
            self.blocks,
            place.segment,
            place.offset,
            place.length,
            self.digest,
            self.block_hash,
            UNKNOWN if self.statements is None else self.statements,
        )
        return body + blake3(body)[: MARK_BYTES - BODY.size]


def read_mark(folder: Path) -> ReceiptMark | None:
    """Return the mark of a channel, or None without one. Raise `Damaged` if it cannot be read."""
    path = folder / MARK
    for _ in range(READ_TRIES):
        try:
            found = _parse(read_file(path, MARK_BYTES + 1))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Unavailable(f"{path}: {error.strerror}", path=str(path)) from error
        if found is not None:
            return found
    raise Damaged(
        f"channel {folder.name}: the mark of receipted blocks is damaged ({path})",
        reason="mark",
        advice=repair_advice(folder.name),
    )


def _parse(raw: bytes) -> ReceiptMark | None:
    if len(raw) != MARK_BYTES or blake3(raw[: BODY.size])[: MARK_BYTES - BODY.size] != raw[BODY.size :]:
        return None
    magic, blocks, segment, offset, length, digest, block_hash, statements = BODY.unpack(raw[: BODY.size])
    if magic != MAGIC:
        return None
    place = BlockPlace(segment, offset, length) if length else None
    return ReceiptMark(blocks, place, digest, block_hash, None if statements == UNKNOWN else statements)


def repair_advice(channel: str) -> str:
    """Return what to do about a damaged channel."""
    return (
        f"Nothing was changed or deleted. `ropewalk ledger repair --channel {channel}` shows what is lost; "
        "with --from-archive or --from-replica it restores the blocks."
    )


def make_mark(folder: Path, disk: Disk) -> None:
    """Create the mark of a channel without blocks, atomically; keep an existing one."""
    beside = folder / f".{MARK}.{os.getpid()}.{threading.get_ident()}"
    beside.unlink(missing_ok=True)  # left by a killed process with the same id
    disk.write_new(beside, ReceiptMark(statements=0).to_bytes(), mode=0o600)
    try:
        with contextlib.suppress(FileExistsError):
            disk.link(beside, folder / MARK)
    finally:
        beside.unlink()
    disk.fsync_directory(folder)


class ReceiptMarkFile:
    """The mark of a channel, open for its writer."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        self._disk, self._dirty = disk, False
        self._fd = disk.open(folder / MARK, os.O_RDWR | os.O_CREAT)

    def write(self, mark: ReceiptMark) -> None:
        """Set the mark. Not synced: see `sync`."""
        self._disk.write_at(self._fd, mark.to_bytes(), 0)
        self._dirty = True

    def sync(self) -> None:
        """Make the mark durable."""
        if self._dirty:
            self._disk.fsync(self._fd)
            self._dirty = False

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
