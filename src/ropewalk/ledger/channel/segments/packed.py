"""Packed segments: a closed segment, compressed in place and read at the same offsets as before.

    <channel>/segments/<first height, 20 digits>.seg.zst

Zstandard frames, each with complete records of about 256 KiB and its own checksum, so that one record is read
without the others. Behind them, in frames that unpacking skips, a Merkle manifest (heights, block hashes, their root,
digest and size of the segment), the lengths of the records, and last the table of the frames. `zstd -d` gives the
segment back.
"""

from __future__ import annotations

import bisect
import contextlib
import io
import os
import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import zstandard
from blake3 import blake3

from ropewalk.disk.durable import Disk
from ropewalk.errors import Damaged, InvalidJson
from ropewalk.kernel import jcs, merkle
from ropewalk.kernel.digest import blake3 as digest_of
from ropewalk.kernel.digest import hash_from_hex
from ropewalk.ledger.channel.segments.format import ALIGN, BlockPlace

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

SUFFIX: Final = ".seg.zst"
FRAME_BYTES: Final = 1 << 18  # before packing; a larger block has its own frame
LEVEL: Final = 3
SKIPPED: Final = struct.Struct("<II")  # magic and length of a frame that unpacking skips
SKIPPED_MAGIC: Final = 0x184D2A5E
# Magic, lengths of manifest, records and table, first height, checksum.
FOOT: Final = struct.Struct(">8sQQQQ32s")
FOOT_MAGIC: Final = b"RWSEGZ01"
FRAME: Final = struct.Struct(">QQQ16s")  # offset in the file, offset in the segment, first height, checksum
MEMBERS: Final = frozenset(
    ("version", "start_height", "end_height", "block_hashes", "range_root", "blake3", "bytes")
)
UNPACKED_MAX: Final = 64 << 20  # a frame holds one record or little more; a larger one is damage


def packed_path(path: Path) -> Path:
    """Return the path of the packed form of a segment."""
    return path.with_name(path.name.removesuffix(".seg") + SUFFIX)


class _Frame(NamedTuple):
    offset: int
    start: int
    height: int
    check: bytes


