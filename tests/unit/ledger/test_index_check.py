"""The index is a help and no authority: every wrong row is found, and none becomes a wrong answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest
from tests.unit.ledger.making import NODE, command, observed, opened

from ropewalk.errors import Damaged
from ropewalk.ledger.marks import derive
from ropewalk.node.ledger import open_channel, open_log
from ropewalk.stores.ledgerindexcheck import IndexCheck, check_index
from ropewalk.stores.ledgerrows import PLACE
from ropewalk.stores.segments import Segments

TABLES = (b"block", b"id", b"claim", b"intent", b"root", b"meta")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    with opened(tmp_path) as ledger:
        for number in range(3):
            ledger.log.submit_many(
                [observed(number * 4 + i).raw for i in range(3)] + [command(f"c-{number}").raw]
            )
    return tmp_path


def checked(home: Path) -> IndexCheck:
    return check_index(Segments(home / "ledger" / "ea.core"), derive)


def bend(home: Path, table: bytes, change: Callable[[Any, Any], None]) -> None:
    """Change the stored index behind everybody's back."""
    env = lmdb.open(str(home / "ledger" / "ea.core" / "index"), max_dbs=len(TABLES), map_size=1 << 30)
    with env.begin(write=True) as txn:
        change(txn, env.open_db(table, txn=txn))
    env.close()


def some_key(txn: Any, table: Any) -> bytes:
    cursor = txn.cursor(table)
    assert cursor.first()
    return bytes(cursor.key())


def test_an_index_made_by_appending_has_every_row(home):
    found = checked(home)
    assert (found.ok, found.blocks, found.behind) == (True, 3, 0), found.explain()


def test_no_index_at_all_is_no_fault(home, tmp_path):
    for path in (home / "ledger" / "ea.core" / "index").iterdir():
        path.unlink()
    found = checked(home)
    assert (found.ok, found.blocks, found.behind) == (True, 0, 3)


@pytest.mark.parametrize("table", [b"block", b"id", b"claim", b"intent", b"root"])
def test_a_missing_row_is_named(home, table):
    bend(home, table, lambda txn, db: txn.delete(some_key(txn, db), db=db))
    found = checked(home)
    assert found.faults == {"missing": 1}
    assert "missing" in found.explain()
    assert "reindex" in found.explain()


@pytest.mark.parametrize("table", [b"id", b"claim", b"intent"])
def test_a_row_that_leads_elsewhere_is_named(home, table):
    bend(home, table, lambda txn, db: txn.put(some_key(txn, db), PLACE.pack(2, 3), db=db))
    bend(home, table, lambda txn, db: txn.put(some_key(txn, db), PLACE.pack(7, 0), db=db))
    assert checked(home).faults == {"wrong": 1}


def test_a_place_too_early_is_wrong_unless_the_same_is_said_there(home):
    # The row of the last Observation leads to the first envelope, which is another one.
    wanted = observed(9)
    bend(home, b"id", lambda txn, db: txn.put(wanted.id, PLACE.pack(0, 0), db=db))
    assert checked(home).faults == {"wrong": 1}


@pytest.mark.parametrize("table", [b"block", b"id", b"claim", b"intent", b"root"])
def test_a_row_nobody_wrote_is_counted(home, table):
    key, value = (b"\xff" * 8, b"x") if table == b"block" else (b"\xff" * 32, PLACE.pack(0, 0))
    bend(home, table, lambda txn, db: txn.put(key, value, db=db))
    assert checked(home).faults == {"extra": 1}


def test_a_changed_byte_in_a_block_entry_is_found_and_refused_when_used(home):
    def change(txn: Any, db: Any) -> None:
        key = some_key(txn, db)
        raw = bytearray(txn.get(key, db=db))
        raw[-20] ^= 1
        txn.put(key, bytes(raw), db=db)

    bend(home, b"block", change)
    assert checked(home).faults == {"wrong": 1}
    with open_channel(home, "ea.core") as channel, pytest.raises(Damaged, match="index is damaged"):
        channel.prove(observed(0).id)


@pytest.mark.parametrize("table", [b"id", b"claim", b"intent", b"root", b"block"])
def test_an_index_that_lost_a_row_is_built_again_before_it_answers(home, table):
    bend(home, table, lambda txn, db: txn.delete(some_key(txn, db), db=db))
    with open_channel(home, "ea.core") as channel:
        for number in range(3):
            assert channel.prove(observed(number * 4).id).height == number
            assert channel.index.intent(command(f"c-{number}").intent) == (number, 3)
    assert checked(home).ok


def test_a_row_that_leads_to_another_envelope_is_no_answer(home):
    bend(home, b"id", lambda txn, db: txn.put(observed(0).id, PLACE.pack(1, 1), db=db))
    with open_channel(home, "ea.core") as channel, pytest.raises(Damaged, match="not the one indexed"):
        channel.prove(observed(0).id)


def test_a_state_with_a_changed_byte_is_not_believed(home):
    def change(txn: Any, db: Any) -> None:
        raw = bytearray(txn.get(b"state", db=db))
        raw[-20] ^= 1  # in the edge of a tree: a signed head over it would be wrong
        txn.put(b"state", bytes(raw), db=db)

    with open_channel(home, "ea.core") as channel:
        before = channel.header_head()
    bend(home, b"meta", change)
    with open_channel(home, "ea.core") as channel:
        assert channel.header_head() == before
    assert checked(home).ok


def test_a_log_that_lost_blocks_the_index_knows_is_said(home):
    (segment,) = (home / "ledger" / "ea.core" / "segments").glob("*.seg")
    with open_channel(home, "ea.core") as channel:
        place = channel.index.block(2).place
    segment.write_bytes(segment.read_bytes()[: place.offset])
    found = checked(home)
    assert not found.ok
    assert "blocks are gone" in found.explain()


def test_an_index_thrown_away_under_an_open_writer_is_whole_again(home):
    with open_log(home, "ea.core", NODE, now_ns=lambda: 1_730_462_400 * 10**9) as ledger:
        ledger.log.submit(observed(100).raw)
        with open_channel(home, "ea.core") as reading:
            reading.index.rebuild()
        ledger.log.submit(observed(101).raw)
    found = checked(home)
    assert (found.ok, found.blocks) == (True, 5), found.explain()
