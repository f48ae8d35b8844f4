"""One behaviour for every store of ordered tables."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest
from tests.waiting import together

from ropewalk.disk.lmdb_tables import LmdbTables
from ropewalk.disk.memory_tables import MemoryTables
from ropewalk.errors import Conflict, Damaged, NotFound, Unavailable
from ropewalk.gossip.core.table import TableStore, Transaction

NAMES = ("a", "b")


@pytest.fixture(params=["memory", "lmdb"])
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TableStore]:
    store: TableStore = (
        MemoryTables(NAMES) if request.param == "memory" else LmdbTables(tmp_path / "db", NAMES)
    )
    yield store
    store.close()


def fill(tables: TableStore, *keys: bytes, table: str = "a") -> None:
    def body(change: Transaction) -> None:
        for key in keys:
            change.put(table, key, b"v" + key)

    tables.transact(body)


def keys(tables: TableStore, *args, **kwargs) -> list[bytes]:
    with tables.read() as view:
        return [key for key, _ in view.scan("a", *args, **kwargs)]


def test_what_was_put_is_found_in_its_table_only(tables: TableStore):
    fill(tables, b"k")
    with tables.read() as view:
        assert view.get("a", b"k") == b"vk"
        assert view.get("b", b"k") is None
        assert view.get("a", b"other") is None
        assert (view.count("a"), view.count("b")) == (1, 0)


def test_a_scan_is_in_key_order_within_its_bounds(tables: TableStore):
    fill(tables, b"d", b"a", b"c", b"b", b"bb")
    assert keys(tables) == [b"a", b"b", b"bb", b"c", b"d"]
    assert keys(tables, b"b") == [b"b", b"bb", b"c", b"d"]
    assert keys(tables, b"b", b"c") == [b"b", b"bb"]
    assert keys(tables, b"x") == []
    assert keys(tables, b"c", b"c") == []


def test_a_reverse_scan_has_the_same_bounds(tables: TableStore):
    fill(tables, b"d", b"a", b"c", b"b", b"bb")
    assert keys(tables, reverse=True) == [b"d", b"c", b"bb", b"b", b"a"]
    assert keys(tables, b"b", b"c", reverse=True) == [b"bb", b"b"]
    assert keys(tables, b"b", b"zz", reverse=True) == [b"d", b"c", b"bb", b"b"]
    assert keys(tables, b"", b"a", reverse=True) == []


def test_an_empty_table_scans_to_nothing(tables: TableStore):
    assert keys(tables) == keys(tables, reverse=True) == keys(tables, b"a", b"b", reverse=True) == []


def test_a_transaction_sees_its_own_writes_in_order(tables: TableStore):
    fill(tables, b"a", b"c", b"e")

    def body(change: Transaction) -> list[bytes]:
        change.put("a", b"d", b"new")
        change.put("a", b"a", b"changed")
        change.delete("a", b"c")
        change.delete("a", b"missing")
        assert change.get("a", b"c") is None
        assert change.get("a", b"a") == b"changed"
        assert change.count("a") == 3
        assert [key for key, _ in change.scan("a", reverse=True)] == [b"e", b"d", b"a"]
        return [key for key, _ in change.scan("a")]

    assert tables.transact(body) == [b"a", b"d", b"e"]
    assert keys(tables) == [b"a", b"d", b"e"]


def test_a_key_put_after_its_deletion_is_there(tables: TableStore):
    fill(tables, b"k")

    def body(change: Transaction) -> None:
        change.delete("a", b"k")
        change.put("a", b"k", b"again")
        assert list(change.scan("a")) == [(b"k", b"again")]
        assert change.count("a") == 1

    tables.transact(body)
    with tables.read() as view:
        assert list(view.scan("a")) == [(b"k", b"again")]


def test_a_raise_takes_everything_back(tables: TableStore):
    fill(tables, b"old")

    def body(change: Transaction) -> None:
        change.put("a", b"new", b"")
        change.put("b", b"new", b"")
        change.delete("a", b"old")
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        tables.transact(body)
    assert keys(tables) == [b"old"]
    with tables.read() as view:
        assert view.count("b") == 0
    fill(tables, b"next")  # the store is not stuck
    assert keys(tables) == [b"next", b"old"]


def test_a_reader_during_a_write_sees_the_moment_before(tables: TableStore):
    fill(tables, b"old")

    def body(change: Transaction) -> None:
        change.put("a", b"new", b"")
        assert keys(tables) == [b"old"]

    tables.transact(body)
    assert keys(tables) == [b"new", b"old"]


def test_an_open_view_does_not_see_later_commits(tables: TableStore):
    fill(tables, b"1", b"2")
    with tables.read() as view:
        rows = view.scan("a")
        assert next(rows)[0] == b"1"
        fill(tables, b"1a", b"3")
        tables.transact(lambda change: change.delete("a", b"2"))
        assert [key for key, _ in rows] == [b"2"]
        assert view.count("a") == 2
    assert keys(tables) == [b"1", b"1a", b"3"]


def test_a_transaction_inside_a_transaction_is_refused(tables: TableStore):
    def body(change: Transaction) -> None:
        fill(tables, b"inner")

    with pytest.raises(Conflict):
        tables.transact(body)
    assert keys(tables) == []


def test_writers_of_many_threads_take_turns(tables: TableStore):
    def add() -> None:
        def body(change: Transaction) -> None:
            now = int(change.get("a", b"n") or b"0")
            change.put("a", b"n", b"%d" % (now + 1))

        for _ in range(5):
            tables.transact(body)

    together(add, add, add, add)
    with tables.read() as view:
        assert view.get("a", b"n") == b"20"


def test_an_unknown_table_is_named(tables: TableStore):
    with tables.read() as view, pytest.raises(NotFound, match="nowhere"):
        view.get("nowhere", b"k")


def test_a_long_scan_crosses_every_slice(tables: TableStore):
    fill(tables, *(b"%05d" % n for n in range(1000)))
    assert keys(tables) == [b"%05d" % n for n in range(1000)]
    assert keys(tables, b"00100", b"00900", reverse=True) == [b"%05d" % n for n in range(899, 99, -1)]


def test_a_full_map_grows_and_the_transaction_runs_again(tmp_path: Path):
    tables = LmdbTables(tmp_path / "db", NAMES, map_bytes=1 << 16)
    runs = []

    def body(change: Transaction) -> None:
        runs.append(1)
        for n in range(200):
            change.put("a", b"%04d" % n, bytes(2000))

    tables.transact(body)
    assert len(runs) > 1
    with tables.read() as view:
        assert view.count("a") == 200
    tables.close()


def test_a_full_map_waits_for_a_reader_and_then_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("ropewalk.disk.lmdb_tables.READER_WAIT_S", 0.01)
    tables = LmdbTables(tmp_path / "db", NAMES, map_bytes=1 << 16)
    with tables.read(), pytest.raises(Unavailable, match="map is full"):
        tables.transact(lambda change: change.put("a", b"k", bytes(1 << 20)))
    tables.transact(lambda change: change.put("a", b"k", bytes(1 << 20)))
    tables.close()


def test_two_handles_of_one_folder_share_it(tmp_path: Path):
    one, two = LmdbTables(tmp_path / "db", NAMES), LmdbTables(tmp_path / "db", NAMES)
    fill(one, b"k")
    one.close()
    assert keys(two) == [b"k"]
    two.close()
    two.close()
    with pytest.raises(Unavailable, match="closed"):
        keys(two)


def test_another_process_reads_and_outgrows_us(tmp_path: Path):
    tables = LmdbTables(tmp_path / "db", NAMES, map_bytes=1 << 16)
    fill(tables, b"ours")
    program = (
        "import sys; from pathlib import Path; from ropewalk.disk.lmdb_tables import LmdbTables\n"
        "t = LmdbTables(Path(sys.argv[1]), ('a', 'b'), map_bytes=1 << 16)\n"
        "t.transact(lambda c: [c.put('a', b'%04d' % n, bytes(2000)) for n in range(100)])\n"
        "with t.read() as v: print(v.get('a', b'ours').decode())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "db")], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "vours"
    with tables.read() as view:  # the map was resized by the other process
        assert view.count("a") == 101
    fill(tables, b"more")
    tables.close()


def test_a_map_outgrown_or_full_while_it_is_opened_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    opened = lmdb.open

    def outgrown(path: str, **options: Any) -> Any:
        env = opened(path, **options)
        # Another process grows the map and fills it in just this moment.
        code = (
            "import lmdb, sys\n"
            "env = lmdb.open(sys.argv[1], map_size=1 << 22, max_dbs=2)\nenv.open_db(b'two')\n"
            "with env.begin(write=True, db=env.open_db(b'one')) as txn: txn.put(b'k', bytes(1 << 20))\n"
        )
        subprocess.run([sys.executable, "-c", code, path], check=True)
        return env

    monkeypatch.setattr(lmdb, "open", outgrown)
    tables = LmdbTables(tmp_path, ("one", "two"), map_bytes=1 << 15)
    with tables.read() as view:
        assert view.get("one", b"k") == bytes(1 << 20)
    tables.close()


def test_a_map_too_small_for_its_own_tables_grows(tmp_path: Path):
    tables = LmdbTables(tmp_path, tuple("abcdefgh"), map_bytes=1 << 13)
    tables.transact(lambda change: change.put("a", b"k", b"v"))
    tables.close()


def test_an_iterator_that_outlives_its_store_says_so(tmp_path: Path):
    tables = LmdbTables(tmp_path, NAMES)
    fill(tables, b"one")
    fill(tables, b"two")
    with tables.read() as view:
        rows = view.scan("a")
        next(rows)
        tables.close()
        with pytest.raises(Unavailable):
            next(rows)
        with pytest.raises(Unavailable):
            view.get("a", b"one")


@pytest.mark.parametrize("left", [100, 12_000, 0.3, 0.7])
def test_half_a_copy_is_called_damaged_and_does_not_end_the_process(tmp_path: Path, left: float):
    tables = LmdbTables(tmp_path / "db", NAMES)
    for start in range(0, 4000, 1000):
        fill(tables, *(n.to_bytes(4, "big") + bytes(100) for n in range(start, start + 1000)))
    tables.close()
    data = tmp_path / "db" / "data.mdb"
    with data.open("r+b") as file:
        file.truncate(int(left if left > 1 else left * data.stat().st_size))
    script = """
