"""Tables from logs through real Spark: exactly once, incremental, refused where the log is not what it was."""

from __future__ import annotations

import errno
import re
import subprocess
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from ropewalk.errors import Conflict, Damaged, HistoryRewritten, NotFound, Unverified
from ropewalk.gitlog.consumers.cursor import read_cursor
from ropewalk.gitlog.sharing.git_command import run_git
from ropewalk.gitlog.store.object_store import GitStore
from ropewalk.pipeline import to_arrow
from ropewalk.pipeline.jobs.compact import merge_files
from ropewalk.pipeline.jobs.ingest import Ingest
from ropewalk.pipeline.jobs.verify import verify_logs
from ropewalk.pipeline.source.query import make_query
from ropewalk.pipeline.tables.derive import INGESTED
from ropewalk.pipeline.tables.staging import _Stage, stage_group, stage_ranges
from ropewalk.pipeline.tables.verify import verify_tables
from ropewalk.pipeline.tables.warehouse import Warehouse
from tests.pipeline.tampering import TAMPERINGS, change_payload
from tests.pipeline.world import BOB, World, mostly_slow
from tests.waiting import LIMIT_S, Crew

pytestmark = [pytest.mark.timeout(400), pytest.mark.filterwarnings("ignore")]


def ingest(spark: Any, world: World, warehouse: Path, **options: Any) -> Any:
    return Ingest(spark, world.path, warehouse, now_ms=lambda: world.clock_ms, **options)


def keys_of(warehouse: Path, table: str) -> list[tuple[Any, ...]]:
    """What identifies the rows of a table, read by another library than the one that wrote them."""
    found = [
        row
        for path in sorted((warehouse / table).rglob("*.parquet"))
        for row in pq.read_table(
            path, columns=["engine", "topic", "entry_id", "content_id"], partitioning=None
        ).to_pylist()
    ]
    return sorted(tuple(str(value) for value in row.values()) for row in found)


def keys_in_log(world: World) -> list[tuple[Any, ...]]:
    table = to_arrow(world.path, columns="engine,topic,entry_id,content_id")
    return sorted(tuple(row.values()) for row in table.to_pylist())


def test_ingest_is_exactly_once_and_goes_on_where_it_ended(spark: Any, world: World, tmp_path: Path):
    warehouse = tmp_path / "tables"
    done = ingest(spark, world, warehouse, group="analytics", rows_per_batch=30).once()
    assert (done.rows, done.rejected) == (47, 0) and done.batches >= 2
    assert keys_of(warehouse, "events") == keys_in_log(world)
    cursor = read_cursor(GitStore(world.place), "analytics", "prod")
    assert cursor is not None and cursor.commit == to_arrow(world.path, topics="prod")["entry_id"][-1].as_py()

    again = ingest(spark, world, warehouse, group="analytics").once()
    assert (again.batches, again.rows) == (0, 0)

    world.git("prod", 4)
    world.ledger("ea.core", 5)
    world.gossip("com.example.chat", 2, key=BOB)
    more = ingest(spark, world, warehouse, group="analytics").once()
    assert more.rows == 11
    assert keys_of(warehouse, "events") == keys_in_log(world)

    report = verify_tables(spark, Warehouse(warehouse))
    assert report.ok and report.entries == 58, report.to_json()
    assert "events: 58 rows" in [f"{step.name}: {step.detail[:7]}" for step in report.steps]

    # Somebody edits a row, with the tools everybody has.
    path = next(
        path
        for path in sorted((warehouse / "events").rglob("*.parquet"))
        if "prod" in pq.read_table(path, partitioning=None)["topic"].to_pylist()
    )
    table = pq.read_table(path, partitioning=None)
    authors = table["author"].to_pylist()
    authors[0] = "Mallory <m@example.test>"
    import pyarrow as pa

    pq.write_table(table.set_column(table.column_names.index("author"), "author", pa.array(authors)), path)
    report = verify_tables(spark, Warehouse(warehouse))
    failed = {step.name: step.detail for step in report.steps if step.status == "failed"}
    assert "holds other bytes" in failed["files"]
    assert table["entry_id"][0].as_py() in failed["events"]


def test_a_strict_ingest_writes_nothing_of_a_log_that_does_not_verify(
    spark: Any, world: World, tmp_path: Path
):
    change_payload(world)
    with pytest.raises(Unverified, match=r"ea\.core.*block 2"):
        ingest(spark, world, tmp_path / "tables").once()
    assert Warehouse(tmp_path / "tables").manifests() == []


