"""Rows of an index in checked pages: a page either holds what was written, or reading it fails.

    page   16 bytes BLAKE3 of the rest, 8 bytes token of the index, number of the run, number of the page, row count,
           then rows, sorted
    row    16 bytes digest of a name, 12 bytes value
    run    pages that were written at once and never change; behind them one filter page for every 16

The digest of a name determines the page of a run that must hold its row. So one page proves a name absent, just as it
proves that it is present: a damaged page, or another page in its place, fails its check. A filter page is a Bloom
filter over the rows of its pages: most of what is absent needs no other page, and a reader keeps those it has checked.
Digests are salted, so that names cannot be chosen to crowd into one page. Reading uses `pread`: damage never ends the
process by a signal.
"""

from __future__ import annotations

import itertools
import os
import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ropewalk.disk.durable import Disk
from ropewalk.kernel.digest import blake3

_DISK = Disk()
PAGE_BYTES = 2048
DIGEST_BYTES = 16
ROW_BYTES = DIGEST_BYTES + 12
CHECK_BYTES = 16
_WHERE = struct.Struct(">8sIII")
_SPREAD = struct.Struct(">QQ")
_LOW = struct.Struct(">8xQ12x")
_ROWS_AT = CHECK_BYTES + _WHERE.size
ROWS_MAX = (PAGE_BYTES - _ROWS_AT) // ROW_BYTES
ROWS_MEAN = 40  # of a page at first; where a page overflows, the run gets more of them
GROUP = 512  # pages that are merged at a time
FILTERED = 16  # pages under one filter page; 25 bits for a row, so one name in 25 is looked up in vain
FILTER_BITS = 8 * (PAGE_BYTES - _ROWS_AT)


class IndexDamaged(Exception):
    """An index does not hold what was written; the log does."""


