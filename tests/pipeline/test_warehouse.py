"""A warehouse whose writer dies between any two steps: every table can be read all the while."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from ropewalk.cli.common.command import Session
from ropewalk.cli.pipeline.pipeline import status
from ropewalk.errors import Conflict, Damaged
from ropewalk.kernel import jcs
from ropewalk.kernel.report import Step
from ropewalk.pipeline.jobs.compact import merge_files
from ropewalk.pipeline.report.report import render
from ropewalk.pipeline.source.offsets import Offset
from ropewalk.pipeline.tables.deployments import write_deployments
from ropewalk.pipeline.tables.derive import events_schema
from ropewalk.pipeline.tables.table_files import OPEN_FILE
from ropewalk.pipeline.tables.verify import check_files, verify_tables
from ropewalk.pipeline.tables.warehouse import Manifest, StoredFile, Warehouse
from tests.pipeline.killing import Crash, Mortal
from tests.pipeline.test_delta import LOG, write
from tests.tools import needs_that
from tests.unit.pipeline.test_deployments import event

TABLES = ("events", "deployments", "consumer_lag")


def rows_in(store: Warehouse) -> dict[str, list[int]]:
    """What the manifests name, read from its files."""
    return {
        table: [
            n
            for file in files
            for n in pq.read_table(store.path / file.name, partitioning=None)["n"].to_pylist()
        ]
        for table, files in store.current_files(store.manifests()).items()
    }


@pytest.mark.parametrize("lives", range(5))
def test_every_table_is_whole_whenever_its_writer_dies(tmp_path: Path, lives: int):
    store = Mortal(tmp_path / "tables", 99)
    with store.writing():
        write(store, 2, *TABLES)
        before = rows_in(store)
        store.lives = lives
        with pytest.raises(Crash):
            write(store, 3, *TABLES)
    left = Warehouse(store.path)
    committed = len(left.manifests()) == 2
    assert committed == (lives == 4)
    after = {"events": [0, 0, 1, 1, 1], "deployments": [1, 1, 1], "consumer_lag": [1, 1, 1]}
    assert rows_in(left) == (after if committed else before)
    assert [step.status for step in check_files(left, left.manifests())] == (
        ["passed", "not_checked"] if lives else ["passed"]
    )
    with left.writing():
        assert [step.status for step in check_files(left, left.manifests())] == ["passed"]
        if not committed:
            write(left, 3, *TABLES)
    assert rows_in(left) == after
    assert {path.name for path in (left.path / "deployments").iterdir()} == {"batch=2"}


@needs_that(Path("/proc/self/fd").exists(), "descriptors have no names here")
def test_batch_recorded_after_folders_are_synced(tmp_path: Path, monkeypatch):
    order: list[Path] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        order.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        real(descriptor)

    store = Warehouse(tmp_path / "tables")
    with store.writing():
        monkeypatch.setattr(os, "fsync", fsync)
        made = write(store, 1, *TABLES)
    manifest = order.index(store.home / "batches/.0000000001.json.tmp")
    for files in made.files.values():
        for file in files:
            path = store.path / file.name
            way = {path, *(folder for folder in path.parents if folder.is_relative_to(store.path))}
            assert way <= set(order[:manifest])


def test_looking_at_a_warehouse_changes_nothing_in_it(tmp_path: Path):
    store = Warehouse(tmp_path / "tables")
    with store.writing():
        write(store, 1, *TABLES)
    beside = store.batch_folder("events", 1) / ".part.parquet.crc"
    beside.write_bytes(b"somebody else's")
    assert [step.status for step in check_files(store, store.manifests())] == ["passed"]
    assert beside.exists()


@pytest.mark.parametrize("writes", [1, 99])
def test_verify_retries_tables_replaced_meanwhile(tmp_path: Path, monkeypatch, writes: int):
    """A writer that is faster each time is named; its replaced files were reported as damage."""
    store = Warehouse(tmp_path / "tables")
    with store.writing():
        write(store, 1, *TABLES)
        manifests = [len(store.manifests())]

        def check(looked_at: Warehouse, known: list[Manifest]) -> list[Step]:
            manifests.append(len(known))
            if len(known) <= writes:
                write(store, 1, "deployments")  # the file that the first manifest names is gone now
            return check_files(looked_at, known)

        monkeypatch.setattr("ropewalk.pipeline.tables.verify.check_files", check)
        monkeypatch.setattr(
            "ropewalk.pipeline.tables.verify.hold_recorded", lambda *_: Step("recorded", "not_checked", "")
        )
        monkeypatch.setattr("ropewalk.pipeline.tables.verify.recorded_source", Path)
        if writes > 1:
            with pytest.raises(
                Conflict, match=r"may be no damage: deployments/batch=5/open.parquet is missing"
            ):
                verify_tables(None, store)  # type: ignore[arg-type]
            return
        report = verify_tables(None, store)  # type: ignore[arg-type]
    assert manifests == [1, 1, 2]
    assert [step.status for step in report.steps] == ["passed", "passed", "not_checked"]


def test_a_file_that_somebody_put_beside_the_others_is_told_of(tmp_path: Path):
    store = Warehouse(tmp_path / "tables")
    with store.writing():
        (made,) = write(store, 1, "deployments").files["deployments"]
    (store.path / "deployments" / "extra.parquet").write_bytes((store.path / made.name).read_bytes())
    (step,) = check_files(store, store.manifests())
    assert step.status == "failed" and "extra.parquet is in no manifest" in step.detail


def write_events(store: Warehouse, *, version: int = 4, anew: bool = False) -> None:
    """Write the next batch as ingest does, of version 3 with all deployments in one file; `anew` replaces all rows."""
    known = store.manifests()
    number, current = len(known) + 1, store.current_files(known)
    staged = store.staging("events")
    staged.mkdir(parents=True)
    start = sum(file.rows for file in current.get("events", []))
    rows: list[dict[str, Any]] = [
        event(start + at, status, "web", at) for at, status in enumerate(("success", "failed") * 2)
    ]
    before = store.paths(current.get("events", []))
    if anew:
        rows = [row for path in before for row in pq.read_table(path, partitioning=None).to_pylist()]
    pq.write_table(pa.Table.from_pylist(rows, events_schema()), staged / "part-0.parquet")
    made, measures = store.staging("deployments"), store.staging("deployment_measures")
    events = [staged / "part-0.parquet"]
    recorded = [] if anew else store.paths(current.get("deployments", []))
    if version == 3:
        events, recorded = [*before, *events], []
    write_deployments(events, recorded, made, measures)
    tables = ("events", "deployment_measures", *(["deployments"] if version > 3 else []))
    files: dict[str, tuple[StoredFile, ...]] = {table: store.put_in_place(table, number) for table in tables}
    if version == 3:
        (store.path / "deployments").mkdir(exist_ok=True)
        target = store.path / "deployments" / f"batch-{number}.parquet"
        pq.write_table(pa.concat_tables(map(pq.read_table, sorted(made.iterdir()))), target)
        files["deployments"] = (store._stored(target),)
    gone = [file.name for name in ("events", "deployments") for file in current[name]] if anew else []
    previous = known[-1].digest if known else None
    logs, nothing = (LOG,), Offset()
    store.commit(
        Manifest(number, previous, "s", "strict", 0, nothing, nothing, logs, files, (), tuple(gone), version),
        known,
    )


def check_deployments(store: Warehouse, events: int) -> list[str]:
    """Return the files of the table, which hold a row for each event, one of them current; no others are on disk."""
    manifests = store.manifests()
    names = [file.name for file in store.current_files(manifests)["deployments"]]
    on_disk = (store.path / "deployments").rglob("*.parquet")
    assert sorted(names) == sorted(path.relative_to(store.path).as_posix() for path in on_disk)
    rows = [row for name in names for row in pq.read_table(store.path / name, partitioning=None).to_pylist()]
    assert sorted(row["height"] for row in rows) == list(range(events))
    assert sum(row["current"] for row in rows) == 1
    assert [step.status for step in check_files(store, manifests)] == ["passed"]
    return names


def test_warehouse_of_version_3_goes_on(tmp_path: Path):
    store = Warehouse(tmp_path / "tables")
    with store.writing():
        for _ in range(2):
            write_events(store, version=3)
        assert check_deployments(store, 8) == ["deployments/batch-2.parquet"]
    with store.writing():
        write_events(store)
        assert f"deployments/batch=3/{OPEN_FILE}" in check_deployments(store, 12)
        write_events(store)
        check_deployments(store, 16)
    assert merge_files(store, 0) is not None
    check_deployments(store, 16)
    with store.writing():
        write_events(store)
        check_deployments(store, 20)
        write_events(store, anew=True)
        names = check_deployments(store, 20)
    assert all(name.startswith("deployments/batch=7/") for name in names)
    assert [each.version for each in store.manifests()] == [3, 3, 4, 4, 4, 4, 4]


def test_manifest_of_a_later_version_refused(tmp_path: Path):
    store = Warehouse(tmp_path / "tables")
    with store.writing():
        write(store, 1, *TABLES)
    (path,) = store.batches.glob("*.json")
    value: Any = jcs.parse_canonical(path.read_bytes())
    assert value["version"] == 4
    path.write_bytes(jcs.encode({**value, "version": 5}))
    with pytest.raises(Damaged, match="version must be 3 or 4, got 5"):
        store.manifests()


@pytest.mark.parametrize(
    "odd",
    [
        {"source": None},
        {"verify": "no"},
        {"made_ms": "0"},
        {"made_ms": 2**53 - 1},
        {"logs": [1]},
        {"logs": [{**LOG, "root": None}]},
        {"logs": [{"topic": "prod"}]},
        {"faults": [{}]},
        {"replaces": [[]]},
    ],
)
def test_manifest_with_odd_members_refused(tmp_path: Path, odd: dict[str, Any]):
    store = Warehouse(tmp_path / "tables")
    with store.writing():
        write(store, 1, *TABLES, logs=(LOG,))
    (path,) = store.batches.glob("*.json")
    value: Any = jcs.parse_canonical(path.read_bytes())
    path.write_bytes(jcs.encode({**value, **odd}))
    shown = CliRunner().invoke(status, ["--warehouse", str(store.path)], obj=Session())
    assert isinstance(shown.exception, Damaged) and f"manifest {path.name} cannot be read" in str(
        shown.exception
    )


ODD_RUNS = (
    "",
    '{"job":"ingest","started_ms":',
    "[]",
    "null",
    '{"job":"ingest"}',
    '{"job":7,"started_ms":1}',
    '{"job":"ingest","started_ms":"1"}',
    '{"job":"ingest","started_ms":1e300,"entries":1}',
    '{"job":"ingest","started_ms":1,"ended_ms":null}',
    '{"job":"ingest","started_ms":1,"rows_per_s":NaN}',
    '{"job":"ingest","started_ms":1,"rows_per_s":[]}',
    '{"job":"verify","started_ms":1,"entries":"many"}',
    '{"job":"verify","started_ms":1,"entries":1,"seconds":-Infinity}',
)


@pytest.mark.parametrize("raw", ODD_RUNS)
def test_odd_run_record_is_shown_as_failed(tmp_path: Path, raw: str):
    store = Warehouse(tmp_path / "tables")
    store.record_run("ingest", 1, {"ok": True, "ended_ms": 2, "rows_per_s": 12.0})
    (store.home / "runs" / f"{2:015d}-ingest.json").write_text(raw)
    first, odd = store.runs()
    assert (first["job"], odd["job"], odd["ok"]) == ("ingest", "unreadable", False)
    shown = CliRunner().invoke(status, ["--warehouse", str(store.path)], obj=Session())
    assert shown.exit_code == 0 and "000000000000002-ingest.json cannot be read" in shown.output
    with store.writing():
        write_events(store)
    assert "12 a second" in render(store, 0)
