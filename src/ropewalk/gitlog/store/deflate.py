"""Deflate and its checksums: ISA-L where its wheel is installed, else zlib. Any zlib reads the streams.

Appends store objects, which costs least; rolling up packs compresses them (decision 0042).
"""

from __future__ import annotations

import struct
import zlib

SMALL_WINDOW_MAX = 4_096  # bytes; below this a 4 KiB window compresses as well and starts five times faster
STORED_BLOCK_MAX = 65_535  # bytes of one stored block (RFC 1951, 3.2.4)


def _by_zlib(raw: bytes) -> bytes:
    if len(raw) <= SMALL_WINDOW_MAX:
        packer = zlib.compressobj(1, zlib.DEFLATED, 12, 5)
        return packer.compress(raw) + packer.flush()
    return zlib.compress(raw, 1)


try:
    from isal import isal_zlib
except ImportError:
    deflate = _by_zlib
    adler32, crc32 = zlib.adler32, zlib.crc32
else:
    adler32, crc32 = isal_zlib.adler32, isal_zlib.crc32

    def deflate(raw: bytes) -> bytes:
        """Return the bytes as a compressed zlib stream.

        >>> zlib.decompress(deflate(b"rope" * 9)) == b"rope" * 9
        True
        """
        return isal_zlib.compress(raw, 1)


def store(raw: bytes) -> bytes:
    """Return the bytes as a zlib stream of stored blocks.

    >>> store(b"rope").hex()
    '7801010400fbff726f7065045e01b7'
    """
    parts = [b"\x78\x01"]
    for at in range(0, len(raw) or 1, STORED_BLOCK_MAX):
        block = raw[at : at + STORED_BLOCK_MAX]
        last = at + STORED_BLOCK_MAX >= len(raw)
        parts += struct.pack("<BHH", last, len(block), len(block) ^ 0xFFFF), block
    parts.append(adler32(raw).to_bytes(4, "big"))
    return b"".join(parts)


def is_stored(stream: bytes) -> bool:
    """Tell whether a zlib stream begins with a stored block."""
    return len(stream) > 2 and not stream[2] & 6
