"""Tables of event types: columns from payloads, new members as new columns, misfits in `_rest`, nothing lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.kernel import jcs
from ropewalk.pipeline.jobs.ingest import Ingest
from ropewalk.pipeline.tables.derive import events_schema
from ropewalk.pipeline.tables.duck import ask_duckdb
from ropewalk.pipeline.tables.typed import check_typed, infer_kinds, table_name, write_typed
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
    assert list(made) == ["events__deploy_finished"] and odd == {"events__deploy_finished": 1}
    old = made["events__deploy_finished"] / "part-0.parquet"
    rows = pq.read_table(old).to_pylist()
    assert [(row["build"], row["ok"], row["tags"], row["_rest"]) for row in rows] == [
        (1, True, None, None),
        (None, None, '["a"]', '{"build":"two"}'),
    ]
    second = write_events(tmp_path / "2.parquet", [{"build": 2.5, "service": "web"}, {"ok": False}], first=2)
    made, odd = write_typed([second], {"events__deploy_finished": old}, tmp_path / "two")
    new = made["events__deploy_finished"] / "part-0.parquet"
    assert pq.read_schema(new).field("build").type == pa.int64() and odd == {"events__deploy_finished": 1}
    assert pq.read_table(new)["service"].to_pylist() == ["web", None]
    assert check_typed([old, new], [first, second]) is None


def test_typed_check_finds_a_changed_value(tmp_path: Path):
    events = write_events(tmp_path / "1.parquet", [{"build": 1}])
    made, _ = write_typed([events], {}, tmp_path / "one")
    path = made["events__deploy_finished"] / "part-0.parquet"
    table = pq.read_table(path)
    pq.write_table(
        table.set_column(table.column_names.index("build"), table.schema.field("build"), [[2]]), path
    )
    assert "e0 differs from its event" in (check_typed([path], [events]) or "")


@given(st.lists(st.dictionaries(NAMES, VALUES, max_size=4) | VALUES, max_size=6))
@settings(deadline=None, max_examples=60)
def test_typed_rows_hold_the_whole_payload(tmp_path_factory: Any, payloads: list[Any]):
    folder = tmp_path_factory.mktemp("typed")
    events = write_events(folder / "1.parquet", payloads)
    made, _ = write_typed([events], {}, folder / "one")
    paths = [each / "part-0.parquet" for each in made.values()]
    assert sum(pq.read_metadata(path).num_rows for path in paths) == len(payloads)
    assert check_typed(paths, [events]) is None


def test_typed_names_are_plain_and_bounded(tmp_path: Path):
    assert table_name("A/../b" * 40).removeprefix("events__").replace("_", "").isalnum()
    assert len(table_name("x" * 999)) <= 68
    kinds = infer_kinds([{f"k{n}": n for n in range(999)}, {"K1": 1, "topic": 2, "_rest": 3, "a b": 4}], {})
    assert len(kinds) == 200 and not {"k1", "topic", "_rest", "a b"} & kinds.keys()  # K1 has the name
    events = [write_events(tmp_path / f"{n}.parquet", [{"n": n}], f"kind{n}", n) for n in range(210)]
    made, _ = write_typed(events, {}, tmp_path / "made")
    assert len(made) == 200


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
    world.git("prod", 1)
    assert ingest(typed=True).once().rows == 1
    world.git("prod", 1)
    assert ingest().once().rows == 1
    assert seen and all(rows <= total for rows, total in seen) and seen[-1] == (1, 1)
    typed = [name for name in store.table_names() if name.startswith("events__")]
    counted = ask_duckdb(store, "SELECT count(*) FROM events WHERE type IS NOT NULL", 1).rows[0][0]
    total = sum(ask_duckdb(store, f"SELECT count(*) FROM {name}", 1).rows[0][0] for name in typed)
    assert typed and total == counted
    report = verify_tables(spark, store)
    assert report.ok and report.to_json()["verdict"] == "passed"
    assert "typed_tables" in {step.name for step in report.steps}
