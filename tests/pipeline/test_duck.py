"""SQL with DuckDB: the same tables as Spark sees, nothing else in reach, and no JVM."""

from __future__ import annotations

import importlib.metadata
import io
import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ropewalk.cli.common.suggest import did_you_mean
from ropewalk.cli.pipeline.doctor import _steps
from ropewalk.errors import Damaged, Invalid, NotFound, Unavailable, Unverified
from ropewalk.pipeline import sql
from ropewalk.pipeline.tables.duck import ask_duckdb, needs_spark, open_duckdb, read_parquet
from ropewalk.pipeline.tables.sql import ATTEMPTS, ask, damage_named, require_readable
from ropewalk.pipeline.tables.warehouse import Manifest, StoredFile, Warehouse
from tests.pipeline.test_delta import write
from tests.serving import serving
from tests.unit.cli.conftest import Answer, living_in


@pytest.fixture
def store(tmp_path: Path) -> Warehouse:
    made = Warehouse(tmp_path / "tables")
    with made.writing():
        write(made, 2, "events", "deployments")
        write(made, 1, "events", "deployments")
    return made


def test_duckdb_reads_only_files_of_the_manifests(store: Warehouse):
    extra = store.path / "events" / "batch=1" / "extra.parquet"
    extra.write_bytes(next((store.path / "events").rglob("part*.parquet")).read_bytes())
    assert ask_duckdb(store, "SELECT count(*) AS n FROM events", 1).to_json() == {
        "columns": ["n"],
        "rows": [[3]],
    }
    answer = ask_duckdb(store, "SELECT n, time FROM events ORDER BY n", 2)
    assert answer.rows[0] == (0, "2024-11-01T12:00:00+00:00") and len(answer.rows) == 2
    with pytest.raises(Invalid, match="disabled by configuration"):
        ask_duckdb(store, f"SELECT * FROM read_parquet('{extra}')", 1)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM read_text('{secret}')",
        "SELECT * FROM '{secret}'",
        "SELECT * FROM read_csv('https://127.0.0.1:1/x')",
        "COPY (SELECT 1) TO '{secret}'",
        "COPY (SELECT 1 AS n) TO '{table}' (FORMAT parquet)",
        "EXPLAIN ANALYZE COPY (SELECT 1 AS n) TO '{table}' (FORMAT parquet)",
        "ATTACH '{secret}'",
        "INSTALL httpfs",
        "LOAD json",
        "SET enable_external_access = true",
        "DROP VIEW events",
        "SELECT 1; SELECT 2",
        "",
    ],
)
def test_duckdb_reaches_nothing_else(store: Warehouse, query: str):
    secret = store.path.parent / "secret"
    secret.write_text("s3cret")
    before = {path: path.read_bytes() for path in store.path.rglob("*.parquet")}
    table = next(iter(before))
    with pytest.raises(Invalid) as caught:
        ask_duckdb(store, query.format(secret=secret, table=table), 1)
    assert "s3cret" not in caught.value.detail and len(caught.value.detail) <= 300
    assert secret.read_text() == "s3cret" and before == {path: path.read_bytes() for path in before}


def test_sql_from_python_gives_whole_typed_tables(store: Warehouse, tmp_path: Path):
    extra = store.path / "events" / "batch=1" / "extra.parquet"
    extra.write_bytes(next((store.path / "events").rglob("part*.parquet")).read_bytes())
    table = sql(store.path, "SELECT n, time, repeat('x', 9) AS text FROM events ORDER BY n, time")
    assert table.column_names == ["n", "time", "text"] and table["n"].to_pylist() == [0, 0, 1]
    assert str(table.schema.field("time").type) == "timestamp[us, tz=UTC]"
    assert sql(str(store.path), "SELECT * FROM range(200000)").num_rows == 200_000
    with pytest.raises(Invalid, match="one SELECT"):
        sql(store.path, f"COPY events TO '{tmp_path / 'out.csv'}'")
    with pytest.raises(NotFound):
        sql(tmp_path / "nowhere", "SELECT 1")