@dataclass(frozen=True, slots=True)
class IndexRun:
    """Where a run lies in its file."""

    number: int
    offset: int
    pages: int
    rows: int

    @property
    def end(self) -> int:
        """Where the file may go on."""
        return self.offset + (self.pages + self.filters) * PAGE_BYTES

    @property
    def filters(self) -> int:
        """How many filter pages follow its pages."""
        return -(-self.pages // FILTERED)


def key_digest(salt: bytes, name: bytes) -> bytes:
    """Return the digest under which a row is found.

    >>> key_digest(b"salt", b"name").hex()
    '7c2c3b8360eb7327aac544b3247de0fb'
    """
    return blake3(salt + name)[:DIGEST_BYTES]


def page_and_bit(digest: bytes) -> tuple[int, int]:
    """Return the number that determines the page of a row, and the bit that is set for it in a filter."""
    high, low = _SPREAD.unpack(digest)
    return high, low % FILTER_BITS


def read_filter(descriptor: int, token: bytes, run: IndexRun, number: int) -> bytes:
    """Return a filter of a run: bytes of eight bits each. Raises `IndexDamaged`."""
    return _read_page(descriptor, token, run, run.pages + number)[0]


def find_row(descriptor: int, token: bytes, run: IndexRun, digest: bytes) -> bytes | None:
    """Return the value of a digest, or None if the run has no such row. Raises `IndexDamaged`."""
    raw, count = _read_page(descriptor, token, run, page_and_bit(digest)[0] * run.pages >> 64)
    end = count * ROW_BYTES
    at = raw.find(digest, 0, end)
    while at >= 0 and at % ROW_BYTES:
        at = raw.find(digest, at + 1, end)
    return None if at < 0 else raw[at + DIGEST_BYTES : at + ROW_BYTES]


def read_rows(descriptor: int, token: bytes, run: IndexRun, start: int, stop: int) -> list[bytes]:
    """Return the rows of the pages from `start` up to, not including, `stop`, in order. Raises `IndexDamaged`."""
    rows: list[bytes] = []
    for page in range(start, stop):
        raw, count = _read_page(descriptor, token, run, page)
        rows += [raw[at : at + ROW_BYTES] for at in range(0, count * ROW_BYTES, ROW_BYTES)]
    return rows


def write_run(
    target: int,
    offset: int,
    sources: Sequence[tuple[int, IndexRun]],
    fresh: Sequence[bytes],
    token: bytes,
    number: int,
) -> IndexRun:
    """Write a run at an offset that holds the rows of other runs (with their descriptors) and sorted fresh rows.

    Of rows with one digest the one with the lowest value comes first, and is the one that is found. Where a page
    overflows, the others are left out. Raises `IndexDamaged`.
    """
    wanted = sum(run.rows for _, run in sources) + len(fresh)
    pages = -(-wanted // ROWS_MEAN) if wanted > ROWS_MAX else 1
    for attempt in itertools.count():
        count = 0
        for first in range(0, pages, GROUP):
            group = list(_group(sources, fresh, token, pages, first, attempt > 0))
            if any(len(rows) > ROWS_MAX for rows in group):
                break
            count += sum(map(len, group))
            packed = [
                _pack_page(token, number, page, len(rows), b"".join(rows))
                for page, rows in enumerate(group, first)
            ]
            _DISK.write_at(target, b"".join(packed), offset + first * PAGE_BYTES)
            filters = [_filter(group[at : at + FILTERED]) for at in range(0, len(group), FILTERED)]
            place = pages + first // FILTERED
            packed = [_pack_page(token, number, page, 0, raw) for page, raw in enumerate(filters, place)]
            _DISK.write_at(target, b"".join(packed), offset + place * PAGE_BYTES)
        else:
            return IndexRun(number, offset, pages, count)
        if attempt:
            pages += -(-pages // 4)
    raise AssertionError("unreachable")


def _group(
    sources: Sequence[tuple[int, IndexRun]],
    fresh: Sequence[bytes],
    token: bytes,
    pages: int,
    first: int,
    once: bool,
) -> Iterator[list[bytes]]:
    """Yield the rows of some pages of a run that is being written, beginning with the first."""
    last = min(first + GROUP, pages)
    low, high = _bound(first, pages), _bound(last, pages)
    rows = list(fresh[bisect_left(fresh, low) : bisect_left(fresh, high) if high else len(fresh)])
    for descriptor, run in sources:
        start = int.from_bytes(low, "big") * run.pages >> 64
        stop = (int.from_bytes(high, "big") * run.pages >> 64) + 1 if high else run.pages
        found = read_rows(descriptor, token, run, start, min(stop, run.pages))
        rows += found[bisect_left(found, low) : bisect_left(found, high) if high else len(found)]
    rows.sort()
    if once:
        rows = [row for row, before in zip(rows, [b"", *rows], strict=False) if not _same(row, before)]
    at = 0
    for page in range(first + 1, last + 1):
        bound = _bound(page, pages)
        end = bisect_left(rows, bound, at) if bound else len(rows)
        yield rows[at:end]
        at = end


def _filter(pages: Sequence[Sequence[bytes]]) -> bytes:
    bits = bytearray(FILTER_BITS // 8)
    for (low,) in _LOW.iter_unpack(b"".join(map(b"".join, pages))):
        bit = low % FILTER_BITS
        bits[bit >> 3] |= 1 << (bit & 7)
    return bytes(bits)


def _same(row: bytes, before: bytes) -> bool:
    return row[:DIGEST_BYTES] == before[:DIGEST_BYTES]


def _bound(page: int, pages: int) -> bytes:
    """Return what the digests of a page are not less than; nothing for the page after the last."""
    return b"" if page == pages else (-(-(page << 64) // pages)).to_bytes(8, "big")


def _pack_page(token: bytes, number: int, page: int, count: int, content: bytes) -> bytes:
    raw = _WHERE.pack(token, number, page, count) + content
    raw = raw.ljust(PAGE_BYTES - CHECK_BYTES, b"\0")
    return blake3(raw)[:CHECK_BYTES] + raw


def _read_page(descriptor: int, token: bytes, run: IndexRun, page: int) -> tuple[bytes, int]:
    """Return the content of a page and how many rows it has."""
    try:
        raw = os.pread(descriptor, PAGE_BYTES, run.offset + page * PAGE_BYTES)
    except OSError as error:
        raise IndexDamaged(f"page {page} of run {run.number}: {error.strerror}") from error
    body = raw[CHECK_BYTES:]
    if len(raw) != PAGE_BYTES or blake3(body)[:CHECK_BYTES] != raw[:CHECK_BYTES]:
        raise IndexDamaged(f"page {page} of run {run.number} differs from its checksum")
    *where, count = _WHERE.unpack_from(body)
    if where != [token, run.number, page]:
        raise IndexDamaged(f"page {page} of run {run.number} is another page")
    return body[_WHERE.size :], count