class PackedSegment(io.RawIOBase):
    """A packed segment, read as the original segment. Raises `Damaged` if it cannot be read."""

    def __init__(self, path: Path, start: int) -> None:
        super().__init__()
        self._start, self._name = start, path.parent.parent.name
        self._stream = path.open("rb", buffering=0)
        try:
            self._read_table()
        except BaseException:
            self._stream.close()
            raise
        self._at = 0
        self._held, self._bytes = -1, b""

    def _read_table(self) -> None:
        end = os.fstat(self._stream.fileno()).st_size
        foot = self._pread(FOOT.size, max(0, end - FOOT.size))
        if len(foot) != FOOT.size:
            raise self.damage("its end is missing")
        magic, manifest, records, table, first, check = FOOT.unpack(foot)
        room = end - 3 * SKIPPED.size - FOOT.size
        if magic != FOOT_MAGIC or first != self._start or max(manifest, records, table) > room:
            raise self.damage("its footer is invalid")
        rows = self._pread(table, end - FOOT.size - table)
        if digest_of(foot[:-32] + rows) != check or table % FRAME.size or not table:
            raise self.damage("its table differs from its checksum")
        # The last row has the end of the frames: in the file, in the segment, and the height after them.
        self._frames = [_Frame(*row) for row in FRAME.iter_unpack(rows)]
        self._starts = [frame.start for frame in self._frames[:-1]]
        last = self._frames[-1]
        rising = all(
            low.offset < high.offset and low.start < high.start and low.height < high.height
            for low, high in pairwise(self._frames)
        )
        if (
            not rising
            or self._frames[0][:3] != (0, 0, self._start)
            or last.offset != room - manifest - records - table
        ):
            raise self.damage("its table does not match its frames")
        self.size, self.end_height = last.start, last.height - 1
        self._records = last.offset + 2 * SKIPPED.size + manifest, records
        self._manifest = last.offset + SKIPPED.size, manifest

    def places(self) -> Iterator[tuple[int, BlockPlace]]:
        """Yield heights and places of its records; no frame is unpacked."""
        offset, size = self._records
        raw = self._pread(size, offset)
        if len(raw) != size or size % 4 or digest_of(raw[32:]) != raw[:32]:
            raise self.damage("its list of records differs from its checksum")
        at = ALIGN
        for height, (length,) in enumerate(struct.iter_unpack(">I", raw[32:]), self._start):
            yield height, BlockPlace(self._start, at, length)
            at += ALIGN + length

    def manifest(self) -> dict[str, Any]:
        offset, size = self._manifest
        raw = self._pread(size, offset)
        if len(raw) != size or digest_of(raw[32:]) != raw[:32]:
            raise self.damage("its manifest differs from its checksum")
        try:
            value = jcs.parse_canonical(raw[32:])
        except InvalidJson as error:
            raise self.damage(f"its manifest is not canonical JSON: {error.detail}") from error
        if not isinstance(value, dict) or value.keys() != MEMBERS:
            raise self.damage("its manifest has unexpected members")
        return value

    def check(self) -> None:
        """Check everything but the blocks for consistency; raise on a mismatch."""
        last, sizes = self._frames[-1].offset, (self._manifest[1], self._records[1])
        rest = os.fstat(self._stream.fileno()).st_size - last - 3 * SKIPPED.size - sum(sizes)
        for size in (*sizes, rest):
            if self._pread(SKIPPED.size, last) != SKIPPED.pack(SKIPPED_MAGIC, size):
                raise self.damage("unexpected bytes follow the blocks")
            last += SKIPPED.size + size
        value, count = self.manifest(), len(list(self.places()))
        listed = value["block_hashes"] if isinstance(value["block_hashes"], list) else []
        hashes = [found for each in listed if (found := hash_from_hex(each)) is not None]
        root = merkle.root(hashes, merkle.RANGE).hex()
        said = [value[name] for name in ("version", "start_height", "end_height", "bytes", "range_root")]
        true = [1, self._start, self.end_height, self.size, root]
        if said != true or not len(hashes) == len(listed) == count:
            raise self.damage("its manifest belongs to another segment")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        if self._at >= self.size:
            return 0
        number = bisect.bisect_right(self._starts, self._at) - 1
        raw, begin = self._unpacked(number), self._starts[number]
        view = memoryview(buffer).cast("B")
        piece = raw[self._at - begin : self._at - begin + len(view)]
        view[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)

    def close(self) -> None:
        self._stream.close()
        super().close()

    def _unpacked(self, number: int) -> bytes:
        if self._held != number:
            frame, after = self._frames[number], self._frames[number + 1]
            size = after.start - frame.start
            raw = self._pread(after.offset - frame.offset, frame.offset)
            if digest_of(raw)[:16] != frame.check:  # the frame format has some bits without a meaning
                raise self.damage("a packed frame differs from its checksum", frame)
            try:
                if not 0 < size <= UNPACKED_MAX or zstandard.frame_content_size(raw) != size:
                    raise self.damage("a packed frame has another size", frame)
                self._bytes = zstandard.ZstdDecompressor().decompress(raw, max_output_size=size)
            except zstandard.ZstdError as error:
                raise self.damage(f"a packed frame is damaged ({error})", frame) from error
            self._held = number
        return self._bytes

    def _pread(self, size: int, offset: int) -> bytes:
        return os.pread(self._stream.fileno(), size, offset)

    def damage(self, what: str, frame: _Frame | None = None) -> Damaged:
        """Return the error with its location."""
        height, offset = (frame.height, frame.start) if frame is not None else (self._start, 0)
        return Damaged(
            f"channel {self._name}, block {height}: {what} (packed segment {self._start}, offset {offset})",
            height=height,
            segment=self._start,
            offset=offset,
            reason=what,
        )


