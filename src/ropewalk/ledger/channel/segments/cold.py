"""Cold segments: a closed segment whose bytes are only in archives, rebuilt from them when it is read.

    <channel>/segments/<first height, 20 digits>.seg.cold    where the archives are, and the digest of the segment
    <channel>/cache/<first height>.seg                        a rebuilt one; the newest few are kept

A segment is the same bytes whatever they are rebuilt from, so the digest in the small file decides whether an archive
still holds what was dropped here.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Final, cast

from blake3 import blake3

from ropewalk.disk.durable import sync
from ropewalk.errors import Damaged, RopewalkError, Unavailable
from ropewalk.kernel import jcs
from ropewalk.ledger.channel.receipted import repair_advice
from ropewalk.ledger.channel.segments.format import ALIGN, record_head, segment_head
from ropewalk.ledger.json_form import members_of

COLD_SUFFIX: Final = ".seg.cold"
CACHED_MAX: Final = 2  # rebuilt segments that are kept; each has up to about 64 MiB
_MEMBERS: Final = {"version", "channel", "start_height", "end_height", "bytes", "blake3", "cold"}


@dataclass(frozen=True, slots=True)
class ColdSegment:
    """A dropped segment: its heights, size and digest, and the location of the archives."""

    channel: str
    start: int
    end: int
    size: int
    digest: str
    location: str

    def to_bytes(self) -> bytes:
        """Return the bytes of its file.

        >>> parse_cold(ColdSegment("ops", 0, 9, 64, "00" * 32, "/mnt/cold").to_bytes()).end
        9
        """
        names = {
            "start": "start_height",
            "end": "end_height",
            "size": "bytes",
            "digest": "blake3",
            "location": "cold",
        }
        return jcs.encode({"version": 1, **members_of(self, **names)})


def parse_cold(raw: bytes) -> ColdSegment:
    """Parse the file of a cold segment; raise `Damaged` if it is not what was written."""
    try:
        value = jcs.parse_canonical(raw)
    except RopewalkError as error:
        raise Damaged(f"cold segment: {error.detail}", reason="segment") from error
    if not isinstance(value, dict) or value.keys() != _MEMBERS or value["version"] != 1:
        raise Damaged("cold segment: unexpected members", reason="segment")
    numbers = [value[name] for name in ("start_height", "end_height", "bytes")]
    texts = [value[name] for name in ("channel", "blake3", "cold")]
    if not all(type(each) is int for each in numbers) or not all(isinstance(each, str) for each in texts):
        raise Damaged("cold segment: heights and bytes must be numbers, the rest strings", reason="segment")
    start, end, size = cast("list[int]", numbers)
    channel, digest, location = cast("list[str]", texts)
    return ColdSegment(channel, start, end, size, digest, location)


def cold_path(path: Path) -> Path:
    """Return the path of the small file of a dropped segment."""
    return path.with_name(path.name.removesuffix(".seg") + COLD_SUFFIX)


def read_cold(path: Path) -> ColdSegment:
    """Read the small file of a dropped segment by the path that the segment had."""
    raw = cold_path(path).read_bytes()
    try:
        return parse_cold(raw)
    except Damaged as error:
        channel, start = path.parent.parent.name, int(path.name[:20])
        raise Damaged(
            f"channel {channel}, block {start}: {error.detail}",
            height=start,
            reason="cold segment",
            advice=repair_advice(channel),
        ) from error


def open_cold(path: Path) -> BinaryIO:
    """Open a dropped segment by the path it had; raise `FileNotFoundError` if it was not dropped."""
    cold = read_cold(path)
    cache = path.parent.parent / "cache"
    with contextlib.suppress(FileNotFoundError):
        found = (cache / path.name).open("rb", buffering=0)
        if os.fstat(found.fileno()).st_size == cold.size:
            return cast(BinaryIO, found)
        found.close()
    try:
        cache.mkdir(mode=0o700, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=cache, prefix=".")
    except OSError:  # the folder is not writable for this reader: rebuild it in a temporary file
        unnamed = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - the caller closes it
        for piece in segment_pieces(cold):
            unnamed.write(piece)
        unnamed.seek(0)
        return cast(BinaryIO, unnamed)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            for piece in segment_pieces(cold):
                stream.write(piece)
            stream.flush()
            sync(stream.fileno())  # else a power cut may leave its name and its size, with other bytes
        opened = Path(name).open("rb", buffering=0)  # noqa: SIM115 - before another reader prunes it
        Path(name).replace(cache / path.name)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise
    _prune(cache)
    return cast(BinaryIO, opened)


def segment_pieces(cold: ColdSegment) -> Iterator[bytes]:
    """Yield the bytes of a segment out of its archives; raise `Damaged` at the end unless they have its digest."""
    from ropewalk.ledger.archive.cold import cold_store

    hasher, size = blake3(), 0
    try:
        pieces = (
            piece
            for height, lines in cold_store(cold.location).blocks(cold.channel, cold.start, cold.end)
            for piece in _record(height, lines)
        )
        for piece in chain([segment_head(cold.start)], pieces):
            hasher.update(piece)
            size += len(piece)
            yield piece
    except (Unavailable, OSError) as error:
        raise Unavailable(
            f"channel {cold.channel}: blocks {cold.start}–{cold.end} are in the cold tier, {cold.location}, which "
            f"cannot be read: {error.detail if isinstance(error, Unavailable) else error.strerror}",
            height=cold.start,
            end_height=cold.end,
            advice="Make it reachable again, or bring the blocks back with `ropewalk ledger repair --from-replica`.",
        ) from error
    if (size, hasher.hexdigest()) != (cold.size, cold.digest):
        raise Damaged(
            f"channel {cold.channel}, blocks {cold.start}–{cold.end}: the archives in {cold.location} do not hold "
            "the bytes of this segment",
            height=cold.start,
            reason="cold segment",
            advice="Take the archives from another copy; nothing was changed.",
        )


def _record(height: int, lines: list[bytes]) -> tuple[bytes, bytes]:
    body = b"\n".join(lines) + b"\n"
    body += b"\n" * (-len(body) % ALIGN)
    return record_head(height, body), body


def _prune(cache: Path) -> None:
    """Keep the newest few; a reader that has another one open keeps it until it is closed."""
    with contextlib.suppress(OSError):
        found = sorted(cache.glob("*.seg"), key=lambda each: each.stat().st_mtime_ns, reverse=True)
        for each in found[CACHED_MAX:]:
            each.unlink(missing_ok=True)