def test_duckdb_names_the_misspelt_table(store: Warehouse):
    with pytest.raises(Invalid) as caught:
        ask_duckdb(store, "SELECT * FROM evnts", 1, did_you_mean)
    assert caught.value.detail == "there is no table 'evnts'"
    assert caught.value.advice_now == "Did you mean events? The tables are deployments, events."
    with pytest.raises(Invalid, match="tme") as caught:
        ask_duckdb(store, "SELECT tme FROM deployments", 1, did_you_mean)
    assert '"time"' in caught.value.advice_now


@pytest.mark.parametrize("kept", [None, 100])
def test_duckdb_names_the_damaged_table(store: Warehouse, kept: int | None):
    """A table file that is missing or truncated is damage, with advice, not a defect of the program."""
    part = next((store.path / "events").rglob("part*.parquet"))
    raw = part.read_bytes()
    part.unlink()
    if kept is not None:
        part.write_bytes(raw[:kept])
    with pytest.raises(Damaged, match=f"{part} cannot be read") as caught:
        ask_duckdb(store, "SELECT count(*) FROM deployments", 1)
    assert "verify --tables" in caught.value.advice_now


def break_page(path: Path) -> bytes:
    """Overwrite the start of the first column, and leave the footer; return the file as it was."""
    raw = path.read_bytes()
    path.write_bytes(raw[:4] + b"\xff" * 30 + raw[34:])
    return raw


@pytest.mark.parametrize("query", ["SELECT sum(n) FROM events", "SELECT n, time FROM events"])
def test_duckdb_names_a_damaged_page(store: Warehouse, query: str):
    """DuckDB sees it only when it reads the rows; the query was blamed."""
    (part,) = (store.path / "events" / "batch=1").glob("*.parquet")
    break_page(part)
    with pytest.raises(Damaged, match=f"{part} cannot be read") as caught:
        ask_duckdb(store, query, 9)
    assert caught.value.exit_code == 5
    with pytest.raises(
        Invalid, match="Could not parse string"
    ):  # of the same class as damage, and about no file
        ask_duckdb(store, "SELECT strptime('x', '%Y')", 1)


def test_duckdb_reads_beside_a_table_that_lost_all_files(store: Warehouse):
    """A retry makes all tables anew, and may leave none of the rows of an event type."""
    with store.writing():
        typed = write(store, 1, "events__t").files["events__t"]
        write(store, 1, "events", replaces=(typed[0].name,))
    assert ask_duckdb(store, "SELECT count(*) FROM events", 1).rows == ((4,),)


class Overtaken(Warehouse):
    """A warehouse in which another writer replaces files after each of the first reads of the manifests."""

    writes = 2
    pause_s = 0.0

    def current_files(self, manifests: Iterable[Manifest]) -> dict[str, list[StoredFile]]:
        found = super().current_files(manifests)
        time.sleep(self.pause_s)
        if self.writes:
            self.writes -= 1
            with (other := Warehouse(self.path)).writing():
                write(other, 2, "deployments", "consumer_lag")
        return found


def test_duckdb_asks_again_beside_a_writer(store: Warehouse):
    query = "SELECT count(*), max(n) FROM deployments"
    assert ask_duckdb(Overtaken(store.path), query, 1).rows == ((2, 3),)
    shutil.rmtree(store.path / "deployments")
    with pytest.raises(Damaged, match="cannot be read"):  # no writer did that
        ask_duckdb(store, query, 1)


def test_duckdb_calls_no_busy_writer_damage(store: Warehouse):
    asked = Overtaken(store.path)
    asked.writes = ATTEMPTS
    with pytest.raises(Unavailable, match="a writer replaced files"):
        ask_duckdb(asked, "SELECT count(*) FROM deployments", 1)
    assert not asked.writes


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_spark_asks_again_and_names_damage(spark: Any, store: Warehouse):
    query = "SELECT count(*) AS n, max(n) AS newest FROM deployments"
    assert ask(spark, Overtaken(store.path), query, 1).rows == ((2, 3),)
    store.note("health", "run-1", pa.table({"n": [1]}))
    store.note("health", "run-2", pa.table({"n": [1]}))
    everything = "SELECT max(n), max(time) FROM events"
    for part in (*store.paths(store.current_files(store.manifests())["events"]), *store.noted("health")):
        raw = break_page(part)
        if "events" in part.parts:
            with pytest.raises(Damaged, match=f"{part} cannot be read"):
                ask(spark, store, everything, 1)
        part.write_bytes(raw[:100])
        with pytest.raises(Damaged, match=f"{part} cannot be read"):
            ask(spark, store, everything, 1)
        part.write_bytes(raw)
    assert ask(spark, store, "SELECT count(*) FROM health", 1).rows == ((2,),)