@pytest.mark.parametrize(
    "name", mostly_slow("changed payload", "changed blob", "corrupted segment", "changed message", fast=1)
)
def test_quarantine_puts_bad_entries_aside_with_their_reason(
    spark: Any, world: World, tmp_path: Path, name: str
):
    tampering = TAMPERINGS[name]
    tampering.act(world)
    warehouse = tmp_path / "tables"
    done = ingest(spark, world, warehouse, mode="quarantine").once()
    left = {"ledger": 47 - 20, "gitlog": 47 - 20, "gossip": 47 - 7}[tampering.engine] + tampering.left
    assert done.rows == left and done.rejected >= 1
    rejected = pq.read_table(next((warehouse / "events_rejected").rglob("*.parquet")), partitioning=None)
    assert all(rejected["detail"].to_pylist())
    assert ingest(spark, world, warehouse, mode="quarantine").once().batches == 0
    report, _ = verify_logs(spark, world.path)
    bad = [log for log in report.logs if log.detail is not None]
    assert [log.log.engine for log in bad] == [tampering.engine] and bad[0].entry


def test_batches_of_a_quarantine_are_as_small_as_they_were_asked_to_be(
    spark: Any, world: World, tmp_path: Path
):
    for name in ("corrupted segment", "lost commit", "dropped message"):
        TAMPERINGS[name].act(world)
    warehouse = tmp_path / "tables"
    sizes: list[int] = []
    done = ingest(
        spark,
        world,
        warehouse,
        mode="quarantine",
        rows_per_batch=12,
        told=lambda manifest: sizes.append(manifest.rows),
    ).once()
    assert done.batches == len(sizes) >= 3 and max(sizes) <= 12 + 4, "a block of four is not cut"
    whole = to_arrow(world.path, columns="engine,topic,entry_id,content_id", verify="quarantine")
    there = keys_of(warehouse, "events") + keys_of(warehouse, "events_rejected")
    assert sorted(there) == sorted(tuple(str(v) for v in row.values()) for row in whole.to_pylist())
    assert ingest(spark, world, warehouse, mode="quarantine", rows_per_batch=12).once().batches == 0


def test_history_rewritten_behind_a_recorded_head_is_refused(spark: Any, world: World, tmp_path: Path):
    warehouse = tmp_path / "tables"
    ingest(spark, world, warehouse, engine="gitlog").once()
    head = "refs/gatos/shiplog/prod/head"
    git = ["git", "-C", str(world.place.git_dir)]
    old = subprocess.run(
        [*git, "rev-parse", f"{head}~5"], check=True, capture_output=True, text=True
    ).stdout.strip()
    subprocess.run([*git, "update-ref", head, old], check=True)
    (world.place.home / "seen" / head).write_text(old + "\n")  # the repository's own memory is gone, too
    world.git("prod", 9)
    with pytest.raises(HistoryRewritten, match="prod"):
        ingest(spark, world, warehouse, engine="gitlog").once()
    report = verify_tables(spark, Warehouse(warehouse))
    assert any(step.name == "recorded_heads" and step.status == "failed" for step in report.steps)


def test_moved_repository_is_known_by_its_heads(spark: Any, world: World, tmp_path: Path):
    warehouse = tmp_path / "tables"
    ingest(spark, world, warehouse, engine="gitlog").once()
    other = World.make(tmp_path / "other.git")
    other.git("prod", 3)
    with pytest.raises(Conflict, match="holds tables of"):
        ingest(spark, other, warehouse, engine="gitlog").once()
    moved = World.make(world.path.rename(tmp_path / "moved.git"))
    with pytest.raises(NotFound, match="no git repository is there now"):
        verify_tables(spark, Warehouse(warehouse))
    with pytest.raises(HistoryRewritten):  # not the repository that was moved
        ingest(spark, other, warehouse, engine="gitlog").once()
    moved.git("prod", 1)
    assert ingest(spark, moved, warehouse, engine="gitlog").once().rows == 1
    assert verify_tables(spark, Warehouse(warehouse)).ok


def test_verify_names_a_file_that_is_missing_or_damaged(spark: Any, world: World, tmp_path: Path):
    """Rows of such a file cannot be read and compared; the report must say why, and not ask to try again."""
    store = Warehouse(tmp_path / "tables")
    ingest(spark, world, store.path, engine="gitlog", typed=True).once()
    typed = sorted(each.name for each in store.path.glob("events__*"))[0]
    for table in ("events", typed):
        (path,) = store.path.glob(f"{table}/**/*.parquet")
        raw = path.read_bytes()
        for damage in (lambda path=path, raw=raw: path.write_bytes(raw[:-8] + b"\0" * 8), path.unlink):
            damage()
            report = verify_tables(spark, store)
            (failed,) = [step for step in report.steps if step.status == "failed" and step.name == "files"]
            assert path.relative_to(store.path).as_posix() in failed.detail
            assert not report.ok
        path.write_bytes(raw)
    assert verify_tables(spark, store).ok


