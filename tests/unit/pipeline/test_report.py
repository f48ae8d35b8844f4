"""The page about a warehouse adds up: every event is in its chart, also those without a time. No Spark is started."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from html import unescape
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.pipeline.world import NOON_MS

from ropewalk.errors import Damaged
from ropewalk.pipeline.report.report import STRIPS_MAX, render
from ropewalk.pipeline.source.offsets import Offset
from ropewalk.pipeline.tables.duck import ask_duckdb
from ropewalk.pipeline.tables.warehouse import Manifest, StoredFile, Warehouse

NOON = datetime.fromtimestamp(NOON_MS / 1000, UTC)
EVENTS = pa.schema([("engine", pa.string()), ("topic", pa.string()), ("time", pa.timestamp("us", tz="UTC"))])


def warehouse(path: Path, rows: list[tuple[str, datetime | None]]) -> Warehouse:
    """A warehouse with these events, written as ingest does."""
    store = Warehouse(path)
    with store.writing():
        staged = store.staging("events")
        staged.mkdir(parents=True)
        found = [
            {"engine": "gossip" if topic == "chat" else "gitlog", "topic": topic, "time": time}
            for topic, time in rows
        ]
        table = pa.Table.from_pylist(found, schema=EVENTS)
        pq.write_table(table, staged / "part-0.parquet")
        files = {"events": store.put_in_place("events", 1)}
        store.commit(Manifest(1, None, "s", "strict", NOON_MS, Offset(), Offset(), (), files), [])
    return store


def chart(page: str) -> dict[tuple[str, str], int]:
    """What every row of the chart says: name and kind of row, number of events."""
    (section,) = re.findall(r"<section id=\"events-over-time\"><h2>Events over time.*?</section>", page)
    found: dict[tuple[str, str], int] = {}
    for name, note, rest in re.findall(
        r'<div class="row"><b>(.*?)<small>(.*?)</small></b>(.*?)</div>', section
    ):
        said = re.search(r"([\d,]+) events", f"{note} {rest}")
        assert said is not None
        kind = note if "<svg" not in rest else "drawn"
        assert (name, kind) not in found
        found[name, kind] = int(said[1].replace(",", ""))
    return found


CASES: dict[str, tuple[list[tuple[str, datetime | None]], dict[tuple[str, str], int]]] = {
    "with gossip": (
        [("prod", NOON)] * 3 + [("chat", None)] * 7,
        {("prod", "drawn"): 3, ("chat", "no time recorded"): 7},
    ),
    "only gossip": ([("chat", None)] * 2, {("chat", "no time recorded"): 2}),
    "a topic with both": (
        [("prod", NOON)] * 3 + [("prod", None)],
        {("prod", "drawn"): 3, ("prod", "no time recorded"): 1},
    ),
    "centuries": (
        [("old", datetime(1602, 1, 1, tzinfo=UTC)), ("prod", NOON), ("prod", NOON - timedelta(days=9))],
        {("old", "before the time drawn"): 1, ("prod", "drawn"): 2},
    ),
    "a topic called others": (
        [(f"t{number:02d}", NOON) for number in range(STRIPS_MAX + 3)] + [("others", None)],
        {(f"t{number:02d}", "drawn"): 1 for number in range(STRIPS_MAX)}
        | {("others", "drawn"): 3, ("others", "no time recorded"): 1},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_report_chart_adds_up(tmp_path: Path, case: str):
    rows, expected = CASES[case]
    page = render(warehouse(tmp_path / "tables", rows), NOON_MS)
    tiles = dict(re.findall(r'<dt>([a-z ]+)</dt><dd><a href="#logs">(\d+)</a>', page))
    assert int(tiles.pop("rows")) == len(rows) == sum(map(int, tiles.values()))
    assert tiles.get("messages", "0") == str(sum(topic == "chat" for topic, _time in rows))
    found = chart(page)
    assert found == expected
    assert sum(found.values()) == len(rows)


def test_report_counts_many_undated_topics(tmp_path: Path):
    rows: list[Any] = [(f"t{number:02d}", None) for number in range(STRIPS_MAX + 5)]
    found = chart(render(warehouse(tmp_path / "tables", rows), NOON_MS))
    assert len(found) == STRIPS_MAX + 1 and found["others", "no time recorded"] == 5
    assert sum(found.values()) == len(rows)


def add_lag(path: Path, behind: int) -> None:
    """Replace the table of how far consumers are behind."""
    store = Warehouse(path)
    with store.writing():
        known = store.manifests()
        staged = store.staging("consumer_lag")
        staged.mkdir(parents=True)
        pq.write_table(
            pa.table({"group": ["g"], "topic": ["prod"], "behind": [behind]}), staged / "part-0.parquet"
        )
        files = {"consumer_lag": store.put_in_place("consumer_lag", len(known) + 1)}
        made = Manifest(
            len(known) + 1, known[-1].digest, "s", "strict", NOON_MS, Offset(), Offset(), (), files
        )
        store.commit(made, known)


class Overtaken(Warehouse):
    """A warehouse in which another writer replaces a file after the first read of the manifests."""

    writes = 1

    def current_files(self, manifests: Iterable[Manifest]) -> dict[str, list[StoredFile]]:
        found = super().current_files(manifests)
        if self.writes:
            self.writes -= 1
            add_lag(self.path, 4_242)
        return found


def test_report_reads_again_beside_a_writer(tmp_path: Path):
    """A file that was replaced meanwhile was left out, and the page said that no consumer is behind."""
    store = warehouse(tmp_path / "tables", [("prod", NOON)])
    add_lag(store.path, 1)
    assert "4,242" in render(Overtaken(store.path), NOON_MS)


@pytest.mark.parametrize("kept", [None, 100])
def test_report_names_the_damaged_file(tmp_path: Path, kept: int | None):
    store = warehouse(tmp_path / "tables", [("prod", NOON)])
    (part,) = (store.path / "events").rglob("*.parquet")
    raw = part.read_bytes()
    part.unlink()
    if kept is not None:
        part.write_bytes(raw[:kept])
    with pytest.raises(Damaged, match=f"{part} cannot be read") as caught:
        render(store, NOON_MS)
    assert caught.value.exit_code == 5 and "verify --tables" in caught.value.advice_now


@pytest.mark.parametrize("table", ["health", "replays"])
def test_report_names_the_table_with_other_columns(tmp_path: Path, table: str):
    store = warehouse(tmp_path / "tables", [("prod", NOON)])
    (store.path / table).mkdir()
    pq.write_table(pa.table({"n": [1]}), store.path / table / "a.parquet")
    with pytest.raises(Damaged, match=f"{table} must have files with the columns channel, "):
        render(store, NOON_MS)


def test_report_tiles_lead_to_rows(tmp_path: Path):
    store = warehouse(tmp_path / "tables", [("o'hara", NOON), ("chat", None)])
    page = render(store, NOON_MS)
    ids = set(re.findall(r'<section id="([a-z-]+)">', page))
    links = re.findall(r'<dd><a href="#([a-z-]+)">', page)
    assert len(links) == 8 and set(links) <= ids
    assert all(re.findall(r'<dd class="means">(.*?)</dd>', page))
    queries = map(unescape, re.findall(r"<td>(SELECT .*?)</td>", page))
    assert [ask_duckdb(store, query, 9).rows[0][1] for query in queries] == ["o'hara", "chat"]