def test_duckdb_time_limit_covers_all_attempts(store: Warehouse):
    asked = Overtaken(store.path)
    asked.pause_s = 1.1
    with pytest.raises(Invalid, match="the query took more than 1 s"):
        ask_duckdb(asked, "SELECT count(*) FROM deployments", 1, seconds_max=1)
    assert asked.writes == 1


def test_served_tables_are_told_without_their_files(store: Warehouse, tmp_path: Path):
    """A writer removes files between the manifests and a look at the disk."""
    wanted = {
        name: (sum(each.rows for each in files), sum(each.size for each in files))
        for name, files in store.current_files(store.manifests()).items()
    }
    shutil.rmtree(store.path / "deployments")
    with serving(tmp_path, "--warehouse", str(store.path)) as server:
        told = server("GET", "/warehouse").json["tables"]
    assert {each["name"]: (each["rows"], each["bytes"]) for each in told} == wanted


def test_only_files_that_an_error_names_are_read(store: Warehouse):
    """A query must not read a whole warehouse because of one damaged file."""
    paths = sorted((store.path / "events").rglob("*.parquet"))
    for path in paths:
        path.write_bytes(b"")
    for path in paths:
        with pytest.raises(Damaged, match=f"{path} cannot be read"):
            require_readable(paths, ValueError(f"page of {path}"))


def test_damage_is_named_and_other_errors_stay(store: Warehouse, tmp_path: Path):
    paths = sorted((store.path / "events").rglob("*.parquet"))
    with pytest.raises(duckdb.BinderException), damage_named(*paths), open_duckdb() as connection:
        connection.execute(f"SELECT x FROM {read_parquet(paths)}")
    raw = paths[1].read_bytes()
    paths[1].write_bytes(raw[: len(raw) // 2])
    with (
        pytest.raises(Damaged, match=f"{paths[1]} cannot be read") as caught,
        damage_named(*paths),
        open_duckdb() as connection,
    ):
        connection.execute(f"SELECT n FROM {read_parquet(paths)}")
    assert caught.value.exit_code == 5 and "verify --tables" in caught.value.advice_now


def test_duckdb_refuses_a_poisoned_manifest(store: Warehouse, tmp_path: Path):
    path = sorted(store.batches.glob("*.json"))[0]
    path.write_bytes(path.read_bytes().replace(b"events/batch=1/", b"events/batch=9/"))
    with pytest.raises(Unverified):
        ask_duckdb(store, "SELECT 1", 1)


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("SELECT payload:n FROM events", True),
        ("SELECT payload : n :: int FROM events", True),
        ("SELECT n::int FROM events WHERE t = 'a:b' -- c:d", False),
        ("SELECT {{'a': 1}}, \"x:y\" /* p:q */ FROM events", False),
    ],
)
def test_variant_paths_are_left_to_spark(store: Warehouse, query: str, wanted: bool):
    assert needs_spark(query) is wanted
    if wanted:
        with pytest.raises(Invalid, match="column:member"):
            ask_duckdb(store, query, 1)


def test_sql_command_writes_json_csv_and_parquet(store: Warehouse, tmp_path: Path):
    ropewalk = living_in(tmp_path)

    def run(*arguments: str) -> Answer:
        return ropewalk("pipeline", "sql", "--warehouse", str(store.path), query, *arguments)

    query = "SELECT n, [n] AS ns FROM events ORDER BY n DESC"
    assert run("--json").json == {
        "columns": ["n", "ns"],
        "rows": [[1, [1]], [0, [0]], [0, [0]]],
        "truncated": False,
    }
    assert run("--format", "csv", "--limit", "1").text == "n,ns\n1,[1]\n"
    assert run("--format", "json", "--limit", "2").text == '{"n": 1, "ns": [1]}\n{"n": 0, "ns": [0]}\n'
    target = tmp_path / "answer.parquet"
    run("-o", str(target))
    assert pq.read_table(io.BytesIO(target.read_bytes())).column("n").to_pylist() == [1, 0, 0]
    assert run("--format", "parquet").code == 2
    query = "SELECT time, n > 0 AS some, 1.5::DECIMAL(4, 2) AS cost FROM events WHERE n > 5"
    run("--format", "parquet", "-o", str(target))
    assert pq.read_schema(target).types == [pa.timestamp("us", "UTC"), pa.bool_(), pa.decimal128(4, 2)]
    assert run("--format", "json").text == ""
    query = "SELECT n > 0 AS some FROM events ORDER BY n"
    assert run("--format", "csv", "--limit", "1").text == "some\nfalse\n"
    query = "SELECT 'nan'::DOUBLE AS x, [-'infinity'::DOUBLE] AS y"  # JSON has no such numbers
    assert run("--format", "json").text == '{"x": "nan", "y": ["-inf"]}\n'
    assert run("--json").json["rows"] == [["nan", ["-inf"]]]
    query = "SELECT n, n + 1 AS n FROM events ORDER BY ALL LIMIT 1"
    assert run("--json").json["rows"] == [[0, 1]]
    twice = run("--format", "json")  # an object would keep one of the two
    assert twice.code == 2 and "several columns with the name n" in twice.err