def test_row_groups_hold_one_log_and_its_times(world: World, tmp_path: Path):
    query = make_query({"repository": str(world.path), "columns": INGESTED})
    stage_group(query, query.ranges(), tmp_path)
    (path,) = tmp_path.glob("*-events.parquet")
    with pq.ParquetFile(path) as file:
        columns = ("engine", "topic", "height", "time")
        for number in range(file.num_row_groups):
            group = file.metadata.row_group(number)
            stats = {name: group.column(at).statistics for name, at in _leaves(group, columns).items()}
            assert stats["topic"].min == stats["topic"].max and stats["height"].has_min_max
            assert stats["time"].has_min_max or stats["engine"].min == "gossip"
        assert file.num_row_groups >= len(query.names())


def test_small_ingest_starts_no_session(world: World, tmp_path: Path):
    def start() -> Any:
        raise AssertionError("a session was started")

    warehouse = tmp_path / "tables"
    assert ingest(start, world, warehouse, typed=True, group="analytics").once().rows == 47
    assert ingest(start, world, warehouse).once().batches == 0
    world.git("prod", 4)
    assert ingest(start, world, warehouse).once().rows == 4
    assert keys_of(warehouse, "events") == keys_in_log(world)
    change_payload(world)
    with pytest.raises(Unverified):
        ingest(start, world, tmp_path / "other").once()
    assert not Warehouse(tmp_path / "other").manifests()


@pytest.mark.parametrize("seconds", [99_999_999_999_999, 999_999_999_999_999_999, -999_999_999_999_999_999])
def test_ingest_takes_authors_of_any_time(tmp_path: Path, seconds: int):
    """Whoever may push a commit chooses its author's date."""
    world = World.make(tmp_path / "log.git")
    (commit,) = world.messages("a", 1)
    shown = run_git(world.place.git_dir, "cat-file", "commit", commit).stdout
    odd = re.sub(rb"(author .*> )\d+", rb"\g<1>%d" % seconds, shown, count=1)
    assert odd != shown
    made = subprocess.run(
        ["git", "-C", world.path, "hash-object", "-t", "commit", "-w", "--literally", "--stdin"],
        input=odd,
        capture_output=True,
        check=True,
    )
    ref = "refs/gatos/messages/a/head"
    run_git(world.place.git_dir, "update-ref", ref, made.stdout.decode().strip())
    (world.place.home / "seen" / ref).unlink()
    warehouse = tmp_path / "tables"
    assert ingest(lambda: None, world, warehouse, typed=True).once().rows == 1
    (path,) = (warehouse / "commits").rglob("*.parquet")
    (row,) = pq.read_table(path, partitioning=None).to_pylist()
    assert row["author_time"] is None and row["time"] is not None


def test_ingest_names_a_truncated_file_it_looks_into(world: World, tmp_path: Path):
    """Envelopes of a batch are compared with recorded ones; Arrow's own error was shown as a defect of ropewalk."""

    def unused() -> Any:
        raise AssertionError("a session was started")

    store = Warehouse(tmp_path / "tables")
    ingest(unused, world, store.path, engine="ledger").once()
    world.ledger("audit", 2)
    (path,) = store.path.glob("events/**/*.parquet")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(Damaged, match=f"{path} cannot be read"):
        ingest(unused, world, store.path, engine="ledger").once()


