"""Zstandard files: written atomically, read as a stream within limits, never extracted."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from glob import escape as glob_escape
from pathlib import Path
from typing import IO

import zstandard

from ropewalk.disk.durable import file_errors, sync, sync_folder
from ropewalk.errors import Damaged, Invalid, NotFound, TooLarge, Unavailable

MAGIC = b"\x28\xb5\x2f\xfd"
LEVEL = 1  # hashes do not compress; higher levels cost much and save little
THREADS = 2  # any number but zero gives the same bytes
READ_BYTES = 1 << 16
# Four packed bytes can stand for 128 KiB. Fed in pieces of this size, the unpacker never answers with more than 16 MiB.
PIECE_BYTES = 512
HAND_ON_BYTES = 1 << 18
WINDOW_BYTES_MAX = 1 << 27  # what the zstd command accepts by default


@dataclass(frozen=True, slots=True)
class UnpackLimits:
    """Maximum unpacked size: in total, and as a multiple of the file size once it is large."""

    bytes_max: int = 64 << 30
    ratio_max: int = 1000
    ratio_from: int = 64 << 20  # below this a high ratio is only a small file

    @classmethod
    def said(cls, bytes_max: int) -> UnpackLimits:
        """Return limits for an explicit maximum: up to that, at any compression ratio."""
        return cls(bytes_max=bytes_max, ratio_from=bytes_max)


def is_packed(path: Path) -> bool:
    """Return whether a file begins with the Zstandard magic."""
    with path.open("rb") as stream:
        return stream.read(4) == MAGIC


def packed_size(path: Path) -> int | None:
    """Return the size of a plain file; None for anything else, such as a pipe."""
    try:
        found = path.stat()
    except OSError:
        return None  # reading reports the reason
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def read_packed(path: Path, limits: UnpackLimits | None = None) -> Iterator[bytes]:
    """Yield the unpacked bytes. `Invalid`: not Zstandard; `Damaged`: truncated, changed or continued; `TooLarge`: a
    bomb.
    """
    try:
        with path.open("rb") as stream:
            yield from _unpack(stream, limits or UnpackLimits())
    except FileNotFoundError as error:
        raise NotFound(f"no file {path}", name=str(path)) from error
    except IsADirectoryError as error:
        raise Invalid(f"{path} is a directory, not a bundle", name=str(path)) from error
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror}", name=str(path)) from error


def _unpack(stream: IO[bytes], limits: UnpackLimits) -> Iterator[bytes]:
    head = stream.read(READ_BYTES)
    if head[:4] != MAGIC:
        raise Invalid("not a bundle: it is not packed with Zstandard", advice="Bundles are .tar.zst files.")
    unpacker = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES_MAX).decompressobj()
    taken = given = waiting = 0
    ready: list[bytes] = []
    while head:
        for start in range(0, len(head), PIECE_BYTES):
            piece = head[start : start + PIECE_BYTES]
            if unpacker.eof:
                raise Damaged("bytes follow after the end of the packed data", reason="trailing bytes")
            try:
                out = unpacker.decompress(piece)
            except (zstandard.ZstdError, MemoryError) as error:
                if ready:
                    yield b"".join(ready)
                raise Damaged(f"the packed data are damaged ({error})", reason="packing") from error
            taken += len(piece)
            given += len(out)
            if given > limits.bytes_max or (given > limits.ratio_from and given > taken * limits.ratio_max):
                raise TooLarge(
                    f"unpacks to more than {given} bytes from {taken}; refused as a decompression bomb",
                    size=given,
                    limit=limits.bytes_max,
                    advice="Nothing was written. If you trust its origin, raise the limit: "
                    "`ropewalk bundle verify --max-bytes N`.",
                )
            ready.append(out)
            waiting += len(out)
            if waiting >= HAND_ON_BYTES:
                yield b"".join(ready)
                ready, waiting = [], 0
            if unpacker.unused_data:
                yield b"".join(ready)
                raise Damaged("bytes follow after the end of the packed data", reason="trailing bytes")
        head = stream.read(READ_BYTES)
    if ready:
        yield b"".join(ready)
    if not unpacker.eof:
        raise Damaged("the packed data end too early", reason="truncated")


def write_packed(path: Path, pieces: Iterable[bytes], size: int) -> int:
    """Pack `size` bytes into a temporary file and rename it when durable; return the packed size."""
    compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True, threads=THREADS)
    packer = compressor.compressobj(size=size)
    _clear_left_over(path)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with file_errors(f"bundle {path.name}"):
        try:
            with beside.open("wb") as stream:
                for piece in pieces:
                    stream.write(packer.compress(piece))
                stream.write(packer.flush())
                stream.flush()
                sync(stream.fileno())
                packed = stream.tell()
            beside.replace(path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)
    return packed


def _clear_left_over(path: Path) -> None:
    """Remove temporary files of this target left by killed processes; keep those of running ones."""
    for left in path.parent.glob(f".{glob_escape(path.name)}.*.tmp"):
        number = left.name.split(".")[-2]
        if not number.isdecimal() or int(number) == os.getpid():
            continue
        try:
            os.kill(int(number), 0)
        except ProcessLookupError:
            left.unlink(missing_ok=True)
        except OSError:
            continue  # a process of another user: it runs


class Spool:
    """Temporary bytes on disk, removed when closed."""

    def __init__(self, folder: Path) -> None:
        with file_errors(f"space in {folder}"):
            self._stream = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed by `close`

    def write(self, raw: bytes) -> None:
        with file_errors("gathering the bundle"):
            self._stream.write(raw)

    def read(self) -> Iterator[bytes]:
        """Yield everything that was written, in order."""
        self._stream.seek(0)
        while piece := self._stream.read(HAND_ON_BYTES):
            yield piece

    def close(self) -> None:
        """Remove the file."""
        self._stream.close()