import sys
from pathlib import Path
from ropewalk.errors import Damaged
from ropewalk.disk.lmdb_tables import LmdbTables
try:
    with LmdbTables(Path(sys.argv[1]), ("a", "b")).read() as view:
        print(len(list(view.scan("a"))))
except Damaged as error:
    print(error.code)
"""
    command = [sys.executable, "-c", script, str(tmp_path / "db")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "Damaged\n"), done.stderr


def test_a_sound_file_that_lmdb_left_short_is_opened_as_it_is(tmp_path: Path):
    """LMDB does not write the pages that a transaction took and gave back."""
    tables = LmdbTables(tmp_path / "db", NAMES)
    fill(tables, b"stays")

    chance = random.Random(1)
    passing = [chance.randbytes(20) for _ in range(3000)]

    def body(change: Transaction) -> None:
        for key in passing:
            change.put("b", key, bytes(300))
        for key in passing:
            change.delete("b", key)

    for _ in range(20):
        tables.transact(body)
        needed = (tables._env().env.info()["last_pgno"] + 1) * 4096
        if (tmp_path / "db" / "data.mdb").stat().st_size < needed:
            break
        chance.shuffle(passing)
    else:
        pytest.fail("LMDB writes every page by now: the check of short files may be exact")
    tables.close()
    again = LmdbTables(tmp_path / "db", NAMES)
    assert keys(again) == [b"stays"]
    fill(again, b"comes")
    assert keys(again) == [b"comes", b"stays"]
    again.close()


@pytest.mark.parametrize("lost", [range(144, 152), range(16, 4096), range(144, 145)])
def test_a_damaged_meta_page_brings_no_old_state(tmp_path: Path, lost: range):
    """LMDB would fall back to the commit before."""
    tables = LmdbTables(tmp_path / "db", NAMES)
    for number in range(5):
        fill(tables, b"%d" % number)
    tables.close()
    data = tmp_path / "db" / "data.mdb"
    sound = data.read_bytes()
    for page in (0, 4096):
        broken = bytearray(sound)
        for at in lost:
            broken[page + at] = 0
        data.write_bytes(broken)
        with pytest.raises(Damaged):
            LmdbTables(tmp_path / "db", NAMES)
    data.write_bytes(sound)
    again = LmdbTables(tmp_path / "db", NAMES)
    with again.read() as view:
        assert len(list(view.scan("a"))) == 5
    again.close()


def test_tables_that_damage_hid_are_not_made_anew(tmp_path: Path):
    tables = LmdbTables(tmp_path / "db", NAMES)
    fill(tables, b"1")
    tables.close()
    data = tmp_path / "db" / "data.mdb"
    stored = data.read_bytes()
    data.write_bytes(stored.replace(b"\0\1\0a", b"\0\1\0z"))  # the name of a table, after its length
    with pytest.raises(Damaged, match="lacks a table"):
        LmdbTables(tmp_path / "db", NAMES)


@pytest.mark.parametrize("where", ["file", "file/below"])
def test_a_place_that_cannot_be_a_folder_is_unavailable(tmp_path: Path, where: str):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Unavailable, match="file"):
        LmdbTables(tmp_path / where, NAMES)


def test_bytes_that_are_no_store_are_called_damaged(tmp_path: Path):
    (tmp_path / "data.mdb").write_bytes(b"a letter, not a store" * 1000)
    with pytest.raises(Damaged):
        LmdbTables(tmp_path, NAMES)


def test_a_failed_write_that_somebody_caught_is_still_not_committed(tmp_path: Path):
    tables = LmdbTables(tmp_path / "db", NAMES)

    def body(change: Transaction) -> None:
        change.put("a", b"first", b"")
        with contextlib.suppress(lmdb.Error):
            change.put("a", b"k" * 600, b"")  # longer than a key may be

    with pytest.raises(Unavailable):
        tables.transact(body)
    assert keys(tables) == []
    tables.close()


def test_a_forked_child_opens_its_own_and_is_told_to(tmp_path: Path):
    script = """
import os, sys
from pathlib import Path
from ropewalk.errors import Unavailable
from ropewalk.disk.lmdb_tables import LmdbTables
path = Path(sys.argv[1])
tables = LmdbTables(path, ("a",))
tables.transact(lambda change: change.put("a", b"parent", b""))
child = os.fork()
if child == 0:
    try:
        tables.transact(lambda change: change.put("a", b"wrong", b""))
    except Unavailable as error:
        assert "forked" in str(error)
        own = LmdbTables(path, ("a",))
        own.transact(lambda change: change.put("a", b"child", b""))
        own.close()
        tables.close()
        os._exit(0)
    os._exit(1)
assert os.waitpid(child, 0)[1] == 0
tables.transact(lambda change: change.put("a", b"parent again", b""))
with tables.read() as view:
    assert [key for key, _ in view.scan("a")] == [b"child", b"parent", b"parent again"]
tables.close()
"""
    command = [sys.executable, "-c", script, str(tmp_path / "db")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
