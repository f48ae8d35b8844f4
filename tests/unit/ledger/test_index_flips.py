"""An index never decides: a flipped bit is noticed, the index is built again, and every answer stays the same.

`make torture ONLY=index` flips every bit; here a seeded share is flipped.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest
from tests.torture.index import LedgerScene, flip, flip_all
from tests.unit.ledger.calling import Ropewalk
from tests.unit.ledger.making import command, observed, opened

from ropewalk.disk.index_files import CURRENT, IndexFiles
from ropewalk.disk.index_pages import PAGE_BYTES, ROWS_MAX, IndexDamaged
from ropewalk.errors import Damaged, Replayed
from ropewalk.ledger.block.index_keys import derive
from ropewalk.ledger.channel.channel import open_channel
from ropewalk.ledger.channel.index.index import LedgerIndex
from ropewalk.ledger.channel.key_heights import note_height, read_heights, write_heights
from ropewalk.ledger.channel.segments.reader import Segments

SEED = 20261117


@pytest.fixture
def scene(tmp_path: Path) -> LedgerScene:
    return LedgerScene(tmp_path / "home")


def some(scene: LedgerScene, count: int) -> list[tuple[Path, int]]:
    return random.Random(SEED).sample(scene.bits(), count)


def test_index_whole_answers_everything(scene):
    assert (scene.look(), scene.check(), scene.seal()) == (None, None, None)
    assert {path: path.read_bytes() for path in scene.files} == scene.files  # nothing was built again


def test_index_flip_changes_no_answer(scene):
    for path, bit in some(scene, 60):
        assert flip(scene, path, bit, scene.look) is None, (path.name, bit)


def test_index_flip_fails_verification_or_nothing(scene):
    for path, bit in some(scene, 25):
        assert flip(scene, path, bit, scene.check) is None, (path.name, bit)


def test_index_flip_seals_nothing_twice(scene):
    for path, bit in some(scene, 12):
        assert flip(scene, path, bit, scene.seal) is None, (path.name, bit)


def test_index_flip_with_same_mtime_is_noticed(scene):
    (rows,) = scene.index.glob("*.rows")
    before = rows.stat()
    raw = bytearray(rows.read_bytes())
    raw[60] ^= 1  # in the first row of the first page
    rows.write_bytes(raw)
    os.utime(rows, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert scene.look() is None
    assert not rows.exists()  # another index took its place


@pytest.mark.parametrize("name", ["*.rows", "*.entries", "*.places", CURRENT])
@pytest.mark.parametrize("damage", ["gone", "empty", "cut", "zeros", "ones"])
def test_index_file_damage_changes_no_answer(scene, name, damage):
    (path,) = scene.index.glob(name)
    raw = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(
            {"empty": b"", "cut": raw[: len(raw) // 2], "zeros": bytes(len(raw)), "ones": b"\xff" * len(raw)}[
                damage
            ]
        )
    assert scene.look() is None


def test_index_page_swapped_for_another_is_noticed(scene):
    (rows,) = scene.index.glob("*.rows")
    raw = rows.read_bytes()
    rows.write_bytes(raw[PAGE_BYTES : 2 * PAGE_BYTES] + raw[:PAGE_BYTES] + raw[2 * PAGE_BYTES :])
    assert scene.look() is None


def test_index_damage_under_an_open_writer(tmp_path):
    with opened(tmp_path) as ledger:
        ledger.log.submit(command("c-1").raw)
    with opened(tmp_path) as ledger:
        (rows,) = (tmp_path / "ledger/ea.core/index").glob("*.rows")
        with rows.open("r+b") as stream:
            stream.write(bytes(PAGE_BYTES))
        assert ledger.log.submit(command("c-1").raw).replayed
        with pytest.raises(Replayed):
            ledger.log.submit(command("c-1", payload=2).raw)
        assert ledger.log.submit(command("c-2").raw).height == 1


def test_index_rebuilt_from_a_damaged_log_refuses(tmp_path):
    with opened(tmp_path) as ledger:
        for number in range(3):
            ledger.log.submit(command(f"c-{number}").raw)
    (segment,) = (tmp_path / "ledger/ea.core/segments").iterdir()
    (rows,) = (tmp_path / "ledger/ea.core/index").glob("*.rows")
    with opened(tmp_path) as ledger:
        for path in (segment, rows):
            raw = bytearray(path.read_bytes())
            raw[200] ^= 1
            path.write_bytes(raw)
        for name in ("c-0", "c-2", "c-9"):  # not even the new one: what is absent cannot be told
            with pytest.raises(Damaged):
                ledger.log.submit(command(name).raw)


def test_log_replay_compares_stored_bytes(tmp_path):
    one = observed(1)
    with opened(tmp_path) as ledger:
        ledger.log.submit(one.raw)
        (segment,) = (tmp_path / "ledger/ea.core/segments").iterdir()
        raw = segment.read_bytes()
        segment.write_bytes(raw.replace(b'"n":1', b'"n":7'))
        with pytest.raises(Damaged, match="stored bytes differ"):
            ledger.log.submit(one.raw)


def test_key_heights_with_any_flipped_bit_are_refused(tmp_path):
    write_heights(tmp_path, [2, 50, 1234])
    raw = (tmp_path / "keys.json").read_bytes()
    for bit in range(8 * len(raw)):
        changed = bytearray(raw)
        changed[bit // 8] ^= 1 << bit % 8
        (tmp_path / "keys.json").write_bytes(changed)
        with pytest.raises(Damaged, match="not a valid list of heights"):
            read_heights(tmp_path)


def test_key_heights_of_version_1_are_read(tmp_path):
    (tmp_path / "keys.json").write_bytes(b'{"version":1,"heights":[2,50]}')
    assert read_heights(tmp_path) == [2, 50]
    note_height(tmp_path, 60)
    assert read_heights(tmp_path) == [2, 50, 60]
    assert b'"version":2' in (tmp_path / "keys.json").read_bytes()


def test_index_files_find_every_row_of_many_runs(tmp_path):
    random_bytes = random.Random(SEED).randbytes
    files = IndexFiles(tmp_path)
    truth: dict[bytes, bytes] = {}
    for size in (1, 1, 700, 3, 5_000, ROWS_MAX, ROWS_MAX + 1, 40):
        rows = {random_bytes(32): random_bytes(12) for _ in range(size)}
        rows |= dict(list(truth.items())[:5])  # again: the older row counts
        truth = rows | truth
        with files.hold():
            files.write(files.stored(), [], rows.items(), b"state")
    for current in (files, IndexFiles(tmp_path)):
        assert all(current.find(name) == value for name, value in truth.items())
        assert not any(current.find(random_bytes(32)) for _ in range(2_000))
        current.close()


def test_index_files_write_rows_anew_when_most_is_waste(tmp_path, monkeypatch):
    monkeypatch.setattr("ropewalk.disk.index_files.WASTE_MIN", 0)
    files = IndexFiles(tmp_path)
    for number in range(24):
        with files.hold():
            files.write(files.stored(), [], [(number.to_bytes(4, "big"), bytes(12))], b"state")
    assert files.extent.rows_file > 0
    assert len(list(tmp_path.glob("*.rows"))) == 1
    assert all(files.find(number.to_bytes(4, "big")) == bytes(12) for number in range(24))
    files.close()


def test_index_page_overflow_takes_more_pages(tmp_path, monkeypatch):
    monkeypatch.setattr("ropewalk.disk.index_pages.ROWS_MEAN", ROWS_MAX)  # some pages get too many
    files = IndexFiles(tmp_path)
    rows = {number.to_bytes(4, "big"): number.to_bytes(12, "big") for number in range(5_000)}
    with files.hold():
        files.write(files.stored(), [], rows.items(), b"state")
    assert all(files.find(name) == value for name, value in rows.items())
    files.close()


def test_index_entry_beyond_the_others_is_damage(scene):
    files = IndexFiles(scene.index)
    (places,) = scene.index.glob("*.places")
    places.write_bytes(b"\0" * 8 + b"\xff" * 4)
    with pytest.raises(IndexDamaged):
        files.entry(0)
    files.close()


def test_index_entry_of_another_height_is_damage(scene):
    (places,) = scene.index.glob("*.places")
    raw = places.read_bytes()
    places.write_bytes(raw[12:24] + raw[:12] + raw[24:])  # the first two are exchanged
    assert scene.look() is None


def test_two_indexes_that_find_damage_build_one(scene):
    (rows,) = scene.index.glob("*.rows")
    rows.write_bytes(bytes(len(scene.files[rows])))
    first, other = (LedgerIndex(scene.segments, derive) for _ in range(2))
    assert first.position(scene.marks[0].ids[0]) == other.position(scene.marks[0].ids[0]) == (0, 0)
    first.close()
    other.close()
    assert len(list(scene.index.glob("*.rows"))) == 1
    assert scene.look() is None


def test_index_torture_counts_what_it_flips():
    report = flip_all(15_000, parts=1)
    assert report["ok"], report
    assert (report["ledger"]["flips"], report["ledger"]["acts"]) == (11, {"look": 11, "check": 1, "seal": 1})
    assert report["gitlog"]["flips"] > 5


def test_index_flip_changes_no_command(ropewalk: Ropewalk) -> None:
    assert ropewalk("ledger", "create", "--channel", "audit", "--key", "ada").code == 0
    for number in range(4):
        Path(f"{number}.json").write_bytes(command(f"c-{number}").raw)
        assert ropewalk("ledger", "append", "--channel", "audit", "--file", f"{number}.json").code == 0
    Path("other.json").write_bytes(command("c-2", payload="other").raw)
    Path("new.json").write_bytes(command("c-new").raw)
    kept, ledger = Path("kept"), Path("repo.git/ropewalk/ledger/audit")
    shutil.copytree(ledger, kept)
    bits = [
        (path, bit) for path in sorted((kept / "index").iterdir()) for bit in range(8 * path.stat().st_size)
    ]
    asked = (
        ("head", "--channel", "audit"),
        ("prove", command("c-1").hex_id, "-o", "proof.json"),
        ("read", "--channel", "audit"),
    )
    truth = [ropewalk("ledger", *arguments, "--json").out for arguments in asked]
    for path, bit in random.Random(SEED).sample(bits, 8):
        shutil.rmtree(ledger)
        shutil.copytree(kept, ledger)
        raw = bytearray(path.read_bytes())
        raw[bit // 8] ^= 1 << bit % 8
        damaged = ledger / "index" / path.name
        for arguments, answer in zip(asked, truth, strict=True):
            damaged.write_bytes(raw)
            assert ropewalk("ledger", *arguments, "--json").out == answer
        damaged.write_bytes(raw)
        deep = ropewalk("ledger", "verify", "--channel", "audit", "--deep")
        assert deep.code == 0 or (deep.code == 5 and "ledger reindex" in deep.out + deep.err), deep
        again = ropewalk("ledger", "append", "--channel", "audit", "--file", "1.json", "--json")
        assert again.code == 0 and again.json["replayed"], again
        damaged.write_bytes(raw)
        assert ropewalk("ledger", "append", "--channel", "audit", "--file", "other.json").code == 4
        damaged.write_bytes(raw)
        assert ropewalk("ledger", "append", "--channel", "audit", "--file", "new.json").code == 0
        assert ropewalk("ledger", "reindex", "--channel", "audit").code == 0
        assert ropewalk("ledger", "verify", "--channel", "audit", "--deep").code == 0
    with open_channel(Path("repo.git/ropewalk"), "audit") as channel:
        assert channel.head().envelopes == 5
    assert Segments(ledger).find(4).height == 4