def write_packed_segment(
    path: Path, start: int, records: Sequence[tuple[BlockPlace, bytes]], disk: Disk
) -> tuple[int, int]:
    """Pack a closed segment with these records and block hashes; return the sizes before and after.

    The packed form is read back and compared before it gets its name; only then the segment is removed.
    """
    target = packed_path(path)
    beside = target.with_name(f".{target.name}.tmp")
    with contextlib.suppress(FileNotFoundError):
        disk.unlink(beside)  # left by a killed process
    try:
        size, packed, digest = _pack(path, start, records, beside, disk)
        with contextlib.closing(PackedSegment(beside, start)) as back:
            hasher = blake3()
            stream = io.BufferedReader(back, FRAME_BYTES)
            while piece := stream.read(FRAME_BYTES):
                hasher.update(piece)
            if hasher.hexdigest() != digest or [place for _, place in back.places()] != [
                r[0] for r in records
            ]:
                raise back.damage("the packed segment differs from the original")
        disk.rename(beside, target)
        disk.fsync_directory(target.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
    disk.unlink(path)  # readers that have it open keep it; new ones find the packed one
    disk.fsync_directory(path.parent)
    return size, packed


def _pack(
    path: Path, start: int, records: Sequence[tuple[BlockPlace, bytes]], beside: Path, disk: Disk
) -> tuple[int, int, str]:
    frames: list[bytes] = []
    hasher, written = blake3(), 0
    packer = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = os.open(beside, flags, 0o600)
    try:
        with path.open("rb", buffering=0) as source:
            size = os.fstat(source.fileno()).st_size
            if records[-1][0].end != size:
                raise Damaged(f"segment {start} does not end with its last record", segment=start)
            for begin, end, height in _cuts(records, start):
                raw = os.pread(source.fileno(), end - begin, begin)
                hasher.update(raw)
                packed = packer.compress(raw)
                frames.append(FRAME.pack(written, begin, height, digest_of(packed)[:16]))
                disk.write(descriptor, packed)
                written += len(packed)
        frames.append(FRAME.pack(written, size, start + len(records), bytes(16)))
        tail = _tail(start, size, hasher.hexdigest(), records, b"".join(frames))
        disk.write(descriptor, tail)
        disk.fsync(descriptor)
    finally:
        os.close(descriptor)
    return size, written + len(tail), hasher.hexdigest()


def _cuts(records: Sequence[tuple[BlockPlace, bytes]], start: int) -> Iterator[tuple[int, int, int]]:
    """Yield begin, end and first height of every frame."""
    begin, first = 0, start
    for height, (place, _) in enumerate(records, start):
        if place.end - begin >= FRAME_BYTES or height == start + len(records) - 1:
            yield begin, place.end, first
            begin, first = place.end, height + 1


def _tail(
    start: int, size: int, digest: str, records: Sequence[tuple[BlockPlace, bytes]], rows: bytes
) -> bytes:
    hashes = [hash_ for _, hash_ in records]
    body = jcs.encode(
        {
            "version": 1,
            "start_height": start,
            "end_height": start + len(records) - 1,
            "block_hashes": [each.hex() for each in hashes],
            "range_root": merkle.root(hashes, merkle.RANGE).hex(),
            "blake3": digest,
            "bytes": size,
        }
    )
    manifest = digest_of(body) + body
    lengths = b"".join(struct.pack(">I", place.length) for place, _ in records)
    listed = digest_of(lengths) + lengths
    foot = FOOT.pack(FOOT_MAGIC, len(manifest), len(listed), len(rows), start, bytes(32))[:-32]
    return b"".join(
        (
            SKIPPED.pack(SKIPPED_MAGIC, len(manifest)),
            manifest,
            SKIPPED.pack(SKIPPED_MAGIC, len(listed)),
            listed,
            SKIPPED.pack(SKIPPED_MAGIC, len(rows) + FOOT.size),
            rows,
            foot,
            digest_of(foot + rows),
        )
    )
