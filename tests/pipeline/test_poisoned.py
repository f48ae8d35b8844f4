"""Every flipped bit in a file of a warehouse is found by `verify --tables`, before Spark reads anything of it."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa
import pytest

from ropewalk.errors import RopewalkError
from ropewalk.kernel.report import Report
from ropewalk.pipeline.tables.staging import write_empty
from ropewalk.pipeline.tables.verify import check_files
from ropewalk.pipeline.tables.warehouse import GROWING, JOB_TABLES, Warehouse
from tests.pipeline.killing import Crash
from tests.pipeline.test_delta import write


@pytest.fixture
def store(tmp_path: Path) -> Warehouse:
    made = Warehouse(tmp_path / "tables")
    with made.writing():
        write(made, 3, "events", "deployments")
        write(made, 2, "events")
        write_empty({name: made.staging(name) for name in GROWING[2:]})
    for table in JOB_TABLES:
        made.note(table, "run-1", pa.table({"n": [1]}))
    return made


def is_found(store: Warehouse) -> bool:
    """Whether manifests or files are refused, in words."""
    try:
        return any(step.status == "failed" for step in check_files(store, store.manifests()))
    except RopewalkError as error:
        return error.exit_code == 5


def flip(store: Warehouse, path: Path, places: Iterable[int]) -> None:
    kept = path.read_bytes()
    for place in places:
        raw = bytearray(kept)
        raw[place // 8] ^= 1 << place % 8
        path.write_bytes(raw)
        assert is_found(store), f"bit {place} of {path.relative_to(store.path)}"
    for size in (0, len(kept) // 2, len(kept) - 1):
        path.write_bytes(kept[:size])
        assert is_found(store), f"{path.relative_to(store.path)} cut to {size} bytes"
    path.write_bytes(kept)


def stored(store: Warehouse) -> list[Path]:
    """The files of tables, every manifest, the file that names the last one, and records of what jobs noted."""
    records = sorted((store.home / "noted").iterdir())
    home = [*sorted(store.batches.glob("*.json")), store.home / "head.json", *records]
    return [*sorted(store.path.glob("[a-z]*/**/*.parquet")), *home]


def test_flipped_bits_of_tables_are_found(store: Warehouse):
    chance = random.Random(11)
    assert not is_found(store) and len(stored(store)) == 6 + 2 * len(JOB_TABLES)
    for path in stored(store):
        bits = 8 * path.stat().st_size
        footer = range(bits - 64, bits)  # where readers begin
        flip(store, path, [*chance.sample(range(bits), 40), *footer[::7]])
    assert not is_found(store)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_flipped_bit_of_tables_is_found(store: Warehouse):
    for path in stored(store):
        flip(store, path, range(8 * path.stat().st_size))


def test_removed_last_batch_is_found(store: Warehouse):
    sorted(store.batches.glob("*.json"))[-1].unlink()
    assert is_found(store)
    with pytest.raises(RopewalkError, match=r"head\.json"), store.writing():
        pass


@pytest.mark.parametrize("before", [True, False], ids=["older", "no head"])
def test_next_writer_brings_the_head_up_to_date(store: Warehouse, before: bool):
    """A writer died behind its manifest, or the warehouse is of a version that wrote no head."""
    head = store.home / "head.json"
    wanted = head.read_bytes()
    first = store.manifests()[0]
    if before:
        store._write_head(first)
    else:
        head.unlink()
    assert len(store.manifests()) == 2 and not is_found(store)
    with store.writing():
        pass
    assert head.read_bytes() == wanted


@pytest.mark.parametrize("lost", ["health/run-1.parquet", "_ropewalk/noted/health.run-1.json"])
def test_lost_noted_file_or_record_is_found(store: Warehouse, lost: str):
    (store.path / lost).unlink()
    assert is_found(store)


def test_noted_file_put_beside_others_is_found(store: Warehouse):
    noted = store.path / "health" / "run-1.parquet"
    noted.with_name("run-2.parquet").write_bytes(noted.read_bytes())
    assert is_found(store)


@pytest.mark.parametrize("lives", [0, 1], ids=["before its record", "before its file"])
def test_job_killed_while_it_notes_does_no_damage(
    store: Warehouse, monkeypatch: pytest.MonkeyPatch, lives: int
):
    """It dies before it renames the record, or the file."""
    before, renames = store.noted("health"), iter(range(lives))

    def rename(old: Path, new: Path, real: Callable[[Path, Path], None] = os.rename) -> None:
        if next(renames, None) is None:
            raise Crash
        real(old, new)

    with monkeypatch.context() as patched, pytest.raises(Crash):
        patched.setattr(os, "rename", rename)
        patched.setattr(os, "replace", rename)
        store.note("health", "run-2", pa.table({"n": [2]}))
    assert len(list((store.home / "noted").glob("*.json"))) == len(JOB_TABLES) + lives
    assert store.noted("health") == before and not is_found(store)
    store.note("health", "run-3", pa.table({"n": [3]}))
    assert len(store.noted("health")) == 2 and not is_found(store)


def test_noted_files_without_records_not_checked(store: Warehouse):
    """A warehouse of a version that recorded nothing: its files stay unchecked when the next one is recorded."""
    shutil.rmtree(store.home / "noted")
    steps = check_files(store, store.manifests())
    assert [(step.name, step.status) for step in steps[1:]] == [("unrecorded", "not_checked")]
    assert Report(tuple(steps)).ok
    store.note("health", "run-2", pa.table({"n": [2]}))
    steps = check_files(store, store.manifests())
    assert [(step.name, step.status) for step in steps[1:]] == [
        ("noted", "passed"),
        ("unrecorded", "not_checked"),
    ]
    assert steps[2].detail.startswith("3 files")
    (store.path / "health" / "run-2.parquet").write_bytes(b"")
    assert is_found(store)
