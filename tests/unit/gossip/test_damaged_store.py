"""A store that was damaged without an error of LMDB: appends must not sign on top of it, and `verify` must name it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from struct import unpack_from

import pytest
from tests.unit.gossip.conftest import key, memory_log, raws

from ropewalk import gossip
from ropewalk.disk.lmdb_tables import LmdbTables
from ropewalk.errors import Damaged, RopewalkError
from ropewalk.gossip.core.log import GossipLog
from ropewalk.gossip.core.table import Transaction
from ropewalk.gossip.core.verify import verify_log

PAGE, HEADER, BRANCH = 4096, 16, 1  # of LMDB
TOPIC = "com.example"


def flip_in_separator(file: Path, bit: int) -> None:
    """Flip a bit in the one branch key of the file: in the clock at which the second leaf of messages begins."""
    raw = bytearray(file.read_bytes())
    pages = range(2 * PAGE, len(raw), PAGE)
    (branch,) = (at for at in pages if unpack_from("=H", raw, at + 10)[0] == BRANCH)
    second = branch + unpack_from("=H", raw, branch + HEADER + 2)[0]
    raw[second + 8] ^= bit
    file.write_bytes(raw)


def chain(path: Path) -> Path:
    """Return the file of a log whose messages fill two leaves."""
    with gossip.open(TOPIC, path, signer=key(1)) as log:
        log.append_many(range(34))
    return path / "data.mdb"


@pytest.mark.parametrize("bit", [0x20, 0x40, 0x80])
def test_append_refused_where_head_is_not_found(tmp_path, bit):
    """Lookups of later messages take the wrong leaf, and an append used to be stored there, before earlier ones."""
    flip_in_separator(chain(tmp_path), bit)
    with gossip.open(TOPIC, tmp_path, signer=key(1)) as log:
        with pytest.raises(Damaged, match="no stored message") as refusal:
            log.append("late")
        assert "gossip verify" in refusal.value.advice_now
        assert len(log) == 34


def test_verify_looks_messages_up(tmp_path):
    flip_in_separator(chain(tmp_path), 0x40)
    with gossip.open(TOPIC, tmp_path) as log:
        assert len(raws(log)) == 34  # a scan passes by
        report = verify_log(log)
    assert report.verdict == "failed"
    assert "is not found" in report.steps[0].detail


def test_rows_out_of_order_are_damage(tmp_path):
    tables = LmdbTables(tmp_path, ("only",))

    def fill(change: Transaction) -> None:
        for n in range(34):
            change.put("only", bytes([n]) * 100, bytes(150))

    tables.transact(fill)
    tables.close()
    flip_in_separator(tmp_path / "data.mdb", 0x40)
    tables = LmdbTables(tmp_path, ("only",))
    tables.transact(lambda change: change.put("only", b"\x23", b""))
    with tables.read() as view:
        for reverse in (False, True):
            with pytest.raises(Damaged, match="out of order"):
                list(view.scan("only", reverse=reverse))
    tables.close()


def older_heads(change: Transaction) -> None:
    """Put back the heads of two messages ago, as a damaged page number does."""
    change.delete("heads", next(change.scan("heads"))[0])
    change.put("heads", next(change.scan("messages"))[0], b"")


def no_heads(change: Transaction) -> None:
    change.delete("heads", next(change.scan("heads"))[0])


def strange_head(change: Transaction) -> None:
    change.put("heads", b"\x01" + bytes(19), b"")


def fewer_arrivals(change: Transaction) -> None:
    change.put("meta", b"arrivals", (1).to_bytes(8, "big"))


@pytest.mark.parametrize("damage", [older_heads, no_heads, strange_head, fewer_arrivals])
def test_append_refused_on_damaged_table(damage: Callable[[Transaction], None]):
    """A message on these heads would have too small a clock, or a parent that nobody has, for good."""
    log: GossipLog = memory_log()
    log.append_many("abc")
    before = raws(log)
    log.table.transact(damage)
    with pytest.raises(Damaged):
        log.append("late")
    assert raws(log) == before
    assert not verify_log(log).ok


@pytest.mark.parametrize("name", [b"version", b"profile", b"topic"])
def test_damaged_name_is_an_error_of_ours(name):
    log = memory_log()
    log.table.transact(lambda change: change.put("meta", name, b"v0.\xb33"))
    with pytest.raises(RopewalkError):
        GossipLog(log.table, TOPIC)
