"""Tables of event types: columns from payloads, new members as new columns, misfits in `_rest`, nothing lost."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.errors import Damaged, Invalid, NotFound
from ropewalk.kernel import jcs
from ropewalk.pipeline.jobs.ingest import Ingest
from ropewalk.pipeline.tables import typed
from ropewalk.pipeline.tables.declared import DeclaredKinds, read_schemas
from ropewalk.pipeline.tables.derive import events_schema
from ropewalk.pipeline.tables.duck import ask_duckdb
from ropewalk.pipeline.tables.typed import (
    check_typed,
    choose_kinds,
    count_kinds,
    schema_kinds,
    table_name,
    write_typed,
)
from ropewalk.pipeline.tables.verify import verify_tables
from ropewalk.pipeline.tables.warehouse import Warehouse
from tests.pipeline.world import World

pytestmark = [pytest.mark.timeout(400), pytest.mark.filterwarnings("ignore")]
NUMBERS = st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(-1e15, 1e15)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
NAMES = st.sampled_from(["n", "N", "text", "topic", "_rest", "a b", "ok", ""])


def write_events(path: Path, payloads: list[Any], kind: str = "deploy.finished", first: int = 0) -> Path:
    """A file as ingest writes `events`, with these payloads."""
    rows = [
        {
            "engine": "gitlog",
            "topic": "prod",
            "entry_id": f"e{number}",
            "height": number,
            "type": kind,
            "payload": jcs.encode(payload).decode(),
            "verdict": "passed",
        }
        for number, payload in enumerate(payloads, first)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, events_schema()), path)
    return path


def test_typed_columns_grow_and_misfits_go_to_rest(tmp_path: Path):
    first = write_events(tmp_path / "1.parquet", [{"build": 1, "ok": True}, {"build": "two", "tags": ["a"]}])
    made, odd = write_typed([first], {}, tmp_path / "one")
    assert list(made) == ["events__deploy_finished"] and odd == {
        "events__deploy_finished": ["build of 1 rows (not bigint)"]
    }
    old = made["events__deploy_finished"] / "part-0.parquet"
    rows = pq.read_table(old).to_pylist()
    assert [(row["build"], row["ok"], row["tags"], row["_rest"]) for row in rows] == [
        (1, True, None, None),
        (None, None, '["a"]', '{"build":"two"}'),
    ]
    second = write_events(tmp_path / "2.parquet", [{"build": 2.5, "service": "web"}, {"ok": False}], first=2)
    made, odd = write_typed([second], {"events__deploy_finished": old}, tmp_path / "two")
    new = made["events__deploy_finished"] / "part-0.parquet"
    assert pq.read_schema(new).field("build").type == pa.int64()
    assert odd == {"events__deploy_finished": ["build of 1 rows (not bigint)"]}
    assert pq.read_table(new)["service"].to_pylist() == ["web", None]
    assert check_typed({"events__deploy_finished": [old, new]}, [first, second]) is None


def test_readers_see_columns_that_came_later(tmp_path: Path):
    newest: dict[str, Path] = {}
    for number, payload in enumerate(({"a": 1}, {"b": "x"})):
        events = write_events(tmp_path / f"{number}.parquet", [payload], first=number)
        made, _ = write_typed([events], newest, tmp_path / "tables" / f"batch={number}")
        newest = {name: folder / "part-0.parquet" for name, folder in made.items()}
    folder = tmp_path / "tables"
    wanted = [(1, None), (None, "x")]
    query = f"SELECT a, b FROM read_parquet('{folder}/**/*.parquet', union_by_name = true) ORDER BY height"
    assert duckdb.connect().execute(query).fetchall() == wanted
    found = polars.concat(map(polars.scan_parquet, sorted(folder.glob("**/*.parquet"))), how="diagonal")
    assert found.sort("height").select("a", "b").collect().rows() == wanted


def test_typed_check_finds_a_changed_value(tmp_path: Path):
    events = write_events(tmp_path / "1.parquet", [{"build": 1}])
    made, _ = write_typed([events], {}, tmp_path / "one")
    path = made["events__deploy_finished"] / "part-0.parquet"
    table = pq.read_table(path)
    pq.write_table(
        table.set_column(table.column_names.index("build"), table.schema.field("build"), [[2]]), path
    )
    assert "e0 differs from its event" in (check_typed({"events__deploy_finished": [path]}, [events]) or "")


def test_typed_check_finds_a_missing_row(tmp_path: Path):
    events = write_events(tmp_path / "1.parquet", [{"build": 1}, {"build": 2}])
    made, _ = write_typed([events], {}, tmp_path / "one")
    path = made["events__deploy_finished"] / "part-0.parquet"
    pq.write_table(pq.read_table(path).slice(1), path)
    assert check_typed({"events__deploy_finished": [path]}, [events]) == (
        "events__deploy_finished: 1 events have no row"
    )
    assert check_typed({"events__other": []}, [events]) == "events__deploy_finished: 2 events have no row"


def test_typed_truncated_files_are_named(tmp_path: Path):
    events = write_events(tmp_path / "1.parquet", [{"build": 1}])
    made, _ = write_typed([events], {}, tmp_path / "one")
    newest = {name: folder / "part-0.parquet" for name, folder in made.items()}
    (path,) = newest.values()
    raw = path.read_bytes()
    path.write_bytes(raw[:100])
    with pytest.raises(Damaged, match=f"{path} cannot be read"):
        write_typed([events], newest, tmp_path / "two")
    with pytest.raises(Damaged, match=f"{path} cannot be read"):
        check_typed({"events__deploy_finished": [path]}, [events])
    path.write_bytes(raw)
    events.write_bytes(events.read_bytes()[:100])
    with pytest.raises(Damaged, match=f"{events} cannot be read"):
        write_typed([events], newest, tmp_path / "three")


def test_typed_rest_is_reported_by_member(tmp_path: Path):
    payloads = [{"level": 1, "Level": "hi", "topic": "t", "user-id": n, "gone": None} for n in range(3)]
    _, rest = write_typed([write_events(tmp_path / "1.parquet", payloads)], {}, tmp_path / "one")
    assert rest == {
        "events__deploy_finished": [
            "level of 3 rows (no column)",
            "topic of 3 rows (no column)",
            "user-id of 3 rows (no column)",
        ]
    }


def test_typed_columns_come_from_a_schema(tmp_path: Path):
    first = write_events(tmp_path / "1.parquet", [{"total": 3, "note": 1, "id": "a"}, {"total": 4}])
    schema = {
        "properties": {
            "total": {"type": ["number", "null"]},
            "note": {"type": "string"},
            "later": {"type": "boolean"},
            "id": {"type": ["string", "integer"]},
        }
    }
    asked: list[str] = []

    def declared(name: str) -> dict[str, str]:
        asked.append(name)
        return schema_kinds(schema)

    made, rest = write_typed([first], {}, tmp_path / "one", declared)
    table = pq.read_table(made["events__deploy_finished"] / "part-0.parquet")
    assert asked == ["deploy.finished"] and "id of" not in str(rest)
    assert [(n, str(table.schema.field(n).type)) for n in ("id", "later", "note", "total")] == [
        ("id", "string"),
        ("later", "bool"),
        ("note", "string"),
        ("total", "double"),
    ]
    assert table["total"].to_pylist() == [3.0, 4.0] and table["_rest"].to_pylist() == ['{"note":1}', None]
    assert rest == {"events__deploy_finished": ["note of 1 rows (not string)"]}


def test_typed_rows_are_written_in_bounded_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(typed, "ROWS_READ", 3)
    monkeypatch.setattr(typed, "ROWS_HELD", 6)
    events = [write_events(tmp_path / f"{n}.parquet", [{"n": n}] * 10, first=10 * n) for n in range(2)]
    made, _ = write_typed(events, {}, tmp_path / "made")
    path = made["events__deploy_finished"] / "part-0.parquet"
    assert pq.read_metadata(path).num_rows == 20 and pq.read_metadata(path).num_row_groups > 2
    assert check_typed({"events__deploy_finished": [path]}, events) is None


@given(st.lists(st.dictionaries(NAMES, VALUES, max_size=4) | VALUES, max_size=6))
@settings(deadline=None, max_examples=60)
def test_typed_rows_hold_the_whole_payload(tmp_path_factory: Any, payloads: list[Any]):
    folder = tmp_path_factory.mktemp("typed")
    events = write_events(folder / "1.parquet", payloads)
    made, _ = write_typed([events], {}, folder / "one")
    paths = {name: [each / "part-0.parquet"] for name, each in made.items()}
    assert sum(pq.read_metadata(path).num_rows for (path,) in paths.values()) == len(payloads)
    assert check_typed(paths, [events]) is None


def test_typed_names_are_plain_and_bounded(tmp_path: Path):
    assert table_name("A/../b" * 40).removeprefix("events__").replace("_", "").isalnum()
    assert len(table_name("x" * 999)) <= 68
    found: dict[str, Counter[str]] = {}
    for payload in ({f"k{n}": n for n in range(999)}, {"K1": 1, "topic": 2, "_rest": 3, "a b": 4}):
        count_kinds(payload, found)
    kinds = choose_kinds(found, {}, {"topic": "string", "a-b": "string"})
    assert len(kinds) == 200 and not {"k1", "topic", "_rest", "a b"} & kinds.keys()  # K1 has the name
    events = [write_events(tmp_path / f"{n}.parquet", [{"n": n}], f"kind{n}", n) for n in range(210)]
    made, _ = write_typed(events, {}, tmp_path / "made")
    assert len(made) == 200


def test_typed_columns_follow_the_policy_of_a_channel(tmp_path: Path):
    schema = {"properties": {"ms": {"type": "number"}}}
    rules = [
        {"kind": "schema", "when": {"types": ["latency.*"]}, "schema": schema},
        {"kind": "signers"},
        {"kind": "schema", "schema": {"properties": {"ms": {"type": "string"}, "ok": {"type": "boolean"}}}},
    ]

    class Channels:
        def topics(self) -> list[str]:
            return ["metrics", "plain", "broken"]

        def channel(self, topic: str) -> Any:
            if topic == "broken":
                raise NotFound("no settings")
            return SimpleNamespace(policy=SimpleNamespace(rules=rules) if topic == "metrics" else None)

    declared = DeclaredKinds({"mine": schema}, Channels())  # type: ignore[arg-type]
    assert declared("latency.measured") == {"ms": "double", "ok": "boolean"}
    assert declared("other") == {"ms": "string", "ok": "boolean"} and declared("mine") == {"ms": "double"}


def test_schema_files_are_read_or_refused(tmp_path: Path):
    path = tmp_path / "order.json"
    path.write_text('{"properties": {"id": {"type": "integer"}}}', encoding="utf-8")
    assert read_schemas({"order": path}) == {"order": {"properties": {"id": {"type": "integer"}}}}
    path.write_text("[]", encoding="utf-8")
    with pytest.raises(Invalid, match='must be a JSON Schema with "properties"'):
        read_schemas({"order": path})
    with pytest.raises(NotFound, match="there is no file"):
        read_schemas({"order": tmp_path / "none.json"})


@pytest.mark.slow
def test_typed_tables_are_kept_verified_and_queried(spark: Any, world: World, tmp_path: Path):
    store = Warehouse(tmp_path / "tables")
    seen: list[tuple[int, int]] = []

    def ingest(**options: Any) -> Ingest:
        return Ingest(
            spark,
            world.path,
            store.path,
            now_ms=lambda: 0,
            on_progress=lambda *now: seen.append(now),
            **options,
        )

    assert ingest().once().rows == 47
    asked_later = ingest(typed=True).once()
    assert (asked_later.batches, asked_later.rows) == (1, 0)  # nothing is new, and the tables are made
    assert ingest(typed=True).once().batches == 0
    world.git("prod", 1)
    assert ingest().once().rows == 1
    world.git("prod", 1)
    assert ingest().once().rows == 1
    assert seen and all(rows <= total for rows, total in seen) and seen[-1] == (1, 1)
    names = [name for name in store.table_names() if name.startswith("events__")]
    counted = ask_duckdb(store, "SELECT count(*) FROM events WHERE type IS NOT NULL", 1).rows[0][0]
    total = sum(ask_duckdb(store, f"SELECT count(*) FROM {name}", 1).rows[0][0] for name in names)
    assert names and total == counted
    report = verify_tables(spark, store)
    assert report.ok and report.to_json()["verdict"] == "passed"
    assert "typed_tables" in {step.name for step in report.steps}
