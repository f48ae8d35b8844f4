"""The index is a help and no authority: every wrong row is found, and none becomes a wrong answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.ledger.making import NODE, command, observed, opened

from ropewalk.errors import Damaged
from ropewalk.ledger.block.index_keys import BlockIndexKeys, derive
from ropewalk.ledger.channel.channel import open_channel, open_log
from ropewalk.ledger.channel.index.check import IndexCheck, check_index
from ropewalk.ledger.channel.index.index import LedgerIndex
from ropewalk.ledger.channel.segments.reader import Segments


@pytest.fixture
def home(tmp_path: Path) -> Path:
    with opened(tmp_path) as ledger:
        for number in range(3):
            ledger.log.submit_many(
                [observed(number * 4 + i).raw for i in range(3)] + [command(f"c-{number}").raw]
            )
    return tmp_path


def checked(home: Path) -> IndexCheck:
    return check_index(Segments(home / "ledger" / "ea.core"))


def bend(home: Path, change: Callable[[int, BlockIndexKeys], BlockIndexKeys]) -> None:
    """Store an index whose checksums hold, though it was made from marks that are not the log's."""

    def bent(lines: Sequence[bytes]) -> BlockIndexKeys:
        marks = derive(lines)
        return change(heights[marks.block_hash], marks)

    segments = Segments(home / "ledger" / "ea.core")
    heights = {derive(record.lines).block_hash: record.height for record in segments.scan()}
    index = LedgerIndex(segments, bent)
    index.rebuild()
    index.close()


NAMES = {"ids": "id", "claims": "claim", "intents": "intent"}


def wrong(marks: BlockIndexKeys, field: str, index: int, value: bytes | None) -> BlockIndexKeys:
    names = list(getattr(marks, field))
    names[index] = value
    changed: Any = {field: tuple(names)}
    return replace(marks, **changed)


def test_an_index_made_by_appending_has_every_row(home):
    found = checked(home)
    assert (found.ok, found.blocks, found.behind) == (True, 3, 0), found.explain()


def test_no_index_at_all_is_no_fault(home, tmp_path):
    for path in (home / "ledger" / "ea.core" / "index").iterdir():
        path.unlink()
    found = checked(home)
    assert (found.ok, found.blocks, found.behind) == (True, 0, 3)


@pytest.mark.parametrize("field", NAMES)
def test_index_check_names_a_missing_row(home, field):
    value = None if field == "claims" else b"\xff" * 32
    bend(home, lambda height, marks: wrong(marks, field, 3, value) if height == 1 else marks)
    found = checked(home)
    assert found.faults["missing"] == 1
    first = "block 1 is wrong" if field == "ids" else f"the {NAMES[field]} of block 1, envelope 3 is missing"
    assert first in found.explain()
    assert "reindex" in found.explain()


def test_index_check_names_a_missing_root(home):
    bend(home, lambda height, marks: replace(marks, root=bytes(32)) if height == 2 else marks)
    assert checked(home).faults["missing"] == 1


@pytest.mark.parametrize("field", NAMES)
def test_index_check_names_a_row_that_leads_elsewhere(home, field):
    # The name of block 1, envelope 3 leads to block 0, envelope 0, which has another one.
    with open_channel(home, "ea.core") as channel:
        other = getattr(derive(channel.segments.find(1).lines), field)[3]
    bend(home, lambda height, marks: wrong(marks, field, 0, other) if height == 0 else marks)
    assert checked(home).faults["wrong"] == (
        2 if field == "ids" else 1
    )  # ids are in the entry of block 0 too


def test_index_check_counts_extra_rows(home):
    bend(home, lambda height, marks: wrong(marks, "claims", 0, b"\xff" * 32))
    assert checked(home).faults == {"extra": 1}


def test_index_check_compares_block_entries(home):
    bend(home, lambda height, marks: replace(marks, header_leaf=bytes(32)) if height == 1 else marks)
    found = checked(home)
    assert found.faults["wrong"] == 2, found.explain()  # the entry, and the head above it
    assert "block 1 is wrong" in found.explain()


def test_index_row_that_leads_elsewhere_proves_nothing(home):
    wanted = observed(4).id
    bend(home, lambda height, marks: wrong(marks, "ids", 0, wanted) if height == 0 else marks)
    with open_channel(home, "ea.core") as channel, pytest.raises(Damaged, match="not the one indexed"):
        channel.prove(wanted)


def test_a_log_that_lost_blocks_the_index_knows_is_said(home):
    (segment,) = (home / "ledger" / "ea.core" / "segments").glob("*.seg")
    with open_channel(home, "ea.core") as channel:
        place = channel.index.block(2).place
    segment.write_bytes(segment.read_bytes()[: place.offset])
    with pytest.raises(Damaged, match="had been receipted"):
        checked(home)
    (segment.parent.parent / "receipted").unlink()  # as in a channel of an earlier version
    found = checked(home)
    assert not found.ok
    assert "blocks are missing" in found.explain()


def test_an_index_thrown_away_under_an_open_writer_is_whole_again(home):
    with open_log(home, "ea.core", NODE, now_ns=lambda: 1_730_462_400 * 10**9) as ledger:
        ledger.log.submit(observed(100).raw)
        with open_channel(home, "ea.core") as reading:
            reading.index.rebuild()
        ledger.log.submit(observed(101).raw)
    found = checked(home)
    assert (found.ok, found.blocks) == (True, 5), found.explain()