def test_sql_command_reports_rows_beyond_the_limit(store: Warehouse, tmp_path: Path):
    ropewalk = living_in(tmp_path)
    target = tmp_path / "answer.parquet"
    for limit, is_cut in (("2", True), ("3", False)):
        for given in (("--format", "csv"), ("-o", str(target))):
            answer = ropewalk(
                "pipeline",
                "sql",
                "--warehouse",
                str(store.path),
                "SELECT n FROM events",
                "--limit",
                limit,
                *given,
            )
            assert ("the answer has more than 2 rows" in answer.err) is is_cut
        assert pq.read_metadata(target).num_rows == int(limit)


@pytest.mark.parametrize(
    ("name", "form", "start"),
    [
        ("a.csv", (), b"n\n"),
        ("a", (), b"n\n"),
        ("a.jsonl", (), b'{"n": '),
        ("a.json", ("--format", "csv"), b"n\n"),
        ("a.txt", ("--format", "table"), "n\n─".encode()),
    ],
)
def test_sql_command_takes_the_format_from_the_name(
    store: Warehouse, tmp_path: Path, name: str, form: tuple[str, ...], start: bytes
):
    target = tmp_path / name
    living_in(tmp_path)(
        "pipeline", "sql", "--warehouse", str(store.path), "SELECT n FROM events", "-o", str(target), *form
    )
    assert target.read_bytes().startswith(start)


def test_payload_text_is_read_by_duckdb(tmp_path: Path):
    store = Warehouse(tmp_path / "tables")
    with store.writing():
        made = write(store, 1, "events")
        path = store.path / made.files["events"][0].name
        table: Any = pa.table({"payload": ['{"build":7,"service":"web"}']})
        pq.write_table(table, path)
    answer = ask_duckdb(store, "SELECT payload->>'$.service', (payload->>'build')::int FROM events", 1)
    assert answer.rows == (("web", 7),)


def test_doctor_checks_versions_and_the_warehouse(store: Warehouse, tmp_path: Path):
    ropewalk = living_in(tmp_path)
    found = ropewalk("pipeline", "doctor", "--warehouse", str(store.path), "--json")
    steps = {step["name"]: step["status"] for step in found.json["steps"]}
    assert found.code == 0 and found.json["verdict"] == "passed"
    assert {"pyspark", "duckdb", "java", "memory", "warehouse"} <= steps.keys()
    next((store.path / "events").rglob("*.parquet")).unlink()
    broken = ropewalk("pipeline", "doctor", "--warehouse", str(store.path))
    assert broken.code == 7 and "is missing" in broken.text


@pytest.mark.parametrize(
    ("version", "status", "said"),
    [
        ("4.1.4", "passed", "streams of logs need 4.2"),
        ("4.2.0", "passed", "4.2.0"),
        ("3.5.9", "failed", "must be 4.0 or later"),
    ],
)
def test_doctor_says_what_an_older_pyspark_lacks(
    monkeypatch: pytest.MonkeyPatch, version: str, status: str, said: str
):
    known = importlib.metadata.version
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: version if name == "pyspark" else known(name)
    )
    (step,) = [each for each in _steps(None) if each.name == "pyspark"]
    assert step.status == status and step.detail.endswith(said)
