"""Deflate for objects of about a kilobyte: ISA-L where there is a wheel of it, else zlib with a small window.

Both write streams that any zlib reads. For small texts ISA-L takes a quarter of zlib's time and leaves as few bytes.
"""

from __future__ import annotations

import zlib

__all__ = ["deflate"]

SMALL_WINDOW_MAX = 4_096  # bytes; below this a 4 KiB window compresses as well and starts five times faster


def _by_zlib(raw: bytes) -> bytes:
    if len(raw) <= SMALL_WINDOW_MAX:
        packer = zlib.compressobj(1, zlib.DEFLATED, 12, 5)
        return packer.compress(raw) + packer.flush()
    return zlib.compress(raw, 1)


try:
    from isal import isal_zlib
except ImportError:
    deflate = _by_zlib
else:

    def deflate(raw: bytes) -> bytes:
        """The bytes as a zlib stream.

        >>> zlib.decompress(deflate(b"rope" * 9)) == b"rope" * 9
        True
        """
        return isal_zlib.compress(raw, 1)