@pytest.mark.parametrize("fault", ["flipped", "missing"])
@pytest.mark.parametrize(("table", "at"), [("events", -1), ("deployments", 0), ("deployments", -1)])
def test_writers_refuse_damaged_files_they_would_read(
    world: World, tmp_path: Path, table: str, at: int, fault: str
):
    """A file that is written from a damaged one would have a digest of its own: the damage would verify."""

    def unused() -> Any:
        raise AssertionError("a session was started")

    store = Warehouse(tmp_path / "tables")
    for _ in range(2):
        assert ingest(unused, world, store.path).once().rows > 0
        world.git("prod", 2)
    path = store.paths(store.current_files(store.manifests())[table])[at]  # the last holds open deployments
    if fault == "missing":
        path.unlink()
    else:
        raw = bytearray(path.read_bytes())
        raw[len(raw) // 3] ^= 1
        path.write_bytes(raw)
    kept = {each: each.read_bytes() for each in store.path.rglob("*.parquet")}
    write = (lambda: merge_files(store, 0)) if table == "events" else ingest(unused, world, store.path).once
    with pytest.raises(Damaged, match=f"{table}/.*(missing|other bytes)") as caught:
        write()
    assert "Restore" in caught.value.advice_now
    assert len(store.manifests()) == 2
    assert {each: each.read_bytes() for each in kept} == kept


@pytest.mark.parametrize("table", ["events", "events_rejected"])
@pytest.mark.parametrize("kept", [None, 100])
def test_ingest_names_damaged_rows_of_a_channel(world: World, tmp_path: Path, table: str, kept: int | None):
    """What a channel holds already is read from the tables: damage there ended as a defect of ropewalk."""
    store = Warehouse(tmp_path / "tables")
    ingest(lambda: None, world, store.path).once()
    world.ledger("ea.core", 4)
    (file,) = store.current_files(store.manifests())[table]
    (path,) = store.paths([file])
    raw = path.read_bytes()
    path.unlink()
    if kept is not None:
        path.write_bytes(raw[:kept])
    with pytest.raises(Damaged, match=f"{path} cannot be read"):
        ingest(lambda: None, world, store.path).once()
    assert len(store.manifests()) == 1


def test_large_ingest_starts_one_session(
    spark: Any, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("ropewalk.pipeline.jobs.ingest.ROWS_WITHOUT_SPARK", 20)
    started: list[Any] = []

    def stage(session: Any, *rest: Any) -> Any:
        started.append(session)
        return stage_ranges(session, *rest)

    monkeypatch.setattr("ropewalk.pipeline.jobs.ingest.stage_ranges", stage)
    job = ingest(lambda: spark, world, tmp_path / "tables", rows_per_batch=30)
    assert job.once().rows == 47
    assert started[0] is spark and all(each is spark for each in started[1:])
    world.git("prod", 2)
    assert job.once().rows == 2 and started[-1] is spark  # it is there already


def _leaves(group: Any, names: Iterable[str]) -> dict[str, int]:
    """The columns of a row group by name; lists make their numbers differ from those of the schema."""
    paths = [group.column(at).path_in_schema for at in range(group.num_columns)]
    return {name: paths.index(name) for name in names}


def test_full_disk_leaves_no_writer_that_tries_again(tmp_path: Path):
    class Full:
        is_open = True

        def close(self) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    stage, writer = _Stage(tmp_path, "part"), Full()
    stage._writers["events"] = writer
    with pytest.raises(OSError, match="No space"):
        stage.close()
    assert not writer.is_open


def test_follow_takes_in_what_comes_and_late_messages_too(spark: Any, world: World, tmp_path: Path):
    warehouse = tmp_path / "tables"
    ingest(spark, world, warehouse).once()
    arrived, stop = threading.Event(), threading.Event()
    rows: list[int] = []

    def told(manifest: Any) -> None:
        rows.append(manifest.rows)
        if sum(rows) >= 6:
            arrived.set()

    def run() -> None:
        ingest(spark, world, warehouse, told=told).follow(lambda: stop.is_set() or arrived.is_set())

    following = Crew(1).submit(run)
    try:
        world.git("prod", 3)
        world.gossip("com.example.chat", 3, key=BOB)
        assert arrived.wait(240)
    finally:
        stop.set()
    following.result(LIMIT_S)
    assert keys_of(warehouse, "events") == keys_in_log(world)
    assert ingest(spark, world, warehouse).once().rows == 0


def test_deployments_tell_what_stands_now_and_how_delivery_goes(spark: Any, tmp_path: Path):
    world = World.make(tmp_path / "log.git")
    world.git("prod", 2)
    world.git("prod", 1, status="failed")
    world.git("prod", 1)
    warehouse = tmp_path / "tables"
    ingest(spark, world, warehouse).once()
    table = pq.read_table(warehouse / "deployments").sort_by("height")
    rows = table.to_pylist()
    assert [row["current"] for row in rows] == [False, False, False, True]
    assert rows[2]["status"] == "failed" and rows[2]["recovery_s"] == 3600
    (measured,) = pq.read_table(warehouse / "deployment_measures").to_pylist()
    assert (measured["deployments"], measured["failures"], measured["failure_rate"]) == (4, 1, 0.25)


@pytest.mark.slow
def test_an_empty_log_makes_empty_tables(spark: Any, tmp_path: Path):
    world = World.make(tmp_path / "log.git")
    done = ingest(spark, world, tmp_path / "tables").once()
    assert (done.batches, done.rows) == (1, 0)
    assert (
        pq.read_table(next((tmp_path / "tables" / "events").rglob("*.parquet")), partitioning=None).num_rows
        == 0
    )
    assert verify_tables(spark, Warehouse(tmp_path / "tables")).ok
    world.git("prod", 1)
    assert ingest(spark, world, tmp_path / "tables").once().rows == 1
