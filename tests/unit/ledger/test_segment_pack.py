"""Packed segments whose checksums are right and whose words are wrong: refused as damage, with their place."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.fuzz.ledger import _packed_bytes, _segment_bytes

from ropewalk.errors import Damaged
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import blake3
from ropewalk.ledger.channel.segments.packed import (
    FOOT,
    FRAME,
    SKIPPED,
    SKIPPED_MAGIC,
    PackedSegment,
    packed_path,
)
from ropewalk.ledger.channel.segments.reader import Segments

Rows = list[tuple[int, int, int, bytes]]


def rewritten(
    change_rows: Callable[[Rows], Rows] = lambda rows: rows,
    change: Callable[[dict[str, Any]], object] = lambda value: value,
) -> bytes:
    """A packed segment somebody changed, with every checksum made anew."""
    raw = _packed_bytes()
    magic, manifest, records, table, first, _ = FOOT.unpack(raw[-FOOT.size :])
    rows = list(FRAME.iter_unpack(raw[-FOOT.size - table : -FOOT.size]))
    frames = raw[: rows[-1][0]]
    at = len(frames) + SKIPPED.size
    value: Any = jcs.parse(raw[at + 32 : at + manifest])
    listed = raw[at + manifest + SKIPPED.size : at + manifest + SKIPPED.size + records]
    body = jcs.encode(change(value))
    said = blake3(body) + body
    packed = b"".join(FRAME.pack(*row) for row in change_rows(rows))
    foot = struct.pack(">8sQQQQ", magic, len(said), records, len(packed), first)
    parts = [frames]
    for part in (said, listed, packed + foot + blake3(foot + packed)):
        parts += [SKIPPED.pack(SKIPPED_MAGIC, len(part)), part]
    return b"".join(parts)


def scanned(folder: Path, raw: bytes) -> list[int]:
    store = Segments(folder)
    store.files_folder.mkdir(parents=True)
    packed_path(store.path(0)).write_bytes(raw)
    return [record.height for record in store.scan()]


def test_what_is_rewritten_as_it_was_is_read(tmp_path):
    assert rewritten() == _packed_bytes()
    assert scanned(tmp_path, rewritten()) == [0, 1]
    with closing(PackedSegment(packed_path(Segments(tmp_path).path(0)), 0)) as packed:
        assert packed.read() == _segment_bytes()


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows[::-1],
        lambda rows: rows[-1:],
        lambda rows: [rows[0], rows[0], rows[-1]],
        lambda rows: [(1 << 63, *rows[0][1:]), *rows[1:]],
        lambda rows: [*rows[:-1], (rows[-1][0], 1 << 63, *rows[-1][2:])],
        lambda rows: [*rows[:-1], (rows[-1][0] - 1, *rows[-1][1:])],
        lambda rows: [(0, 0, 7, rows[0][3]), *rows[1:]],
    ],
    ids=["reversed", "none", "one twice", "far away", "huge", "cut", "other heights"],
)
def test_a_table_that_is_not_that_of_the_frames_is_damage(tmp_path, change):
    with pytest.raises(Damaged) as refused:
        scanned(tmp_path, rewritten(change_rows=change))
    assert refused.value.fields["height"] == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda value: [],
        lambda value: {},
        lambda value: {**value, "more": 1},
        lambda value: {**value, "block_hashes": "none"},
        lambda value: {**value, "block_hashes": [7, None]},
        lambda value: {**value, "block_hashes": value["block_hashes"][::-1]},
        lambda value: {**value, "range_root": None},
        lambda value: {**value, "version": 2},
        lambda value: {**value, "end_height": 7},
    ],
)
def test_a_manifest_of_another_form_is_damage(tmp_path, change):
    with pytest.raises(Damaged, match="manifest"):
        scanned(tmp_path, rewritten(change=change))
