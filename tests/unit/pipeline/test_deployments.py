"""The tables about deployments, made batch by batch on top of what is recorded, and made at once."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.pipeline.tables import deployments
from ropewalk.pipeline.tables.deployments import write_deployments
from ropewalk.pipeline.tables.derive import events_schema
from ropewalk.pipeline.tables.table_files import OPEN_FILE, is_replaced

TABLES = ("deployments", "deployment_measures")
DEPLOYMENTS = st.tuples(
    st.sampled_from(("success", "failed", "revert", "other")),
    st.sampled_from(("web", "api")),
    st.one_of(st.none(), st.integers(0, 59)),  # the minute of its end
    st.sampled_from(("prod", "it's")),
)


def event(height: int, status: str, service: str, minute: int | None, topic: str = "prod") -> dict[str, Any]:
    when = {"start_ts": "2024-11-01T12:00:00Z"}
    if minute is not None:
        when["end_ts"] = f"2024-11-01T13:{minute:02d}:00Z"
    trailer = {"status": status, "what": {"service": service, "artifact": "a"}, "when": when}
    known = {"engine": "gitlog", "topic": topic, "entry_id": f"{height:040x}", "verdict": "passed"}
    return {**known, "height": height, "payload": "{}", "entry": json.dumps({"trailer": trailer})}


def make(folder: Path, rows: list[dict[str, Any]], recorded: list[Path]) -> tuple[list[Path], Path]:
    """Return all files of the table `deployments` after a batch, and the one of its measures."""
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist(rows, events_schema()), folder / "events.parquet")
    write_deployments([folder / "events.parquet"], recorded, *(folder / name for name in TABLES))
    stay = [path for path in recorded if not is_replaced(path.as_posix())]
    return [*stay, *(folder / TABLES[0]).glob("*.parquet")], folder / TABLES[1] / "part-0.parquet"


def rows_of(files: list[Path]) -> list[dict[str, Any]]:
    return sorted(chain(*(pq.read_table(file).to_pylist() for file in files)), key=lambda row: row["height"])


@settings(max_examples=25)
@given(
    batches=st.lists(st.lists(DEPLOYMENTS, min_size=1, max_size=6), min_size=1, max_size=4),
    at_once=st.integers(1, 4),
)
def test_batches_make_the_tables_of_one_run(tmp_path_factory: Any, batches: list[list[Any]], at_once: int):
    """However many are computed at once."""
    folder = tmp_path_factory.mktemp("deployments")
    every = [event(height, *each) for height, each in enumerate(chain(*batches))]
    start, measures = 0, Path()
    files: list[Path] = []
    with (
        patch.object(deployments, "HEIGHTS", 1),
        patch.object(deployments, "ROWS_AT_ONCE", at_once),
    ):
        for number, batch in enumerate(batches):
            files, measures = make(folder / str(number), every[start : start + len(batch)], files)
            start += len(batch)
    whole, wanted = make(folder / "whole", every, [])
    assert rows_of(files) == rows_of(whole)
    assert [row["height"] for row in rows_of(files)] == list(range(len(every)))
    assert rows_of_measures(measures) == rows_of_measures(wanted)
    assert rows_of_measures(wanted) == measured(rows_of(whole))


def rows_of_measures(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows


def measured(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the measures, counted by hand."""
    found = []
    delivered = [row for row in rows if row["status"] != "other"]
    for env, service in sorted({(row["env"], row["service"]) for row in delivered}):
        mine = [row for row in delivered if (row["env"], row["service"]) == (env, service)]
        ends = [row["ended"] for row in mine if row["ended"] is not None]
        leads = [row["lead_time_s"] for row in mine if row["lead_time_s"] is not None]
        recovered = [row["recovery_s"] for row in mine if row["recovery_s"] is not None]
        failures = sum(row["status"] in ("failed", "revert") for row in mine)
        found.append(
            {
                "env": env,
                "service": service,
                "deployments": len(mine),
                "failures": failures,
                "first": min(ends, default=None),
                "last": max(ends, default=None),
                "per_week": float(len(mine)),
                "failure_rate": round(failures / len(mine), 6),
                "lead_time_median_s": float(median(leads)) if leads else None,
                "recovery_mean_s": round(sum(recovered) / len(recovered), 3) if recovered else None,
            }
        )
    return found


def test_settled_rows_are_written_once(tmp_path: Path):
    first = [event(0, "success", "web", 1), event(1, "failed", "web", 2), event(2, "success", "web", 3)]
    files, _ = make(tmp_path / "1", first, [])
    settled, open_ = sorted(files, key=lambda path: path.name == OPEN_FILE)
    assert ([row["height"] for row in rows_of([settled])], pq.read_table(open_)["height"].to_pylist()) == (
        [0, 1],
        [2],
    )
    files, _ = make(tmp_path / "2", [event(3, "success", "api", 4)], files)
    assert [(path.name, pq.read_metadata(path).num_rows) for path in files[1:]] == [(OPEN_FILE, 2)]


def test_one_file_of_an_earlier_version_is_split(tmp_path: Path):
    rows = [event(height, "success", "web", height) for height in range(4)]
    files, wanted = make(tmp_path / "1", rows, [])
    earlier = tmp_path / "batch-1.parquet"
    pq.write_table(pa.concat_tables([pq.read_table(path) for path in files]), earlier)
    later = [event(4, "failed", "web", 5)]
    files, measures = make(tmp_path / "2", later, [earlier])
    whole, wanted = make(tmp_path / "whole", [*rows, *later], [])
    assert earlier not in files and rows_of(files) == rows_of(whole)
    assert rows_of_measures(measures) == rows_of_measures(wanted)


def test_times_beyond_the_calendar_are_null(tmp_path: Path):
    """An event can name any time; DuckDB reads these, other readers of tables raise."""
    odd = ("infinity", "294246-12-31T00:00:00Z", "0001-01-01 (BC) 00:00:00+00", "2024-11-01T12:30:00Z")
    rows = [
        {**event(height, "success", "web", 0), "payload": json.dumps({"committed_at": text})}
        for height, text in enumerate(odd)
    ]
    files, _ = make(tmp_path / "1", rows, [])
    found = [(row["committed"] is None, row["lead_time_s"]) for row in rows_of(files)]
    assert found == [(True, 3600)] * 3 + [(False, 1800)]
